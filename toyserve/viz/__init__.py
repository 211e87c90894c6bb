"""Pictures of a run, drawn from its Recording alone: no model, no torch, no pyplot.

Every function returns the Figure and takes axes to draw into; steps are counted from 1.
"""

from toyserve.viz.blocks import block_map
from toyserve.viz.compare import Comparison, compare
from toyserve.viz.kvuse import kv_usage
from toyserve.viz.latency import latency
from toyserve.viz.occupancy import occupancy, queue_length
from toyserve.viz.timeline import timeline
from toyserve.viz.tokens import token_raster
from toyserve.viz.why import Decision, why

__all__ = [
    "Comparison",
    "Decision",
    "block_map",
    "compare",
    "kv_usage",
    "latency",
    "occupancy",
    "queue_length",
    "timeline",
    "token_raster",
    "why",
]
