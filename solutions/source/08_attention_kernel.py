# %% [markdown]
# # Exercise 08 · The attention kernel
#
# Before a kernel is written for a GPU, it is written in NumPy, where every number can be looked at. So
# here: no Triton, no GPU. You merge the parts of a long context, walk along block tables with a whole
# chunk at once, tell five broken kernels apart by their error pictures, and put a price on a copy.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 60 minutes, half of them for 08.2.

# %%
import numpy as np

from toyserve.course.checks import check
from toyserve.course.checks.ex08_attention_kernel import bill_of, decode_step, split_us
from toyserve.course.checks.wrong_kernels import error_maps, error_pictures

SEED = 0  # your own pictures in 08.3 and numbers in 08.4 come from it

# %% [markdown]
# ## 08.1 Merge the parts
#
# In the lesson every part of a context kept three numbers: `m`, `total` and `acc`. Real kernels keep two, and
# write those to memory: the part's own finished answer `out`, and `lse`, the logarithm of its sum of
# exp(score). Together: `lse = m + log(total)`.
#
# `outs` has a row per part, `lses` a number per part. Return the answer over *all* keys, and its `lse`, so
# that it can be merged again. A part without any key has `lse` = minus infinity and a row of zeros. If all
# are like that, the answer is zeros, too. Scores may be as large as 1,000: `exp(1000)` is infinity.


# %% answer="08.1"
def merge(outs, lses):
    """outs [parts, dim], lses [parts] → (out [dim], lse)."""
    ### BEGIN SOLUTION
    top = lses.max()
    if top == -np.inf:
        return np.zeros_like(outs[0]), top
    weights = np.exp(lses - top)
    return weights @ outs / weights.sum(), top + np.log(weights.sum())
    ### END SOLUTION


