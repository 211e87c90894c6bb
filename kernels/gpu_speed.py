"""The GPU check's timings: how near the kernels are to what the card can do, beside others."""

import importlib.util
from collections.abc import Callable

import torch

from . import rivals
from .bench import Bench, Report, at_most
from .checks import TOLERANCE
from .decode_attention import decode_attention, decode_attention_reference
from .gpu_correct import relative_error
from .gpu_shapes import (
    BLOCK_SIZE,
    DECODE_SHAPES,
    PREFILL_SHAPES,
    SMOKE_DECODE,
    SMOKE_PREFILL,
    Shape,
    random_problem,
)
from .problems import PagedProblem
from .ragged_attention import ragged_attention
from .write_kv import write_kv

Prepare = Callable[[PagedProblem], rivals.Run]

COPY_BYTES = 2**30
MATRIX_ROWS = 8192
WRITE_TOKENS = 16384

OURS: dict[str, Prepare] = {
    "toyserve decode": lambda p: lambda: decode_attention(*p.decode_args),
    "toyserve ragged": lambda p: lambda: ragged_attention(*p.ragged_args, max_query_len=1),
}


def measure_ceilings(report: Report, bench: Bench) -> None:
    """Copy bandwidth and matrix rate, as this run of this card gives them."""
    size = 2**10 if bench.smoke else COPY_BYTES
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    n = 64 if bench.smoke else MATRIX_ROWS
    dtype = torch.float32 if bench.smoke else bench.dtype
    a, b = (torch.randn(n, n, dtype=dtype, device=bench.device) for _ in range(2))
    for shape, what, run, work, unit in (
        (f"copy of {size / 2**20:g} MiB", "bytes", lambda: target.copy_(source), 2 * size, "GB/s"),
        (f"{n} cubed", "matrix", lambda: a @ b, 2 * n**3, "TFLOP/s"),
    ):
        seconds = bench.seconds(run)
        report.add_rate("ceiling", shape, what, seconds, work, unit)
        if seconds is not None:
            report.ceilings[unit] = report.rows[-1].rate


def measure_decode(report: Report, bench: Bench) -> None:
    """Decode attention, as a share of the copy bandwidth, beside torch's."""
    for shape in SMOKE_DECODE if bench.smoke else DECODE_SHAPES:
        _measure_decode(report, bench, shape, OURS | rivals.DECODE)


def measure_libraries(report: Report, bench: Bench) -> None:
    """The same by other libraries, where they are installed: last, since they may compile long."""
    found = dict(rivals.LIBRARIES)
    for module, what in (("flashinfer", "FlashInfer"), ("flash_attn", "FlashAttention")):
        if importlib.util.find_spec(module) is None:
            report.skip(f"{what} is not installed")
            found = {name: prepare for name, prepare in found.items() if what not in name}
    if bench.smoke:
        report.skip("FlexAttention compiles for the machine it runs on")
        found.pop(rivals.FLEX)
    for number, shape in enumerate(SMOKE_DECODE if bench.smoke else DECODE_SHAPES):
        if number == 2:
            found.pop(rivals.FLEX, None)  # each shape compiles for many seconds: two are enough
        if found:
            _measure_decode(report, bench, shape, found)


def _measure_decode(
    report: Report, bench: Bench, shape: Shape, contestants: dict[str, Prepare]
) -> None:
    if not bench.fits(4 * shape.kv_bytes(bench.dtype)) or bench.seconds_left < 25:
        report.skip(f"decode {shape}: too little memory or time is left")
        return
    problem = random_problem(shape, bench)
    judge = problem.tail(min(4, shape.num_seqs) if shape.context_len <= 2048 else 1)
    expected = decode_attention_reference(*judge.decode_args)
    for what, prepare in contestants.items():
        _measure(report, bench, "decode", shape, what, prepare, problem, expected)


def measure_prefill(report: Report, bench: Bench) -> None:
    """Prompts and chunks, as a share of the matrix rate, beside SDPA for whole prompts."""
    for shape in SMOKE_PREFILL if bench.smoke else PREFILL_SHAPES:
        if bench.seconds_left < 30:
            report.skip(f"prefill {shape}: too little time is left")
            continue
        problem = random_problem(shape, bench)
        judge = problem.tail(1)
        last = judge.q[-1:]  # the last token of the last sequence sees all of its context
        expected = decode_attention_reference(last, *judge.decode_args[1:])
        runs: dict[str, Prepare] = {
            "toyserve ragged": lambda p, n=shape.query_len: (
                lambda: ragged_attention(*p.ragged_args, max_query_len=n)
            )
        }
        if shape.query_len == shape.context_len:
            runs |= rivals.PREFILL
        for what, prepare in runs.items():
            _measure(report, bench, "prefill", shape, what, prepare, problem, expected)
        del problem, judge, last
        bench.free()


def _measure(
    report: Report,
    bench: Bench,
    section: str,
    shape: Shape,
    what: str,
    prepare: Prepare,
    problem: PagedProblem,
    expected: torch.Tensor,
) -> None:
    """One contestant on one problem: is it right on the last rows, and how long does it take?

    What goes wrong with our kernels is a problem, with anybody else's a line of what was skipped.
    """
    complain = report.problem if what.startswith("toyserve") else report.skip
    try:
        with at_most(max(1, min(60, bench.seconds_left))):
            run = prepare(problem)
            out = rivals.rows_of(run(), len(problem.q))
            error = relative_error(out[-len(expected) :], expected)
            seconds = bench.seconds(run, capture=what not in rivals.LIBRARIES)
    except torch.OutOfMemoryError:  # it says nothing about anybody's kernel
        report.skip(f"{section} {shape}: {what}: too little memory")
        return
    except Exception as error_raised:  # a library that is missing or does not do this shape
        said = (str(error_raised).splitlines() or [""])[0][:100]
        complain(f"{section} {shape}: {what}: {type(error_raised).__name__}: {said}")
        return
    if not error <= TOLERANCE[bench.dtype]:
        complain(f"{section} {shape}: {what} is off by {error:.2g}")
        return
    work, unit = shape.flops, "TFLOP/s"
    if section == "decode":
        work, unit = shape.kv_bytes(bench.dtype), "GB/s"
    note = f"error {error:.1e}" + ("" if what not in rivals.LIBRARIES else ", launched each time")
    report.add_rate(section, str(shape), what, seconds, work, unit, note)


def measure_write(report: Report, bench: Bench) -> None:
    """The KV write of a large step: K and V are read once and written once."""
    tokens, heads, head_dim = (8, 2, 16) if bench.smoke else (WRITE_TOKENS, 12, 64)
    options = {"device": bench.device, "dtype": bench.dtype}
    pool = torch.zeros(tokens // 4, BLOCK_SIZE, 2, heads, head_dim, **options)
    kv = torch.randn(tokens, 3 * heads, head_dim, **options)
    slots = torch.randperm(tokens * 4, device=bench.device)[:tokens]
    args = (kv[:, heads : 2 * heads], kv[:, 2 * heads :], pool[:, :, 0], pool[:, :, 1], slots)
    seconds = bench.seconds(lambda: write_kv(*args))
    num_bytes = 4 * tokens * heads * head_dim * bench.dtype.itemsize
    shape = f"{tokens} tokens {heads}x{head_dim}"
    report.add_rate("write", shape, "toyserve", seconds, num_bytes, "GB/s")
