"""Lesson 02 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

from typing import Any

import pytest
from lesson_runs import assert_committed_is_today_s, printed, run_changed, run_lesson

NAME = "02_why_batching_pays"
PROBE = """
import contextlib, io

def first_idea(rows):  # positions mended, the mask not
    ids, real, _ = layout(rows)
    return ids, real, (real.cumsum(1) - 1).clamp(min=0)

said = io.StringIO()
with contextlib.redirect_stdout(said):
    try_out(first_idea)
print(json.dumps({
    "solved": solved, "intensity": [intensity(bill, n) for n in (1, 128)], "times": times,
    "h100": on_h100, "modelled": modelled, "texts": [o.text for o in outputs[128][:3]],
    "same": same, "measured": [*measured], "here": [*here],
    "by_context": rates_by_context, "prefill": prefill_gain, "decode": decode_gain,
    "right": right, "padding": padding, "noise": noise, "flips": flips,
    "first_idea": said.getvalue().splitlines(),
    "shrinking": [len(s.num_scheduled_tokens) for s in shrinking.steps],
}))
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


@pytest.mark.slow
def test_128_rows_do_120_times_the_work_per_byte_in_nearly_the_same_time(
    values: dict[str, Any],
) -> None:
    assert values["intensity"] == pytest.approx([1, 120.5], rel=1e-3)
    assert values["times"]["128"] / values["times"]["1"] == pytest.approx(1.0625, abs=0.001)
    assert values["times"]["2048"] / values["times"]["1"] > 5  # right of the ridge


@pytest.mark.slow
def test_throughput_of_all_and_of_each_at_1_8_32_and_128(values: dict[str, Any]) -> None:
    h100 = values["h100"]
    assert [*h100] == ["1", "8", "32", "128"]
    assert values["here"] == [1, 8, 32, 128]
    for (batch, total), (in_all, each) in zip(values["modelled"], h100.values(), strict=True):
        assert in_all == pytest.approx(batch * each)
        assert in_all == pytest.approx(total, rel=0.05)  # by the engine, and by the formula
    assert h100["128"][0] / h100["1"][0] > 90
    assert 0.7 < h100["128"][1] / h100["1"][1] < 0.9


@pytest.mark.slow
def test_the_batch_of_the_roofline_shrinks_by_one_in_each_step(values: dict[str, Any]) -> None:
    assert values["shrinking"] == list(range(128, 0, -1))


@pytest.mark.slow
def test_the_wrong_sentences_are_measured(values: dict[str, Any]) -> None:
    by_context = values["by_context"]
    assert by_context["200"][-1] > 90 > 20 > by_context["8000"][-1]
    # "The benchmark sheet looks much like the row of 4,000."
    assert by_context["4000"] == pytest.approx([1, 6, 15, 25], rel=0.15)
    assert values["prefill"] < 1.05 < 6 < values["decode"]


@pytest.mark.slow
def test_the_real_model_says_the_same_in_every_batch(values: dict[str, Any]) -> None:
    assert values["same"] == 4
    assert all(text.strip() for text in values["texts"])


@pytest.mark.slow
def test_padding_without_positions_breaks_the_short_rows_only(values: dict[str, Any]) -> None:
    assert values["right"] == 1
    assert values["padding"] == pytest.approx(52 / 90)


@pytest.mark.slow
def test_the_first_idea_passes_the_first_test_and_not_the_second(values: dict[str, Any]) -> None:
    first, second = values["first_idea"]
    assert first.startswith("✓ three lengths: 3 of 3")
    assert second.startswith("✗ an end token in a prompt")


@pytest.mark.slow
def test_a_token_changes_only_where_the_margin_is_below_the_noise(values: dict[str, Any]) -> None:
    assert values["noise"]["fp32"] < values["noise"]["fp16"] / 100
    assert values["flips"]["fp32"] == []
    assert all(margin <= 2 * values["noise"]["fp16"] for margin in values["flips"]["fp16"])


@pytest.mark.slow
def test_the_learner_s_cell_starts_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["solved"] is False


@pytest.mark.slow
def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


LINE = "    moved = rows * (width * width + 2 * width) * num_bytes  # ← W once per row?\n"
FAULT = "    positions = torch.arange(width).expand(ids.shape)  # ← a fault\n"
COUNTED = "    positions = (real.cumsum(1) - 1).clamp(min=0)\n"
BY_LENGTH = """    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(width) >= width - lengths[:, None]
"""


@pytest.mark.slow
def test_a_learner_who_solves_it_is_told_so() -> None:
    changes = {
        LINE: "    moved = (width * width + 2 * rows * width) * num_bytes\n",
        FAULT: BY_LENGTH + COUNTED,
    }
    notebook, last = run_changed(NAME, changes, "try_out(mended)")
    everything = "".join(
        printed(notebook, i) for i in range(last) if "outputs" in notebook.cells[i]
    )
    assert "✓ From 1.00 to 120.5" in everything
    assert printed(notebook, last).count("✓") == 2
