# %% [markdown]
# # Exercise 07 · Paged KV
#
# In the lesson you found one slot behind a block table, and took blocks on demand. Here you walk
# whole stretches of a table, let requests take a block ahead when there is room, find what a
# colleague's attention forgets, do the sum for your own requests, and choose the size of a page.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 45 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import slots_read
from toyserve.course.checks.ex07_paged_kv import (
    READS,
    crowd_run,
    library,
    office,
    read_all,
    size_costs,
)
from toyserve.course.checks.places import draw_reads
from toyserve.course.checks.runs import serve
from toyserve.course.show import show_source
from toyserve.kv import PagedKV, ReservedKV
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import block_map

SEED = 0  # your own numbers in 07.4 and 07.5 come from it

# %% [markdown]
# ## 07.1 As few pieces as possible
#
# Moving KV to the host or to another GPU is cheap per byte and dear per piece. Write
# `pieces(block_table, start, end, block_size)`: where do the positions `start` to `end - 1` of a
# request lie? Return a list of pairs (first slot, number of slots), in order of position, **as few as
# possible**: blocks that lie side by side in memory, in the right order, make one piece.
#
# For the table `[7, 8, 3]` and positions 2 to 43 in blocks of 16: `[(114, 30), (48, 12)]`.


# %% answer="07.1"
def pieces(block_table, start, end, block_size):
    """[(first slot, number of slots), …] of the positions from start up to, not with, end."""
    ### BEGIN SOLUTION
    found = []
    for position in range(start, end):
        page, offset = divmod(position, block_size)
        slot = block_table[page] * block_size + offset
        if found and sum(found[-1]) == slot:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((slot, 1))
    return found
    ### END SOLUTION


# %% check="07.1" points=2
check("07.1")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex07_paged_kv import shuffled, walk

