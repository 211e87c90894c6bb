"""Pictures of a run, drawn from its Recording alone: no model, no torch, no pyplot.

Every function returns the Figure and takes axes to draw into; steps are counted from 1.
"""

from toyserve.viz.occupancy import occupancy, queue_length
from toyserve.viz.timeline import timeline

__all__ = ["occupancy", "queue_length", "timeline"]
