"""Figures by their content: what is painted where, taken from the artists."""

import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from runs import CLASSIC, classic, crowd, run, static, tight

from toyserve import Recording
from toyserve.kv import ContiguousKV, PagedKV
from toyserve.replay import replay_memory
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from toyserve.viz import (
    block_map,
    kv_usage,
    latency,
    occupancy,
    queue_length,
    timeline,
    token_raster,
)
from toyserve.viz.bars import MAX_BARS, bars_of
from toyserve.viz.blockgrid import grid_of, num_shown_blocks
from toyserve.viz.blocks import block_map_at
from toyserve.viz.kvuse import kv_use
from toyserve.viz.style import MEMORY, OWNERS, STATES, State, new_axes, theme_of

EVERY = (timeline, occupancy, queue_length, block_map, kv_usage, token_raster, latency)


def boxes(figure: Figure, state: str) -> set[tuple[float, float, int]]:
    """(start, end, row) of every cell that is painted as ``state``."""
    (ax,) = figure.axes
    found = set()
    for collection in ax.collections:
        if collection.get_gid() == state:
            for path in collection.get_paths():
                low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.add((low[0], high[0], round((low[1] + high[1]) / 2)))
    return found


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_the_timeline_by_slot_paints_e_after_d_and_names_everybody():
    figure = timeline(classic())
    assert boxes(figure, "prefill") >= {(8, 9, 3), (10, 11, 1)}
    assert boxes(figure, "decode") >= {(1, 8, 3), (9, 48, 3), (11, 40, 1)}
    assert set(CLASSIC) <= set(texts(figure))
    assert boxes(figure, "waiting") == set()


def test_steps_are_numbered_from_1_under_the_middle_of_their_cell():
    (ax,) = timeline(classic(), steps=(1, 12)).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == [str(n) for n in range(1, 13)]
    assert list(ax.get_xticks())[8] == 8.5


def test_the_timeline_by_request_shows_waits_and_preemptions():
    assert boxes(timeline(classic(), by="request"), "waiting") == {(0, 8, 4), (0, 10, 5)}
    assert {row for _, _, row in boxes(timeline(tight(), by="request"), "preempted")} == {2, 3}


def test_prefill_chunks_carry_their_token_counts():
    recording = run(ChunkedScheduler(4, 256), {"G": 4}, prompts={"G": 1000})
    assert [t for t in texts(timeline(recording)) if t.isdigit()] == ["256", "256", "256", "232"]


def test_the_title_says_how_much_of_the_slots_was_useful():
    (ax,) = timeline(static()).axes
    assert "44.5%" in ax.get_title(loc="left")


def test_time_axis_starts_at_the_arrival_and_ends_with_the_run():
    (ax,) = timeline(classic(), x="time").axes
    assert ax.get_xlim() == pytest.approx((0, 1.0))
    assert ax.get_xlabel() == "time (s)"


@pytest.mark.parametrize("draw", EVERY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_draws_one_request_and_shows_itself_as_a_png(draw, theme):
    figure = draw(run(ContinuousScheduler(1), {"A": 5}), theme=theme)
    png, size = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert size["width"] == 960
    assert figure.get_facecolor()[:3] == pytest.approx(to_rgb(theme_of(theme).background))


@pytest.mark.parametrize("draw", EVERY)
def test_every_figure_says_so_when_nothing_ran(draw):
    refused = run(ContinuousScheduler(1), {"big": 4000}, kv=PagedKV(10, 4))
    figure = draw(refused)
    figure._repr_png_()
    words = " ".join(texts(figure) + [ax.get_title(loc="left") for ax in figure.axes])
    assert "No step was run" in words or "not measured" in words


@pytest.mark.parametrize("draw", EVERY)
def test_every_figure_survives_a_recording_cut_anywhere(draw, tmp_path):
    tight().save(tmp_path / "run.jsonl")
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:12]) + "\n")
    assert draw(Recording.load(tmp_path / "cut.jsonl")).axes


@pytest.mark.parametrize("draw", EVERY[:4])
def test_axes_that_are_given_are_drawn_into(draw):
    ax = Figure().add_subplot()
    assert draw(classic(), ax=ax) is ax.figure
    assert ax.get_title(loc="left")


@pytest.mark.parametrize(
    ("first", "second", "units"),
    [
        (timeline, queue_length, "a picture by step, and this one is by time"),
        (queue_length, occupancy, "a picture by time, and this one is by step"),
        (timeline, block_map, "a picture by step, and this one is by block"),
        (token_raster, kv_usage, "a picture by time, and this one is by step"),
    ],
)
def test_a_shared_x_axis_that_would_count_two_things_is_refused(first, second, units):
    above, below = Figure().subplots(2, sharex=True)
    first(classic(), ax=above)
    with pytest.raises(ValueError, match=re.escape(f"ax shares its x axis with {units}")):
        second(classic(), ax=below)