check(
    "07.1",
    cases=[
        walk(f"{start} to {end}, blocks of {size}", shuffled(SEED + size, 12), start, end, size)
        for size in (1, 3, 16, 25)
        for start, end in ((0, 12 * size), (size - 1, 3 * size), (2 * size, 2 * size + 1))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 07.2 One block ahead
#
# While memory is empty, asking for one block at a time is petty. Write `allocate` of `AheadKV`:
#
# 1. Whoever lacks blocks for its next `num_tokens` positions takes the missing ones; if they are not
#    to be had with `keep_free` left free: `False`, and nothing changed. Otherwise `True`.
# 2. A request that **has blocks already** and lacks at least one takes **one more** than it lacks, if at least
#    `self.spare` blocks are free even then, and never more blocks than it needs at its longest:
#    `request.max_num_tokens - 1` positions (the last token is never run).
#
# You have `request.num_computed_tokens`, `request.block_table`, `self.block_size`, `self.num_free_blocks`, and
# `self.pool.take(request, n)`: n blocks more in its table.


# %% answer="07.2"
class AheadKV(PagedKV):
    spare = 2

    def allocate(self, request, num_tokens, keep_free=0):
        ### BEGIN SOLUTION
        def count(positions):
            return -(-positions // self.block_size)

        have = len(request.block_table)
        lacking = count(request.num_computed_tokens + num_tokens) - have
        if lacking > self.num_free_blocks - keep_free:
            return False
        if lacking > 0:
            may_grow = have > 0 and have + lacking < count(request.max_num_tokens - 1)
            rich = self.num_free_blocks - lacking > self.spare
            self.pool.take(request, lacking + (1 if may_grow and rich else 0))
        return True
        ### END SOLUTION


# %% check="07.2" points=3
check("07.2")
### BEGIN HIDDEN TESTS
check(
    "07.2",
    cases=[
        {
            "what": f"{num} requests, {blocks} blocks of {size}, {spare} to spare",
            "slots": num,
            "blocks": blocks,
            "block_size": size,
            "spare": spare,
            "watermark": watermark,
            "requests": [
                [chr(65 + i), 0.01 * i, 1 + (7 * i + SEED) % 11, 6 + (5 * i + SEED) % 17]
                for i in range(num)
            ],
        }
        for num, blocks, size, spare, watermark in (
            (1, 30, 1, 0, 0.0),
            (4, 14, 3, 2, 0.0),
            (8, 20, 4, 1, 0.1),
            (8, 12, 4, 5, 0.2),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 07.3 A fault at the end of a block
#
# Attention must read the keys of all tokens that a request has. A colleague lists their slots. Each row
# of the picture is one length, with blocks of 12; red are tokens that are there and not read.

# %%
shown = READS[0]
draw_reads(shown, read_all(shown, slots_read), "The colleague's")

# %%
show_source(slots_read)

# %% [markdown]
# For the picture's blocks of 12, give `first_bad`, the smallest number of tokens at which something is wrong, and `bad`: at
# how many of the lengths 1 to 64 is something wrong? Then write `to_read`, which is right at every length and block size.


# %% answer="07.3"
def to_read(block_table, context_len, block_size):
    """The slots of all tokens of a request that has context_len of them."""
    ### BEGIN SOLUTION
    slots = []
    for page, block in enumerate(block_table):
        filled = min(block_size, context_len - page * block_size)
        slots += [block * block_size + offset for offset in range(filled)]
    return slots
    ### END SOLUTION


### BEGIN SOLUTION
first_bad = 12
bad = 64 // 12
### END SOLUTION

# %% check="07.3" points=2
check("07.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex07_paged_kv import shuffled

check(
    "07.3",
    cases=[
        {
            "what": f"blocks of {size}",
            "table": shuffled(SEED + size, 5),
            "size": size,
            "longest": 5 * size,
        }
        for size in (2, 7, 16)
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 07.4 Predict, then measure
#
# Five requests (name, arrival, prompt, answer) come in together in step 1; each gets one token per step
# from then on.

# %%
mine = office(SEED)
print(mine["requests"])
print(f"blocks of {mine['block_size']}; what is there in step {mine['step']}?")

# %% [markdown]
# - `blocks_used`, `empty_slots`: how many blocks do the five hold while that step runs, and how many
#   slots of these hold no token when it ends? (Paper. In step 1 exactly the prompts are written.)
# - `gain`: measure it. 40 others in a pool of 4,096 slots (how many blocks are that?): `crowd_run(mine, kv)` gives their recording;
#   `.summary()["makespan_s"]` is the time until all are done. Take
#   `ReservedKV(num_blocks, block_size, max_model_len=512)` and `PagedKV(num_blocks, block_size)`: the
#   time with the first over the time with the second.

# %% answer="07.4"
### BEGIN SOLUTION
size = mine["block_size"]
lengths = [prompt + mine["step"] - 1 for _, _, prompt, _ in mine["requests"]]
blocks_used = sum(-(-length // size) for length in lengths)
empty_slots = blocks_used * size - sum(lengths)
reserved = ReservedKV(4096 // size, size, max_model_len=512)
seconds = [
    crowd_run(mine, kv).summary()["makespan_s"] for kv in (reserved, PagedKV(4096 // size, size))
]
gain = seconds[0] / seconds[1]
### END SOLUTION

# %% check="07.4" points=2
check("07.4")

# %% [markdown]
# To see it in the blocks themselves:

# %%
pages = serve(mine, ContinuousScheduler(8), kv=PagedKV(120, mine["block_size"]))
block_map(pages, step=3, title="Your five in step 3 (not the step that is asked for)")

# %% [markdown]
# ## 07.5 How large is a page?
#
# Large pages leave the last one half empty; small ones make long tables. Your targets:

# %%
readers = library(SEED)
print(f"at most {readers['empty']:.1%} of the taken slots empty,")
print(f"at most {readers['entries']} entries in the longest table")

# %% [markdown]
# Find a `block_size` that meets both (any whole number). `size_costs(readers, block_size)` returns both
# figures.

# %% answer="07.5"
### BEGIN SOLUTION
block_size = 1
while size_costs(readers, block_size)[1] > readers["entries"]:
    block_size += 1
### END SOLUTION

# %% check="07.5" points=2
check("07.5")

# %% [markdown]
# ## 07.6 Explain
#
# A colleague shows a benchmark: one user, reserved memory against paged memory, the same speed. "So all
# this was for nothing." Two sentences: **why is that result right, and what must be measured instead?**
# This part is read by a person.

# %% [markdown] explain="07.6" points=2
# ### BEGIN SOLUTION
# One user alone never waits for memory, and a step reads the same weights and the same keys and values
# wherever they lie, so nothing can become faster. Paging makes room: with many users more of them fit at
# once, batches grow, and throughput and waiting under load (not the speed of one) are what must be
# compared.
# ### END SOLUTION
