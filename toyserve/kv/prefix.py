"""Prefix caching: a full block is kept, and found again by what it holds and all that came before.

Each full block is named by a hash of its tokens and of the name of the block before it, so a name
stands for a whole prefix (Kwon et al., SOSP 2023, section 4.4; vLLM's automatic prefix caching). A
hash is only where to look: tokens and predecessor are compared before anything is shared.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from toyserve.kv.manager import BlockEvent, KVIntegrityError, check_table, pool_size
from toyserve.request import Request


@dataclass(eq=False, slots=True)
class CachedBlock:
    """A full, computed block that others may share: it is never written again."""

    name: int
    token_ids: tuple[int, ...]
    parent: CachedBlock | None  # the block before it in the sequence
    block: int
    forgotten: bool = False

    def holds(self, parent: CachedBlock | None, token_ids: tuple[int, ...]) -> bool:
        """Is it this prefix, and not one that only hashes alike?"""
        return self.parent is parent and self.token_ids == token_ids


def hash_block(parent: int, token_ids: tuple[int, ...]) -> int:
    return hash((parent, token_ids))


class SharingPool:
    """BlockPool's face, with reference counts and a cache of blocks that nobody refers to now.

    A block is free, or referred to by ``ref_counts`` tables, or (0 references, but cached) unused:
    still good for a hit, and taken, least recently used first, once no block is free.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        hash_block: Callable[[int, tuple[int, ...]], int] = hash_block,
    ) -> None:
        self.num_blocks, self.block_size = pool_size(num_blocks, block_size)
        self.hash_block = hash_block
        self.free_blocks = list(range(self.num_blocks - 1, -1, -1))
        self.ref_counts = [0] * self.num_blocks  # how many requests use each block right now
        self.by_name: dict[int, CachedBlock] = {}
        self.by_block: dict[int, CachedBlock] = {}
        # LRU: cached blocks that nobody uses, the least recently used first, for it is taken first.
        self.unused: OrderedDict[int, None] = OrderedDict()
        # request -> the cached blocks of its sequence so far (its own, or others' just like them)
        self.chains: dict[Request, list[CachedBlock]] = {}
        # matched, but not allocated yet: the block to copy, if the whole sequence was found
        self.pending: dict[Request, int | None] = {}
        self.copies: list[tuple[int, int]] = []
        self.events: list[BlockEvent] = []

    @property
    def num_free(self) -> int:
        return len(self.free_blocks) + len(self.unused)

    # -- hits -----------------------------------------------------------------------------------

    def match_prefix(self, request: Request) -> int:
        """Refer to every cached block the sequence begins with; how many tokens that covers.

        At least one token is left to run, or there would be nothing to sample from. When the cache
        holds all, the last block is not shared but copied, for that one token is written to it.
        """
        chain = self.find(request)
        num_tokens = len(chain) * self.block_size
        shared = chain
        self.pending[request] = None
        if chain and num_tokens == request.num_tokens:
            shared, num_tokens = chain[:-1], num_tokens - 1
            self.pending[request] = tail = chain[-1].block
            if tail in self.unused:
                self.unused.move_to_end(tail)
        for cached in shared:
            self.ref_counts[cached.block] += 1
            self.unused.pop(cached.block, None)
            request.block_table.append(cached.block)
        request.num_slots = len(request.block_table) * self.block_size
        self.chains[request] = chain
        return num_tokens

    def find(self, request: Request) -> list[CachedBlock]:
        """The cached blocks that the sequence begins with, in order; full blocks only."""
        chain: list[CachedBlock] = []
        while (found := self._next(request, chain)) is not None:
            chain.append(found)
        return chain

    def _next(self, request: Request, chain: list[CachedBlock]) -> CachedBlock | None:
        """The cached block that continues ``chain`` as the request does."""
        start, end = len(chain) * self.block_size, (len(chain) + 1) * self.block_size
        if end > request.num_tokens:
            return None
        return self.look_up(chain[-1] if chain else None, tuple(request.token_ids[start:end]))

    def look_up(self, parent: CachedBlock | None, token_ids: tuple[int, ...]) -> CachedBlock | None:
        """The cached block of these tokens behind ``parent`` (None: at the beginning)."""
        cached = self.by_name.get(self._name(parent, token_ids))
        return cached if cached is not None and cached.holds(parent, token_ids) else None

    def _name(self, parent: CachedBlock | None, token_ids: tuple[int, ...]) -> int:
        return self.hash_block(parent.name if parent else 0, token_ids)

    def publish(self, requests: Iterable[Request]) -> None:
        """After a step: blocks that are now full and computed may be shared."""
        for request in requests:
            num_full = request.num_computed_tokens // self.block_size
            chain = self.chains.setdefault(request, [])  # empty when it was swapped in
            if len(chain) < num_full:
                if chain and chain[-1].forgotten:  # another's block, like ours, but gone: use ours
                    chain.clear()
                while len(chain) < num_full:
                    chain.append(self._next(request, chain) or self._cache(request, chain))

    def _cache(self, request: Request, chain: list[CachedBlock]) -> CachedBlock:
        index = len(chain)
        token_ids = tuple(request.token_ids[index * self.block_size :][: self.block_size])
        parent, block = chain[-1] if chain else None, request.block_table[index]
        name = self._name(parent, token_ids)
        for old in (self.by_name.get(name), self.by_block.get(block)):
            if old is not None and not old.forgotten:
                self.forget(old)  # one hash, two prefixes; or a prefix that cannot be reached
        cached = CachedBlock(name, token_ids, parent, block)
        self.by_name[name] = self.by_block[block] = cached
        self.events.append(BlockEvent("cache", block, request.request_id))
        return cached

    def forget(self, cached: CachedBlock) -> None:
        """Evict: what the block holds is forgotten; it is free if nobody refers to it."""
        del self.by_name[cached.name], self.by_block[cached.block]
        cached.forgotten = True
        self.events.append(BlockEvent("evict", cached.block, ""))
        if cached.block in self.unused:
            del self.unused[cached.block]
            self.free_blocks.append(cached.block)

    # -- what BlockPool does too ----------------------------------------------------------------

    def take(self, request: Request, num_blocks: int) -> None:
        """Add ``num_blocks`` to the request's table, forgetting cached ones if it must be."""
        while len(self.free_blocks) < num_blocks:
            self.forget(self.by_block[next(iter(self.unused))])
        table = request.block_table
        first = 0 if request in self.pending else len(table)
        tail, index = self.pending.pop(request, None), len(table)
        for _ in range(num_blocks):
            block = self.free_blocks.pop()
            self.ref_counts[block] = 1
            table.append(block)
        request.num_slots = len(table) * self.block_size
        self.events += [BlockEvent("take", block, request.request_id) for block in table[first:]]
        chain = self.chains.get(request)
        if chain and chain[-1].forgotten:  # by this very take: the copy will be published
            chain.pop()
        if tail is not None and tail != table[index]:
            # Good even if ``tail`` was just forgotten: copies run before anything is written.
            self.copies.append((tail, table[index]))

    def give_back(self, request: Request) -> None:
        """Stop referring to the request's blocks, last first: a prefix outlives what follows it."""
        was_allocated = request not in self.pending
        for block in reversed(request.block_table):
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                if block in self.by_block:
                    self.unused[block] = None
                else:
                    self.free_blocks.append(block)
            if was_allocated:
                self.events.append(BlockEvent("drop", block, request.request_id))
        request.block_table.clear()
        request.num_slots = 0
        self.pending.pop(request, None)
        self.chains.pop(request, None)

    def drain_events(self) -> list[BlockEvent]:
        events, self.events = self.events, []
        return events

    def drain_copies(self) -> list[tuple[int, int]]:
        copies, self.copies = self.copies, []
        return copies

    def check(self, requests: Iterable[Request]) -> None:
        """Free, referred to or unused: each block is exactly one of them, and counts agree."""
        counts: Counter[int] = Counter()
        for request in requests:
            counts.update(request.block_table)
            check_table(request, self.block_size)
        wrong = {b: n for b, n in enumerate(self.ref_counts) if n != counts[b]}
        places = Counter([*self.free_blocks, *self.unused, *counts])
        if wrong or places != Counter(range(self.num_blocks)):
            raise KVIntegrityError(f"reference counts {wrong} are wrong; blocks are in {places}")
        names = {cached.block for cached in self.by_name.values()}
        if names != set(self.by_block) or not names >= set(self.unused) or self.pending:
            raise KVIntegrityError(f"cache {self.by_name}, {self.by_block}, unused {self.unused}")
        if names & set(self.free_blocks):
            raise KVIntegrityError(f"cached and free: {names & set(self.free_blocks)}")
