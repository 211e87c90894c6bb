"""The page at ``/``: the live timeline, block map and queue, who waits how long, and every text.

The page asks for ``/dashboard/state`` again and again. A state is made at most a few times a
second, however many look; its steps are drawn from the same recording as every other picture.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from toyserve.metrics import by_user
from toyserve.recording import Recording
from toyserve.request import RequestMetrics, RequestStatus, SamplingParams
from toyserve.server.config import ServerConfig
from toyserve.server.errors import json_response
from toyserve.server.health import health
from toyserve.server.history import latest
from toyserve.server.observe import gauges
from toyserve.server.protocol import AbortBody, BurstBody
from toyserve.server.routes import ERRORS
from toyserve.server.service import Choice, Sender, Service
from toyserve.server.tickets import Ticket

NUM_STEPS = 160  # in the timeline
MIN_AGE = 0.25  # seconds for which a state is good for whoever asks
MAX_WAITING = 40  # requests of the queue in the list
TEXT_LENGTH = 600  # characters of a prompt's or an answer's end that are shown

# Nothing but this server may be asked for anything; a notebook on this machine may frame the page.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
)


@dataclass(frozen=True)
class Snapshot:
    """Copied between two steps, so that it all belongs together."""

    num_steps: int
    run: Recording
    users: Recording
    requests: list[dict[str, Any]]


class Dashboard:
    """Makes states of the page. Lives on the event loop."""

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.service, self.config = service, config
        self._making = asyncio.Lock()
        self._state: dict[str, Any] | None = None
        self._time = 0.0

    async def state(self, after: int | None) -> dict[str, Any]:
        """after: the step that the caller has drawn; if it is the last, there is no new picture."""
        async with self._making:
            now = self.service.engine.clock.now()
            if self._state is None or now - self._time > MIN_AGE:
                self._state = await self._make(after)
                self._time = self.service.engine.clock.now()
        state = self._state
        return state if state["num_steps"] != after else state | {"run": None}

    async def _make(self, after: int | None) -> dict[str, Any]:
        thread = self.service.thread
        snapshot = await asyncio.wrap_future(thread.call(self._copy))
        old = self._state
        if old is not None and old["run"] and old["num_steps"] == snapshot.num_steps:
            run = old["run"]
        else:
            run = await asyncio.to_thread(_pack, snapshot.run) if snapshot.run.steps else None
        return {
            "model": self.service.model_name,
            "num_steps": snapshot.num_steps,
            "health": health(thread, self.config.stall_time),
            "capacity": thread.capacity,
            "gauges": {name: value for name, (_, value) in gauges(self.service.engine).items()},
            "requests": snapshot.requests,
            "users": await asyncio.to_thread(_users, snapshot.users),
            "run": run,
        }

    def _copy(self) -> Snapshot:
        thread, recording = self.service.thread, self.service.engine.recording
        users = Recording(recording.meta)
        users.records = recording.requests
        now = self.service.engine.clock.now()
        running = [t for t in thread.tickets.values() if t.request.status is RequestStatus.RUNNING]
        waiting = [t for t in thread.tickets.values() if t not in running]
        tickets = [*running, *waiting[:MAX_WAITING], *reversed(thread.recent)]
        requests = [_row(ticket, now) for ticket in tickets]
        return Snapshot(thread.num_steps, latest(recording, NUM_STEPS), users, requests)

    async def burst(self, body: BurstBody) -> list[str]:
        """Ask, and let the answers be shown by the page. Raises ApiError."""
        service = self.service
        ids = await service.token_ids(body.prompt)
        params = SamplingParams(temperature=body.temperature, max_tokens=body.max_tokens)
        choices = [Choice(ids, body.prompt, params)] * body.count
        answer = await service.ask(choices, Sender(body.user, body.priority), "prompt")
        return [request.request_id for request in answer.requests]


def _row(ticket: Ticket, now: float) -> dict[str, Any]:
    request, metrics = ticket.request, RequestMetrics.of(ticket.request)
    status = str(request.finish_reason or request.status)
    if ticket.error is not None:
        status = "failed"
    end = now if request.finish_time is None else request.finish_time
    return {
        "id": request.request_id,
        "user": request.user,
        "priority": request.priority,
        "status": status,
        "is_over": ticket.is_over,
        "waits": request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED),
        "prompt": ticket.prompt[-TEXT_LENGTH:],
        "text": ticket.text.text[-TEXT_LENGTH:],
        "error": ticket.error or request.error,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_output_tokens": request.num_output_tokens,
        "max_tokens": request.params.max_tokens,
        "ttft_ms": _ms(metrics.ttft),
        "tpot_ms": _ms(metrics.tpot),
        "seconds": round(end - request.arrival_time, 3),
        "num_preemptions": request.num_preemptions,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


def _users(recording: Recording) -> list[dict[str, Any]]:
    """Latencies of each user's requests that the memory still holds."""
    rows = []
    for user, summary in by_user(recording).items():
        rows.append(
            {
                "user": user,
                "num_requests": summary["num_requests"],
                "num_finished": summary["num_finished"],
                "output_tokens": summary["output_tokens"],
                "ttft_p50": summary["ttft_ms"]["p50"],
                "ttft_p95": summary["ttft_ms"]["p95"],
                "tpot_p50": summary["tpot_ms"]["p50"],
                "e2e_p95": summary["e2e_ms"]["p95"],
            }
        )
    return rows


def _pack(recording: Recording) -> dict[str, Any]:
    from toyserve.viz.why import why
    from toyserve.viz.widget_data import pack

    header, grid = pack(recording, explain=True)
    sentence: dict[str, Any] = {}
    if "why" not in header:  # too many steps to explain them all
        step = len(recording.steps)
        sentence = {"step": step, "lines": [list(line) for line in why(recording, step).lines]}
    packed = base64.b64encode(grid).decode("ascii")
    return {"header": header, "grid": packed, "sentence": sentence}


# -- the page -------------------------------------------------------------------------------------


def page_text() -> str:
    """The whole page: style and script are in it, and it asks only its own server."""
    from toyserve.viz.assets import script_of, style_source

    folder = files("toyserve.server").joinpath("static")
    read = {
        name: folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("dashboard.html", "dashboard.css", "dashboard.js")
    }
    script = script_of(read["dashboard.js"]).replace("export default", "const timelineModule =")
    return (
        read["dashboard.html"]
        .replace("/* style */", style_source() + read["dashboard.css"])
        .replace("/* script */", script.replace("</script", "<\\/script"))
    )


def make_router(service: Service, config: ServerConfig) -> APIRouter:
    router = APIRouter(responses=ERRORS, tags=["dashboard"])
    dashboard = Dashboard(service, config)
    page = page_text()

    @router.get("/", include_in_schema=False)
    async def show() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})

    @router.get("/dashboard/state")
    async def state(after: int | None = None) -> Response:
        """Everything that the page shows; ``run`` is null if ``after`` is still the last step."""
        return json_response(await dashboard.state(after))

    @router.post("/dashboard/burst")
    async def burst(body: BurstBody) -> Response:
        """Send ``count`` requests at once; their answers appear in the state."""
        return json_response({"request_ids": await dashboard.burst(body)})

    @router.post("/dashboard/abort")
    async def abort(body: AbortBody) -> Response:
        """End a request, if it has not ended."""
        service.thread.abort([body.request_id])
        return json_response({"request_id": body.request_id})

    return router
