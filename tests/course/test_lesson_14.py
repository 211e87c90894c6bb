"""Lesson 14 from a clean kernel: a live server, real clients, and nothing left when it ends."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from lesson_runs import SOURCES, assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.course.builder import execute, read_source

NAME = "14_live_server"
PROBE = """
import threading
print(json.dumps({
    "six": [len(user.times) for user in six], "texts": [user.text for user in six],
    "door": [len([u for u in twelve if u.status == code]) for code in (200, 429)],
    "wait": [u.retry_after for u in refused], "again": [u.status for u, _ in again],
    "mail": [entry_steps(mine)["C"], entry_steps(right)["C"]], "solved": solved,
    "gone": [str(record.finish_reason), len(record.token_times)],
    "memory": [after["vllm:kv_cache_usage_perc"], after["vllm:num_requests_running"]],
    "agree": agree, "wire": [lines[0], lines[-1]], "chunk_first": token_time > chunk_time,
    "clients": [[r.user for r in inside.requests.values()] for _, inside in runs.values()],
    "kept": [kept["num_finished"], kept["num_refused"]], "nobody": nobody,
    "steps": [entry_steps(books[k])["E"] for k in ("told", "forgotten")],
    "leak": [good[2], bad[2]], "reasons": [str(r.finish_reason) for r in bad[0].requests.values()],
    "repaired": repaired, "still_held": still_held, "closed": closed, "http": per_token,
    "growth": [growth, modelled_growth], "edge": [len(v) for v in measured.values()],
    "threads": [t.name for t in threading.enumerate() if t.name.startswith("toyserve")],
}))
"""
WAITS = "        if not engine.has_unfinished:\n            while mailbox:\n"
WAITS_NOT = "        if True:\n            while mailbox:\n"
ONE_A_STEP = "        if True:\n            if mailbox:\n"
ADDS = '                if what == "add":\n                    engine.add_request(request)\n'
ABORTS = ADDS + "                else:\n                    engine.abort(request.request_id)\n"

Lesson = tuple[nbformat.NotebookNode, dict[str, Any]]


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return run_lesson(NAME, PROBE)


@pytest.mark.slow
def test_every_client_gets_its_tokens_over_the_wire(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["six"] == [60, 20, 45, 12, 30, 25]
    assert all(text.strip() for text in values["texts"])
    assert '"role":"assistant"' in values["wire"][0]
    assert values["wire"][1] == "data: [DONE]"


@pytest.mark.slow
def test_a_client_that_goes_away_frees_its_memory(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["gone"][0] == "abort"
    assert 10 <= values["gone"][1] < 200
    assert values["memory"] == [0, 0]


@pytest.mark.slow
def test_the_door_counts_and_says_when_to_come_again(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["door"] == [8, 4]
    assert all(int(seconds) >= 1 for seconds in values["wait"])
    assert values["again"] == [200] * 12
    served, refused = values["kept"]
    assert refused >= 8
    assert served + refused == 24


@pytest.mark.slow
def test_metrics_recording_and_clients_tell_the_same_story(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["agree"] is True
    assert values["chunk_first"] is True
    assert all(len(set(users)) == 24 for users in values["clients"])
    assert values["http"] > 0


@pytest.mark.slow
def test_past_its_capacity_users_wait_for_the_queue_here_and_on_the_virtual_clock(
    lesson: Lesson,
) -> None:
    here, modelled = lesson[1]["growth"]
    assert here > 2
    assert modelled > 10
    assert lesson[1]["edge"] == [24] * 5  # every user is in the picture, at each rate


@pytest.mark.slow
def test_the_seeded_fault_computes_for_nobody(lesson: Lesson) -> None:
    values = lesson[1]
    assert (values["nobody"], values["steps"]) == (720, [21, 201])
    told, forgotten = values["leak"]
    assert told < 400 < forgotten
    assert values["reasons"] == ["length"] * 4
    assert values["repaired"] is False


@pytest.mark.slow
def test_nothing_is_left_when_it_ends(lesson: Lesson) -> None:
    values = lesson[1]
    assert values["closed"] is True
    assert values["threads"] == []
    assert values["still_held"] == 0


@pytest.mark.slow
def test_the_committed_outputs_are_today_s(lesson: Lesson) -> None:
    assert lesson[1]["solved"] is False
    assert lesson[1]["mail"] == [41, 11]
    assert_committed_is_today_s(NAME, lesson[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({WAITS: WAITS_NOT, ADDS: ABORTS}, "✓ A ends with step 10"),
        ({WAITS: WAITS_NOT}, "A gets 40 tokens, and its user left after 10"),
        ({WAITS: ONE_A_STEP, ADDS: ABORTS}, "C runs in step 12"),
    ],
)
def test_an_answer_is_judged(changes: dict[str, str], words: str) -> None:
    notebook, end = run_changed(NAME, changes, "solved = (got, tokens_of_a)")
    assert words in printed(notebook, end)


@pytest.mark.slow
def test_it_can_be_run_twice_in_a_row() -> None:
    """The cells that start, ask and stop, all of them again in the same kernel."""
    source = SOURCES / f"{NAME}.py"
    notebook = read_source(source)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    upto = next(i for i, c in enumerate(code) if "six = crowd" in c.source)
    once = [*code[: upto + 1], code[-1]]
    notebook.cells = [nbformat.v4.new_code_cell(c.source) for c in [*once, *once]]
    execute(notebook, source.parent)
    last = len(notebook.cells) - 1
    for index in (len(once) - 1, last):
        assert "the port is closed: True" in printed(notebook, index)
