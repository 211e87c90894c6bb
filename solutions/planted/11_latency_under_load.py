"""Planted answers to exercise 11: each wrong one must fail with these words, each right one pass."""


# %% wrong 11.1 | ZeroDivisionError
def goodput(run, ttft_target, tpot_target):
    met, everyone = 0, run.requests.values()
    for r in everyone:
        t = r.token_times
        tpot = (t[-1] - t[0]) / (len(t) - 1)
        met += t[0] - r.arrival_time <= ttft_target and tpot <= tpot_target
    return met / (max(r.token_times[-1] for r in everyone) - min(r.arrival_time for r in everyone))


# %% wrong 11.1 | leaves out who asked for one token
def goodput(run, ttft_target, tpot_target):
    met, everyone = 0, run.requests.values()
    for r in everyone:
        t = r.token_times
        if len(t) > 1 and t[0] - r.arrival_time <= ttft_target:
            met += (t[-1] - t[0]) / (len(t) - 1) <= tpot_target
    return met / (max(r.token_times[-1] for r in everyone) - min(r.arrival_time for r in everyone))


# %% wrong 11.1 | leaves the queue out
def goodput(run, ttft_target, tpot_target):
    met, everyone = 0, run.requests.values()
    for r in everyone:
        t = r.token_times
        tpot = (t[-1] - t[0]) / max(1, len(t) - 1)
        met += t[0] - r.first_scheduled_time <= ttft_target and tpot <= tpot_target
    return met / (max(r.token_times[-1] for r in everyone) - min(r.arrival_time for r in everyone))


# %% wrong 11.1 | counts everybody
def goodput(run, ttft_target, tpot_target):
    return len(run.requests) / run.summary()["makespan_s"]


# %% wrong 11.1 | is a number of requests
def goodput(run, ttft_target, tpot_target):
    return sum(
        r.token_times[0] - r.arrival_time <= ttft_target
        and (r.token_times[-1] - r.token_times[0]) <= tpot_target * (len(r.token_times) - 1)
        for r in run.requests.values()
    )


# %% wrong 11.1 | is too low
def goodput(run, ttft_target, tpot_target):  # every gap, not their mean; seconds from zero
    met = 0
    for r in run.requests.values():
        t = r.token_times
        gaps = [t[i + 1] - t[i] for i in range(len(t) - 1)]
        met += t[0] - r.arrival_time <= ttft_target and all(gap <= tpot_target for gap in gaps)
    return met / max(r.token_times[-1] for r in run.requests.values())


# %% right 11.1 | with the library's definitions
from toyserve.metrics import tpot, ttft


def goodput(run, ttft_target, tpot_target):
    good = [
        r
        for r in run.requests.values()
        if ttft(r) <= ttft_target and (tpot(r) is None or tpot(r) <= tpot_target)
    ]
    return len(good) / run.summary()["makespan_s"]


# %% wrong 11.2 | where is their middle
def edge(measure, target, low, high):  # the lesson's
    while high - low > 0.02 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle) <= target else (low, middle)
    return low


# %% wrong 11.2 | which one still meets it
def edge(measure, target, low, high):
    while high > 1.02 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if measure(middle) <= target else (low, middle)
    return high


# %% wrong 11.2 | would miss it
def edge(measure, target, low, high):  # stops too early
    while high > 1.2 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if measure(middle) <= target else (low, middle)
    return low


# %% wrong 11.2 | would miss it
def edge(measure, target, low, high):
    return low


# %% wrong 11.2 | more than 12 times
def edge(measure, target, low, high):  # a sweep
    while measure(low * 1.02) <= target:
        low *= 1.02
    return low


# %% right 11.2 | powers of ten first, then logarithms
import math


def edge(measure, target, low, high):
    while low * 10 < high and measure(low * 10) <= target:
        low *= 10
    a, b = math.log(low), math.log(min(high, low * 10))
    while b - a > 0.025:
        m = (a + b) / 2
        if measure(math.exp(m)) > target:
            b = m
        else:
            a = m
    return math.exp(a)


