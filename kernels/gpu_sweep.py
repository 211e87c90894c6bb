"""The GPU check with `--sweep`: tiles that are not in the table, to correct `tuning` with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .bench import Bench, Report, Row
from .decode_attention import decode_attention
from .gpu_shapes import (
    DECODE_SHAPES,
    PREFILL_SHAPES,
    SMOKE_DECODE,
    SMOKE_PREFILL,
    Shape,
    random_problem,
)
from .ragged_attention import ragged_attention
from .tuning import Tile, choose_num_splits, decode_tile, ragged_tile

Choice = tuple[Tile, int]  # a tile and the number of splits


def sweep(report: Report, bench: Bench) -> None:
    """The table's choice and the five fastest others, for each shape."""
    for shape in SMOKE_DECODE if bench.smoke else (*DECODE_SHAPES[1:3], DECODE_SHAPES[4]):
        sweep_decode(report, bench, shape)
        bench.free()
    for shape in SMOKE_PREFILL[:1] if bench.smoke else PREFILL_SHAPES[:2]:
        sweep_ragged(report, bench, shape)
        bench.free()


def sweep_decode(report: Report, bench: Bench, shape: Shape) -> None:
    """Tile, warps, stages and, for few sequences, splits of the decode kernel."""
    problem = random_problem(shape, bench)
    tile = decode_tile(
        bench.device, bench.dtype, shape.head_dim, shape.num_heads // shape.num_kv_heads
    )
    splits = choose_num_splits(
        bench.device, shape.num_seqs, shape.num_kv_heads, shape.context_len, tile.tile
    )
    choices = [
        (replace(tile, tile=keys, num_warps=warps, num_stages=stages), num_splits)
        for keys in (16, 32, 64)
        for warps in (2, 4)
        for stages in (3, 5, 7)
        for num_splits in sorted({splits, 2 * splits if splits > 1 else 1})
    ]
    _time_all(
        report,
        bench,
        shape,
        [(tile, splits), *choices],
        lambda t, n: decode_attention(*problem.decode_args, tile=t, num_splits=n),
    )


def sweep_ragged(report: Report, bench: Bench, shape: Shape) -> None:
    """Rows, keys, warps and stages of the ragged kernel on whole prompts."""
    problem = random_problem(shape, bench)
    group = shape.num_heads // shape.num_kv_heads
    usual = ragged_tile(bench.device, bench.dtype, shape.head_dim, group, shape.query_len)
    choices = [
        (Tile(rows, keys, warps, stages), 1)
        for rows in (64, 128)
        for keys in (32, 64, 128)
        for warps in (4, 8)
        for stages in (2, 3, 5)
    ]
    _time_all(
        report,
        bench,
        shape,
        [(usual, 1), *choices],
        lambda t, _: ragged_attention(*problem.ragged_args, tile=t),
    )


def _time_all(
    report: Report,
    bench: Bench,
    shape: Shape,
    choices: list[Choice],
    run: Callable[[Tile, int], Any],
) -> None:
    times: list[tuple[float | None, Choice]] = []
    for tile, num_splits in choices[: 3 if bench.smoke else None]:
        if bench.seconds_left < 10:
            report.skip(f"sweep {shape}: out of time before {tile}")
            break
        try:
            seconds = bench.seconds(lambda t=tile, n=num_splits: run(t, n))
        except Exception:  # too many registers or too much shared memory: not a candidate
            continue
        times.append((seconds, (tile, num_splits)))
    others = sorted(times[1:], key=lambda pair: pair[0] or 0.0)[:5]
    for seconds, (tile, num_splits) in times[:1] + others:
        what = f"{tile.block_m}x{tile.tile} warps {tile.num_warps} stages {tile.num_stages}"
        note = f"{num_splits} splits" + (
            ", the table's" if (tile, num_splits) == choices[0] else ""
        )
        report.add(Row("sweep", str(shape), what, seconds, note=note))