def test_axes_may_share_an_x_axis_of_one_unit_and_be_drawn_anew_in_another():
    above, below = Figure().subplots(2, sharex=True)
    timeline(classic(), ax=above)
    queue_length(classic(), x="step", ax=below)
    assert above.get_xlim() == below.get_xlim() == (0, 100)
    above.clear()
    queue_length(classic(), ax=below)
    timeline(classic(), x="time", ax=above)
    apart = Figure().subplots(2)
    timeline(classic(), ax=apart[0])
    queue_length(classic(), ax=apart[1])


def test_a_crowd_becomes_an_image_whose_pixels_are_the_mean_of_what_they_cover():
    recording = crowd(200, ContinuousScheduler(8))
    (ax,) = timeline(recording, by="request", x="time").axes
    (image,) = ax.images
    pixels = np.asarray(image.get_array())
    assert pixels.shape[0] == 200
    light = theme_of("light")
    grey = np.array(to_rgb(STATES[State.WAITING].fill(light)))
    record = recording.requests["r150"]
    low, high = ax.get_xlim()
    middle = (record.arrival_time + record.first_scheduled_time) / 2
    column = int((middle - low) / (high - low) * pixels.shape[1])
    assert record.first_scheduled_time - record.arrival_time > 0.1
    assert pixels[150, column] == pytest.approx(grey)
    assert pixels[150, 0] == pytest.approx([1, 1, 1])


def test_occupancy_stacks_what_each_step_computed_up_to_the_budget():
    recording = run(ChunkedScheduler(4, 16), {"A": 9, "B": 3}, prompts={"A": 4, "B": 20})
    rows, tokens = occupancy(recording).axes[:2]
    heights = {p.get_gid(): p.get_data() for p in tokens.patches if p.get_gid()}
    assert heights["prefill"].values[0] - np.asarray(heights["prefill"].baseline)[0] == 16
    idle = heights["idle"]
    assert set(np.round(idle.values, 9)) == {16}
    assert rows.get_ylabel().startswith("requests")


def test_occupancy_of_a_static_batch_counts_its_padding():
    (ax, *_) = occupancy(static()).axes
    assert "53% of the tokens are padding" in ax.get_title(loc="left")


