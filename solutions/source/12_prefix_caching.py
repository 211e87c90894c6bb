# %% [markdown]
# # Exercise 12 · Prefix caching
#
# In the lesson the pool did the naming and the forgetting for you. Here you do both: for a bank whose
# customers must not share, and for a server whose favourites a stream of strangers flushes out. Then you
# find memory that is full of blocks nobody can reach, and buy as little memory as will do.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 55 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import ForgetsBeginnings
from toyserve.course.checks.ex12_prefix_caching import DEAD, FORGETS, rate_with, rush, shop, tight
from toyserve.course.checks.prefix_runs import (
    cache_picture,
    hit_rate,
    hits_of,
    mean_ttft,
    serve_cached,
    without_cache,
)
from toyserve.kv.prefix import SharingPool

SEED = 0  # your own numbers in 12.3 and 12.5 come from it

# %% [markdown]
# ## 12.1 What is found
#
# A bank's customers must not share blocks, not even by accident: an answer that comes sooner would tell
# that somebody else has asked the same. Write the index for it:
#
# - `add(customer, tokens)`: from now on this prompt's **full** blocks are in the cache
# - `cached(customer, tokens)`: how many tokens of *this* prompt need not be computed
#
# A block is good only behind the same past, and only for the customer who brought it. At least one token
# must be left to run: if all is there, the answer is all but one. Nothing is ever forgotten here. How you
# name the blocks is up to you.


# %% answer="12.1"
class Index:
    def __init__(self, block_size):
        self.block_size = block_size
        ### BEGIN SOLUTION
        self.names = {}  # (name of the block before, its tokens) -> name

    def full_blocks(self, tokens):
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            yield tuple(tokens[start : start + self.block_size])

    ### END SOLUTION

    def add(self, customer, tokens):
        """tokens: a list of token ids."""
        ### BEGIN SOLUTION
        parent = customer
        for block in self.full_blocks(tokens):
            parent = self.names.setdefault((parent, block), len(self.names))
        ### END SOLUTION

    def cached(self, customer, tokens):
        """A number of tokens."""
        ### BEGIN SOLUTION
        parent, num_tokens = customer, 0
        for block in self.full_blocks(tokens):
            parent = self.names.get((parent, block))
            if parent is None:
                break
            num_tokens += self.block_size
        return min(num_tokens, len(tokens) - 1)
        ### END SOLUTION


