"""``toyserve view``: a recording as one HTML page, and that page in the browser."""

from __future__ import annotations

import argparse
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from toyserve.cli.parser import CommandParser
from toyserve.recording import Recording
from toyserve.viz.page import MAX_MB, to_html

EXAMPLES = (
    "toyserve run --scheduler continuous --workload burst:n=32 --out toyserve-run",
    "toyserve view toyserve-run/run.jsonl --open",
    "toyserve view run.jsonl --out run.html",
)


def _make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve view",
        description="Write one recording as one HTML page: press play, scrub, point at a cell. It "
        "needs no server and no network, so it can be mailed.",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("recording", type=Path, help="a run.jsonl of `toyserve run --out`")
    parser.add_argument("--out", type=Path, help="the page (default: beside the recording)")
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.add_argument(
        "--max-mb", type=float, default=MAX_MB, help=f"refuse a larger page ({MAX_MB:g})"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the page and say where it is; raises ValueError in one sentence for what cannot be."""
    options = _make_parser().parse_args(list(argv))
    target = options.out or options.recording.with_suffix(".html")
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is {str(target)!r}: a page's name ends in .html")
    to_html(Recording.load(options.recording), target, max_mb=options.max_mb)
    print(f"Written: {target} ({target.stat().st_size / 1e6:.1f} MB)")
    if options.open and not webbrowser.open(target.resolve().as_uri()):
        print("No browser could be started here: open the page by hand.")
    return 0