def test_on_the_time_axis_an_engine_without_work_is_empty():
    recording = run(
        ContinuousScheduler(2), {"A": 4, "B": 3}, prompts={"A": 9, "B": 9}, arrivals={"B": 1.0},
        same_prompt=True, kv=PagedKV(20, 4, prefix_caching=True),
    )  # fmt: skip
    rows, _ = occupancy(recording, x="time").axes
    (decode,) = [p for p in rows.patches if p.get_gid() == "decode"]
    edges, values = decode.get_data().edges, decode.get_data().values
    at = np.searchsorted(edges, 0.5) - 1  # a moment between the two
    assert (edges[at], edges[at + 1]) == pytest.approx((0.04, 1.0))
    assert values[at] == 0 and values[at - 1] == 1
    (ax,) = kv_usage(recording, x="time").axes
    heights = {p.get_gid(): p.get_data() for p in ax.patches if p.get_gid()}
    held = heights["empty"].values  # the top of what is held
    assert held[at] == 0 and held[at - 1] == 12
    kept = kv_use(recording, after=True).cached_blocks[recording.num_steps // 2]
    assert heights["cached"].values[at] == 4 * kept > 0


def test_between_two_steps_of_one_batch_the_batch_is_there():
    recording = classic()
    for number, step in enumerate(recording.steps):  # as on a real clock: never back to back
        step.start_time, step.end_time = number * 0.01, number * 0.01 + 0.009
    bars = bars_of(recording, "time")
    assert bars.is_step.all()
    assert bars.edges == pytest.approx([*(n * 0.01 for n in range(100)), 0.999])


def test_bars_over_many_steps_are_means_by_step_or_by_time():
    recording = crowd(80, ContinuousScheduler(2))
    values = np.arange(recording.num_steps) % 5
    for x in ("step", "time"):
        bars = bars_of(recording, x)
        assert len(bars.edges) - 1 == MAX_BARS < recording.num_steps
        lasted = np.array([s.end_time - s.start_time for s in recording.steps])
        whole = (bars.heights(values) * np.diff(bars.edges)).sum()
        assert whole == pytest.approx((values * (1 if x == "step" else lasted)).sum())


def test_the_queue_is_as_long_as_the_recording_says():
    recording = crowd(80, ContinuousScheduler(4))
    (ax,) = queue_length(recording, x="step").axes
    (patch,) = [p for p in ax.patches if p.get_gid() == "queue"]
    waiting = [step.num_waiting for step in recording.steps]
    if len(waiting) <= 700:
        assert list(patch.get_data().values) == waiting
    (over_time,) = queue_length(recording).axes
    (patch,) = [p for p in over_time.patches if p.get_gid() == "queue"]
    assert patch.get_data().values.min() >= 0
    assert patch.get_data().values[-1] == 0


def paged_runs() -> list[Recording]:
    shared = run(
        ContinuousScheduler(3), {"A": 6, "B": 9, "C": 4, "D": 5}, same_prompt=True,
        prompts=dict.fromkeys("ABCD", 13), arrivals={"C": 0.05, "D": 0.2},
        kv=PagedKV(30, 4, prefix_caching=True),
    )  # fmt: skip
    return [classic(), static(), tight(), shared]


@pytest.mark.parametrize("number", range(4))
def test_block_maps_and_use_over_time_agree_with_the_replay(number):
    recording = paged_runs()[number]
    use = kv_use(recording)
    for index, (_, memory) in enumerate(replay_memory(recording)):
        if number < 3:
            assert (
                use.held_blocks[index] * memory.block_size - memory.num_wasted_slots
                == (use.written_slots[index])
            )
        assert use.held_blocks[index] == memory.num_used_blocks
        only_cached = sum(c and not o for c, o in zip(memory.cached, memory.owners, strict=True))
        assert use.cached_blocks[index] == only_cached
        if index % 7 == 0:
            drawn = block_map_at(recording, index + 1)
            names = [tuple(name for name, _ in holders) for holders in drawn.holders]
            assert names == memory.owners
            assert drawn.num_written == memory.num_written


def test_the_block_map_fills_each_block_as_far_as_it_is_written():
    recording = tight()
    (ax,) = block_map(recording, 2).axes
    drawn = block_map_at(recording, 2)
    widths = {p.get_gid(): p.get_width() for p in ax.patches if str(p.get_gid()).startswith("wri")}
    for block, holders in enumerate(drawn.holders):
        if holders:
            assert widths[f"written {block}"] == pytest.approx(0.9 * drawn.num_written[block] / 4)
    assert "A\n0" in texts(ax.figure)


def test_a_large_pool_hardly_touched_is_cut_after_what_the_run_touches():
    recording = run(
        ChunkedScheduler(4, 256), {"G": 30}, prompts={"G": 1000}, kv=PagedKV(20_000, 16)
    )
    (ax,) = block_map(recording, 3).axes
    cells = [p for p in ax.patches if str(p.get_gid()).startswith("block ")]
    assert len(cells) == 128  # 65 of them are taken in this run
    assert ax.get_xlabel() == "blocks 0 to 127; the other 19,872 are never taken in this run"
    assert "63 of 20,000 blocks" in ax.get_title(loc="left")
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:3] == ["0", "20", "40"]


def test_where_cells_would_be_too_small_one_is_the_mean_of_several_blocks():
    lens = {f"r{i}": 40 for i in range(30)}
    recording = run(
        ContinuousScheduler(30), lens, prompts={n: 300 + 170 * i for i, n in enumerate(lens)},
        kv=PagedKV(20_000, 4),
    )  # fmt: skip
    (ax,) = block_map(recording, 20).axes
    memory, light = block_map_at(recording, 20), theme_of("light")
    (image,) = ax.images
    pixels = np.asarray(image.get_array())
    assert ax.get_xlabel() == "1 cell = 2 blocks"
    lines, columns, _ = pixels.shape
    assert lines * columns >= 10_000
    width, height = ax.figure.get_size_inches()
    assert columns / width < 20 and lines / height < 20  # five pixels a cell at 96 dpi, or more
    empty = np.array(to_rgb(MEMORY["empty"].fill(light)))
    order = list(recording.requests)
    for cell in (0, 700, 3000, 9999):
        colors = []
        for block in (2 * cell, 2 * cell + 1):
            if not memory.holders[block]:
                colors.append(np.ones(3))
                continue
            own = to_rgb(OWNERS[order.index(memory.holders[block][0][0]) % len(OWNERS)])
            share = memory.num_written[block] / 4
            colors.append(share * np.array(own) + (1 - share) * empty)
        assert pixels.reshape(-1, 3)[cell] == pytest.approx(np.mean(colors, axis=0))
    assert not memory.holders[-1] and memory.holders[6001]


@pytest.mark.parametrize("num_blocks", [1, 16, 17, 512, 513, 4096, 20_000, 1_000_000])
@pytest.mark.parametrize("shape", [(8.8, 3.2), (2.0, 5.0), (4.0, 1.0)])
def test_a_pool_of_any_size_fits_its_panel(num_blocks, shape):
    grid = grid_of(num_blocks, num_blocks, shape)
    assert grid.num_cells * grid.per_cell >= num_blocks > (grid.num_cells - 1) * grid.per_cell
    assert grid.num_lines * grid.columns >= grid.num_cells > (grid.num_lines - 1) * grid.columns
    if num_blocks > 512:  # cells about as wide as high
        ratio = (shape[0] / grid.columns) / (shape[1] / grid.num_lines)
        assert 0.5 < ratio < 2


