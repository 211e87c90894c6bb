"""Ten seconds of what ``benchmarks/soak_server.py`` does for two minutes."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

from echo import make_llm
from raw import eventually

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_server.py"


def test_a_rude_crowd_leaves_nothing_and_nobody_gets_anothers_text(serve) -> None:
    spec = importlib.util.spec_from_file_location("soak_server", SCRIPT)
    assert spec is not None and spec.loader is not None
    soak = sys.modules["soak_server"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    llm = make_llm(num_blocks=120, max_running=12, prefix_caching=True, step_time=0.001)
    server = serve(llm, max_queue=200, max_steps=500)
    texts = [f"This is text number {i}, and it is nobody else's. 😀 {i}" for i in range(20)]
    crowd = soak.Crowd(server.url, {text: text for text in texts}, max_tokens=100)
    report = asyncio.run(crowd.run(seconds=10, num_clients=64))
    assert not report.wrong
    assert set(report.done) == {"whole", "stream", "hang_up", "stop_string", "nonsense"}
    eventually(lambda: not any(server.gauges().values()))
    assert server.health() == {
        "status": "ok", "num_unfinished": 0, "num_steps": server.health()["num_steps"]
    }  # fmt: skip
    assert not server.engine_thread.tickets
    assert len(server.llm.engine.recording.steps) < 1500
