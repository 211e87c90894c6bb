"""Planted answers to exercise 07: each wrong one must fail with these words, each right one pass."""


# %% wrong 07.1 | would do
def pieces(block_table, start, end, block_size):  # the lesson's slot, one by one
    return [
        (block_table[p // block_size] * block_size + p % block_size, 1) for p in range(start, end)
    ]


# %% wrong 07.1 | would do
def pieces(block_table, start, end, block_size):  # never joined
    found = []
    while start < end:
        stop = min(end, (start // block_size + 1) * block_size)
        slot = block_table[start // block_size] * block_size + start % block_size
        found.append((slot, stop - start))
        start = stop
    return found


# %% wrong 07.1 | lives in slot
def pieces(block_table, start, end, block_size):  # as if it lay in one piece
    return [(block_table[start // block_size] * block_size + start % block_size, end - start)]


# %% wrong 07.1 | slots, for
def pieces(block_table, start, end, block_size):  # the end too
    slots = [
        block_table[min(p // block_size, len(block_table) - 1)] * block_size + p % block_size
        for p in range(start, end + 1)
    ]
    return [(slot, 1) for slot in slots]


# %% wrong 07.1 | without a slot
def pieces(block_table, start, end, block_size):  # a piece for nothing
    slot = block_table[start // block_size] * block_size + start % block_size
    stop = min(end, (start // block_size + 1) * block_size)
    rest = pieces(block_table, stop, end, block_size) if stop < end else []
    if rest and rest[0][0] == slot + stop - start:
        return [(slot, stop - start + rest[0][1]), *rest[1:]]
    return [(slot, stop - start), *rest]


# %% right 07.1 | block by block, numpy
import numpy as np


def pieces(block_table, start, end, block_size):
    if start == end:
        return []
    positions = np.arange(start, end)
    slots = np.array(block_table)[positions // block_size] * block_size + positions % block_size
    cuts = np.flatnonzero(np.diff(slots) != 1) + 1
    return [[piece[0], len(piece)] for piece in np.split(slots, cuts)]


# %% wrong 07.2 | so it takes one ahead
AheadKV = PagedKV


# %% wrong 07.2 | needs 2 blocks
class AheadKV(PagedKV):  # beyond the longest answer
    spare = 2

    def allocate(self, request, num_tokens, keep_free=0):
        have = len(request.block_table)
        new = -(-(request.num_computed_tokens + num_tokens) // self.block_size) - have
        if new > self.num_free_blocks - keep_free:
            return False
        if new > 0:
            self.pool.take(request, new + (have > 0 and self.num_free_blocks - new > self.spare))
        return True


# %% wrong 07.2 | stay free
class AheadKV(PagedKV):  # forgets the spare ones
    spare = 2

    def allocate(self, request, num_tokens, keep_free=0):
        size, have = self.block_size, len(request.block_table)
        new = -(-(request.num_computed_tokens + num_tokens) // size) - have
        if new > self.num_free_blocks - keep_free:
            return False
        if new > 0:
            more = have > 0 and (have + new) * size < request.max_num_tokens - 1
            self.pool.take(request, new + (more and self.num_free_blocks > new))
        return True


# %% wrong 07.2 | takes what its tokens need
class AheadKV(PagedKV):  # newcomers, too
    spare = 2

    def allocate(self, request, num_tokens, keep_free=0):
        size, have = self.block_size, len(request.block_table)
        new = -(-(request.num_computed_tokens + num_tokens) // size) - have
        if new > self.num_free_blocks - keep_free:
            return False
        if new > 0:
            more = (have + new) * size < request.max_num_tokens - 1
            self.pool.take(request, new + (more and self.num_free_blocks - new > self.spare))
        return True


# %% wrong 07.2 | it must say True or False
class AheadKV(PagedKV):
    spare = 2

    def allocate(self, request, num_tokens, keep_free=0):
        new = -(-(request.num_computed_tokens + num_tokens) // self.block_size)
        self.pool.take(request, max(0, new - len(request.block_table)))


# %% right 07.2 | with the library's own part
class AheadKV(PagedKV):
    def allocate(self, request, num_tokens, keep_free=0):
        had = len(request.block_table)
        if not super().allocate(request, num_tokens, keep_free):
            return False
        grew = 0 < had < len(request.block_table)
        useful = request.num_slots < request.max_num_tokens - 1
        if grew and useful and self.num_free_blocks - 1 >= self.spare:
            self.pool.take(request, 1)
        return True


# %% wrong 07.3 | count tokens from 1
first_bad, bad = 11, 5
to_read = slots_read

# %% wrong 07.3 | which is the first row
first_bad, bad = 1, 5
to_read = slots_read

# %% wrong 07.3 | rows with red
first_bad, bad = 12, 60
to_read = slots_read

# %% wrong 07.3 | is not read
first_bad, bad = 12, 5
to_read = slots_read

# %% wrong 07.3 | no token of it lies there
first_bad, bad = 12, 5


def to_read(block_table, context_len, block_size):  # whole pages
    pages = -(-context_len // block_size)
    return [block_table[page] * block_size + i for page in range(pages) for i in range(block_size)]


# %% right 07.3 | position by position, any order
import numpy as np

first_bad, bad = 12.0, np.int64(5)


def to_read(block_table, context_len, block_size):
    positions = np.arange(context_len)[::-1]
    return np.array(block_table)[positions // block_size] * block_size + positions % block_size


# %% wrong 07.4 | is for the prompts alone
blocks_used = sum(-(-prompt // mine["block_size"]) for _, _, prompt, _ in mine["requests"])
empty_slots, gain = 0, 1.0

# %% wrong 07.4 | a last block of its own
tokens = sum(prompt + mine["step"] - 1 for _, _, prompt, _ in mine["requests"])
blocks_used = -(-tokens // mine["block_size"])
empty_slots, gain = 0, 1.0

# %% wrong 07.4 | counts full blocks
blocks_used = sum(
    (prompt + mine["step"] - 1) // mine["block_size"] for _, _, prompt, _ in mine["requests"]
)
empty_slots, gain = 0, 1.0

# %% wrong 07.4 | off by one per request
now = [prompt + mine["step"] - 1 for _, _, prompt, _ in mine["requests"]]
blocks_used = sum(-(-n // mine["block_size"]) for n in now)
empty_slots = blocks_used * mine["block_size"] - sum(now) - len(now)
gain = 1.0

# %% wrong 07.4 | reserved memory over time with pages
now = [prompt + mine["step"] - 1 for _, _, prompt, _ in mine["requests"]]
blocks_used = sum(-(-n // mine["block_size"]) for n in now)
empty_slots = blocks_used * mine["block_size"] - sum(now)
gain = 1.0  # one user's

# %% right 07.4 | everything measured
from toyserve.replay import replay_memory

run = serve(mine, ContinuousScheduler(8), kv=PagedKV(200, mine["block_size"]))
memory = next(m for step, m in replay_memory(run) if step.index == mine["step"] - 1)
blocks_used, empty_slots = memory.num_used_blocks, memory.num_wasted_slots
pool = mine["slots_in_all"] // mine["block_size"]
paged = crowd_run(mine, PagedKV(pool, mine["block_size"])).summary()["makespan_s"]
old = ReservedKV(pool, mine["block_size"], max_model_len=mine["max_model_len"])
gain = crowd_run(mine, old).summary()["makespan_s"] / paged

# %% wrong 07.5 | the last pages are too large
block_size = 128

# %% wrong 07.5 | may be looked up
block_size = 1

# %% wrong 07.5 | a whole number from 1 to 2,048
block_size = 0

# %% right 07.5 | the largest that meets the first target
block_size = max(size for size in range(8, 33) if size_costs(readers, size)[0] <= readers["empty"])
