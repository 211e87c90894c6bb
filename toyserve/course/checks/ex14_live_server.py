"""What exercise 14 looks at: bytes from a wire, a stop-watch, a door, and readers who go."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from toyserve.course.checks.colleague import Lazy
from toyserve.course.checks.kinds import by_property, prediction
from toyserve.course.checks.numbers import close
from toyserve.course.checks.part import Case, Part, Wrong
from toyserve.course.checks.pictures import one_timeline
from toyserve.course.checks.street import run_door, street
from toyserve.course.checks.wires import people_in, pieces_of, scrapes, wire
from toyserve.recording import Recording
from toyserve.words import counted

# -- 14.1: bytes from the wire ------------------------------------------------------------------


STREAMS = [
    {"what": "two tokens, one piece", "size": 10_000, "stream": wire("Good", " day")},
    {"what": "pieces of 20 bytes", "size": 20, "stream": wire("Good", " day")},
    {"what": "byte by byte, an é among them", "size": 1, "stream": wire("Caf", "é", "!")},
    {"what": "a comment, usage, and lines that end in \\r\\n", "size": 33,
     "stream": wire("A", " b", usage=True, comment=True, newline="\r\n")},
    {"what": "no space behind data:", "size": 33, "stream": wire("A", " b", colon="data:")},
    {"what": "the server fails", "size": 33, "stream": wire("A", " b", end="error")},
    {"what": "the connection breaks off", "size": 33, "stream": wire("A", " b", end="")},
]  # fmt: skip


def run_stream(case: Case, read_stream: Callable[..., Any]) -> dict[str, Any]:
    pieces, waited = pieces_of(case), False

    def network() -> Iterator[bytes]:
        nonlocal waited
        yield from pieces
        waited = True  # on a live connection nothing more would come, and nothing would end

    try:
        got = read_stream(network())
    except json.JSONDecodeError:
        raise Wrong(
            "it reads half a line as JSON: a piece may end anywhere, so keep what comes behind the "
            "last line's end until the rest has come"
        ) from None
    except UnicodeDecodeError:
        raise Wrong(
            "it decodes half a character: a piece may end between its bytes, so decode whole lines"
        ) from None
    return {"got": got, "waited": waited}


def judge_stream(case: Case, got: Any, expected: Any) -> None:
    answer, right = got["got"], expected["got"]
    if not isinstance(answer, list) or len(answer) != 2:
        raise Wrong(
            f"read_stream must return two things, the text and how it ended, not {answer!r}"
        )
    text, ending = answer
    if text != right[0]:
        hint = ""
        if isinstance(text, str) and len(text) < len(right[0]):
            hint = ". What about a line of which only a part has come?"
        raise Wrong(f"the text is {right[0]!r}, and you read {text!r}{hint}")
    if ending != right[1]:
        raise Wrong(f"this stream ends as {right[1]!r}, and you say {ending!r}")
    if ending == "done" and got["waited"]:
        raise Wrong("it asks for more after [DONE]: on a live connection it would wait for ever")


# -- 14.2: a stop-watch -------------------------------------------------------------------------

CHUNKS = [
    {"what": "three tokens, one at a time", "sent": 0.0,
     "chunks": [[0.5, 1], [0.6, 1], [0.8, 1]]},
    {"what": "first a chunk that says who speaks", "sent": 10.0,
     "chunks": [[10.01, 0], [12.0, 1], [12.1, 1]]},
    {"what": "an answer of one token", "sent": 0.0, "chunks": [[0.3, 1]]},
    {"what": "three tokens in one chunk, and usage at the end", "sent": 0.0,
     "chunks": [[0.4, 1], [1.0, 3], [1.2, 0]]},
]  # fmt: skip


def run_latencies(case: Case, latencies: Callable[..., Any]) -> Any:
    return latencies(case["sent"], [(time, n) for time, n in case["chunks"]])


def judge_latencies(case: Case, got: Any, expected: Any) -> None:
    if not isinstance(got, list) or len(got) != 3 or not isinstance(got[2], list):
        raise Wrong("latencies must return ttft, tpot and a list of gaps")
    (ttft, tpot, gaps), (right_ttft, right_tpot, right_gaps) = got, expected
    first_chunk = case["chunks"][0][0] - case["sent"] if case["chunks"] else None
    if not _equal(ttft, right_ttft):
        if first_chunk is not None and _equal(ttft, first_chunk):
            raise Wrong(f"TTFT = {ttft:g} s is the time of the first chunk, which holds no token")
        raise Wrong(f"TTFT is {_seconds(right_ttft)} here, and you say {_seconds(ttft)}")
    if not _equal(tpot, right_tpot):
        if right_tpot is None:
            raise Wrong(f"no token after the first: TPOT is None, and not {tpot!r}")
        raise Wrong(
            f"TPOT is {tpot!r} in yours. It is the time from the first token to the last, over the "
            f"number of tokens after the first; tokens, not chunks"
        )
    if len(gaps) != len(right_gaps):
        raise Wrong(
            f"{len(right_gaps)} more after the first token, and {counted(len(gaps), 'gap')}"
        )
    if not all(_equal(a, b) for a, b in zip(gaps, right_gaps, strict=True)):
        raise Wrong(f"the gaps are {gaps}; tokens of one chunk came in the same moment")


def _equal(a: Any, b: float | None) -> bool:
    if b is None or a is None:
        return a is b
    number = isinstance(a, int | float) and not isinstance(a, bool)
    return number and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def _seconds(value: Any) -> str:
    return f"{value:g} s" if isinstance(value, float) else repr(value)


# -- the real engine, with a street before its door ---------------------------------------------


# -- 14.3: the door -----------------------------------------------------------------------------


def stream_of_people(n: int, gap: float, answer: int) -> list[list[Any]]:
    """One every ``gap`` seconds; the answers differ."""
    return [[f"p{i}", round(i * gap, 3), 30, answer + 37 * (i % 5)] for i in range(n)]


DOORS = [
    {"what": "one slot, nobody may wait, two people", "slots": 1, "queue": 0,
     "requests": stream_of_people(2, 0.1, 60)},
    {"what": "two slots, two may wait, six at once", "slots": 2, "queue": 2,
     "requests": stream_of_people(6, 0.0, 60)},
    {"what": "one slot, one may wait, ten people, an old GPU", "slots": 1, "queue": 1, "gpu": "t4",
     "requests": stream_of_people(10, 2.0, 80)},
]  # fmt: skip


def judge_door(case: Case, got: Any, expected: Any) -> str:
    capacity = case["slots"] + case["queue"]
    for number, (name, *_) in enumerate(case["requests"], 1):
        mine, right = got.get(name), expected[name]
        who = f"{name}, number {number} of {len(expected)} people,"
        if (mine is None) == (right is None):
            if right is not None and (isinstance(mine, bool) or mine != right):
                raise Wrong(f"{who} is told to come again after {mine!r} s: the rule says {right}")
        elif right is None:
            raise Wrong(f"{who} is turned away ({mine!r}), and fewer than {capacity} are inside")
        else:
            raise Wrong(f"{who} is let in, and {capacity} are inside already")
    turned_away = sum(answer is not None for answer in expected.values())
    return f"{turned_away} of {len(expected)} were turned away in the last case."


# -- 14.4: the books ----------------------------------------------------------------------------


def hour(seed: int) -> dict[str, Any]:
    """A little traffic, a pause, and then this learner's rush."""
    rng = np.random.default_rng(seed)
    early = [[f"w{i}", 0.0, 50, 100] for i in range(5 + seed % 7)]
    arrivals = 20 + np.cumsum(rng.exponential(1 / (9 + seed % 3), 70))
    answers = np.minimum(20 + rng.exponential(120, 70), 500).astype(int)
    late = [
        [f"r{i}", round(float(t), 3), 100, int(n)]
        for i, (t, n) in enumerate(zip(arrivals, answers, strict=True))
    ]
    return {"what": "your two scrapes", "slots": 8, "start": 20.0, "requests": [*early, *late]}


