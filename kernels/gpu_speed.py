"""The GPU check's timings: how near the kernels are to what the card can do, beside others."""

from collections.abc import Callable

import torch

from . import rivals
from .bench import Bench, Report, Row
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


def measure_ceilings(report: Report, bench: Bench) -> tuple[float | None, float | None]:
    """Copy bandwidth in bytes/s and matrix rate in FLOP/s, as this run of this card gives them."""
    size = 2**10 if bench.smoke else 2**30
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds, _ = bench.seconds(lambda: target.copy_(source))
    bandwidth = None if seconds is None else 2 * size / seconds
    report.add(Row("ceiling", "copy of 1 GiB", "bytes", seconds, _scaled(bandwidth, 1e9), "GB/s"))
    n = 64 if bench.smoke else 8192
    dtype = torch.float32 if bench.smoke else bench.dtype
    a, b = (torch.randn(n, n, dtype=dtype, device=bench.device) for _ in range(2))
    seconds, _ = bench.seconds(lambda: a @ b)
    rate = None if seconds is None else 2 * n**3 / seconds
    report.add(Row("ceiling", f"{n} cubed", "matrix", seconds, _scaled(rate, 1e12), "TFLOP/s"))
    return bandwidth, rate


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value / by


def measure_decode(report: Report, bench: Bench, bandwidth: float | None) -> None:
    """Decode attention, as a share of the copy bandwidth, beside its rivals."""
    for number, shape in enumerate(SMOKE_DECODE if bench.smoke else DECODE_SHAPES):
        num_bytes = shape.kv_bytes(bench.dtype)
        if not bench.fits(4 * num_bytes) or bench.seconds_left < 30:
            report.skip(f"decode {shape}: too little memory or time is left")
            continue
        problem = random_problem(shape, bench)
        tail = min(4, shape.num_seqs) if shape.context_len <= 2048 else 1
        judge = problem.tail(tail)
        expected = decode_attention_reference(*judge.decode_args)
        runs = {
            "toyserve decode": lambda p: lambda: decode_attention(*p.decode_args),
            "toyserve ragged": lambda p: lambda: ragged_attention(*p.ragged_args, max_query_len=1),
        } | rivals.DECODE
        for what, prepare in runs.items():
            if "Flex" in what and (bench.smoke or number != 1):
                continue  # compiles for many seconds: one shape is enough
            _measure(report, bench, "decode", shape, what, prepare, problem, expected, bandwidth)
        bench.free()


def measure_prefill(report: Report, bench: Bench, matrix_rate: float | None) -> None:
    """Prompts and chunks, as a share of the matrix rate, beside SDPA for whole prompts."""
    for shape in SMOKE_PREFILL if bench.smoke else PREFILL_SHAPES:
        if bench.seconds_left < 30:
            report.skip(f"prefill {shape}: too little time is left")
            continue
        problem = random_problem(shape, bench)
        judge = problem.tail(1)
        last = judge.q[-1:]  # the last token of the last sequence sees all of its context
        expected = decode_attention_reference(last, *judge.decode_args[1:])
        runs = {
            "toyserve ragged": lambda p, n=shape.query_len: (
                lambda: ragged_attention(*p.ragged_args, max_query_len=n)
            )
        }
        if shape.query_len == shape.context_len:
            runs |= rivals.PREFILL
        for what, prepare in runs.items():
            _measure(report, bench, "prefill", shape, what, prepare, problem, expected, matrix_rate)
        bench.free()


def _measure(
    report: Report,
    bench: Bench,
    section: str,
    shape: Shape,
    what: str,
    prepare: Callable[[PagedProblem], rivals.Run],
    problem: PagedProblem,
    expected: torch.Tensor,
    ceiling: float | None,
) -> None:
    """One contestant on one problem: is it right on the last rows, and how long does it take?"""
    try:
        run = prepare(problem)
        out = rivals.rows_of(run(), len(problem.q))
        error = relative_error(out[-len(expected) :], expected)
        seconds, note = bench.seconds(run)
    except Exception as error_raised:  # a library that is missing or does not do this shape
        said = (str(error_raised).splitlines() or [""])[0][:100]
        text = f"{section} {shape}: {what}: {type(error_raised).__name__}: {said}"
        (report.problem if what.startswith("toyserve") else report.skip)(text)
        return
    if what.startswith("toyserve") and not error <= TOLERANCE[bench.dtype]:
        report.problem(f"{section} {shape}: {what} is off by {error:.2g}")
    work, scale, unit = shape.flops, 1e12, "TFLOP/s"
    if section == "decode":
        work, scale, unit = shape.kv_bytes(bench.dtype), 1e9, "GB/s"
    rate = None if seconds is None else work / seconds
    share = None if rate is None or ceiling is None else rate / ceiling
    note = f"{note} error {error:.1e}".strip()
    report.add(Row(section, str(shape), what, seconds, _scaled(rate, scale), unit, share, note))


def measure_write(report: Report, bench: Bench, bandwidth: float | None) -> None:
    """The KV write of a large step: K and V are read once and written once."""
    tokens, heads, head_dim = (8, 2, 16) if bench.smoke else (16384, 12, 64)
    options = {"device": bench.device, "dtype": bench.dtype}
    pool = torch.zeros(tokens // 4, BLOCK_SIZE, 2, heads, head_dim, **options)
    kv = torch.randn(tokens, 3 * heads, head_dim, **options)
    slots = torch.randperm(tokens * 4, device=bench.device)[:tokens]
    args = (kv[:, heads : 2 * heads], kv[:, 2 * heads :], pool[:, :, 0], pool[:, :, 1], slots)
    seconds, note = bench.seconds(lambda: write_kv(*args))
    num_bytes = 4 * tokens * heads * head_dim * bench.dtype.itemsize
    rate = None if seconds is None else num_bytes / seconds
    share = None if rate is None or bandwidth is None else rate / bandwidth
    shape = f"{tokens} tokens {heads}x{head_dim}"
    report.add(Row("write", shape, "toyserve", seconds, _scaled(rate, 1e9), "GB/s", share, note))
