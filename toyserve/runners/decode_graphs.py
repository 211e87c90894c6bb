"""CUDA graphs for decode steps: at small sizes launching kernels takes longer than running them.

A decode step of a 12-layer GPT-2 is over a hundred kernel launches of a few microseconds each; a
GPU that finishes each sooner than Python can launch the next one waits for Python. A CUDA graph
records the launches once and replays them in one call. It replays exactly the same shapes and
addresses, so the batch is padded to one of a few sizes and its inputs are copied to fixed buffers.
A padding row has no slot to write to and nothing to attend to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toyserve.models.attention import AttentionBatch
from toyserve.models.gpt2 import GPT2
from toyserve.models.triton_attention import TritonAttention

# Above the largest, launches no longer dominate and the step runs without a graph.
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


@dataclass
class _Graph:
    """Fixed inputs and output of one batch size; ``replay`` is None where graphs are emulated."""

    token_ids: Tensor  # int64 [size]
    positions: Tensor  # int64 [size]
    slots: Tensor  # int64 [size]; -1 for padding
    seq_lens: Tensor  # int32 [size]; 0 for padding
    block_table: Tensor  # int32 [size, max_blocks]
    logits: Tensor | None = None  # float32 [size, vocab_size]
    replay: torch.cuda.CUDAGraph | None = None


class DecodeGraphs:
    """One graph per batch size, captured when that size first occurs.

    Without CUDA the same padded buffers are run directly, which is how the tests reach this code.
    """

    def __init__(self, model: GPT2, attention: TritonAttention, max_model_len: int) -> None:
        self.model, self.attention = model, attention
        self.max_model_len = max_model_len
        self.max_blocks = -(-max_model_len // attention.pool.block_size)
        self._graphs: dict[int, _Graph] = {}

    def takes(self, batch: AttentionBatch) -> bool:
        """Only decodes, no more than the largest graph holds."""
        return not batch.chunks and 0 < len(batch.decode_lens) <= BATCH_SIZES[-1]

    def run(
        self, token_ids: Sequence[int], positions: Sequence[int], batch: AttentionBatch
    ) -> Tensor:
        """Logits, float32 [num_decodes, vocab_size], of one decode step."""
        num = len(token_ids)
        graph = self._graph(next(size for size in BATCH_SIZES if size >= num))
        self._fill(graph, num, token_ids, positions, batch)
        if graph.replay is not None:
            graph.replay.replay()
        else:
            graph.logits = self._forward(graph)
        assert graph.logits is not None
        return graph.logits[:num].clone()  # the next replay overwrites the buffer

    def _graph(self, size: int) -> _Graph:
        graph = self._graphs.get(size)
        if graph is None:
            device = self.model.device
            graph = self._graphs[size] = _Graph(
                token_ids=torch.zeros(size, dtype=torch.int64, device=device),
                positions=torch.zeros(size, dtype=torch.int64, device=device),
                slots=torch.full((size,), -1, dtype=torch.int64, device=device),
                seq_lens=torch.zeros(size, dtype=torch.int32, device=device),
                block_table=torch.zeros(size, self.max_blocks, dtype=torch.int32, device=device),
            )
            if device.type == "cuda":
                self._capture(graph)
        return graph

    def _capture(self, graph: _Graph) -> None:
        """Record the launches of one forward, with all rows padding so that nothing is written."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # compile kernels and let libraries allocate before recording
                self._forward(graph)
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph.replay):
            graph.logits = self._forward(graph)

    def _forward(self, graph: _Graph) -> Tensor:
        # max_seq_len decides how the context is split; the graph must serve every length.
        self.attention.set_step(
            slots=graph.slots,
            block_table=graph.block_table,
            seq_lens=graph.seq_lens,
            max_seq_len=self.max_model_len,
        )
        every_row = torch.arange(graph.token_ids.shape[0], device=self.model.device)
        return self.model.forward(graph.token_ids, graph.positions, self.attention, every_row)

    def _fill(
        self,
        graph: _Graph,
        num: int,
        token_ids: Sequence[int],
        positions: Sequence[int],
        batch: AttentionBatch,
    ) -> None:
        graph.token_ids[:num].copy_(torch.tensor(token_ids), non_blocking=True)
        graph.positions[:num].copy_(torch.tensor(positions), non_blocking=True)
        graph.slots[:num].copy_(batch.slots)
        graph.slots[num:].fill_(-1)
        lens = torch.tensor(batch.decode_lens, dtype=torch.int32)
        graph.seq_lens[:num].copy_(lens, non_blocking=True)
        graph.seq_lens[num:].zero_()
        graph.block_table[:num, : batch.decode_blocks.shape[1]].copy_(batch.decode_blocks)
