"""The load client: open loop, honest times, and numbers that mean what the server's mean."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from echo import make_llm
from prometheus_client.parser import text_string_to_metric_families
from raw import eventually, get
from server_for_tests import Server

from toyserve import FinishReason, Recording
from toyserve.cli import main
from toyserve.metrics import itl, tpot, ttft
from toyserve.recording import RequestRecord
from toyserve.server import load_sweep
from toyserve.server.load_client import Target, _Sender, at_rate, measure, probe
from toyserve.server.load_sweep import find_capacity, judge, queue_growth
from toyserve.workload import Workload, WorkloadRequest, make_workload

LONG = "prompt_min=4,prompt_max=20,output_min=40,output_max=60"  # more than 24 blocks hold
SHORT = "prompt_min=4,prompt_max=20,output_min=2,output_max=12"


def test_requests_leave_on_time_though_nothing_is_answered(serve) -> None:
    server = serve(make_llm(max_running=1))
    runner = server.llm.engine.runner
    runner.gate.clear()
    workload = make_workload(f"poisson:n=12,rate=60,{SHORT}")
    with ThreadPoolExecutor() as pool:
        measuring = pool.submit(measure, Target(server.url), workload)
        eventually(lambda: server.health()["num_unfinished"] == 12)
        assert not runner.num_steps
        runner.gate.set()
        recording = measuring.result()
    assert [r.arrival_time for r in recording.requests.values()] == [
        r.arrival_time for r in workload.requests
    ]
    last = workload.requests[-1].arrival_time
    waits = [ttft(r) for r in recording.requests.values()]
    for request, wait in zip(workload.requests, waits, strict=True):
        assert wait is not None and wait > last - request.arrival_time


def test_client_and_server_tell_of_the_same_tokens_and_the_client_sees_them_later(serve) -> None:
    server = serve()
    workload = make_workload(f"poisson:n=16,rate=40,{SHORT}")
    theirs = measure(Target(server.url + "/v1/"), workload)
    ours = server.recording
    assert len(theirs.requests) == len(ours.requests) == 16

    def shape(r: RequestRecord) -> tuple[int, int]:
        return r.num_prompt_tokens, len(r.token_times)

    assert sorted(map(shape, theirs.requests.values())) == sorted(
        map(shape, ours.requests.values())
    )
    for request in workload.requests:
        record = theirs.requests[request.request_id]
        assert shape(record) == (request.num_prompt_tokens, request.output_len)
        assert record.finish_reason is FinishReason.LENGTH
    total = [sum(ttft(r) or 0.0 for r in run.requests.values()) for run in (theirs, ours)]
    assert total[0] >= total[1] > 0
    assert theirs.summary()["output_tokens"] == ours.summary()["output_tokens"]


def test_metrics_say_the_same_as_the_recording(serve) -> None:
    server = serve(make_llm(num_blocks=24, prefix_caching=True))
    measure(Target(server.url), make_workload(f"burst:n=20,{LONG}"))
    measure(Target(server.url), make_workload("burst:n=3,output_min=1,output_max=1"))
    records = list(server.recording.requests.values())
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(get(server, "/metrics").text)
        for sample in family.samples
        if "le" not in sample.labels
    }
    first = [t for r in records if (t := ttft(r)) is not None]
    per_token = [t for r in records if (t := tpot(r)) is not None]
    gaps = [gap for r in records for gap in itl(r)]
    for name, measured in (
        ("vllm:time_to_first_token_seconds", first),
        ("vllm:request_time_per_output_token_seconds", per_token),
        ("vllm:inter_token_latency_seconds", gaps),
    ):
        assert values[f"{name}_count"] == len(measured), name
        assert values[f"{name}_sum"] == pytest.approx(sum(measured)), name
    assert len(first) == 23 and len(per_token) == 20, "one token has no time per token"
    assert values["vllm:generation_tokens_total"] == sum(len(r.token_times) for r in records)
    assert values["vllm:prompt_tokens_total"] == sum(r.num_prompt_tokens for r in records)
    assert values["vllm:num_preemptions_total"] == sum(r.num_preemptions for r in records) > 0
    assert values["vllm:prefix_cache_queries_total"] == values["vllm:prompt_tokens_total"]
    assert values["vllm:prefix_cache_hits_total"] == sum(r.num_cached_tokens for r in records)
    assert values["vllm:e2e_request_latency_seconds_count"] == len(records)
    assert values["vllm:request_queue_time_seconds_count"] == len(records)
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert values[f"vllm:{gauge}"] == 0


def test_one_token_answers_have_no_time_per_token_and_failures_have_no_times(serve) -> None:
    server = serve(make_llm(max_running=1), max_queue=2)
    server.llm.engine.runner.gate.clear()
    workload = make_workload("burst:n=9,prompt_max=20,output_min=1,output_max=1")
    with ThreadPoolExecutor() as pool:
        measuring = pool.submit(measure, Target(server.url), workload)
        eventually(lambda: server.health()["num_unfinished"] == 3)
        eventually(lambda: server.engine_thread.num_turned_away == 6)
        server.llm.engine.runner.gate.set()
        summary = measuring.result().summary()
    assert (summary["num_finished"], summary["num_refused"]) == (3, 6)
    assert summary["tpot_ms"]["count"] == 0 and summary["tpot_ms"]["p50"] is None
    assert summary["ttft_ms"]["count"] == summary["num_finished"]
    assert summary["ttft_ms"]["num_unmeasured"] == summary["num_refused"]


def take_all(chunks: list[dict]) -> tuple[RequestRecord, int]:
    sender = _Sender(Target("http://x"), "m", client=None)  # type: ignore[arg-type]
    record = RequestRecord("r", 0.0, 3, 9)
    for now, chunk in enumerate(chunks, 1):
        sender._take(record, chunk, float(now))
    return record, sender.num_unplaced


def text(piece: str, tokens: int | None = None) -> dict:
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return {"choices": [{"text": piece}]} | ({} if tokens is None else {"usage": usage})


LAST = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}


@pytest.mark.parametrize(
    ("chunks", "times", "unplaced"),
    [
        ([text("a", 1), text("bc", 3), text("", 4), LAST], [1, 2, 2, 3], 0),
        ([text("a"), text("b"), text("c"), text("d"), LAST], [1, 2, 3, 4], 0),
        ([text("ab"), text("cd"), text(""), LAST], [1, 2, 2, 2], 2),
        ([text(""), text("a"), text("b")], [2, 3], 0),
        ([text("a"), text("b"), text("c"), text("d"), text("e"), LAST], [1, 2, 3, 4], 0),
        ([{"choices": [{"delta": {"role": "assistant"}}]}], [], 0),
    ],
)
def test_tokens_count_when_they_came_with_or_without_counts(chunks, times, unplaced) -> None:
    record, num_unplaced = take_all(chunks)
    assert record.token_times == times and num_unplaced == unplaced


# -- how much is too much ------------------------------------------------------------------------


def queue(workload: Workload, service_time: float) -> Recording:
    """One server, one request at a time, each taking as long."""
    recording, free = Recording(keep_steps=False), 0.0
    for item in workload.requests:
        free = max(free, item.arrival_time) + service_time
        record = RequestRecord(
            item.request_id, item.arrival_time, 1, 1, ttft_target=item.ttft_target
        )
        record.token_times, record.finish_time = [free], free
        record.finish_reason = FinishReason.LENGTH
        recording.records[item.request_id] = record
    return recording


@pytest.mark.parametrize("rate", [3, 20, 150])
@pytest.mark.parametrize("ttft_target", [None, 0.8])
def test_the_sweep_finds_a_servers_capacity(
    monkeypatch: pytest.MonkeyPatch, rate: int, ttft_target: float | None
) -> None:
    known = object()
    monkeypatch.setattr(load_sweep, "probe", lambda target: known)
    monkeypatch.setattr(
        load_sweep, "measure", lambda target, workload, known: queue(workload, 1 / rate)
    )
    workload = make_workload("poisson:n=5200,rate=1").with_targets(ttft=ttft_target)
    sweep = find_capacity(Target("http://x"), workload, seconds=20, start_rate=4)
    assert sweep.capacity is not None and sweep.boundary is not None
    assert 0.45 * rate < sweep.capacity < 1.15 * rate
    assert sweep.capacity < sweep.boundary < 1.4 * sweep.capacity


def test_a_growing_queue_is_told_from_a_long_one() -> None:
    workload = at_rate(make_workload("poisson:n=2000,rate=1"), 10, 30)
    assert queue_growth(queue(workload, 1 / 8)) == pytest.approx(0.25, abs=0.1)
    slow_but_even = queue(workload, 0.0)
    for record in slow_but_even.records.values():
        record.token_times = [record.arrival_time + 3.0]
    assert queue_growth(slow_but_even) == pytest.approx(0.0, abs=1e-9)
    assert judge(10, slow_but_even).sustained
    assert not judge(10, queue(workload, 1 / 8)).sustained
    few = Workload("few", workload.requests[:5])
    assert queue_growth(queue(few, 1.0)) is None


def test_a_burst_has_no_rate() -> None:
    with pytest.raises(ValueError, match="burst: all requests arrive at once"):
        at_rate(make_workload("burst:n=4"), 2.0, 10.0)


# -- the command ---------------------------------------------------------------------------------


def test_the_command_prints_numbers_and_writes_a_recording(serve, tmp_path, capsys) -> None:
    server = serve()
    arguments = ["bench-serve", server.url, "--workload", f"poisson:n=8,rate=50,{SHORT}"]
    assert main([*arguments, "--out", str(tmp_path), "--ttft", "60"]) == 0
    assert "8 of 8 met their targets" in capsys.readouterr().out
    recording = Recording.load(tmp_path / "run.jsonl")
    assert recording.summary()["num_finished"] == 8
    assert (tmp_path / "latency.png").stat().st_size > 5000
    assert main([*arguments, "--json", "--plain", "--model", "toy"]) == 0
    assert json.loads(capsys.readouterr().out)["num_finished"] == 8


def test_a_short_sweep_through_the_command(serve, tmp_path, capsys) -> None:
    server = serve(make_llm(max_running=2, step_time=0.002))
    arguments = ["bench-serve", server.url, "--sweep", "--seconds", "0.5", "--start-rate", "8"]
    arguments += ["--max-rate", "16", "--workload", f"poisson:n=900,rate=1,{SHORT}"]
    assert main([*arguments, "--out", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [r["rate"] for r in result["rates"]][:1] == [8.0]
    assert (tmp_path / "ttft_by_rate.png").stat().st_size > 5000


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:9 does not answer"):
        probe(Target("http://127.0.0.1:9"))
    with pytest.raises(ValueError, match="must begin with http"):
        Target("localhost:8000")


def test_it_measures_from_inside_a_running_loop(echo: Server) -> None:
    async def cell() -> Recording:
        return measure(Target(echo.url), Workload("one", (WorkloadRequest("a", 0.0, 5, 3),)))

    (record,) = asyncio.run(cell()).requests.values()
    assert len(record.token_times) == 3


def test_a_proxy_of_the_environment_does_not_come_between(echo: Server, monkeypatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    one = measure(Target(echo.url), Workload("one", (WorkloadRequest("a", 0.0, 5, 3),)))
    assert len(one.requests["a"].token_times) == 3
    assert not Target("https://example.org/v1").is_local
