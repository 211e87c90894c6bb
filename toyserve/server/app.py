"""The web application: endpoints, errors, the gate, health and metrics."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from toyserve import __version__
from toyserve.server import errors
from toyserve.server.chat import ChatTemplate
from toyserve.server.config import ServerConfig
from toyserve.server.engine_thread import EngineThread
from toyserve.server.errors import json_response
from toyserve.server.gate import Gate
from toyserve.server.observe import Metrics
from toyserve.server.routes import make_router
from toyserve.server.service import Service


def make_app(
    service: Service, config: ServerConfig, metrics: Metrics, template: ChatTemplate
) -> FastAPI:
    app = FastAPI(title="toyserve", version=__version__, docs_url=None, redoc_url=None)
    errors.install(app)
    app.include_router(make_router(service, config, template))

    @app.get("/health", tags=["state"], responses={503: {"description": "Nothing moves"}})
    async def is_healthy() -> Response:
        """200 while the engine does what it should; 503 when it is stuck, failing or stopped."""
        status = health(service.thread, config.stall_time)
        return json_response(status, 200 if status["status"] in ("ok", "waiting") else 503)

    @app.get("/metrics", tags=["state"])
    async def prometheus() -> Response:
        """For Prometheus, under vLLM's names."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_middleware(Gate, config=config)  # type: ignore[arg-type, unused-ignore]
    return app


def health(thread: EngineThread, stall_time: float) -> dict[str, Any]:
    """status: ok, waiting (for a quota or a fuller batch), failing, stalled, stopped or closing.

    stalled: one step has taken ``stall_time`` and has not ended. failing: the last step raised an
    error, less than ``stall_time`` ago.
    """
    now = thread.engine.clock.now()
    since = now - thread.state_time
    facts: dict[str, Any] = {
        "status": "ok",
        "num_unfinished": thread.num_unfinished,
        "num_steps": thread.num_steps,
    }
    if not thread.is_alive or thread.state == "stopped":
        facts["status"] = "stopped"
    elif thread.is_closing:
        facts["status"] = "closing"
    elif getattr(thread.engine.clock, "waits_until", None) is not None:
        facts["status"] = "waiting"
    elif thread.state == "stepping" and since > stall_time:
        facts |= {"status": "stalled", "seconds": round(since, 1)}
    elif thread.failure is not None and now - thread.failure_time < stall_time:
        facts |= {"status": "failing", "failure": thread.failure}
    return facts
