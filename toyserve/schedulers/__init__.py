"""Four schedulers, each a few lines away from the one before."""

from toyserve.schedulers.base import Scheduler
from toyserve.schedulers.chunked import ChunkedScheduler
from toyserve.schedulers.continuous import ContinuousScheduler
from toyserve.schedulers.output import SchedulerOutput, StepResult
from toyserve.schedulers.sequential import SequentialScheduler
from toyserve.schedulers.static import StaticScheduler

__all__ = [
    "ChunkedScheduler",
    "ContinuousScheduler",
    "Scheduler",
    "SchedulerOutput",
    "SequentialScheduler",
    "StaticScheduler",
    "StepResult",
]
