# %% [markdown]
# # Exercise 02 · Why batching pays
#
# In the lesson 128 rows took 6 % longer than one. Here you compute how many rows are nearly free on any
# machine, say beforehand where that ends on yours, lay out the ragged row that a real engine hands to
# its model, find a server that serves everybody and batches nobody, and choose a batch for two targets.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.costs import get_hardware
from toyserve.course.checks import check
from toyserve.course.checks.ex02_why_batching_pays import (
    ROWS,
    TURNS,
    Together,
    class_of_96,
    costs_of,
    layer,
    machine,
)
from toyserve.course.checks.runs import serve
from toyserve.course.tables import text_table
from toyserve.schedulers import Scheduler, SchedulerOutput
from toyserve.viz import timeline

SEED = 0  # your own numbers in 02.2 and 02.5 come from it

# %% [markdown]
# ## 02.1 Rows that are nearly free
#
# A matrix of `wide_in` × `wide_out` numbers of `num_bytes` bytes each, on a machine that moves
# `bandwidth` bytes per second and does `peak` FLOPs per second:

# %%
up = layer("h100", 4096, 14336)
up

# %% [markdown]
# - `seconds(rows, …)`: how long does `[rows, wide_in] · W` take at best? Bytes and FLOPs flow side by
#   side. `W` is read once, the rows go in and come out; a weight and a row meet in one multiplication
#   and one addition.
# - `nearly_free(slack, …)`: the **largest number of rows** that take at most `1 + slack` times as long
#   as one row. (With `slack = 0.1`, 10 % longer.)


# %% answer="02.1"
def seconds(rows, wide_in, wide_out, num_bytes, bandwidth, peak):
    ### BEGIN SOLUTION
    flops = 2 * rows * wide_in * wide_out
    moved = (wide_in * wide_out + rows * (wide_in + wide_out)) * num_bytes
    return max(flops / peak, moved / bandwidth)
    ### END SOLUTION


def nearly_free(slack, **layer):
    ### BEGIN SOLUTION
    rows = 1
    while seconds(rows + 1, **layer) <= (1 + slack) * seconds(1, **layer):
        rows += 1
    return rows
    ### END SOLUTION


