"""compare and why: the right step, the right names, the right numbers."""

import pytest
from runs import CLASSIC, STEP, classic, crowd, run, static, tight

from toyserve.policies import Priority
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from toyserve.viz import compare, why
from toyserve.viz.words import format_seconds, listing
from toyserve.words import counted


def test_compare_finds_the_step_in_which_e_is_let_in_or_left_out():
    result = compare(run(StaticScheduler(4), CLASSIC), classic())
    assert result.step == 9
    assert "Continuous lets E in (5 tokens)" in result.sentence
    assert "Static" in result.sentence
    assert "leaves E out: the batch must end first" in result.sentence
    assert "E gains most" in result.sentence


def test_compare_tabulates_what_it_cost_whom():
    static_run, continuous = run(StaticScheduler(4), CLASSIC), classic()
    rows = {row["request"]: row for row in compare(static_run, continuous).table}
    assert rows["E"]["TTFT Static"] == pytest.approx(1e3 * 101 * STEP)
    assert rows["E"]["TTFT Continuous"] == pytest.approx(1e3 * 9 * STEP)
    assert rows["E"]["TTFT change"] == pytest.approx(1e3 * (9 - 101) * STEP)
    assert rows["A"]["E2E change"] == pytest.approx(0)


def test_compare_says_so_when_nothing_differs():
    result = compare(classic(), classic())
    assert result.step is None
    assert "the same decisions in all 100 steps" in result.sentence


def test_compare_takes_labels_several_runs_and_time():
    runs = {"a": classic(), "b": run(StaticScheduler(4), CLASSIC), "c": classic()}
    result = compare(runs, x="time", by="slot")
    assert len(result.figure.axes) == 3
    assert [ax.get_title(loc="left").split()[0] for ax in result.figure.axes] == ["a", "b", "c"]
    assert {"E2E change b", "E2E change c"} <= set(result.table[0])
    places = [line.get_xdata()[0] for ax in result.figure.axes for line in ax.lines
              if line.get_gid() == "parting"]  # fmt: skip
    assert places == pytest.approx([8 * STEP] * 3)


def test_compare_groups_a_crowd_into_classes():
    result = compare(crowd(60, ContinuousScheduler(4)), crowd(60, StaticScheduler(4)))
    (row,) = result.table
    assert row["requests"] == 60
    assert row["TTFT p95 change"] > 0
    html = result._repr_html_()
    assert "data:image/png;base64," in html
    assert "<table>" in html


def test_compare_escapes_what_it_writes_into_a_page():
    names = {"<b>": 4, "ok": 4}
    both = [run(s, names) for s in (ContinuousScheduler(1), StaticScheduler(2))]
    html = compare(*both)._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


def test_compare_refuses_two_workloads_and_one_run():
    with pytest.raises(ValueError, match=r"differ in 2 requests, such as 'E'"):
        compare(classic(), static())
    with pytest.raises(ValueError, match="1 recording given: a comparison needs at least 2"):
        compare(classic())


def test_why_names_the_rule_the_chosen_and_the_reason_to_wait():
    decision = why(classic(), 9)
    assert decision.admitted == ("E",)
    assert decision.waiting == ("F",)
    text = str(decision)
    assert "E enters, 80 ms after it arrived" in text
    assert "F: all 4 slots are taken" in text
    assert "FCFS: " in text
    assert "A, B and C decode, 1 token each" in text


def test_why_explains_memory_and_preemption():
    recording = tight()
    step = next(s.index for s in recording.steps if s.preempted) + 1
    decision = why(recording, step)
    assert decision.preempted == ("D",)
    text = str(decision)
    assert "no" in text and "FCFS named whom to pause" in text
    assert "memory is short" in text


def test_why_explains_budget_batch_and_chunks():
    chunked = run(ChunkedScheduler(2, 8), {"A": 4, "B": 4}, prompts={"A": 20, "B": 3})
    text = str(why(chunked, 2))
    assert "A reads tokens 9 to 16 of its 20-token prompt" in text
    assert "B: the budget of 8 tokens is spent" in text
    assert "8 of 8 budgeted tokens" in text
    assert "the batch under way must end" in str(why(run(StaticScheduler(4), CLASSIC), 9))


def test_why_says_that_a_policy_let_someone_pass():
    lens = {"A": 6, "B": 3, "C": 3}
    from toyserve import Request, SamplingParams
    from toyserve.clock import VirtualClock
    from toyserve.engine import Engine
    from toyserve.kv import PagedKV
    from toyserve.runners import SimulatedRunner

    engine = Engine(
        scheduler=ContinuousScheduler(1), kv=PagedKV(99, 4), runner=SimulatedRunner(),
        clock=VirtualClock(), policy=Priority(displacing=False),
    )  # fmt: skip
    recording = engine.run(
        Request(k, [1] * 3, SamplingParams(max_tokens=n), priority={"C": 0}.get(k, 1))
        for k, n in lens.items()
    )
    order = list(dict.fromkeys(n for s in recording.steps for n in s.num_scheduled_tokens))
    assert order[0] == "C"
    assert "Priority" in str(why(recording, 1))


def test_why_counts_steps_as_the_pictures_do():
    with pytest.raises(ValueError, match="step is 0: this run has steps 1 to 100"):
        why(classic(), 0)
    assert "<table>" in why(classic(), 100)._repr_html_()


def test_words():
    assert listing(["A"]) == "A"
    assert listing(list("ABC")) == "A, B and C"
    assert listing([str(i) for i in range(12)]) == "0, 1, 2, 3, 4 and 7 more"
    assert counted(1, "token") == "1 token"
    assert [format_seconds(t) for t in (0, 2e-5, 0.0123, 1.5)] == [
        "0 s",
        "20 µs",
        "12.3 ms",
        "1.5 s",
    ]


def test_why_says_token_of_a_chunk_of_one():
    recording = run(ChunkedScheduler(4, 4), {"A": 3}, prompts={"A": 13})
    assert "A reads tokens 9 to 12 of its 13-token prompt" in str(why(recording, 3))
    assert "A reads token 13 of its 13-token prompt" in str(why(recording, 4))
