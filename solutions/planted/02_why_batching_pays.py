"""Planted answers to exercise 02: each wrong one must fail with these words, each right one pass."""


# %% wrong 02.1 | the rows share them
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    moved = rows * (wide_in * wide_out + wide_in + wide_out) * num_bytes
    return max(moved / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):
    return 1


# %% wrong 02.1 | adds the two times
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    moved = (wide_in * wide_out + rows * wide_in + rows * wide_out) * num_bytes
    return moved / bandwidth + 2 * rows * wide_in * wide_out / peak


def nearly_free(slack, **layer):
    return 1


# %% wrong 02.1 | forgets the numbers that go in and come out
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    return max(wide_in * wide_out * num_bytes / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):
    return 1


# %% wrong 02.1 | takes the matrix for a square
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):  # the lesson's
    moved = (wide_in * wide_out + rows * 2 * wide_in) * num_bytes
    return max(moved / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):
    return 1


# %% wrong 02.1 | one row more would still be within
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    moved = (wide_in * wide_out + rows * wide_in + rows * wide_out) * num_bytes
    return max(moved / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):
    return 1


# %% wrong 02.1 | need longer than
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    moved = (wide_in * wide_out + rows * wide_in + rows * wide_out) * num_bytes
    return max(moved / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):  # the ridge, whatever the slack
    return int(layer["peak"] / layer["bandwidth"])


# %% wrong 02.1 | had not ended after
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    moved = (wide_in * wide_out + rows * wide_in + rows * wide_out) * num_bytes
    return max(moved / bandwidth, 2 * rows * wide_in * wide_out / peak)


def nearly_free(slack, **layer):
    rows = 1
    while seconds(rows, **layer) <= (1 + slack) * seconds(rows, **layer):
        rows += 1
    return rows


# %% right 02.1 | solved, not searched
import math


def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    weights = wide_in * wide_out
    by_memory = num_bytes * (weights + rows * (wide_in + wide_out)) / bandwidth
    by_arithmetic = 2 * rows * weights / peak
    return by_memory if by_memory > by_arithmetic else by_arithmetic


def nearly_free(slack, wide_in, wide_out, num_bytes, bandwidth, peak):
    weights, around = wide_in * wide_out, wide_in + wide_out
    limit = (1 + slack) * seconds(1, wide_in, wide_out, num_bytes, bandwidth, peak)
    by_memory = (limit * bandwidth / num_bytes - weights) / around
    return math.floor(min(by_memory, limit * peak / (2 * weights)))


# %% wrong 02.2 | these kernels reach only a share
rows_16 = gpu.peak_flops_for("fp16") / gpu.bandwidth
rows_4, below, beyond = rows_16 / 4, 2, 1

# %% wrong 02.2 | one operation per weight and row
ridge = gpu.peak_flops_for("fp16") * mine["arithmetic_share"]
ridge /= gpu.bandwidth * mine["memory_share"]
rows_16, rows_4, below, beyond = 2 * ridge, ridge / 2, 2, 1

# %% wrong 02.2 | goes the wrong way
ridge = gpu.peak_flops_for("fp16") * mine["arithmetic_share"]
ridge /= gpu.bandwidth * mine["memory_share"]
rows_16, rows_4, below, beyond = ridge, 4 * ridge, 2, 1

# %% wrong 02.2 | is the same as in 16 bits
ridge = gpu.peak_flops_for("fp16") * mine["arithmetic_share"]
ridge /= gpu.bandwidth * mine["memory_share"]
rows_16, rows_4, below, beyond = ridge, ridge, 2, 1

# %% wrong 02.2 | `beyond`
ridge = gpu.peak_flops_for("fp16") * mine["arithmetic_share"]
ridge /= gpu.bandwidth * mine["memory_share"]
rows_16, rows_4, below, beyond = ridge, ridge / 4, 1.999, 2

# %% wrong 02.2 | is too many
rows_16, rows_4, below, beyond = 295, 74, 2, 1  # the lesson's H100

# %% right 02.2 | whole rows, in numpy's numbers
import numpy as np

cost = costs_of(mine)
ridge = gpu.ridge("fp16") * mine["arithmetic_share"] / mine["memory_share"]
rows_16, rows_4 = np.ceil(ridge), np.int64(np.ceil(ridge / 4))
total = {batch: batch / cost.decode_time(batch, 1) for batch in (8, 16, 512, 1024)}
below, beyond = total[16] / total[8], total[1024] / total[512]


