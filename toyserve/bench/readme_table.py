"""The README's table from the files that ``toyserve bench --json`` wrote.

    python -m toyserve.bench.readme_table tiny.json [MORE.json] [--into README.md]

prints Markdown, or puts it between the lines <!-- bench --> and <!-- /bench --> of a file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toyserve.bench import names
from toyserve.bench.report import spread

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"


def make_table(results: Sequence[dict[str, Any]]) -> str:
    """Contestants by row; per result its tokens/s and its ratio to transformers' static batches."""
    head, line = ["on the same 32 requests"], ["---"]
    for result in results:
        size = result["model"]["num_params"] / 1e6
        head += [f"{result['model']['name']} ({size:.0f}M), tokens/s", "ratio", "of the ideal"]
        line += ["---:"] * 3
    rows = [head, line]
    rows += [[name, *_cells(results, name)] for name in _contestants(results)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{table}\n\n{_caption(results)}"


def _contestants(results: Sequence[dict[str, Any]]) -> list[str]:
    order = {name: None for result in results for name in result["race"]["contestants"]}
    theirs = [name for name in order if name.startswith("transformers")]
    return theirs + [name for name in order if name not in theirs]


def _cells(results: Sequence[dict[str, Any]], name: str) -> list[str]:
    cells = []
    for result in results:
        facts = result["race"]["contestants"].get(name)
        if facts is None:
            cells += ["", "", ""]
            continue
        ratio = "1x" if name == names.HF_STATIC else spread(facts, "speedup", names.HF_STATIC)
        bold = "**" if name == names.CHUNKED else ""
        cells += [f"{facts['tokens_per_s']:,.0f}", f"{bold}{ratio}{bold}"]
        cells += [f"{facts['share_of_ideal']:.0%}"]
    return cells


def _caption(results: Sequence[dict[str, Any]]) -> str:
    machine, settings = results[0]["machine"], results[0]["settings"]
    versions = ", ".join(f"{n} {v}" for n, v in machine["versions"].items() if n != "toyserve")
    threads = "one thread" if settings["threads"] == 1 else f"{settings['threads']} threads"
    commands = " and ".join(
        f"`toyserve bench --model {r['model']['name']} --against transformers`" for r in results
    )
    return (
        f"Ratios are speeds over transformers' static batches of 8, within rounds: median "
        f"(smallest to largest). {threads.capitalize()}, {settings['time']} time, fp32, greedy, "
        f"every contestant token for token the same; {machine['processor']}, {versions}, "
        f"{machine['date'][:10]}. Measured by {commands}."
    )


def put_into(text: str, table: str) -> str:
    """``text`` with ``table`` between its two marks. Raises ValueError without them."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"there are no lines {BEGIN} and {END} to put the table between")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="a file with the two marks")
    options = parser.parse_args(argv)
    table = make_table([json.loads(f.read_text(encoding="utf-8")) for f in options.files])
    if options.into is None:
        print(table)
    else:
        old = options.into.read_text(encoding="utf-8")
        options.into.write_text(put_into(old, table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
