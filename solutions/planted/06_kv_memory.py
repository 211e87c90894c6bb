"""Planted answers to exercise 06: each wrong one must fail with these words, each right one pass."""

# %% wrong 06.1 | is that of the keys alone
token_bytes = mine["layers"] * mine["kv_heads"] * mine["head_dim"] * mine["bytes_per_number"]
long_ones, slower = 1, 1.0

# %% wrong 06.1 | is that of one layer
token_bytes = 2 * mine["kv_heads"] * mine["head_dim"] * mine["bytes_per_number"]
long_ones, slower = 1, 1.0

# %% wrong 06.1 | without a model
token_bytes = 2 * mine["layers"] * mine["kv_heads"] * mine["head_dim"] * mine["bytes_per_number"]
long_ones = int(
    (1e9 * mine["memory_gb"] * mine["share_in_use"] / token_bytes
     - mine["num_short"] * mine["short_tokens"]) / mine["long_tokens"]
)  # fmt: skip
slower = 1.0

# %% wrong 06.1 | the short ones are there already
token_bytes = cost.model.kv_bytes_per_token
long_ones = 1e9 * (mine["memory_gb"] * mine["share_in_use"] - mine["weights_gb"])
long_ones = int(long_ones / token_bytes / mine["long_tokens"])
slower = 1.0

# %% wrong 06.1 | the wrong way round
token_bytes = cost.model.kv_bytes_per_token
room = 1e9 * (mine["memory_gb"] * mine["share_in_use"] - mine["weights_gb"]) / token_bytes
long_ones = int((room - mine["num_short"] * mine["short_tokens"]) / mine["long_tokens"])
first = [(mine["short_tokens"], 1)] * mine["num_short"]
slower = cost.time_of_rows(first) / cost.time_of_rows(
    first + [(mine["long_tokens"], 1)] * long_ones
)

# %% right 06.1 | numpy numbers, and the model's own bytes
import numpy as np

token_bytes = np.float64(cost.model.kv_bytes_per_token)
room = 1e9 * (mine["memory_gb"] * mine["share_in_use"] - mine["weights_gb"]) / token_bytes
long_ones = np.floor((room - mine["num_short"] * mine["short_tokens"]) / mine["long_tokens"])
first = [(mine["short_tokens"], 1)] * mine["num_short"]
slower = cost.time_of_rows(first + [(mine["long_tokens"], 1)] * int(long_ones))
slower /= cost.time_of_rows(first)


# %% wrong 06.2 | and that is enough
BestFit = ContiguousKV  # the lesson's


# %% wrong 06.2 | of equals the first is taken
class BestFit(ContiguousKV):
    def first_fit(self, num_blocks):
        enough = [hole for hole in self.holes() if hole[1] >= num_blocks]
        return min(reversed(enough), key=lambda hole: hole[1], default=(None,))[0]


# %% wrong 06.2 | your code stopped with: min()
class BestFit(ContiguousKV):  # nobody fits
    def first_fit(self, num_blocks):
        return min((hole for hole in self.holes() if hole[1] >= num_blocks), key=lambda h: h[1])[0]


# %% wrong 06.2 | in the middle of a hole
class BestFit(ContiguousKV):  # at the far end of the hole
    def first_fit(self, num_blocks):
        enough = [hole for hole in self.holes() if hole[1] >= num_blocks]
        start, length = min(enough, key=lambda hole: hole[1], default=(0, num_blocks))
        return start + length - num_blocks if enough else None


# %% right 06.2 | sorted, with numpy
import numpy as np


class BestFit(ContiguousKV):
    def first_fit(self, num_blocks):
        for length, start in sorted((length, start) for start, length in self.holes()):
            if length >= num_blocks:
                return int(np.int64(start))
        return None


# %% right 06.2 | from the owners, without holes()
class BestFit(ContiguousKV):
    def first_fit(self, num_blocks):
        best, start = None, 0
        for block in range(len(self.owners) + 1):
            if block < len(self.owners) and self.owners[block] is None:
                continue
            length = block - start
            if length >= num_blocks and length > 0 and (best is None or length < best[0]):
                best = (length, start)
            start = block + 1
        return best and best[1]


