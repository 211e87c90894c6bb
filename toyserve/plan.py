"""``toyserve plan``: how many requests fit on a GPU, by the model's and the GPU's figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from toyserve.capacity import plan
from toyserve.cli.parser import CommandParser
from toyserve.costs import RooflineCostModel
from toyserve.hardware import HARDWARE
from toyserve.modelspecs import MODELS

EXAMPLES = (
    "toyserve plan --model llama-3-8b --gpu h100",
    "toyserve plan --model llama-3-70b --gpu h100 --num-gpus 4 --context-len 4096",
    "toyserve plan --model llama-3-8b --gpu l4 --weight-dtype int8 --kv-dtype fp8",
)
_BATCHES = (1, 8, 32, 128)
_FIGURES = (
    "num_gpus",
    "context_len",
    "block_size",
    "usable_bytes",
    "weight_bytes",
    "kv_bytes_per_token",
    "kv_bytes_per_request",
    "num_blocks",
    "num_requests",
)


def _make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve plan",
        description="How many requests fit in a GPU's memory beside the weights, and how fast a "
        "batch of them would decode by the cost model. Needs no GPU and no weights.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", default="llama-3-8b", help=f"one of {', '.join(MODELS)}")
    parser.add_argument("--gpu", default="h100", help=f"one of {', '.join(HARDWARE)}")
    parser.add_argument("--num-gpus", type=int, default=1, help="that share each layer")
    parser.add_argument("--context-len", type=int, default=2048, help="tokens of each request")
    parser.add_argument("--block-size", type=int, default=16, help="token slots in a KV block")
    parser.add_argument("--weight-dtype", help="fp32, fp16, bf16, fp8, int8, int4 …")
    parser.add_argument("--kv-dtype", help="the same for the KV cache")
    parser.add_argument(
        "--memory-utilization", type=float, default=0.9, help="share for weights and KV (0.9)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of words")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the answer; raises ValueError in one sentence for what cannot be."""
    options = _make_parser().parse_args(list(argv))
    answer = plan(
        options.model,
        options.gpu,
        options.context_len,
        num_gpus=options.num_gpus,
        weight_dtype=options.weight_dtype,
        kv_dtype=options.kv_dtype,
        block_size=options.block_size,
        memory_utilization=options.memory_utilization,
    )
    cost = RooflineCostModel(answer.hardware, answer.model, num_gpus=options.num_gpus)
    rows = []
    for batch in _BATCHES:
        if batch <= max(1, answer.num_requests):
            total, per_user = cost.decode_throughput(batch, options.context_len)
            rows.append({"batch": batch, "tokens_per_s": total, "per_user": per_user})
    if options.json:
        figures = {"model": answer.model.name, "gpu": answer.hardware.name}
        print(json.dumps(figures | {n: getattr(answer, n) for n in _FIGURES} | {"decode": rows}))
        return 0
    print(answer.explain())
    if answer.num_requests:
        print("\nDecoding, by the cost model:")
        for row in rows:
            print(
                f"  batch {row['batch']:>4}: {row['tokens_per_s']:>9,.0f} tokens/s in all, "
                f"{row['per_user']:>7,.1f} for each user"
            )
    return 0
