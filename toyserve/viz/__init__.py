"""Pictures of a run, drawn from its Recording alone: no model, no torch, no pyplot.

Every function returns the Figure and takes axes to draw into; steps are counted from 1. The
interactive ones (Timeline, explore, live, playground, to_html) load what they need when they are
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toyserve.viz.blocks import block_map
from toyserve.viz.compare import Comparison, compare
from toyserve.viz.kvuse import kv_usage
from toyserve.viz.latency import latency
from toyserve.viz.load import latency_vs_rate, throughput_vs_batch
from toyserve.viz.occupancy import occupancy, queue_length
from toyserve.viz.roofline import roofline
from toyserve.viz.timeline import timeline
from toyserve.viz.tokens import token_raster
from toyserve.viz.why import Decision, why

if TYPE_CHECKING:
    from toyserve.viz.page import to_html
    from toyserve.viz.widget import Timeline, explore
    from toyserve.viz.widget_live import live
    from toyserve.viz.widget_playground import playground

__all__ = [
    "Comparison",
    "Decision",
    "Timeline",
    "block_map",
    "compare",
    "explore",
    "kv_usage",
    "latency",
    "latency_vs_rate",
    "live",
    "occupancy",
    "playground",
    "queue_length",
    "roofline",
    "throughput_vs_batch",
    "timeline",
    "to_html",
    "token_raster",
    "why",
]

# Widgets are an optional part of the installation, and nobody else should wait for them.
_LAZY = {
    "Timeline": "toyserve.viz.widget",
    "explore": "toyserve.viz.widget",
    "live": "toyserve.viz.widget_live",
    "playground": "toyserve.viz.widget_playground",
    "to_html": "toyserve.viz.page",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_LAZY[name]), name)
    return value