# %% wrong 06.3 | is every other hole really too small
def wasted(blocks, block_size, need):  # the lesson's external fragmentation
    internal = sum(block_size - tokens for tokens in blocks if tokens is not None)
    holes = [0]
    for entry in blocks:
        holes = [*holes[:-1], holes[-1] + 1] if entry is None else [*holes, 0]
    return internal, block_size * (sum(holes) - max(holes))


# %% wrong 06.3 | misses the hole at the end of memory
def wasted(blocks, block_size, need):
    internal = sum(block_size - tokens for tokens in blocks if tokens is not None)
    external = length = 0
    for entry in blocks:
        if entry is None:
            length += 1
        else:
            external += length * (length < need)
            length = 0
    return internal, external * block_size


# %% wrong 06.3 | slots are asked for
def wasted(blocks, block_size, need):
    internal = sum(block_size - tokens for tokens in blocks if tokens is not None)
    text = "".join("." if tokens is None else "#" for tokens in blocks)
    return internal, sum(len(hole) for hole in text.split("#") if len(hole) < need)


# %% wrong 06.3 | counts free blocks, too
def wasted(blocks, block_size, need):
    text = "".join("." if tokens is None else "#" for tokens in blocks)
    external = block_size * sum(len(hole) for hole in text.split("#") if len(hole) < need)
    return sum(block_size - (tokens or 0) for tokens in blocks), external


# %% wrong 06.3 | everything that is free
def wasted(blocks, block_size, need):
    internal = sum(block_size - tokens for tokens in blocks if tokens is not None)
    return internal, block_size * sum(tokens is None for tokens in blocks)


# %% right 06.3 | with groupby, as a numpy array
from itertools import groupby

import numpy as np


def wasted(blocks, block_size, need):
    external = 0
    for free, group in groupby(blocks, key=lambda entry: entry is None):
        length = len(list(group))
        external += length if free and length < need else 0
    taken = np.array([entry for entry in blocks if entry is not None])
    return np.array([block_size * len(taken) - taken.sum(), external * block_size], dtype=int)


# %% wrong 06.4 | are not all of the leakers
leakers, lost = "A", 3
Mended = Ledger

# %% wrong 06.4 | where it leaves no block turns red
leakers, lost = ["A", "B", "C"], 3
Mended = Ledger

# %% wrong 06.4 | another number of blocks
leakers, lost = ["A", "C"], 2
Mended = Ledger

# %% wrong 06.4 | what did somebody leave behind
leakers, lost = ["A", "C"], 3
Mended = Ledger


# %% wrong 06.4 | the books call
leakers, lost = ["A", "C"], 3


class Mended(Ledger):  # believes that blocks are cut too early
    def allocate(self, request, num_tokens, keep_free=0):
        known = request in self.slabs
        gaps = list(self.gaps)
        granted = super().allocate(request, num_tokens, keep_free)
        if known:
            self.gaps = gaps
        return granted


# %% right 06.4 | noted where it grows
leakers, lost = {"C", "A"}, 3.0


class Mended(Ledger):
    def allocate(self, request, num_tokens, keep_free=0):
        granted = super().allocate(request, num_tokens, keep_free)
        if request.block_table:
            self.slabs[request] = (request.block_table[0], len(request.block_table))
        return granted


# %% right 06.4 | one book
leakers, lost = ("A", "C"), 3


class Mended(Ledger):
    allocate, free, holes = ContiguousKV.allocate, ContiguousKV.free, ContiguousKV.holes


# %% wrong 06.5 | are sent away
max_model_len = 100

# %% wrong 06.5 | tokens reserved there are
max_model_len = 1024

# %% wrong 06.5 | a whole number of tokens
max_model_len = 0.5

# %% right 06.5 | exactly as long as the longest that stays
max_model_len = lengths[-1 - tonight["refused"]]