# %% check="12.1" points=3
check("12.1")
### BEGIN HIDDEN TESTS
check(
    "12.1",
    cases=[
        {
            "what": "a longer day at the bank",
            "size": size,
            "does": [
                ["add", "ann", "HELLOHELLOHELLO"],
                ["ask", "ann", "HELLOHELLOHELLO"],
                ["ask", "ann", "HELLO"],
                ["ask", "ann", "H"],
                ["ask", "ann", "HELLOHELLOXELLOHELLO"],
                ["ask", "bob", "HELLOHELLO"],
                ["add", "bob", "OTHERWORDSHELLO"],
                ["ask", "bob", "OTHERWORDSHELLOAGAIN"],
                ["ask", "ann", "OTHERWORDSHELLOAGAIN"],
                ["ask", "cy", "HELLOHELLO"],
                ["add", "ann", "HELLOHELLOHELLOHELLOHELLO"],
                ["ask", "ann", "HELLOHELLOHELLOHELLOHELLOHELLO"],
            ],
        }
        for size in (1, 3, 5, 7)
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 12.2 Whom to forget
#
# LRU forgets whoever was *used* longest ago. A stream of prompts that come once and never again flushes the
# favourites out: each stranger is newer than they are. So: **blocks that nobody has found yet go first**,
# the least recently used of them before the others. Only when there are none left, those that have been
# found, again the least recently used first. (A block that is forgotten and computed again starts anew:
# nobody has found it.)

# %% [markdown]
# Your pool runs in the real engine. What you have:
#
# | | it is |
# |---|---|
# | `self.unused` | numbers of the kept blocks that nobody refers to, least recently used first |
# | `self.by_block[block]` | what a block holds (a `CachedBlock`; you may put it into a set) |
# | `self.find(request)` | the list of cached blocks that a request begins with |
# | `self.forget(cached)` | forgets it; its block then is in `self.free_blocks` |
# | `match_prefix(request)` | called when a request comes in: takes what `find` finds |
# | `take(request, num_blocks)` | called for new blocks: forgets by LRU until enough are free |
#
# Extend the last two. `super().take(…)` forgets nothing if enough blocks are free already.

# %%
for case in FORGETS[:2]:
    print(case["what"], "· LRU finds", hits_of(serve_cached(case)[0]))


# %% answer="12.2"
class StrangersFirst(SharingPool):
    def match_prefix(self, request):
        ### BEGIN SOLUTION
        self.welcome = getattr(self, "welcome", set()) | {*self.find(request)}
        ### END SOLUTION
        return super().match_prefix(request)

    def take(self, request, num_blocks):
        ### BEGIN SOLUTION
        while len(self.free_blocks) < num_blocks:
            kept = [self.by_block[block] for block in self.unused]
            strangers = [cached for cached in kept if cached not in self.welcome]
            self.forget((strangers or kept)[0])
        ### END SOLUTION
        super().take(request, num_blocks)


# %% check="12.2" points=3
check("12.2")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.prefix_runs import asks

check(
    "12.2",
    cases=[
        {
            "what": f"{order} in {blocks} blocks",
            "blocks": blocks,
            "requests": asks(order, 16 * (4 + SEED % 3)),
        }
        for blocks, order in (
            (21, "ABACADAEAFBGBHAIBJAB"),
            (15, "AAABCDEFGHIJKLMA"),
            (22, "ABCABCDEFDEFGHIGHIABCDEF"),
            (19, "ABBACCDAEEFFABBA"),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 12.3 Predict, then measure
#
# This shop is yours. One customer after the other; a letter is a set of instructions.

# %%
mine = shop(SEED)
_, shared, own = mine["requests"][0]
print("who comes:", " ".join(name for name, _, _ in mine["requests"]))
print(f"instructions: {shared} tokens each; then {own} of the customer's own; blocks of 16")

# %% [markdown]
# On paper, as numbers between 0 and 1 (**hit rate**: prompt tokens found in the cache / all prompt tokens):
#
# - `roomy`: the hit rate when the pool has room for everything
# - `narrow`: the hit rate in a pool that holds one prompt and not a block more
#
# Then measure `gain`: mean time to the first token without a cache, over the same with the cache of the
# roomy pool. `serve_cached(mine)[0]` and `without_cache(mine)` are runs, `tight(mine)` is the case with the
# narrow pool, `hit_rate(run)` and `mean_ttft(run)` look at a run.

# %% answer="12.3"
### BEGIN SOLUTION
from itertools import pairwise

names = [name for name, _, _ in mine["requests"]]
each = shared // 16 * 16 / (len(names) * (shared + own))  # a hit, as a share of all prompt tokens
roomy = each * (len(names) - len(set(names)))
narrow = each * sum(one == the_next for one, the_next in pairwise(names))
assert abs(narrow - hit_rate(serve_cached(tight(mine))[0])) < 1e-9
gain = mean_ttft(without_cache(mine)) / mean_ttft(serve_cached(mine)[0])
### END SOLUTION

# %% check="12.3" points=2
check("12.3")

# %% [markdown]
# ## 12.4 Dead memory
#
# A colleague has tidied up the pool. All texts are right, the books balance, and nearly nobody finds
# anything any more. Three sets of instructions (8 blocks each) come in turn, with strangers in between.
# This is what lies in the cache at the end:

# %%
_, pool = serve_cached(DEAD, ForgetsBeginnings)
cache_picture(pool, "The colleague's pool: grey is there, blue can be found")

# %% [markdown]
# Read off the picture:
#
# - `gone_first`: of a set's blocks 0 to 7, which one is forgotten first?
# - `dead`: how many blocks lie there, grey, and cannot be found by anybody?
#
# Then write `Mended`: whoever comes again finds as much as there is to be found. The colleague's only
# change was in `give_back`, which is called when a request leaves:

# %%
from toyserve.course.show import show_source

show_source(ForgetsBeginnings.give_back)

# %% answer="12.4"
### BEGIN SOLUTION
gone_first, dead = 0, 7


class Mended(ForgetsBeginnings):
    def give_back(self, request):
        request.block_table.reverse()
        super().give_back(request)


### END SOLUTION

# %% check="12.4" points=3
check("12.4")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex12_prefix_caching import with_strangers

check(
    "12.4",
    cases=[
        {
            "what": f"{order} in {blocks} blocks",
            "blocks": blocks,
            "requests": with_strangers(order, 16 * num + 3),
        }
        for blocks, num, order in (
            (24, 10, "AB..A..B..A..B.AA..B"),
            (33, 6, "ABCD...D..C..A..B..A..C..D"),
            (60, 25, "AB..A..B...A..B..A..B..."),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 12.5 As little memory as will do
#
# Twelve sets of instructions, some far more popular than others, 90 customers. What the cache does not
# need, you can give to more requests at the same time. So your boss wants a hit rate, and not a block more
# than it takes:

# %%
hour = rush(SEED)
print("".join(name for name, _, _ in hour["requests"]))
print(f"hit rate at least {hour['target']:.0%}")
for num in (10, 110):
    print(f"with {num:3} blocks of memory: {rate_with(hour, num):.1%}")

# %% [markdown]
# Find `blocks`, the size of the pool: it meets the target, and three fewer do not. `rate_with(hour,
# blocks)` runs the whole hour, in about a tenth of a second; more memory never finds less.

# %% answer="12.5"
### BEGIN SOLUTION
sizes = range(10, 111)
low, high = 0, len(sizes) - 1
while low < high:
    middle = (low + high) // 2
    if rate_with(hour, sizes[middle]) >= hour["target"]:
        high = middle
    else:
        low = middle + 1
blocks = sizes[low]
### END SOLUTION

# %% check="12.5" points=2
check("12.5")

# %% [markdown]
# ## 12.6 Explain
#
# The rule of 12.2 is good against strangers. In two or three sentences: **when does it find *less* than
# plain LRU, why, and what would you add to it?** This part is read by a person.

# %% [markdown] explain="12.6" points=2
# ### BEGIN SOLUTION
# When the favourites change. Whoever was found once is never a stranger again, so yesterday's favourites
# fill the pool, and today's are forgotten before they can come a second time: in the order
# ABCABC DEFDEF GHIGHI plain LRU finds the second D, E and F, this rule hardly anything of them. So being
# welcome must end: after some time, after so many other blocks, or by keeping a fixed share of the pool for
# newcomers.
# ### END SOLUTION
