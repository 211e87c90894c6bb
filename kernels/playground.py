"""A launch small enough to look at: who read what, and the online softmax by hand.

    problem = tiny_problem()
    run = run_program_by_program(problem)       # the real kernel, in Triton's interpreter
    run.programs[0].blocks                      # the cache blocks that the first program read
    steps = online_softmax_steps(problem, sequence=0, new_token=0, head=0, tile=4)

Works from any process, a notebook's too: where Triton was imported to compile, the kernel runs
in a child process that interprets. The softmax by hand needs no Triton.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from . import backend
from .decode_attention import decode_attention
from .problems import PagedProblem, make_problem
from .ragged_attention import ragged_attention
from .reads import Read, recording_reads
from .tuning import Tile

TINY_TILE = Tile(block_m=4, tile=4)  # smaller than a GPU allows; the interpreter does not mind


@dataclass(frozen=True)
class ProgramRecord:
    """What one program of a launch did; a program without work has no sequence and no reads."""

    program: tuple[int, int, int]  # its place in the grid
    sequence: int | None
    kv_head: int | None
    new_tokens: list[int]  # rows of q that it read
    heads: list[int]  # query heads that it read
    blocks: list[int]  # cache blocks that it read keys from, in the order of its tiles
    num_keys: int  # keys that it read


@dataclass(frozen=True)
class KernelRun:
    """A launch, program by program, and what it computed."""

    grid: tuple[int, int, int]
    out: torch.Tensor  # [num_tokens, num_heads, head_dim]
    programs: list[ProgramRecord]


@dataclass(frozen=True)
class SoftmaxStep:
    """One tile of one row's online softmax; m, l and acc are as they stand after it."""

    blocks: list[int]  # the cache blocks that the tile's keys came from
    scores: torch.Tensor  # [num_keys], scaled
    m_new: float
    p: torch.Tensor  # [num_keys], exp(scores - m_new)
    fix: float  # exp(old m - m_new): what the earlier sums shrink by
    l: float  # noqa: E741
    acc: torch.Tensor  # [head_dim]

    @property
    def out(self) -> torch.Tensor:
        """The answer, were this the last tile."""
        return self.acc / self.l


def tiny_problem(
    context_lens: Sequence[int] = (7, 3, 5),
    query_lens: Sequence[int] = (1, 3, 2),
    *,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    head_dim: int = 16,
    block_size: int = 2,
    seed: int = 0,
) -> PagedProblem:
    """By default a decode, a whole prompt and a chunk behind a context, in blocks of two."""
    return make_problem(
        context_lens,
        query_lens,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
    )


def run_program_by_program(
    problem: PagedProblem,
    *,
    kernel: str = "ragged",
    num_splits: int = 1,
    tile: Tile = TINY_TILE,
) -> KernelRun:
    """Run the ragged or the decode kernel in the interpreter and record what programs read.

    For `kernel="decode"` every sequence has one new token. Raises RuntimeError, with the reason
    in one sentence, where Triton's interpreter cannot run, and ValueError for another kernel.
    """
    if kernel not in ("ragged", "decode"):
        raise ValueError(f"kernel must be 'ragged' or 'decode', not {kernel!r}")
    why = backend.why_no_interpreter()
    if why is not None:
        raise RuntimeError(f"the kernel cannot be run program by program here: {why}")
    job = {
        "tensors": list(problem.ragged_args),
        "kernel": kernel,
        "num_splits": num_splits,
        "tile": asdict(tile),
    }
    here = backend.triton_mode() == "interpreter"
    result = _run_job(job) if here else _run_in_child(job)
    programs = [ProgramRecord(**record) for record in result["programs"]]
    return KernelRun(result["grid"], result["out"], programs)


