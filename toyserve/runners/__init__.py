"""What executes a plan: a real model, or something that only knows how long it would take."""

from toyserve.runners.runner import Runner
from toyserve.runners.simulated import SimulatedRunner
from toyserve.runners.timed import TimedRunner

__all__ = ["Runner", "SimulatedRunner", "TimedRunner"]
