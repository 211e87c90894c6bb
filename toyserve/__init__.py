"""toyserve: how an LLM server shares one GPU, as an engine small enough to read.

Importing this package loads no torch: ``LLM`` and whatever else needs it come when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toyserve.engine import Engine
from toyserve.recording import Recording
from toyserve.request import FinishReason, Request, RequestOutput, RequestStatus, SamplingParams

if TYPE_CHECKING:
    from toyserve.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Engine",
    "FinishReason",
    "Recording",
    "Request",
    "RequestOutput",
    "RequestStatus",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from toyserve.llm import LLM

        return LLM
    raise AttributeError(f"module 'toyserve' has no attribute {name!r}")
