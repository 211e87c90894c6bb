"""Pictures of a run, drawn from its Recording alone: no model, no torch, no pyplot.

Every function returns the Figure and takes axes to draw into; steps are counted from 1.
"""

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

__all__ = [
    "Comparison",
    "Decision",
    "block_map",
    "compare",
    "kv_usage",
    "latency",
    "latency_vs_rate",
    "occupancy",
    "queue_length",
    "roofline",
    "throughput_vs_batch",
    "timeline",
    "token_raster",
    "why",
]
