"""The web application: endpoints, errors, the gate, health and metrics."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response

from toyserve import __version__
from toyserve.server import errors
from toyserve.server.chat import ChatTemplate
from toyserve.server.config import ServerConfig
from toyserve.server.dashboard import make_router as make_dashboard
from toyserve.server.errors import json_response
from toyserve.server.gate import Gate
from toyserve.server.health import health
from toyserve.server.observe import Metrics
from toyserve.server.routes import make_router
from toyserve.server.service import Service


def make_app(
    service: Service, config: ServerConfig, metrics: Metrics, template: ChatTemplate
) -> FastAPI:
    app = FastAPI(title="toyserve", version=__version__, docs_url=None, redoc_url=None)
    errors.install(app)
    app.include_router(make_router(service, config, template))
    app.include_router(make_dashboard(service, config))

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
