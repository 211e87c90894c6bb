"""What ``/metrics`` shows, under vLLM's names, so that its dashboards read this server too.

The latencies are those of ``toyserve.metrics``: from arrival, the queue included; time per token
only of answers with two tokens or more. What was never measured is not observed, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from toyserve.engine import Engine
from toyserve.recording import StepRecord
from toyserve.request import FinishReason, Request, RequestMetrics, RequestStatus
from toyserve.server.engine_thread import EngineThread

# vLLM's own buckets, in seconds.
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """An observer of the engine's thread, and the text that Prometheus fetches.

    Counters and histograms grow on the engine's thread; gauges are read when they are asked for.
    """

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.engine, self.model_name = engine, model_name
        self.registry = CollectorRegistry()
        self.registry.register(_Gauges(engine, model_name))
        count, measure = self._counter, self._histogram
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens processed, cached ones included")
        self.generation_tokens = count("generation_tokens", "Tokens generated")
        self.preemptions = count("num_preemptions", "Requests paused for others")
        self.queries = count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.hits = count("prefix_cache_hits", "Prompt tokens found there")
        self.success = Counter(
            "vllm:request_success",
            "Requests that ended, by how",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self.refused = Counter(
            "toyserve:requests_refused",
            "Requests that could never run here",
            ["model_name"],
            registry=self.registry,
        ).labels(model_name)
        for reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT):
            self.success.labels(model_name, reason.value)
        self.ttft = measure("time_to_first_token_seconds", "Arrival to first token", _TTFT)
        self.itl = measure("inter_token_latency_seconds", "Between two tokens", _PER_TOKEN)
        self.tpot = measure(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, one value a request",
            _PER_TOKEN,
        )
        self.e2e = measure("e2e_request_latency_seconds", "Arrival to the last token", _WHOLE)
        self.queue_time = measure("request_queue_time_seconds", "Arrival to first run", _WHOLE)
        self.prefill_time = measure(
            "request_prefill_time_seconds", "First run to first token", _WHOLE
        )
        self.decode_time = measure("request_decode_time_seconds", "First to last token", _WHOLE)
        self.prompt_len = measure("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self.answer_len = measure("request_generation_tokens", "Tokens of an answer", _TOKENS)
        self.step_tokens = measure("iteration_tokens_total", "Tokens in a step", _STEP)

    def watch(self, thread: EngineThread) -> None:
        """Show also whom its full queue turned away, who are in no other number here."""
        self.registry.register(_TurnedAway(thread, self.model_name))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    # -- an Observer ----------------------------------------------------------------------------

    def on_step(self, step: StepRecord, requests: dict[str, Request]) -> None:
        self.preemptions.inc(len(step.preempted))
        num_run = sum(step.num_scheduled_tokens.values())
        self.step_tokens.observe(num_run + sum(step.num_padded_tokens.values()))
        for request_id in step.admitted:
            if request_id in requests and requests[request_id].num_preemptions == 0:
                self._first_run(requests[request_id])
        for request in requests.values():
            times = request.token_times
            if not times or times[-1] != step.end_time:
                continue  # no token came of this step
            self.generation_tokens.inc()
            if len(times) == 1:
                self.ttft.observe(times[0] - request.arrival_time)
            else:
                self.itl.observe(times[-1] - times[-2])

    def on_end(self, request: Request) -> None:
        assert request.finish_reason is not None
        if request.finish_reason is FinishReason.REFUSED:
            self.refused.inc()
            return
        self.success.labels(self.model_name, request.finish_reason.value).inc()
        if request.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        metrics = RequestMetrics.of(request)
        started, times = request.first_scheduled_time, request.token_times
        self.prompt_len.observe(request.num_prompt_tokens)
        self.answer_len.observe(request.num_output_tokens)
        if metrics.e2e is not None:
            self.e2e.observe(metrics.e2e)
        if metrics.tpot is not None:
            self.tpot.observe(metrics.tpot)
        if started is not None and times:
            self.prefill_time.observe(times[0] - started)
            self.decode_time.observe(times[-1] - times[0])

    def _first_run(self, request: Request) -> None:
        assert request.first_scheduled_time is not None
        self.queue_time.observe(request.first_scheduled_time - request.arrival_time)
        self.prompt_tokens.inc(request.num_prompt_tokens)
        if getattr(self.engine.kv, "prefix_caching", False):
            self.queries.inc(request.num_prompt_tokens)
            self.hits.inc(request.num_cached_tokens)

    # -- making them ----------------------------------------------------------------------------

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, ["model_name"], registry=self.registry)
        return counter.labels(self.model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self.registry
        )
        return histogram.labels(self.model_name)


class _Gauges:
    """The engine's queues and memory at the moment when somebody asks."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self.engine, self.model_name = engine, model_name

    def collect(self) -> Iterator[Metric]:
        for name, (text, value) in gauges(self.engine).items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            gauge.add_metric([self.model_name], value)
            yield gauge


class _TurnedAway:
    def __init__(self, thread: EngineThread, model_name: str) -> None:
        self.thread, self.model_name = thread, model_name

    def collect(self) -> Iterator[Metric]:
        text = "Requests that found the queue full (429); they are in no other number here"
        name = "toyserve:requests_turned_away"
        counter = CounterMetricFamily(name, text, labels=["model_name"])
        counter.add_metric([self.model_name], self.thread.num_turned_away)
        yield counter


def gauges(engine: Engine) -> dict[str, tuple[str, float]]:
    """name -> (meaning, value)"""
    scheduler, kv = engine.scheduler, engine.kv
    waiting = list(scheduler.waiting)
    num_swapped = sum(r.status is RequestStatus.SWAPPED for r in waiting)
    usage = 1 - kv.num_free_blocks / kv.num_blocks
    return {
        "num_requests_running": ("Requests in the batch", len(scheduler.running)),
        "num_requests_waiting": ("Requests in the queue", len(waiting) - num_swapped),
        "num_requests_swapped": ("Paused, their KV on the host", num_swapped),
        "kv_cache_usage_perc": ("Share of KV blocks in use, 0 to 1", usage),
        "gpu_cache_usage_perc": ("The same, under vLLM's older name", usage),
    }
