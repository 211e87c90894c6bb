# %% [markdown]
# # Exercise 06 · KV memory
#
# In the lesson you did the sum for a round number and wrote the simplest allocator. Here the sum is
# for your own server, the allocator is choosier, you write the meter for both kinds of waste, find
# out who loses a colleague's memory, and decide whom a server sends away.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import Ledger
from toyserve.course.checks.ex06_kv_memory import (
    LEAK,
    PLACES,
    WASTE,
    costs_of,
    evening,
    machine,
    outcome,
)
from toyserve.course.checks.places import draw_books, pool_at, watch
from toyserve.course.checks.runs import serve
from toyserve.course.show import show_source
from toyserve.kv import ContiguousKV
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import block_map

SEED = 0  # your own numbers in 06.1 and 06.5 come from it

# %% [markdown]
# ## 06.1 Bytes on your server: predict, then measure
#
# Short conversations run on your server already. Now long ones arrive.

# %%
mine = machine(SEED)
cost = costs_of(mine)
print("\n".join(f"{name:17} {value}" for name, value in mine.items()))

# %% [markdown]
# - `token_bytes`: how many bytes of KV does one token take? (Paper.)
# - `long_ones`: how many conversations of `long_tokens` fit **beside** the short ones and the
#   weights, when `share_in_use` of the memory may be used? 1 GB is 10⁹ bytes. (Paper.)
# - `slower`: measure it. The time of a step in which all of them get one token each, over that of a
#   step of the short ones alone. `cost.time_of_rows([(behind, to_run), …])` gives the seconds of a
#   step, one pair per conversation; here `(short_tokens, 1)` or `(long_tokens, 1)`.

