"""Planted answers to exercise 12: each wrong one must fail with these words, each right one pass."""


# %% wrong 12.1 | behind *another beginning*
class Index:  # a name without its past
    def __init__(self, block_size):
        self.size, self.blocks = block_size, set()

    def add(self, customer, tokens):
        for i in range(0, len(tokens) - self.size + 1, self.size):
            self.blocks.add((customer, tuple(tokens[i : i + self.size])))

    def cached(self, customer, tokens):
        n = 0
        while (customer, tuple(tokens[n : n + self.size])) in self.blocks:
            n += self.size
        return min(n, len(tokens) - 1)


# %% wrong 12.1 | a block that is not full cannot be shared
class Index:  # token by token
    def __init__(self, block_size):
        self.known = set()

    def add(self, customer, tokens):
        self.known |= {(customer, *tokens[:i]) for i in range(1, len(tokens) + 1)}

    def cached(self, customer, tokens):
        n = 0
        while n < len(tokens) and (customer, *tokens[: n + 1]) in self.known:
            n += 1
        return min(n, len(tokens) - 1)


# %% wrong 12.1 | From what is the first token
class Index:  # whole prompts
    def __init__(self, block_size):
        self.size, self.known = block_size, set()

    def add(self, customer, tokens):
        self.known |= {(customer, *tokens[:i]) for i in range(0, len(tokens) + 1, self.size)}

    def cached(self, customer, tokens):
        ends = range(0, len(tokens) + 1, self.size)
        return max((i for i in ends if (customer, *tokens[:i]) in self.known), default=0)


# %% wrong 12.1 | a whole block is computed again
class Index:  # as many engines do
    def __init__(self, block_size):
        self.size, self.known = block_size, set()

    def add(self, customer, tokens):
        self.known |= {(customer, *tokens[:i]) for i in range(0, len(tokens) + 1, self.size)}

    def cached(self, customer, tokens):
        ends = range(0, len(tokens), self.size)
        return max((i for i in ends if (customer, *tokens[:i]) in self.known), default=0)


# %% wrong 12.1 | that only ann has ever sent
class Index:  # one cache for all
    def __init__(self, block_size):
        self.size, self.known = block_size, set()

    def add(self, customer, tokens):
        self.known |= {tuple(tokens[:i]) for i in range(0, len(tokens) + 1, self.size)}

    def cached(self, customer, tokens):
        ends = range(0, len(tokens) + 1, self.size)
        most = max((i for i in ends if tuple(tokens[:i]) in self.known), default=0)
        return min(most, len(tokens) - 1)


# %% wrong 12.1 | must be a number; yours is None
class Index:
    def __init__(self, block_size):
        self.size = block_size

    def add(self, customer, tokens):
        pass

    def cached(self, customer, tokens):
        pass


# %% right 12.1 | whole prefixes in a set, no chain at all
class Index:
    def __init__(self, block_size):
        self.size, self.known = block_size, set()

    def add(self, customer, tokens):
        for end in range(self.size, len(tokens) + 1, self.size):
            self.known.add((customer, tuple(tokens[:end])))

    def cached(self, customer, tokens):
        end = 0
        while (customer, tuple(tokens[: end + self.size])) in self.known and end < len(tokens):
            end += self.size
        return min(end, len(tokens) - 1)


# %% right 12.1 | the lesson's chain of hashes
from toyserve.kv.prefix import hash_block


