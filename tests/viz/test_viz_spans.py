"""What a timeline is drawn from: spans, marks and slots agree with the replayed run."""

import itertools
from collections import Counter

import pytest
from runs import STEP, classic, crowd, run, static, tight

from toyserve import Recording
from toyserve.kv import PagedKV
from toyserve.replay import replay_work
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, StaticScheduler
from toyserve.viz.span_builder import Slots
from toyserve.viz.spans import Spans, spans_of
from toyserve.viz.style import State


def stays(story: Spans) -> dict[str, tuple[int, int, int]]:
    return {story.request_ids[s.request]: (s.slot, s.start, s.end) for s in story.stays}


def test_e_takes_the_slot_of_d_at_step_9_and_f_that_of_b_at_step_11():
    story = spans_of(classic())
    where = stays(story)
    assert where["D"] == (3, 0, 8)
    assert where["E"] == (3, 8, 48)
    assert where["B"] == (1, 0, 10)
    assert where["F"] == (1, 10, 40)
    assert story.num_slots == 4


def test_a_slot_is_never_held_by_two_and_is_the_lowest_free_one():
    slots = Slots()
    assert [slots.take() for _ in range(3)] == [0, 1, 2]
    slots.give_back(2)
    slots.give_back(0)
    assert [slots.take() for _ in range(3)] == [0, 2, 3]
    story = spans_of(crowd(120, ContinuousScheduler(6)))
    taken = Counter((s.slot, step) for s in story.stays for step in range(s.start, s.end))
    assert max(taken.values()) == 1
    assert story.num_slots == 6


@pytest.mark.parametrize(
    "make", [classic, static, tight, lambda: crowd(60, ChunkedScheduler(8, 32))]
)
def test_cells_and_tokens_are_those_of_the_replay(make):
    recording = make()
    story = spans_of(recording)
    tokens = Counter()
    for span in story.spans:
        tokens[story.request_ids[span.request], str(span.state)] += span.num_tokens
    expected = Counter()
    for _, work in replay_work(recording):
        for item in work:
            expected[item.request_id, str(item.phase)] += item.num_tokens
    assert +tokens == +expected


@pytest.mark.parametrize(
    "make", [classic, static, tight, lambda: crowd(60, ChunkedScheduler(8, 32))]
)
def test_a_request_does_one_thing_at_a_time_without_a_gap_from_arrival_to_end(make):
    recording = make()
    story = spans_of(recording)
    for number, name in enumerate(story.request_ids):
        own = sorted(
            (s for s in story.spans if s.request == number), key=lambda s: (s.start, s.end)
        )
        for before, after in itertools.pairwise(own):
            assert before.end == after.start, name
        assert own[0].start_time == pytest.approx(recording.requests[name].arrival_time)


def test_marks_are_at_the_moments_of_the_record():
    recording = tight()
    story = spans_of(recording)
    for mark in story.marks:
        record = recording.requests[story.request_ids[mark.request]]
        if mark.kind == "first token":
            assert mark.time == pytest.approx(record.token_times[0])
        if mark.kind == "finished":
            assert mark.time == pytest.approx(record.finish_time)
    kinds = Counter(mark.kind for mark in story.marks)
    assert kinds["first token"] == kinds["finished"] == 4
    assert kinds["admitted"] == 4 + sum(r.num_preemptions for r in recording.requests.values())


def test_a_padded_prompt_shares_its_cell_with_the_padding_by_tokens():
    recording = run(StaticScheduler(2), {"A": 3, "B": 3}, prompts={"A": 8, "B": 2})
    story = spans_of(recording)
    cell = [s for s in story.spans if s.request == 1 and s.start < 1 and s.end > 0]
    assert [(s.state, s.start, s.end) for s in cell] == [
        (State.PREFILL, 0, 0.25),
        (State.PADDING, 0.25, 1),
    ]


def test_a_finished_row_of_a_static_batch_is_padding_to_the_end_of_the_batch():
    story = spans_of(static())
    padding = {s.request: (s.start, s.end) for s in story.spans if s.state is State.PADDING}
    assert padding == {1: (10, 100), 2: (60, 100), 3: (8, 100)}


def test_a_request_in_the_batch_that_gets_no_tokens_is_stalled():
    class EveryOther(ContinuousScheduler):
        num_calls = 0

        def schedule(self):
            self.num_calls += 1
            plan = super().schedule()
            if self.num_calls % 2 == 0 and len(plan.num_scheduled_tokens) > 1:
                plan.num_scheduled_tokens.pop(self.running[-1], None)
            return plan

    story = spans_of(run(EveryOther(2), {"A": 9, "B": 4}))
    stalled = [(s.request, s.start, s.end) for s in story.spans if s.state is State.STALLED]
    assert stalled == [(1, 1, 2), (1, 3, 4), (1, 5, 6)]


def test_a_swapped_request_is_swapped_and_a_recomputed_one_preempted():
    story = spans_of(tight())
    states = {span.state for span in story.spans}
    assert State.PREEMPTED in states
    assert State.SWAPPED not in states
    recording = tight()
    for step in recording.steps:  # the same run, had it swapped
        step.swapped_out = {name: [0] for name in step.preempted}
        step.swapped_in = {n: [0] for n in step.admitted if n in ("C", "D") and step.index}
    assert State.SWAPPED in {span.state for span in spans_of(recording).spans}


def test_a_refused_request_has_a_mark_and_no_span():
    recording = run(ContinuousScheduler(2), {"A": 4, "big": 4000}, kv=PagedKV(10, 4))
    story = spans_of(recording)
    assert [m.kind for m in story.marks if m.request == 1] == ["refused"]
    assert not [s for s in story.spans if s.request == 1]


def test_waiting_lasts_from_arrival_to_admission_in_seconds():
    recording = run(ContinuousScheduler(1), {"A": 5, "B": 2}, arrivals={"B": 0.013})
    (wait,) = [s for s in spans_of(recording).spans if s.state is State.WAITING and s.request == 1]
    assert (wait.start_time, wait.end_time) == (0.013, pytest.approx(5 * STEP))


def test_an_empty_recording_has_no_spans():
    story = spans_of(Recording({"num_blocks": 4, "block_size": 4}))
    assert story.spans == []
    assert story.num_slots == 0
