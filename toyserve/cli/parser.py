"""The argument parser of every command: a mistake is one sentence, not a page of usage."""

from __future__ import annotations

import argparse
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Raises ValueError, which the command line prints, where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")