class Index:
    def __init__(self, block_size):
        self.size, self.names = block_size, {}

    def walk(self, customer, tokens):
        name = hash(customer)
        for i in range(len(tokens) // self.size):
            name = hash_block(name, tuple(tokens[i * self.size : (i + 1) * self.size]))
            yield name

    def add(self, customer, tokens):
        self.names.setdefault(customer, set()).update(self.walk(customer, tokens))

    def cached(self, customer, tokens):
        found = 0
        for name in self.walk(customer, tokens):
            if name not in self.names.get(customer, ()):
                break
            found += 1
        return min(found * self.size, len(tokens) - 1)


# %% wrong 12.2 | no better than plain LRU
class StrangersFirst(SharingPool):
    pass


# %% wrong 12.2 | fewer than the
class StrangersFirst(SharingPool):  # the newest goes first
    def take(self, request, num_blocks):
        while len(self.free_blocks) < num_blocks:
            self.forget(self.by_block[next(reversed(self.unused))])
        super().take(request, num_blocks)


# %% wrong 12.2 | since they were computed
class StrangersFirst(SharingPool):  # by block number: whoever moves in there is welcome as well
    def match_prefix(self, request):
        if not hasattr(self, "welcome"):
            self.welcome = set()
        self.welcome |= {cached.block for cached in self.find(request)}
        return super().match_prefix(request)

    def take(self, request, num_blocks):
        while len(self.free_blocks) < num_blocks:
            order = sorted(self.unused, key=lambda block: block in self.welcome)
            self.forget(self.by_block[order[0]])
        super().take(request, num_blocks)


# %% wrong 12.2 | it crashed with IndexError
class StrangersFirst(SharingPool):  # never forgets anybody who was found
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.welcome = set()

    def match_prefix(self, request):
        self.welcome.update(self.find(request))
        return super().match_prefix(request)

    def take(self, request, num_blocks):
        while len(self.free_blocks) < num_blocks:
            strangers = [b for b in self.unused if self.by_block[b] not in self.welcome]
            self.forget(self.by_block[strangers[0]])
        super().take(request, num_blocks)


# %% right 12.2 | counts, and a sort that keeps the order of equals
class StrangersFirst(SharingPool):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.times = {}

    def match_prefix(self, request):
        for cached in self.find(request):
            self.times[cached] = self.times.get(cached, 0) + 1
        return super().match_prefix(request)

    def take(self, request, num_blocks):
        short = num_blocks - len(self.free_blocks)
        order = sorted(self.unused, key=lambda block: self.by_block[block] in self.times)
        for block in order[: max(0, short)]:
            self.forget(self.by_block[block])
        super().take(request, num_blocks)


# %% right 12.2 | by block number, wiped when it is forgotten
class StrangersFirst(SharingPool):
    welcome = None

    def match_prefix(self, request):
        self.welcome = self.welcome or set()
        self.welcome.update(one.block for one in self.find(request))
        return super().match_prefix(request)

    def forget(self, cached):
        self.welcome.discard(cached.block)
        super().forget(cached)

    def take(self, request, num_blocks):
        while len(self.free_blocks) < num_blocks:
            fresh = (block for block in self.unused if block not in self.welcome)
            self.forget(self.by_block[next(fresh, next(iter(self.unused)))])
        super().take(request, num_blocks)


# %% wrong 12.3 | the last block of them is not full of
again = len(mine["requests"]) - len({name for name, _, _ in mine["requests"]})
roomy = again * shared / (len(mine["requests"]) * (shared + own))
narrow, gain = 0.1, 2

# %% wrong 12.3 | forgets that whoever comes first finds nothing
roomy = shared // 16 * 16 / (shared + own)
narrow, gain = 0.1, 2

# %% wrong 12.3 | does nobody come twice in a row
roomy, narrow, gain = hit_rate(serve_cached(mine)[0]), 0, 2

# %% wrong 12.3 | is upside down
roomy, narrow = (hit_rate(serve_cached(case)[0]) for case in (mine, tight(mine)))
gain = mean_ttft(serve_cached(mine)[0]) / mean_ttft(without_cache(mine))

# %% right 12.3 | measured, in numpy's numbers
import numpy as np

roomy, narrow = (np.float64(hit_rate(serve_cached(case)[0])) for case in (mine, tight(mine)))
gain = np.divide(mean_ttft(without_cache(mine)), mean_ttft(serve_cached(mine)[0]))

# %% wrong 12.4 | is not the lowest one
gone_first, dead, Mended = 7, 7, SharingPool

# %% wrong 12.4 | counts all that is in the cache
gone_first, dead, Mended = 0, 23, SharingPool

# %% wrong 12.4 | no more than before
gone_first, dead, Mended = 0, 7, ForgetsBeginnings

# %% wrong 12.4 | nothing at all (is anything kept?)
gone_first, dead = 0, 7


class Mended(ForgetsBeginnings):  # forgets everything at once
    def give_back(self, request):
        super().give_back(request)
        for block in list(self.unused):
            self.forget(self.by_block[block])


# %% right 12.4 | the library's pool
gone_first, dead, Mended = 0, 7, SharingPool

# %% right 12.4 | nobody forgets a block before those behind it
gone_first, dead = 0, 7


class Mended(ForgetsBeginnings):
    def take(self, request, num_blocks):
        while len(self.free_blocks) < num_blocks:
            parents = {cached.parent for cached in self.by_block.values()}
            leaves = (b for b in self.unused if self.by_block[b] not in parents)
            self.forget(self.by_block[next(leaves)])
        super().take(request, num_blocks)


# %% wrong 12.5 | is the target
blocks = 20

# %% wrong 12.5 | with 3 fewer it is still enough
blocks = 110

# %% wrong 12.5 | must be a whole number
blocks = 44.5

# %% right 12.5 | one after the other
blocks = 30
while rate_with(hour, blocks) < hour["target"]:
    blocks += 1