# %% check="08.1" points=2
check("08.1")
### BEGIN HIDDEN TESTS
check(
    "08.1",
    cases=[
        {"what": f"parts of {keys} keys", "keys": keys, "shift": shift, "seed": 70 + len(keys)}
        for keys, shift in (([1], 0), ([0, 2], 800), ([1, 2, 3, 4, 5], -900), ([0], 0), ([9, 1], 3))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 08.2 A chunk over a block table
#
# The lesson's kernel had one new token per sequence. Yours gets several sequences at once, each with any
# number of new tokens: a decode, a chunk, a whole prompt, in one launch.
#
# | argument | it is |
# |---|---|
# | `q` | all new tokens' queries, one sequence after the other: `[rows, heads, dim]` |
# | `load(block)` | fetches K and V of one block, each `[block_size, kv_heads, dim]` |
# | `block_table[s]` | the list of sequence `s`'s blocks, page by page |
# | `query_start[s]` | its first row in `q`; `query_start[s + 1]` is where the next one begins |
# | `seq_lens[s]` | all its tokens, the new ones included; these are the *last* of them |
#
# Their keys and values are in the blocks already.

# %% [markdown]
# Return `[rows, heads, dim]`. What counts:
#
# - a token sees itself and everything **before** it, and nothing else. Slots behind the last token hold
#   what an earlier request left there
# - `heads / kv_heads` neighbouring query heads share a KV head
# - scores are divided by √dim
# - **each block is fetched once** for all heads and all new tokens of its sequence. Whether you keep
#   running sums (the online softmax) or not is up to you
#
# <details><summary>A hint</summary>
#
# `np.repeat(k, share, axis=1)` gives every query head its keys. With those,
# `np.einsum("nhd,khd->nhk", …)` are the scores of new token n, head h, key k. The positions of both are
# simple ranges; where the key's is larger, the score becomes `-np.inf`.
#
# </details>


# %% answer="08.2"
def attend(q, load, block_table, query_start, seq_lens, block_size):
    """q [rows, heads, dim] → [rows, heads, dim]."""
    ### BEGIN SOLUTION
    out = np.zeros_like(q)
    for s, seq_len in enumerate(seq_lens):
        queries = q[query_start[s] : query_start[s + 1]]
        mine = np.arange(seq_len - len(queries), seq_len)
        m = np.full(queries.shape[:2], -np.inf)
        total, acc = np.zeros(m.shape), np.zeros(queries.shape)
        for page in range(-(-seq_len // block_size)):
            k, v = load(block_table[s][page])
            share = q.shape[1] // k.shape[1]
            k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
            scores = np.einsum("nhd,khd->nhk", queries, k) / np.sqrt(q.shape[2])
            theirs = page * block_size + np.arange(block_size)
            scores[np.broadcast_to(theirs > mine[:, None, None], scores.shape)] = -np.inf
            m_new = np.maximum(m, scores.max(axis=2))
            p, fix = np.exp(scores - m_new[..., None]), np.exp(m - m_new)
            total = total * fix + p.sum(axis=2)
            acc = acc * fix[..., None] + np.einsum("nhk,khd->nhd", p, v)
            m = m_new
        out[query_start[s] : query_start[s + 1]] = acc / total[..., None]
    return out
    ### END SOLUTION


# %% check="08.2" points=4
check("08.2")
### BEGIN HIDDEN TESTS
check(
    "08.2",
    cases=[
        {
            "what": f"sequences of {lens} tokens, {new} of them new, {heads} heads",
            "seq_lens": lens,
            "new": new,
            "heads": heads,
            "kv_heads": kv_heads,
            "dim": dim,
            "block_size": size,
            "seed": 90 + SEED + dim,
        }
        for lens, new, heads, kv_heads, dim, size in (
            ([8, 4], [8, 4], 2, 2, 4, 4),
            ([21, 2, 16], [1, 2, 6], 8, 2, 3, 8),
            ([5, 33, 12, 7], [0, 9, 1, 3], 6, 3, 9, 3),
            ([31], [30], 3, 1, 24, 16),
            ([3, 5], [2, 5], 4, 4, 2, 1),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 08.3 Five error pictures
#
# Five colleagues, five kernels, each with another fault. All got the same launch: 32 sequences of 32,
# 31, … 1 tokens, one new token each, in blocks of 8, with 8 query heads and 2 KV heads. A row is a sequence
# (the number is its tokens), a column a head. Black is right; the brighter, the more wrong.

# %%
error_pictures(SEED)

# %% [markdown]
# | fault | what the kernel does |
# |---|---|
# | `"no mask"` | reads all slots of the last page, as if it were full |
# | `"last page"` | skips a last page that is not full |
# | `"no scale"` | does not divide the scores by √dim |
# | `"first table"` | ignores the batch index: everybody's block table is the first sequence's |
# | `"wrong KV head"` | takes KV head `h % 2` for query head `h`, instead of `h // 4` |
#
# Which is which? Write `faults`, a dict from letter to fault: `{"P": "no mask", …}`.
# (`error_maps(SEED)` has the numbers behind the pictures, should your eyes disagree with the check.)


# %% answer="08.3"
### BEGIN SOLUTION
def name_of(error):  # what the eye does, in NumPy: which rows are black, and what is below a page?
    black = {32 - row for row in np.flatnonzero(error.max(axis=1) < 1e-6)}
    if not black:
        return "wrong KV head"
    if len(black) == 1:
        return "no scale" if 1 in black else "first table"
    return "last page" if error[-1].min() > 2 else "no mask"


faults = {letter: name_of(error) for letter, error in error_maps(SEED).items()}
### END SOLUTION

# %% check="08.3" points=2
check("08.3")

# %% [markdown]
# ## 08.4 What a copy costs
#
# This decode step is yours: Llama-3-8B (32 layers, 32 query heads, 8 KV heads, 128 numbers per head, 2
# bytes each) on an H100. Every user gets one token.

# %%
mine = decode_step(SEED)
print(f"{mine['users']} users with {mine['context']:,} tokens of context each")

# %% [markdown]
# First on paper: how many GB (10⁹ bytes) of keys and values does attention fetch in this step, over all
# layers, when the kernel walks along the block tables? That is `kv_gb`.
#
# Then measure. `bill_of(mine)` is the cost model's bill: it has `.time`, the whole step's seconds, and
# `.attention` with `.time` and `.memory_time`. `share` is attention's share of the step, between 0 and 1.
# And `slower`: how many times as long does the whole step take if the blocks are *gathered* first (read,
# written, read again)?

# %% answer="08.4"
### BEGIN SOLUTION
kv_gb = 2 * 32 * 8 * 128 * 2 * mine["users"] * mine["context"] / 1e9
bill = bill_of(mine)
share = bill.attention.time / bill.time
slower = (bill.time + 2 * bill.attention.memory_time) / bill.time
### END SOLUTION

# %% check="08.4" points=2
check("08.4")

# %% [markdown]
# ## 08.5 How many parts?
#
# One user with a long context keeps 8 of 132 processors busy (8 KV heads, one program each). Cut the
# context into parts and more of them work; but merging takes time, and too many programs queue for a
# processor in rounds. `split_us(users, context, splits)` is a small model of one layer: microseconds.

# %%
for n in (1, 4, 16, 64):
    print(f"two users, 16,000 tokens, {n:2} parts: {split_us(2, 16_000, n):6.1f} µs")

# %% [markdown]
# Every part also needs memory for its result. So write `choose_splits`: the **smallest** number of
# parts, from 1 to 64, that is at most 5 % slower than the fastest. It must work for any load.


# %% answer="08.5"
def choose_splits(users, context):
    """A whole number from 1 to 64."""
    ### BEGIN SOLUTION
    times = [split_us(users, context, n) for n in range(1, 65)]
    return next(n for n, time in enumerate(times, 1) if time <= 1.05 * min(times))
    ### END SOLUTION


# %% check="08.5" points=2
check("08.5")
### BEGIN HIDDEN TESTS
check(
    "08.5",
    cases=[
        {"what": f"{users} users, {context:,} tokens", "users": users, "context": context}
        for users, context in (
            (2, 500 + 100 * (SEED % 50)),
            (5, 12_000),
            (16, 32_000),
            (17, 2500),
            (33, 9000),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 08.6 Explain
#
# A colleague tests a new kernel in a fresh pool, in which blocks are handed out in order 0, 1, 2, …; with
# one sequence at a time, of a random length from 1 to 1,000; with 12 query heads and 12 KV heads. All green.
# In two or three sentences: **which two faults can these tests not see, why, and what would you change?**
# This part is read by a person.

# %% [markdown] explain="08.6" points=2
# ### BEGIN SOLUTION
# Two of these three, with the reason. With one sequence its number is always 0, so a kernel that ignores the batch
# index passes: test several sequences of different lengths. In a fresh pool page i often lies in block i, so a kernel
# that ignores the block table passes: shuffle the blocks. With as many KV heads as query heads every mapping from one
# to the other is the same, so a wrong one passes: test 12 query heads over 4 KV heads.
# ### END SOLUTION