# %% wrong 02.3 | goes on counting from one request to the next
def ragged(requests):
    ids, owners, last = [], [], []
    for number, request in enumerate(requests):
        new = request["tokens"][request["num_computed"] :]
        ids, owners = ids + new, owners + [number] * len(new)
        last.append(len(ids) - 1)
    return ids, list(range(len(ids))), owners, last


# %% wrong 02.3 | starts at 0 where tokens are computed already
def ragged(requests):
    ids, positions, owners, last = [], [], [], []
    for number, request in enumerate(requests):
        new = request["tokens"][request["num_computed"] :]
        ids += new
        positions += range(len(new))
        owners += [number] * len(new)
        last.append(len(ids) - 1)
    return ids, positions, owners, last


# %% wrong 02.3 | are in the KV cache already
def ragged(requests):
    ids, positions, owners, last = [], [], [], []
    for number, request in enumerate(requests):
        ids += request["tokens"]
        positions += range(len(request["tokens"]))
        owners += [number] * len(request["tokens"])
        last.append(len(ids) - 1)
    return ids, positions, owners, last


# %% wrong 02.3 | is a position in each text
def ragged(requests):
    ids, positions, owners, last = [], [], [], []
    for number, request in enumerate(requests):
        done, total = request["num_computed"], len(request["tokens"])
        ids += request["tokens"][done:]
        positions += range(done, total)
        owners += [number] * (total - done)
        last.append(total - 1)
    return ids, positions, owners, last


# %% wrong 02.3 | is one too far
def ragged(requests):
    ids, positions, owners, last = [], [], [], []
    for number, request in enumerate(requests):
        done, total = request["num_computed"], len(request["tokens"])
        ids += request["tokens"][done:]
        positions += range(done, total)
        owners += [number] * (total - done)
        last.append(len(ids))
    return ids, positions, owners, last


# %% wrong 02.3 | four lists are asked for
def ragged(requests):
    return {"ids": [], "positions": []}


# %% right 02.3 | comprehensions and numpy's arrays
import numpy as np


def ragged(requests):
    spans = [range(r["num_computed"], len(r["tokens"])) for r in requests]
    ids = [r["tokens"][p] for r, span in zip(requests, spans, strict=True) for p in span]
    owners = np.repeat(np.arange(len(spans)), [len(span) for span in spans])
    positions = np.concatenate([np.array(span) for span in spans])
    return [ids, positions, owners, np.cumsum([len(span) for span in spans]) - 1]


# %% wrong 02.4 | count the steps in the picture
reads_now, reads_then, Mended = 8, 8, TakeTurns

# %% wrong 02.4 | whoever wants most tokens ends last
reads_now, reads_then, Mended = 24, 6, TakeTurns

# %% wrong 02.4 | could share it
reads_now, reads_then, Mended = 24, 8, TakeTurns

# %% wrong 02.4 | rows, and max_rows is 2
reads_now, reads_then, Mended = 24, 8, Together  # the lesson's: right where all have room


# %% wrong 02.4 | whoever has fewest goes first
reads_now, reads_then = 24, 8


class Mended(Scheduler):  # full steps, and always the same ones first
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running[: self.max_rows]:
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(plan.num_scheduled_tokens) < self.max_rows:
            self.admit(plan, self.next_waiting())
        return plan


# %% right 02.4 | a ring: whoever has run goes to its end
from collections import deque

reads_now, reads_then = 24, 8


class Mended(Scheduler):
    def schedule(self):
        self.ring = getattr(self, "ring", None) or deque(self.waiting)
        plan = SchedulerOutput()
        self.ring = deque(r for r in self.ring if not r.is_finished)
        for _ in range(min(self.max_rows, len(self.ring))):
            request = self.ring.popleft()
            if request in self.running:
                self.run(plan, request, 1)
            else:
                self.admit(plan, request)
            self.ring.append(request)
        return plan


# %% wrong 02.5 | too much KV is read
batch = 96

# %% wrong 02.5 | too few share the weights
batch = 1

# %% wrong 02.5 | must be a whole number from 1 to 96
batch = 16.5


# %% right 02.5 | the largest that fits
def each(size):
    return 1e3 / serve(rush, Together(max_running=size)).summary()["tpot_ms"]["max"]


batch = max(size for size in range(8, 49, 4) if each(size) >= rush["each"])
