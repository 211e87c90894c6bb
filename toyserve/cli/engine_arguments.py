"""The engine's options, as `toyserve run` and `toyserve serve` both have them."""

from __future__ import annotations

import argparse


def add_engine_arguments(group: argparse._ArgumentGroup) -> None:
    """Each is an argument of ``LLM`` of the same name; None leaves it at the engine's own value."""
    group.add_argument("--scheduler", help="sequential, static, continuous or chunked (default)")
    group.add_argument("--kv", default="paged", help="paged (default), contiguous, reserved")
    group.add_argument("--prefix-caching", action="store_true", help="share equal prompt starts")
    group.add_argument(
        "--policy",
        default="fcfs",
        help="fcfs (default), shortest_first, priority, deadline or fair_share",
    )
    group.add_argument("--preemption", help="recompute (default) or swap")
    group.add_argument("--num-host-blocks", type=whole_number, help="swap space, in KV blocks")
    group.add_argument("--watermark", type=number, help="share of blocks kept free on admission")
    group.add_argument("--max-running", type=whole_number, help="requests in a step at most (16)")
    group.add_argument(
        "--token-budget", type=whole_number, help="tokens in a step at most (chunked: 256)"
    )
    group.add_argument(
        "--max-chunk", type=whole_number, help="prompt tokens of one request per step"
    )
    group.add_argument("--max-wait", type=number, help="seconds a static batch waits to fill")
    group.add_argument(
        "--num-blocks", type=whole_number, help="KV blocks (256; simulated: what fits)"
    )
    group.add_argument("--block-size", type=whole_number, help="tokens in a block (16)")
    group.add_argument(
        "--max-model-len", type=whole_number, help="longest prompt + answer, in tokens"
    )
    group.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    group.add_argument("--seed", type=whole_number, default=0, help="of the sampling (default: 0)")


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