# %% right 11.2 | numpy
import numpy as np


def edge(measure, target, low, high):
    grid = np.geomspace(low, high, 400)
    a, b = 0, len(grid) - 1
    while b - a > 1:
        m = (a + b) // 2
        a, b = (m, b) if measure(grid[m]) <= target else (a, m)
    return grid[a]


# %% wrong 11.3 | is the colleague's own
import numpy as np

silence = 4


def honest_p99(log):
    return np.percentile([e["first_token"] - e["sent"] for e in log], 99)


# %% wrong 11.3 | the answer takes time, too
import numpy as np

silence = 4


def honest_p99(log):
    return np.percentile([e["sent"] - e["planned"] for e in log], 99)


# %% wrong 11.3 | looks like milliseconds
import numpy as np

silence = 4


def honest_p99(log):
    return 1e3 * np.percentile([e["first_token"] - e["planned"] for e in log], 99)


# %% wrong 11.3 | is the plan. Was it kept
import numpy as np

silence = 0.1


def honest_p99(log):
    return np.percentile([e["first_token"] - e["planned"] for e in log], 99)


# %% wrong 11.3 | is not the widest gap
import numpy as np

silence = 12.0


def honest_p99(log):
    return np.percentile([e["first_token"] - e["planned"] for e in log], 99)


# %% right 11.3 | read from the picture, and the library's percentile
from toyserve.metrics import percentile

silence = 4.3


def honest_p99(log):
    return percentile([entry["first_token"] - entry["planned"] for entry in log], 99)


# %% wrong 11.4 | is the queue alone
in_house, busy, dollars, measured = facts["rate"] * facts["wait"], 0.5, 1, 1

# %% wrong 11.4 | as if they had a slot
in_house = measured = facts["rate"] * facts["e2e"]
busy, dollars = in_house / facts["slots"], 1

# %% wrong 11.4 | is a number of slots
in_house = measured = facts["rate"] * facts["e2e"]
busy, dollars = facts["rate"] * (facts["e2e"] - facts["wait"]), 1

# %% wrong 11.4 | takes an hour for a second
in_house = measured = facts["rate"] * facts["e2e"]
busy = facts["rate"] * (facts["e2e"] - facts["wait"]) / 8
dollars = 1e6 * facts["dollars_per_hour"] / (facts["rate"] * facts["tokens"])

# %% wrong 11.4 | (the average over time) is too low
in_house = facts["rate"] * facts["e2e"]
busy = facts["rate"] * (facts["e2e"] - facts["wait"]) / 8
dollars = 1e6 * facts["dollars_per_hour"] / (3600 * facts["rate"] * facts["tokens"])
measured = sum(len(s.num_scheduled_tokens) for s in run.steps) / run.num_steps  # per step, no queue

# %% right 11.4 | the area under the count, event by event
in_house = facts["e2e"] * facts["rate"]
busy = (in_house - facts["rate"] * facts["wait"]) / facts["slots"]
dollars = facts["dollars_per_hour"] / (facts["rate"] * facts["tokens"] * 3600 / 1e6)
events = sorted(
    [(r.arrival_time, 1) for r in run.requests.values()]
    + [(r.token_times[-1], -1) for r in run.requests.values()]
)
area, inside, before = 0.0, 0, events[0][0]
for time, change in events:
    area, inside, before = area + inside * (time - before), inside + change, time
measured = area / (events[-1][0] - events[0][0])

# %% wrong 11.5 | reads the weights for too little
token_budget = 64

# %% wrong 11.5 | sits through long steps
token_budget = 1024

# %% wrong 11.5 | a token for each slot
token_budget = 8

# %% right 11.5 | by halving on the throughput
low, high = 32, 2048
while high - low > 1:
    middle = (low + high) // 2
    found = serve(hour, ChunkedScheduler(32, middle)).summary()
    if found["output_tokens_per_s"] >= hour["tokens_per_s"]:
        high = middle
    else:
        low = middle
token_budget = high