# %% answer="06.1"
### BEGIN SOLUTION
token_bytes = 2 * mine["layers"] * mine["kv_heads"] * mine["head_dim"] * mine["bytes_per_number"]
room = 1e9 * (mine["memory_gb"] * mine["share_in_use"] - mine["weights_gb"])
taken = mine["num_short"] * mine["short_tokens"] * token_bytes
long_ones = int((room - taken) // (mine["long_tokens"] * token_bytes))
first = [(mine["short_tokens"], 1)] * mine["num_short"]
everyone = first + [(mine["long_tokens"], 1)] * long_ones
slower = cost.time_of_rows(everyone) / cost.time_of_rows(first)
### END SOLUTION

# %% check="06.1" points=2
check("06.1")

# %% [markdown]
# ## 06.2 The tightest hole
#
# First fit takes the first hole that is large enough. Here A has left a hole of three blocks, C one of
# two, and E, who needs two, was put into A's. Whoever needs three now will wait.

# %%
plain = serve(PLACES[0], ContinuousScheduler(5), kv=ContiguousKV(8))
block_map(plain, step=8, title="First fit: E sits in the larger hole")

# %% [markdown]
# Write **best fit**: the start of the **smallest** hole that is large enough; of several equally small
# ones the first; `None` if there is none. `self.holes()` gives all holes in order of address, as pairs
# (first block, number of blocks). (`ContiguousKV` calls this method `first_fit`, whatever it does.)


# %% answer="06.2"
class BestFit(ContiguousKV):
    def first_fit(self, num_blocks):
        ### BEGIN SOLUTION
        enough = [hole for hole in self.holes() if hole[1] >= num_blocks]
        return min(enough, key=lambda hole: hole[1])[0] if enough else None
        ### END SOLUTION


# %% check="06.2" points=2
check("06.2")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.places import visitors

check(
    "06.2",
    cases=[
        {
            "what": f"{num} requests, {blocks} blocks",
            "blocks": blocks,
            "requests": visitors(100 + SEED + i, num, largest),
        }
        for i, (num, blocks, largest) in enumerate(
            ((1, 3, 3), (12, 12, 4), (24, 16, 6), (40, 30, 6))
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 06.3 Two kinds of waste
#
# Write the meter. `blocks` has one entry per block of memory, in order of address: `None` if the block
# is free, else how many of its slots hold a token.

# %%
print(pool_at(WASTE[0]))
five = serve(WASTE[0], ContinuousScheduler(5), kv=ContiguousKV(14))
block_map(five, step=5, title="The same step: E needs 3 blocks")

# %% [markdown]
# Return two numbers, `(internal, external)`, both in **slots**:
#
# - internal: taken, but no token in it;
# - external: free, but in a hole of **fewer than `need` blocks**, so of no use to whoever is next.


# %% answer="06.3"
def wasted(blocks, block_size, need):
    """(internal, external) waste in slots."""
    ### BEGIN SOLUTION
    internal = sum(block_size - tokens for tokens in blocks if tokens is not None)
    external = length = 0
    for entry in [*blocks, 0]:  # a taken block behind the end closes the last hole
        if entry is None:
            length += 1
            continue
        external += length if length < need else 0
        length = 0
    return internal, external * block_size
    ### END SOLUTION


# %% check="06.3" points=2
check("06.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.places import comers, visitors

check(
    "06.3",
    cases=[
        {
            "what": f"step {step}, somebody needs {need} blocks",
            "blocks": 14,
            "step": step,
            "need": need,
            "requests": requests,
        }
        for requests in (visitors(7 + SEED, 20, 4), comers(7 + SEED, 12))
        for step, need in ((1, 1), (1, 20), (12, 2), (20, 3), (30, 4))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 06.4 Books that lose memory
#
# A colleague keeps a list of gaps, and joins those that touch; that is in order. He also notes each
# request's slab, so that he knows what to put back. After an hour his server admits nobody:

# %%
hour = watch(LEAK, Ledger(LEAK["blocks"]))
print(hour["stopped"])
draw_books(hour["books"])

# %%
show_source(Ledger)

# %% [markdown]
# From the picture: give `leakers`, a list with the names of the requests that leave lost blocks behind,
# and `lost`, how many blocks are lost in the last step. What do the leakers have in common?
#
# Then write `Mended`: override whatever method you like, so that the books are always right.


# %% answer="06.4"
class Mended(Ledger):
    ### BEGIN SOLUTION
    def free(self, request):
        if table := request.block_table:
            self.slabs[request] = (table[0], len(table))
        super().free(request)


leakers = ["A", "C"]
lost = 3
### END SOLUTION

# %% check="06.4" points=3
check("06.4")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.places import comers

check(
    "06.4",
    cases=[
        {
            "what": f"{num} that come and go, {blocks} blocks",
            "blocks": blocks,
            "requests": comers(20 + SEED + i, num),
        }
        for i, (num, blocks) in enumerate(((2, 8), (12, 10), (16, 16)))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 06.5 How much to reserve
#
# Your server reserves one length for everybody (`ReservedKV`). Whoever may get longer is refused on
# arrival; the longer the reservation, the fewer places there are. Your evening, and your targets:

# %%
tonight = evening(SEED)
lengths = sorted(prompt + answer for _, _, prompt, answer in tonight["requests"])
print(f"{tonight['blocks']} blocks of 16; the longest requests: {lengths[-8:]} tokens")
print(f"at most {tonight['refused']} refused, p95 of TTFT at most {tonight['ttft_s']} s")

# %% [markdown]
# Find a `max_model_len` that meets both. `outcome(tonight, max_model_len)` serves the evening and
# returns (refused, p95 of TTFT in seconds).

# %% answer="06.5"
### BEGIN SOLUTION
max_model_len = next(
    length for length in range(64, 1024, 8) if outcome(tonight, length)[0] <= tonight["refused"]
)
### END SOLUTION

# %% check="06.5" points=2
check("06.5")

# %% [markdown]
# ## 06.6 Explain
#
# The dashboard of a server with slabs says *35 % of KV memory free*, and people queue. A colleague says:
# "Then let them in!" Two sentences: **why may that be impossible, and which number should the dashboard
# show beside the 35 %?** This part is read by a person.

# %% [markdown] explain="06.6" points=2
# ### BEGIN SOLUTION
# A slab must lie in one piece, and the free memory may consist of many holes, each too small for
# whoever is next (external fragmentation). So the dashboard should show the largest hole beside what
# the head of the queue needs (or the share of free memory outside the largest hole); the sum of all
# holes says nothing about whether somebody fits.
# ### END SOLUTION