def true_books(case: Case) -> dict[str, float]:
    """Counted person by person over time, without Little's help."""
    late = [r for r in people_in(case) if r.arrival_time >= case["start"]]
    stays = [(r.arrival_time, r.finish_time or 0.0) for r in late]
    queues = [(r.arrival_time, r.first_scheduled_time or 0.0) for r in late]
    length = max(end for _, end in stays) - case["start"]
    return {
        "inside": _mean_number(stays, length),
        "waiting": _mean_number(queues, length),
        "full_after": 32 / (len(late) / length),
    }


def _mean_number(spans: list[tuple[float, float]], length: float) -> float:
    steps = sorted([(a, 1) for a, _ in spans] + [(b, -1) for _, b in spans])
    area, number, last = 0.0, 0, steps[0][0]
    for time, change in steps:
        area += number * (time - last)
        number, last = number + change, time
    return area / length


def judge_books(case: Case, got: Any, expected: Any) -> str:
    before, after = scrapes(case)
    stay = "vllm:e2e_request_latency_seconds_"
    inside = got["inside"]
    if _near(inside, after[f"{stay}sum"] / after["time"]):
        raise Wrong("`inside` counts from the server's start: counters only tell by their growth")
    mean_stay = (after[f"{stay}sum"] - before[f"{stay}sum"]) / (
        after[f"{stay}count"] - before[f"{stay}count"]
    )
    if _near(inside, mean_stay) and not _near(inside, expected["inside"]):
        raise Wrong("`inside` is how long one stays, in seconds. How many come per second?")
    if _near(got["waiting"], expected["inside"] - expected["waiting"]):
        raise Wrong("`waiting` is the number of those who run; asked is who stands in the queue")
    if _near(got["full_after"], expected["full_after"] / 2):
        raise Wrong("`full_after`: twice as many come, but half of them are served; what is left?")
    for name in ("inside", "waiting", "full_after"):
        close(got[name], expected[name], f"`{name}`", rel=0.02)
    return (
        f"{got['inside']:.1f} in the house, {got['waiting']:.1f} of them in the queue, and a queue "
        f"of 32 would be full in {got['full_after']:.1f} s: counted one by one it is the same."
    )


