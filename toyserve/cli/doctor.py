"""Say in plain words what this machine has for the course, and what to do about what is missing."""

from __future__ import annotations

import argparse

NAME = "doctor"
HELP = "what this machine has, and what to do about what is missing"
EXAMPLES = (
    "toyserve doctor",
    "toyserve doctor --quick     # without loading torch's GPU and trying the model",
    "toyserve doctor --json",
)
_MARKS = {"ok": "ok  ", "optional": "--  ", "missing": "NO  "}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="do not load torch or the model")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def execute(options: argparse.Namespace) -> int:
    from toyserve.doctor import examine

    findings = examine(quick=options.quick)
    broken = [f for f in findings if f.state == "missing"]
    if options.json:
        import json
        from dataclasses import asdict

        print(json.dumps({"can_run": not broken, "findings": [asdict(f) for f in findings]}))
        return 1 if broken else 0
    for finding in findings:
        print(f"{_MARKS[finding.state]}{finding.what}: {finding.found}")
        if finding.advice:
            print(f"      -> {finding.advice}")
    if broken:
        names = ", ".join(f.what for f in broken)
        print(f"\nThe course cannot run here yet: {names}. The arrows above say what to do.")
        return 1
    has_lab = all(f.state == "ok" for f in findings if f.what in ("JupyterLab", "lessons"))
    what = "The course can run here: toyserve lab" if has_lab else "The engine runs: toyserve demo"
    print(f"\n{what}")
    return 0
