"""Who goes next, and who gives way when slots or memory run out."""

from __future__ import annotations

from toyserve.policies.deadline import Deadline
from toyserve.policies.fair_share import FairShare
from toyserve.policies.fcfs import FCFS
from toyserve.policies.policy import Hooks, Policy
from toyserve.policies.priority import Priority
from toyserve.policies.quotas import Quota, Quotas
from toyserve.policies.shortest_first import ShortestFirst

POLICIES: dict[str, type[Policy]] = {
    "fcfs": FCFS,
    "shortest_first": ShortestFirst,
    "priority": Priority,
    "deadline": Deadline,
    "fair_share": FairShare,
}

__all__ = [
    "FCFS",
    "POLICIES",
    "Deadline",
    "FairShare",
    "Hooks",
    "Policy",
    "Priority",
    "Quota",
    "Quotas",
    "ShortestFirst",
    "make_policy",
]


def make_policy(name: str) -> Policy:
    """The policy of that name with its defaults; ValueError names the known ones."""
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}: it must be one of {', '.join(POLICIES)}")
    return POLICIES[name]()
