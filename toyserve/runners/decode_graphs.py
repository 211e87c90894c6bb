"""CUDA graphs for decode steps: at small sizes launching kernels takes longer than running them.

A decode step of a 12-layer GPT-2 is over a hundred kernel launches of a few microseconds each; a
GPU that finishes each sooner than Python can launch the next one waits for Python. A CUDA graph
records the launches once and replays them in one call. It replays exactly the same shapes and
addresses, so the batch is padded to one of a few sizes and its inputs are copied to fixed buffers.
A padding row has no slot to write to and nothing to attend to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from toyserve.models.attention import AttentionBatch
from toyserve.models.gpt2 import GPT2
from toyserve.models.triton_attention import TritonAttention

# Above the largest, launches no longer dominate and the step runs without a graph.
BATCH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)

Forward = Callable[[], Tensor]


class CudaCapture:
    """Turns a forward into one that replays it.

    Its graphs share a stream, which keeps a library's workspace, and a pool of memory, since only
    one of them runs at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> Forward:
        """A function that replays what ``forward`` launched; its result is overwritten each time.

        ``forward`` must read and write the same memory whenever it runs, and never wait for the
        GPU or copy from the host.
        """
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(2):  # compile kernels and let libraries allocate before recording
                forward()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread's model may allocate meanwhile.
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            result = forward()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


@dataclass(frozen=True)
class _Inputs:
    """What a batch size's forward reads, at fixed addresses."""

    rows: Tensor  # int64 [3, size]: token ids, positions, slots; slot -1 for padding
    seq_lens: Tensor  # int32 [size]; 0 for padding
    block_table: Tensor  # int32 [size, max_blocks]

    @classmethod
    def of_padding(cls, size: int, max_blocks: int, device: torch.device) -> _Inputs:
        rows = torch.zeros(3, size, dtype=torch.int64, device=device)
        rows[2] = -1
        return cls(
            rows,
            torch.zeros(size, dtype=torch.int32, device=device),
            torch.zeros(size, max_blocks, dtype=torch.int32, device=device),
        )

    def fill(
        self, token_ids: Sequence[int], positions: Sequence[int], batch: AttentionBatch
    ) -> None:
        """The batch, then padding: three copies, none of which waits for the GPU."""
        num, width = batch.decode_blocks.shape
        rows = np.zeros(self.rows.shape, dtype=np.int64)
        rows[2, num:] = -1
        rows[0, :num], rows[1, :num], rows[2, :num] = token_ids, positions, batch.slots.numpy()
        seq_lens = np.zeros(self.seq_lens.shape, dtype=np.int32)
        seq_lens[:num] = batch.decode_lens
        table = np.zeros(self.block_table.shape, dtype=np.int32)
        table[:num, :width] = batch.decode_blocks.numpy()
        for ours, new in ((self.rows, rows), (self.seq_lens, seq_lens), (self.block_table, table)):
            ours.copy_(torch.from_numpy(new), non_blocking=True)


class DecodeGraphs:
    """One graph per batch size, captured when that size first occurs.

    capture: how to record a forward. None runs the same padded forward each time, without graphs,
    which is how an interpreted kernel gets there.
    """

    def __init__(
        self,
        model: GPT2,
        attention: TritonAttention,
        max_model_len: int,
        capture: Callable[[Forward], Forward] | None = None,
    ) -> None:
        self.model, self.attention = model, attention
        self.max_model_len = max_model_len
        self.max_blocks = -(-max_model_len // attention.pool.block_size)
        self._capture = capture
        self._graphs: dict[int, tuple[_Inputs, Forward]] = {}

    def takes(self, batch: AttentionBatch) -> bool:
        """Only decodes, no more than the largest graph holds."""
        return not batch.chunks and 0 < len(batch.decode_lens) <= BATCH_SIZES[-1]

    def run(
        self, token_ids: Sequence[int], positions: Sequence[int], batch: AttentionBatch
    ) -> Tensor:
        """Logits, float32 [num_decodes, vocab_size], of one decode step."""
        num = len(token_ids)
        inputs, forward = self._graph(next(size for size in BATCH_SIZES if size >= num))
        inputs.fill(token_ids, positions, batch)
        return forward()[:num].clone()  # the next replay overwrites it

    def _graph(self, size: int) -> tuple[_Inputs, Forward]:
        if size not in self._graphs:
            # Recorded on rows that are all padding, so that nothing is written to the cache.
            inputs = _Inputs.of_padding(size, self.max_blocks, self.model.device)
            forward = partial(self._forward, inputs)
            self._graphs[size] = inputs, self._capture(forward) if self._capture else forward
        return self._graphs[size]

    def _forward(self, inputs: _Inputs) -> Tensor:
        token_ids, positions, slots = inputs.rows
        # max_seq_len decides how the context is split; the graph must serve every length.
        self.attention.set_step(
            slots=slots,
            block_table=inputs.block_table,
            seq_lens=inputs.seq_lens,
            max_seq_len=self.max_model_len,
        )
        every_row = torch.arange(len(token_ids), device=self.model.device)
        return self.model.forward(token_ids, positions, self.attention, every_row)