def _near(value: Any, target: float) -> bool:
    return isinstance(value, int | float) and abs(value - target) <= 0.005 * abs(target)


# -- 14.5: readers who go -----------------------------------------------------------------------

FAULT: dict[str, Any] = {
    "what": "two slots, seven readers, three of whom go", "slots": 2,
    "requests": [
        ["A", 0.0, 2000, 60, 0.3], ["B", 0.0, 2000, 120], ["C", 0.05, 2000, 90],
        ["D", 0.06, 9000, 50, 0.2], ["E", 0.07, 9000, 50, 0.5], ["F", 0.08, 2000, 40],
        ["G", 0.1, 2000, 40, 60.0],
    ],
}  # fmt: skip


def impatient(n: int, every: int, patience: float) -> list[list[Any]]:
    """n readers in turn; each ``every``-th goes away ``patience`` seconds after asking."""
    rows: list[list[Any]] = []
    for i in range(n):
        arrival = round(0.03 * i, 3)
        leaves = [round(arrival + patience + 0.01 * i, 3)] if i % every == every - 1 else []
        rows.append([f"u{i}", arrival, 500 + 400 * (i % 3), 30 + 11 * (i % 4), *leaves])
    return rows


GOES = [
    {"what": "one slot, one reader, who goes", "slots": 1, "requests": [["A", 0.0, 50, 80, 0.2]]},
    {"what": "one slot, two readers; the second goes while it waits", "slots": 1,
     "requests": [["A", 0.0, 50, 60], ["B", 0.0, 4000, 30, 0.1]]},
    FAULT,
]  # fmt: skip


def run_mended(case: Case, ghosts: Any, front_class: Any) -> dict[str, Any]:
    return {"ghosts": ghosts, "run": street(case, front_class)}


def true_ghosts() -> set[str]:
    """Who is let in behind the colleague's front end after its reader has gone."""
    run = street(FAULT, Lazy)
    left = {row[0]: row[4] for row in FAULT["requests"] if len(row) > 4}
    began = {name: run.requests[name].first_scheduled_time for name in left}
    return {name for name, time in began.items() if time is not None and time >= left[name]}


def judge_mended(case: Case, got: Any, expected: Any) -> str:
    run = got["run"]
    if not isinstance(run, Recording):
        raise Wrong("no run of the engine came back")
    for name, arrival, _, answer, *leaves in case["requests"]:
        end = leaves[0] if leaves else math.inf
        picture = one_timeline(run, f"Yours: what becomes of {name}?")
        for number, step in enumerate(run.steps, 1):
            if step.start_time >= end and name in step.num_scheduled_tokens:
                waited = all(
                    s.start_time >= end or name not in s.num_scheduled_tokens for s in run.steps
                )
                still = ", though it was still in the queue then" if waited else ""
                raise Wrong(
                    f"{name} went away at {end:g} s{still}, and step {number} runs it", picture
                )
        record = run.requests.get(name)
        if record is None or record.arrival_time != arrival:
            raise Wrong(f"request {name} is not in the run as it was asked for")
        cut = record.finish_reason == "abort" and (record.finish_time or 0.0) < end
        if cut or (not leaves and len(record.token_times) != answer):
            raise Wrong(f"{name} is still reading, and its answer is cut off", picture)
    if not isinstance(got["ghosts"], list) or set(got["ghosts"]) != true_ghosts():
        raise Wrong(
            f"Mended works, but `ghosts` is {got['ghosts']!r}. Whose prompt begins in the picture "
            f"only after its reader has left?"
        )
    return "Nobody is served who isn't there, and everybody else is."


PARTS = [
    Part("14.1", "what the network delivers", ("read_stream",), run_stream, judge_stream, STREAMS),
    Part("14.2", "a stop-watch that can't be flattered", ("latencies",),
         run_latencies, judge_latencies, CHUNKS),
    Part("14.3", "the door", ("Door",), run_door, judge_door, DOORS),
    prediction("14.4", "read the books", ("inside", "waiting", "full_after"),
               hour, true_books, judge_books),
    Part("14.5", "whom does it work for?", ("ghosts", "Mended"), run_mended, judge_mended, GOES,
         by_property),
]  # fmt: skip
