"""The GPU check's first section: is every kernel right on this device?"""

import torch

from .bench import Bench, Report, Row
from .checks import (
    CASES,
    DECODE_CASES,
    TOLERANCE,
    check_attention,
    check_decode_attention,
    check_write_kv,
)
from .decode_attention import decode_attention, decode_attention_reference, make_partials
from .gpu_shapes import BLOCK_SIZE
from .problems import PagedProblem, make_problem
from .ragged_attention import ragged_attention
from .write_kv import write_kv


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The length of the difference as a share of the length of what was expected."""
    return float((out.double().cpu() - expected).norm() / expected.norm())


def check_kernels(report: Report, bench: Bench) -> None:
    """Every kernel against float64: all cases in fp16, some in fp32 and bf16."""
    dtypes = [torch.float16, torch.float32]
    if bench.device.type == "cuda" and torch.cuda.get_device_capability(bench.device) >= (8, 0):
        dtypes.append(torch.bfloat16)
    for dtype in dtypes:
        if bench.seconds_left < 60:
            report.skip(f"correctness in {dtype}: too little time is left")
            continue
        few = bench.smoke or dtype != torch.float16  # each case compiles for a second or so
        cases, decodes = (CASES[4:8], DECODE_CASES[2:5]) if few else (CASES, DECODE_CASES)
        where = {"dtype": dtype, "device": bench.device}
        found = check_attention(ragged_attention, cases=cases, **where)
        for num_splits in (1, 3):

            def decode(*args: torch.Tensor, num_splits: int = num_splits) -> torch.Tensor:
                return decode_attention(*args, num_splits=num_splits)

            found += check_decode_attention(decode, cases=decodes, **where)
        found += check_write_kv(write_kv, **where)
        for text in found:
            report.problem(f"{dtype}: {text}")
        note = f"{len(cases)} ragged and {2 * len(decodes)} decode cases, 4 writes"
        verdict = "wrong" if found else "right"
        report.add(Row("correct", str(dtype).removeprefix("torch."), verdict, note=note))


def check_far_offsets(report: Report, bench: Bench) -> None:
    """Write to and read from blocks whose offsets do not fit in 32 bits."""
    num_kv_heads, head_dim, length = (2, 16, 70) if bench.smoke else (8, 128, 3000)
    per_block = BLOCK_SIZE * 2 * num_kv_heads * head_dim
    num_blocks = 8 if bench.smoke else 2**31 // per_block + 2 * length // BLOCK_SIZE
    if not bench.fits(int(2.2 * per_block * num_blocks)):
        gigabytes = 2 * per_block * num_blocks / 1e9
        report.skip(f"offsets beyond 2^31 elements: {gigabytes:.1f} GB of memory are not free")
        return
    options = {"device": bench.device, "dtype": torch.float16}
    pool = torch.empty(num_blocks, BLOCK_SIZE, 2, num_kv_heads, head_dim, **options)
    k_cache, v_cache = pool[:, :, 0], pool[:, :, 1]
    slots = torch.arange(num_blocks * BLOCK_SIZE - length, num_blocks * BLOCK_SIZE)
    first = int(slots[0]) // BLOCK_SIZE * BLOCK_SIZE  # start on a block
    slots = (slots - (int(slots[0]) - first)).to(bench.device)
    kv = torch.randn(2, length, num_kv_heads, head_dim, **options)
    write_kv(kv[0], kv[1], k_cache, v_cache, slots)
    if not torch.equal(k_cache.flatten(0, 1)[slots], kv[0]) or not torch.equal(
        v_cache.flatten(0, 1)[slots], kv[1]
    ):
        report.problem("write_kv: offsets beyond 2^31 elements are wrong")
    table = torch.arange(first // BLOCK_SIZE, num_blocks, device=bench.device)[None].int()
    q = torch.randn(1, 2 * num_kv_heads, head_dim, **options)
    lens = torch.tensor([length], device=bench.device, dtype=torch.int32)
    problem = PagedProblem(
        q, k_cache, v_cache, table, lens, torch.tensor([0, 1]).int().to(q.device)
    )
    expected = decode_attention_reference(*problem.decode_args)
    for name, out in (
        ("decode", decode_attention(*problem.decode_args, num_splits=3)),
        ("ragged", ragged_attention(*problem.ragged_args)),
    ):
        error = relative_error(out, expected)
        if not error <= TOLERANCE[torch.float16]:
            report.problem(f"{name} attention: off by {error:.2g} beyond 2^31 elements")
        report.add(Row("correct", "offsets past 2^31", name, note=f"error {error:.1e}"))


def check_capture(report: Report, bench: Bench) -> None:
    """Launches captured in a CUDA graph follow lengths that change between replays."""
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "block_size": BLOCK_SIZE}
    where = {"dtype": torch.float16, "device": bench.device}
    problem = make_problem((200, 90, 47, 150), (1, 1, 1, 1), **shape, **where)
    lens = problem.seq_lens
    partials = make_partials(8, 4, 64, num_splits=3, device=bench.device)
    outs = {name: torch.empty_like(problem.q) for name in ("decode", "ragged")}

    def launch() -> None:
        decode_attention(*problem.decode_args, out=outs["decode"], partials=partials)
        ragged_attention(*problem.ragged_args, out=outs["ragged"], max_query_len=4)

    launch()
    replay = launch
    if not bench.smoke:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        replay = graph.replay
    for step in ((200, 90, 47, 150), (1, 0, 16, 17), (33, 64, 1, 0)):
        lens.copy_(torch.tensor(step))
        replay()
        expected = decode_attention_reference(*problem.decode_args)
        for name, out in outs.items():
            error = relative_error(out, expected)
            if not error <= TOLERANCE[torch.float16]:
                report.problem(f"{name} attention in a graph, lengths {step}: off by {error:.2g}")
    report.add(Row("correct", "captured in a graph", "decode and ragged", note="3 replays"))
