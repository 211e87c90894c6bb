"""``toyserve serve``: a model behind OpenAI's API until you press Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.cli.parser import CommandParser
from toyserve.server import load

EXAMPLES = (
    "toyserve serve                                   # the bundled model, port 8000",
    "toyserve serve --scheduler static --max-running 4 --record run.jsonl",
    "toyserve serve --policy priority --num-blocks 64 --preemption swap --num-host-blocks 64",
    "toyserve serve --model gpt2 --host 0.0.0.0 --api-key SECRET",
)
_ENGINE = {
    "scheduler": (str, "sequential, static, continuous or chunked (default)"),
    "kv": (str, "paged (default), contiguous, reserved"),
    "policy": (str, "fcfs (default), shortest_first, priority, deadline or fair_share"),
    "preemption": (str, "recompute (default) or swap"),
    "num-host-blocks": (int, "swap space, in KV blocks"),
    "watermark": (float, "share of blocks kept free on admission"),
    "max-running": (int, "requests in a step at most (16)"),
    "token-budget": (int, "tokens in a step at most (chunked: 256)"),
    "max-chunk": (int, "prompt tokens of one request per step"),
    "max-wait": (float, "seconds a static batch waits to fill"),
    "num-blocks": (int, "KV blocks (256)"),
    "block-size": (int, "tokens in a block (16)"),
    "max-model-len": (int, "longest prompt + answer, in tokens"),
    "device": (str, "cpu or cuda (default: cuda where there is one)"),
    "dtype": (str, "float32, float16 or bfloat16"),
    "seed": (int, "of requests that bring none (0)"),
}
_SERVER = {
    "host": (str, "address to listen at (127.0.0.1: this machine only)"),
    "port": (int, "port (8000); 0: any that is free"),
    "model-name": (str, "what clients call the model"),
    "api-key": (str, "clients must send it: Authorization: Bearer KEY"),
    "max-queue": (int, "requests that may wait; one more is answered 429 (128)"),
    "max-body-bytes": (int, "longest body of a request (1000000)"),
    "record": (Path, "write every decision to this file, as it happens"),
    "max-steps": (int, "steps kept in memory, for the dashboard (2000)"),
    "drain-time": (float, "seconds that answers under way get at the end (5)"),
}


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve serve",
        description=__doc__,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    engine = parser.add_argument_group("the engine")
    engine.add_argument("--model", default="toy", help="toy, a folder, or a hub name")
    engine.add_argument("--prefix-caching", action="store_true", help="share equal prompt starts")
    listener = parser.add_argument_group("the listener")
    for group, options in ((engine, _ENGINE), (listener, _SERVER)):
        for name, (kind, help_text) in options.items():
            group.add_argument(f"--{name}", type=kind, help=help_text)
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM. Raises ValueError in one sentence for what cannot be."""
    options = make_parser().parse_args(list(argv))
    server_class = load("toyserve.server.server").Server  # before the model, which takes its time
    config = load("toyserve.server.config").ServerConfig(**{"port": 8000} | given(options, _SERVER))
    from toyserve.llm import LLM

    llm = LLM(options.model, prefix_caching=options.prefix_caching, **given(options, _ENGINE))
    server = server_class(llm, config)
    wanted = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: wanted.set()) for number in signals}
    try:
        server.start()
        print(_welcome(server), flush=True)
        wanted.wait()
        wanted.clear()
        print("toyserve: stopping, once more to stop at once ...", file=sys.stderr, flush=True)
        _stop(server, wanted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def _stop(server: Any, hurry: threading.Event) -> None:
    """Drain; a second signal ends that."""
    server.engine_thread.close()
    left = server.config.drain_time
    while left > 0 and server.engine_thread.num_unfinished and not hurry.wait(0.05):
        left -= 0.05
    server.stop(drain_time=0)


def _welcome(server: Any) -> str:
    return (
        f"Serving {server.model_name} at {server.url}/v1, the dashboard at {server.url}/\n"
        f"  curl {server.url}/v1/completions -H 'Content-Type: application/json' "
        f'-d \'{{"prompt": "ROMEO:\\n", "max_tokens": 40}}\'\n'
        f"Ctrl-C stops it."
    )


def given(options: argparse.Namespace, table: dict[str, Any]) -> dict[str, Any]:
    """What the user said, by the names of Python."""
    names = [name.replace("-", "_") for name in table]
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
