"""The command line: ``toyserve COMMAND …``. One module per command; none loads torch on import.

A user's mistake is one sentence on stderr and exit code 2. Ctrl-C is 130, as in a shell; a reader
that goes away (``toyserve run | head``) is 141. TOYSERVE_TRACEBACK=1 shows where a mistake was
noticed, for whoever works on toyserve itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from toyserve import __version__
from toyserve.cli import check, demo, doctor, grade, lab, progress, release, run
from toyserve.cli.parser import CommandParser

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141

_COMMANDS = (demo, run, lab, check, progress, doctor, release, grade)
# Commands that other parts of toyserve bring along: the first module here that exists is asked for
# ``main(arguments) -> exit code``.
_ELSEWHERE: dict[str, tuple[tuple[str, ...], str]] = {
    "bench": (("toyserve.bench",), "measure this machine's engine, side by side with others"),
    "view": (("toyserve.view", "toyserve.viz.view"), "one recording as one HTML page"),
    "serve": (("toyserve.server.command",), "a model behind OpenAI's API, with a dashboard"),
    "bench-serve": (("toyserve.server.bench_command",), "how much load a server can take"),
    "plan": (("toyserve.plan",), "how many requests a GPU can take, by the cost model"),
}


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="toyserve",
        description="A mini LLM serving engine whose every scheduling decision you can see.",
        epilog="Start with:  toyserve demo   then   toyserve lab",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"toyserve {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in _COMMANDS:
        sub = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.__doc__,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in command.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add_arguments(sub)
        sub.set_defaults(execute=command.execute)
    for name, (_, help_text) in _ELSEWHERE.items():
        if _find_elsewhere(name):
            commands.add_parser(name, help=help_text, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises SystemExit only for --help and --version."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        _never_fail_to_print(stream)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = _dispatch(arguments)
            sys.stdout.flush()
        except BrokenPipeError:
            _silence_stdout()
            return PIPE_CLOSED
        except KeyboardInterrupt:
            print("\ntoyserve: stopped.", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            sentence = _sentence(error)
            if sentence is None or os.environ.get("TOYSERVE_TRACEBACK"):
                raise
            print(f"toyserve: {sentence}", file=sys.stderr)
            return BAD_INPUT
    return code


def _dispatch(arguments: list[str]) -> int:
    # Threads that wait spin for a short while only. Spinning long is no faster on a quiet machine
    # and many times slower on a shared one; not spinning at all halves the speed of a quiet one.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if arguments and arguments[0] in _ELSEWHERE:
        module = _find_elsewhere(arguments[0])
        if module is None:
            raise ValueError(f"this version of toyserve has no {arguments[0]!r} command yet")
        return int(importlib.import_module(module).main(arguments[1:]) or 0)
    known = [command.NAME for command in _COMMANDS]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in known:
        known += [name for name in _ELSEWHERE if _find_elsewhere(name)]
        raise ValueError(f"command is {arguments[0]!r}: it must be one of {', '.join(known)}")
    parser = make_parser()
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.passed_on = arguments[end + 1 :]
    if options.command is None:
        parser.print_help()
        return 0
    if options.passed_on and options.command != lab.NAME:
        raise ValueError(f"toyserve {options.command} passes nothing on: leave out what follows --")
    return int(options.execute(options))


def _find_elsewhere(name: str) -> str | None:
    """Looks at files: asking the import system would already load ``toyserve.viz``, say."""
    package = Path(__file__).resolve().parent.parent
    for module in _ELSEWHERE[name][0]:
        path = package.joinpath(*module.split(".")[1:])
        if module in sys.modules or path.with_suffix(".py").exists() or path.is_dir():
            return module
    return None


def _sentence(error: Exception) -> str | None:
    """What to tell the user, on one line; None if it is toyserve's fault and not theirs."""
    if isinstance(error, MemoryError):
        return (
            "this machine's memory is too small for that: lower num_blocks or take a smaller model"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    # WorkspaceError and its like are sentences for the user by their own word.
    if isinstance(error, ValueError | OSError) or type(error).__name__ == "WorkspaceError":
        return " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("toyserve"):
        return (
            f"the Python package {error.name!r} is missing: `toyserve doctor` says what to install"
        )
    return None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"toyserve: {' '.join(str(message).split())}", file=sys.stderr)


def _never_fail_to_print(stream: TextIO) -> None:
    """Where the locale cannot show a character, a replacement stands instead of a crash."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _silence_stdout() -> None:
    """So that the interpreter's own flush at exit does not complain about the closed pipe too."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
