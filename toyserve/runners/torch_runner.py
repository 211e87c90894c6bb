"""The real model: one forward per step over one ragged row of tokens, prompts and decodes alike."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import torch

from toyserve.models.attention import AttentionBackend, AttentionBatch, Chunk, to_device
from toyserve.models.gpt2 import GPT2
from toyserve.models.sampler import Sampler, token_logprobs
from toyserve.request import Request
from toyserve.runners.decode_graphs import DecodeGraphs
from toyserve.schedulers.output import SchedulerOutput, StepResult


class BlockTables:
    """Every running request's block table as a row of one array that outlives the step.

    Building it anew from lists each step would cost more than the whole scheduler; here only what a
    request has gained since its last step is copied.
    """

    def __init__(self) -> None:
        self._rows: dict[Request, int] = {}
        self._free: list[int] = []
        self._table = np.zeros((0, 8), dtype=np.int64)
        self._known: list[int] = []  # how many blocks of each row are up to date

    def forget(self, request: Request) -> None:
        row = self._rows.pop(request, None)
        if row is not None:
            self._free.append(row)

    def forget_all(self) -> None:
        for request in list(self._rows):
            self.forget(request)

    def gather(self, requests: Sequence[Request], num_columns: int) -> np.ndarray:
        """int64 [num_requests, num_columns]; past a request's last block stands 0."""
        rows = []
        for request in requests:
            row = self._rows.get(request)
            if row is None:
                row = self._rows[request] = self._new_row()
            if self._known[row] != len(request.block_table):
                self._update(row, request.block_table)
            rows.append(row)
        return self._table[rows, :num_columns]

    def _update(self, row: int, blocks: list[int]) -> None:
        known = self._known[row]
        while len(blocks) > self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        if known > len(blocks):
            known = 0
            self._table[row] = 0
        self._table[row, known : len(blocks)] = blocks[known:]
        self._known[row] = len(blocks)

    def _new_row(self) -> int:
        if not self._free:
            size = len(self._table)
            more = max(8, size)
            grown = np.zeros((size + more, self._table.shape[1]), dtype=np.int64)
            grown[:size] = self._table
            self._table = grown
            self._known += [0] * more
            self._free = list(range(size + more - 1, size - 1, -1))
        row = self._free.pop()
        self._table[row] = 0
        self._known[row] = 0
        return row


class TorchRunner:
    """Runs plans on ``model``, with KV in ``attention``'s pool and tokens from ``sampler``."""

    def __init__(
        self,
        model: GPT2,
        attention: AttentionBackend,
        sampler: Sampler,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model, self.attention, self.sampler, self.graphs = model, attention, sampler, graphs
        self.block_size = attention.pool.block_size
        self.tables = BlockTables()

    def forget(self, request: Request) -> None:
        """It has ended; a static batch may still compute its row, which is forgotten each time."""
        self.tables.forget(request)
        self.sampler.forget(request)

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> StepResult:
        self._move_memory(plan)
        if not plan.num_scheduled_tokens:
            return StepResult()
        token_ids, positions, batch, sampled, rows = self._build(plan)
        for request in plan.num_padded_tokens:
            if request.is_finished:  # nobody would forget it later
                self.tables.forget(request)
        if self.graphs is not None and self.graphs.takes(batch):
            logits = self.graphs.run(token_ids, positions, batch)
            logits = logits if len(rows) == len(token_ids) else logits[rows]
        else:
            self.attention.begin_step(batch)
            logits = self.model.forward(
                self._tensor(token_ids), self._tensor(positions), self.attention, self._tensor(rows)
            )
        return self._sample(logits, sampled) if sampled else StepResult()

    def _move_memory(self, plan: SchedulerOutput) -> None:
        """Copies first, in the plan's order: a block that one line empties the next may fill."""
        self.attention.pool.swap_out(plan.swap_out)
        self.attention.pool.copy_blocks(plan.block_copies)
        self.attention.pool.swap_in(plan.swap_in)
        if plan.block_copies:
            self.tables.forget_all()  # somebody's table has changed in its middle
        for request in (*plan.admitted, *plan.preempted):
            self.tables.forget(request)  # its blocks are not the ones it had before

    def _sample(self, logits: torch.Tensor, requests: list[Request]) -> StepResult:
        token_ids = self.sampler.sample(logits, requests)
        result = StepResult(dict(zip(requests, token_ids, strict=True)))
        result.ended = self.sampler.ended(result.token_ids)
        result.logprobs = token_logprobs(logits, requests, token_ids)
        return result

    # -- from a plan to rows --------------------------------------------------------------------

    def _build(
        self, plan: SchedulerOutput
    ) -> tuple[list[int], list[int], AttentionBatch, list[Request], list[int]]:
        """Token ids, positions, the attention's batch, who is sampled and from which rows."""
        decodes, chunks = self._split(plan)
        token_ids, positions, slots, sampled, rows = [], [], [], [], []
        size = self.block_size
        for row, (position, request) in enumerate(decodes):
            known = request.token_ids
            token_ids.append(known[position])
            positions.append(position)
            slots.append(request.block_table[position // size] * size + position % size)
            # A finished row of a static batch runs its last token again, for nothing.
            if position + 1 == len(known) and request in plan.num_scheduled_tokens:
                sampled.append(request)
                rows.append(row)
        widest = -(-(positions[-1] + 1) // size) if decodes else 0
        blocks = self.tables.gather([request for _, request in decodes], widest)
        lens = [position + 1 for position in positions]
        parts = []
        for request, num_tokens in chunks:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            parts.append(Chunk(len(token_ids), num_tokens, end, request.block_table))
            token_ids += request.token_ids[start:end]
            positions += range(start, end)
            slots += self._slots(request.block_table, start, end)
            if end == len(request.token_ids):
                sampled.append(request)
                rows.append(len(token_ids) - 1)
        for request, num_tokens in plan.num_padded_tokens.items():
            if request in plan.num_scheduled_tokens:  # a prompt's padding: no KV, nobody sees it
                parts.append(Chunk(len(token_ids), num_tokens, num_tokens, []))
                token_ids += [0] * num_tokens
                positions += range(num_tokens)
        to_slots = torch.from_numpy(np.array(slots, dtype=np.int64))
        batch = AttentionBatch(torch.from_numpy(blocks), lens, parts, to_slots)
        return token_ids, positions, batch, sampled, rows

    def _split(
        self, plan: SchedulerOutput
    ) -> tuple[list[tuple[int, Request]], list[tuple[Request, int]]]:
        """(position, request) of everything that runs one token, shortest first; and the chunks."""
        decodes, chunks = [], []
        for request, num_tokens in plan.num_scheduled_tokens.items():
            if num_tokens == 1:
                decodes.append((request.num_computed_tokens, request))
            else:
                chunks.append((request, num_tokens))
        for request in plan.num_padded_tokens:
            if request not in plan.num_scheduled_tokens:
                decodes.append((request.num_computed_tokens - 1, request))
        decodes.sort(key=itemgetter(0))
        return decodes, chunks

    def _slots(self, block_table: list[int], start: int, end: int) -> list[int]:
        """Where the KV of positions ``start`` .. ``end`` - 1 goes."""
        size = self.block_size
        return [block_table[at // size] * size + at % size for at in range(start, end)]

    def _tensor(self, numbers: list[int]) -> torch.Tensor:
        # By way of numpy, which reads a list three times as fast as torch.
        return to_device(np.array(numbers, dtype=np.int64), self.model.device)
