"""The live server: an LLM behind OpenAI's API, with metrics and a dashboard (extra [serve]).

In a notebook or a program::

    from toyserve import LLM
    from toyserve.server import Server

    with Server(LLM("toy", max_running=8)) as server:        # or server.start() … server.stop()
        print(server.url)                                    # http://127.0.0.1:43210, the dashboard
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        client.completions.create(model="toy", prompt="ROMEO:\\n", max_tokens=32)
    server.recording                                         # what happened, for every picture

``Server(llm, **options)``: the options are the fields of ``ServerConfig`` (host, port, api_key,
max_queue, record, drain_time …). ``port=0``, the default, takes a free port. ``start()`` returns
the server once clients can connect and raises ValueError if the port is taken;
``stop(drain_time=…)`` ends streams properly and frees port and threads; both may be called again.
While it runs, ``llm.generate`` raises. ``server.is_running``, ``server.health()`` and
``server.gauges()`` say how it is. ``IPython.display.IFrame(server.url, 1200, 900)`` shows the
dashboard in a cell of a notebook on the same machine.

The load client needs only httpx, and works against any OpenAI-compatible server, also in a cell::

    from toyserve.server.load_client import Target, measure
    from toyserve.server.load_sweep import find_capacity, table

    recording = measure(Target(server.url), make_workload("poisson:n=40,rate=4"))  # users' side
    recording.summary()["ttft_ms"]; viz.latency(recording)
    sweep = find_capacity(Target(server.url), make_workload("poisson:n=2000,rate=1")
                          .with_targets(ttft=1.0, tpot=0.2), seconds=10)
    sweep.capacity, sweep.boundary; viz.latency_vs_rate(sweep.points())
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toyserve.server.config import ServerConfig
    from toyserve.server.server import Server

__all__ = ["Server", "ServerConfig"]

_LAZY = {"Server": "toyserve.server.server", "ServerConfig": "toyserve.server.config"}
# What each part needs beside toyserve's own dependencies: looked for first, torch takes its time.
_NEEDS = {
    "toyserve.server.server": ("fastapi", "uvicorn", "prometheus_client"),
    "toyserve.server.load_client": ("httpx",),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(load(_LAZY[name]), name)


def load(module: str) -> Any:
    """Import a part of the server, or say in one sentence how to install what it needs."""
    for package in _NEEDS.get(module, ()):
        if find_spec(package) is None:
            raise ValueError(
                f"this needs the Python package {package!r}: pip install 'toyserve[serve]'"
            )
    return import_module(module)
