"""``toyserve serve``: a model behind OpenAI's API until you press Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toyserve.cli.engine_arguments import add_engine_arguments, number, whole_number
from toyserve.cli.parser import CommandParser
from toyserve.server import load

EXAMPLES = (
    "toyserve serve                                   # the bundled model, port 8000",
    "toyserve serve --scheduler static --max-running 4 --record run.jsonl",
    "toyserve serve --policy priority --num-blocks 64 --preemption swap --num-host-blocks 64",
    "toyserve serve --model gpt2 --host 0.0.0.0 --api-key SECRET",
)
_SERVER: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "host": (str, "address to listen at (127.0.0.1: this machine only)"),
    "port": (whole_number, "port (8000); 0: any that is free"),
    "model-name": (str, "what clients call the model"),
    "api-key": (str, "clients must send it: Authorization: Bearer KEY"),
    "max-queue": (whole_number, "requests that may wait; one more is answered 429 (128)"),
    "max-body-bytes": (whole_number, "longest body of a request (1000000)"),
    "record": (Path, "write every decision to this file, as it happens"),
    "max-steps": (whole_number, "steps kept in memory, for the dashboard (2000)"),
    "drain-time": (number, "seconds that answers under way get at the end (5)"),
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
    engine.add_argument("--dtype", help="float32, float16 or bfloat16")
    add_engine_arguments(engine)
    listener = parser.add_argument_group("the listener")
    for name, (kind, help_text) in _SERVER.items():
        listener.add_argument(f"--{name}", type=kind, help=help_text)
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM. Raises ValueError in one sentence for what cannot be."""
    options = make_parser().parse_args(list(argv))
    server_class = load("toyserve.server.server").Server  # before the model, which takes its time
    given = {name: value for name, value in vars(options).items() if value is not None}
    of_server = {name: given.pop(name) for name in map(_python, _SERVER) if name in given}
    config = load("toyserve.server.config").ServerConfig(**{"port": 8000} | of_server)
    from toyserve.llm import LLM

    llm = LLM(**given)
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


def _python(name: str) -> str:
    return name.replace("-", "_")
