"""Who goes next, and who gives way when slots or memory run out."""

from toyserve.policies.fcfs import FCFS
from toyserve.policies.policy import Hooks, Policy

__all__ = ["FCFS", "Hooks", "Policy"]
