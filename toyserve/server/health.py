"""Is the engine doing what it should?"""

from __future__ import annotations

from typing import Any

from toyserve.server.engine_thread import EngineThread


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