def _run_job(job: dict[str, Any]) -> dict[str, Any]:
    problem, tile = PagedProblem(*job["tensors"]), Tile(**job["tile"])
    num_seqs, num_kv_heads = len(problem.seq_lens), problem.k_cache.shape[2]
    named = {name: getattr(problem, name) for name in ("q", "k_cache", "v_cache", "block_table")}
    with recording_reads(**named) as reads:
        if job["kernel"] == "ragged":
            out = ragged_attention(*problem.ragged_args, tile=tile)
            group = problem.q.shape[1] // num_kv_heads
            blocks = problem.q.shape[0] // (tile.block_m // group) + num_seqs
            grid = (blocks, num_kv_heads, 1)
        else:
            splits = job["num_splits"]
            out = decode_attention(*problem.decode_args, num_splits=splits, tile=tile)
            grid = (num_seqs, num_kv_heads, splits)
    if job["num_splits"] > 1:  # the merge reads none of the named tensors
        reads = [read for read in reads if read.tensor]
    places = [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]
    programs = [_record(place, [r for r in reads if r.program == place]) for place in places]
    return {"grid": grid, "out": out, "programs": [asdict(program) for program in programs]}


def _record(place: tuple[int, int, int], reads: list[Read]) -> ProgramRecord:
    def seen(tensor: str, axis: int) -> list[int]:
        values = [v for read in reads if read.tensor == tensor for v in read.index[:, axis]]
        return [int(v) for v in dict.fromkeys(values)]  # each once, in the order first read

    keys = {tuple(at[:3]) for read in reads if read.tensor == "k_cache" for at in read.index}
    sequences, heads = seen("block_table", 0), seen("k_cache", 2)
    return ProgramRecord(
        program=place,
        sequence=sequences[0] if sequences else None,
        kv_head=heads[0] if heads else None,
        new_tokens=seen("q", 0),
        heads=seen("q", 1),
        blocks=seen("k_cache", 0),
        num_keys=len(keys),
    )


def _run_in_child(job: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.pt"
        torch.save(job, path)
        child = subprocess.run(
            [sys.executable, "-m", __name__, str(path)],
            env=os.environ | {"TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode:
            said = (child.stderr.strip() or "it said nothing").splitlines()[-1]
            raise RuntimeError(f"the interpreter's process failed: {said}")
        return torch.load(path, weights_only=True)


def online_softmax_steps(
    problem: PagedProblem, *, sequence: int, new_token: int, head: int, tile: int
) -> list[SoftmaxStep]:
    """A softmax taken tile by tile with a running maximum and sum: one row, by hand."""
    start = int(problem.query_start_loc[sequence])
    num_new = int(problem.query_start_loc[sequence + 1]) - start
    if not 0 <= new_token < num_new:
        raise ValueError(f"new_token is {new_token}, sequence {sequence} has {num_new}")
    num_visible = int(problem.seq_lens[sequence]) - num_new + new_token + 1
    block_size, num_kv_heads, head_dim = problem.k_cache.shape[1:]
    kv_head = head // (problem.q.shape[1] // num_kv_heads)
    query = problem.q[start + new_token, head].double()
    m, l, acc = float("-inf"), 0.0, torch.zeros(head_dim, dtype=torch.float64)  # noqa: E741
    steps = []
    for first in range(0, num_visible, tile):
        n = torch.arange(first, min(first + tile, num_visible))
        blocks = problem.block_table[sequence, n // block_size].long()
        keys = problem.k_cache[blocks, n % block_size, kv_head].double()  # [num_keys, head_dim]
        values = problem.v_cache[blocks, n % block_size, kv_head].double()
        scores = keys @ query / head_dim**0.5
        m_new = max(m, float(scores.max()))
        p = torch.exp(scores - m_new)
        fix = float(torch.tensor(m - m_new).exp())
        l = l * fix + float(p.sum())  # noqa: E741
        acc = acc * fix + p @ values
        m = m_new
        used = list(dict.fromkeys(blocks.tolist()))
        steps.append(SoftmaxStep(used, scores, m_new, p, fix, l, acc))
    return steps


if __name__ == "__main__":
    job_path = sys.argv[1]
    torch.save(_run_job(torch.load(job_path, weights_only=True)), job_path)