# %% check="02.1" points=2
check("02.1")
### BEGIN HIDDEN TESTS
check(
    "02.1",
    cases=[
        {
            "what": f"{wide} on a {gpu} in {dtype}, slack = {slack}",
            "rows": [1, 7 + SEED % 3, 4000],
            "slack": slack,
            "layer": layer(gpu, *wide, dtype),
        }
        for gpu, wide, dtype, slack in (
            ("a100", (14336, 4096), "fp16", 0.02),
            ("laptop", (768, 3072), "fp32", 1.0),
            ("l4", (5120, 5120), "fp16", 0.25),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 02.2 Where arithmetic overtakes memory
#
# Your machine, and the shares of its data sheet that the kernels really reach there:

# %%
mine = machine(SEED)
gpu = get_hardware(mine["gpu"])
print(mine)
print(f"data sheet: {gpu.bandwidth / 1e9:,.0f} GB/s, {gpu.peak_flops_for('fp16') / 1e12:,} TFLOP/s")

# %% [markdown]
# Predict, on paper. Look at the weights only: all of them are read once per step, and each row
# multiplies with all of them.
#
# - `rows_16`: from how many rows on does the arithmetic take longer than reading the weights, with
#   two bytes per weight?
# - `rows_4`: and with **half a byte** per weight? (They are widened to 16 bits before they are
#   multiplied, so the arithmetic stays the same.)
#
# Then measure on the clock of your GPU. `cost.decode_throughput(batch, 1)[0]` is the tokens per second
# in all, with one token behind each user. `below`: those of batch 16 over those of batch 8. `beyond`:
# those of batch 1024 over those of batch 512.

# %% answer="02.2"
cost = costs_of(mine)  # Llama-3-8B in 16 bits
### BEGIN SOLUTION
reached = gpu.peak_flops_for("fp16") * mine["arithmetic_share"]
fetched = gpu.bandwidth * mine["memory_share"]
rows_16 = reached * 2 / (2 * fetched)  # two bytes to fetch, two FLOPs per row to do
rows_4 = reached * 0.5 / (2 * fetched)


def in_all(batch):
    return cost.decode_throughput(batch, 1)[0]


below, beyond = in_all(16) / in_all(8), in_all(1024) / in_all(512)
### END SOLUTION

# %% check="02.2" points=3
check("02.2")

# %% [markdown]
# ## 02.3 One ragged row
#
# The lesson's rectangle needs padding. A serving engine lays the tokens that a step must run **one
# behind the other**, whoever they belong to. Each request has `tokens`, of which the first
# `num_computed` are in its KV cache already:

# %%
ROWS[3]["requests"]

# %% [markdown]
# Write `ragged(requests)`. It returns four plain lists:
#
# - `ids`: the tokens that still have to run, request by request in the given order;
# - `positions`: of each of them, where it stands in its own text, counted from 0;
# - `owners`: of each of them, the number of its request (0, 1, 2, …);
# - `last`: per request, the place *in the row* of its last token, where its next one is read off.


# %% answer="02.3"
def ragged(requests):
    ### BEGIN SOLUTION
    ids, positions, owners, last = [], [], [], []
    for number, request in enumerate(requests):
        done, total = request["num_computed"], len(request["tokens"])
        ids += request["tokens"][done:]
        positions += range(done, total)
        owners += [number] * (total - done)
        last.append(len(ids) - 1)
    return ids, positions, owners, last
    ### END SOLUTION


# %% check="02.3" points=2
check("02.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex02_why_batching_pays import asking

check(
    "02.3",
    cases=[
        {"what": f"tokens, computed: {sizes}", "requests": asking(*sizes, start=7)}
        for sizes in (
            [(1, 0)],
            [(9, 3), (4, 0), (12, 11), (1, 0)],
            [(5 + i, 4 + i - (i + SEED) % 3) for i in range(6)],
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 02.4 Served at once, and not together
#
# "All four users are being served at the same time", says a colleague. "I don't see why we're no
# faster than one by one."


# %%
class TakeTurns(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        if self.waiting and len(self.running) < self.max_running:
            self.admit(plan, self.next_waiting())
        else:
            request = min(self.running, key=lambda r: r.num_output_tokens)
            self.run(plan, request, request.num_uncomputed_tokens)
        return plan


run = serve(TURNS, TakeTurns(max_running=4))
timeline(run, by="request", title="Who shares the weights with whom?")

# %% [markdown]
# The answers have 8, 5, 6 and 5 tokens. Give `reads_now`, how often this run reads all weights, and
# `reads_then`, how often when up to four rows share each step.
#
# Then write `Mended`, for a step that has room for **at most `self.max_rows` rows**: every step is as
# full as it can be, and whoever has had the fewest tokens goes first (newcomers have had none), so
# that nobody is ever more than one token ahead. All come at once, and slots and memory suffice for all.


# %% answer="02.4"
class Mended(Scheduler):
    max_rows = 4

    def schedule(self):
        plan = SchedulerOutput()
        ### BEGIN SOLUTION
        everybody = sorted([*self.running, *self.waiting], key=lambda r: r.num_output_tokens)
        for request in everybody[: self.max_rows]:
            if request in self.waiting:
                self.admit(plan, request)
            else:
                self.run(plan, request, request.num_uncomputed_tokens)
        ### END SOLUTION
        return plan


### BEGIN SOLUTION
reads_now = run.num_steps
reads_then = max(answer for *_, answer in TURNS["requests"])
### END SOLUTION

# %% check="02.4" points=3
check("02.4")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex02_why_batching_pays import at_once

check(
    "02.4",
    cases=[
        {
            "what": f"{n} users, room for {rows} rows in a step",
            "slots": n,
            "max_rows": rows,
            "requests": at_once(*[2 + (5 * i + SEED) % 9 for i in range(n)], prompt=prompt),
        }
        for n, rows, prompt in ((1, 3, 40), (7, 3, 1), (9, 1, 12), (12, 8, 30))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 02.5 A batch for two targets
#
# 96 users come at once. The lesson's `Together` serves them batch by batch: a batch starts together,
# the next one starts when it has ended. Each user wants text that grows quickly; the owner wants many
# tokens per second from the machine. Both have a number:

# %%
rush = class_of_96(SEED)
print(f"{rush['model']} on {rush['gpu']}: at least {rush['each']} tokens/s for each user,")
print(f"and at least {rush['total']:,} tokens/s in all")

# %% [markdown]
# Find a `batch` (`Together(max_running=batch)`) that meets both. `serve(rush, …).summary()` has
# `["output_tokens_per_s"]` of the whole server, and `["tpot_ms"]["max"]`: the slowest user's
# milliseconds per token. Trying numbers in a loop is fine. The two ends, to begin with:

# %%
ends = []
for size in (1, 4, 64, 96):
    summary = serve(rush, Together(max_running=size)).summary()
    each, in_all = 1e3 / summary["tpot_ms"]["max"], summary["output_tokens_per_s"]
    ends.append((size, f"{each:,.1f}", f"{in_all:,.0f}"))
print(text_table(("batch", "tokens/s each", "tokens/s in all"), ends))


# %% answer="02.5"
### BEGIN SOLUTION
def fits(size):
    summary = serve(rush, Together(max_running=size)).summary()
    quick = 1e3 / summary["tpot_ms"]["max"] >= rush["each"]
    return quick and summary["output_tokens_per_s"] >= rush["total"]


batch = next(size for size in (12, 16, 24, 32) if fits(size))
### END SOLUTION

# %% check="02.5" points=2
check("02.5")

# %% [markdown]
# ## 02.6 Explain
#
# Two or three sentences, for a manager who says: **"The GPU shows 100 % busy with one user. How should
# it serve 32 at nearly the same speed?"** Say what the GPU is waiting for, what the 32 share and what
# they don't. This part is read by a person.

# %% [markdown] explain="02.6" points=2
# ### BEGIN SOLUTION
# Busy means that a kernel is running, not that it calculates: with one user nearly all of a step's time
# goes into reading all weights from memory, and the arithmetic units wait. 32 users share that one
# reading, so a step of 32 rows takes hardly longer, until the arithmetic takes as long as the reading
# (the ridge). They do not share the KV cache: each row reads its own, so with long texts it gets slower
# all the same.
# ### END SOLUTION