def test_how_much_of_a_pool_is_shown_seldom_changes_while_it_fills():
    assert num_shown_blocks(512, 3) == 512
    assert [num_shown_blocks(20_000, n) for n in (0, 64, 65, 8192, 8193)] == [
        64, 64, 128, 8192, 20_000,
    ]  # fmt: skip


def test_external_fragmentation_is_the_free_room_outside_the_largest_hole():
    recording = run(
        ContinuousScheduler(4), {"A": 12, "B": 2, "C": 12, "D": 12}, kv=ContiguousKV(24, 4)
    )
    (ax,) = kv_usage(recording).axes
    assert any(p.get_gid() == "largest hole" for p in ax.patches)
    assert "not in one piece" in ax.get_title(loc="left")


def test_a_frozen_stream_is_marked_in_the_token_raster():
    class Slow:
        def step_time(self, plan):
            return 0.01 + 0.001 * plan.total_tokens

    from toyserve.clock import VirtualClock
    from toyserve.engine import Engine
    from toyserve.request import Request, SamplingParams
    from toyserve.runners import SimulatedRunner, TimedRunner

    clock = VirtualClock()
    engine = Engine(
        scheduler=ContinuousScheduler(4), kv=PagedKV(400, 4), clock=clock,
        runner=TimedRunner(SimulatedRunner(), Slow(), clock),
    )  # fmt: skip
    recording = engine.run(
        [
            Request("A", [0] * 4, SamplingParams(max_tokens=20)),
            Request("G", [0] * 500, SamplingParams(max_tokens=3), arrival_time=0.05),
        ]
    )
    figure = token_raster(recording)
    pauses = [t.get_text() for t in figure.axes[0].texts if t.get_gid() == "pause"]
    assert pauses == ["511 ms"]
    assert "511 ms (A)" in figure.axes[0].get_title(loc="left")


def test_latency_marks_the_percentiles_of_the_metrics_module():
    recording = crowd(100, ContinuousScheduler(4))
    summary = recording.summary()["ttft_ms"]
    figure = latency([recording, crowd(100, StaticScheduler(4))])
    assert len(figure.axes) == 3
    assert figure.axes[0].get_xlabel() == "s"
    marks = {line.get_gid(): line.get_xdata()[0] for line in figure.axes[0].lines}
    for q in (50, 95, 99):
        assert marks[f"p{q}: Continuous"] == pytest.approx(summary[f"p{q}"] / 1e3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: timeline(r, by="row"), "by is 'row'"),
        (lambda r: timeline(r, x="steps"), "x is 'steps'"),
        (lambda r: timeline(r, steps=(0, 4)), "counted from 1; this run has 100"),
        (lambda r: timeline(r, steps=(5, 101)), "this run has 100"),
        (lambda r: timeline(r, theme="blue"), "theme is 'blue'"),
        (lambda r: block_map(r, columns=0), "columns is 0: a block map has at least 1"),
        (lambda r: block_map(r, 0), "step is 0: this run has steps 1 to 100"),
        (lambda r: latency(r, metrics=["speed"]), "metric is 'speed'"),
        (lambda r: latency([]), "no recording was given"),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value_and_the_limit(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call(classic())


def test_a_recording_without_steps_is_refused():
    recording = run(
        ContinuousScheduler(2), {"A": 3}, recording=Recording(keep_steps=False)
    )  # fmt: skip
    with pytest.raises(ValueError, match="kept none of its 3 steps"):
        timeline(recording)


def test_states_differ_in_grey_or_by_their_hatch():
    for theme in (theme_of("light"), theme_of("dark")):
        seen = []
        for state, look in STATES.items():
            grey = float(np.dot(to_rgb(look.fill(theme)), (0.2126, 0.7152, 0.0722)))
            for other, other_grey, hatch in seen:
                assert abs(grey - other_grey) > 0.12 or hatch != look.hatch, (state, other)
            seen.append((state, grey, look.hatch))


def test_importing_and_drawing_touches_neither_pyplot_nor_torch_nor_the_backend():
    code = (
        "import sys, matplotlib; before = matplotlib.rcParams._get('backend')\n"
        "import toyserve.viz as viz\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        "from runs import classic\n"
        "viz.timeline(classic())._repr_png_()\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        "assert matplotlib.rcParams._get('backend') is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="tests/viz")


def test_new_axes_leave_no_figure_behind():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    new_axes((4, 2), theme_of("light"))
    timeline(classic())
    assert plt.get_fignums() == before
