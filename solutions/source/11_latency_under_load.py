# %% [markdown]
# # Exercise 11 · Latency under load
#
# In the lesson you found an edge, and two dashboards that hide it. Here you count who was served in time,
# find edges on a budget of twelve runs, catch a load test holding its breath, work out a house from
# two numbers, and choose between more tokens and a calmer stream.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.ex11_latency_under_load import (
    EDGES,
    GOOD,
    house,
    house_run,
    known,
    p95_at,
    run_of,
    rush,
)
from toyserve.course.checks.load_tests import breath, log_of, log_picture
from toyserve.course.checks.runs import serve
from toyserve.schedulers import ChunkedScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 11.3, 11.4 and 11.5 come from it

# %% [markdown]
# ## 11.1 Who was served in time
#
# Write `goodput(run, ttft_target, tpot_target)`: how many requests **per second** met both targets (in
# seconds; exactly on target is met). The seconds go from the first arrival to the last token of all. TPOT is the
# mean time per token after the first; an answer of one token has none, and cannot miss it.
#
# `run.requests` is a dict of records with `arrival_time`, `first_scheduled_time`, `token_times`. Everybody
# here is served to the end. For example, with targets of 0.6 s and 0.02 s:

# %%
run = run_of(GOOD[3])
print({name: [round(t, 3) for t in r.token_times[:3]] for name, r in run.requests.items()})
timeline(run, by="request", x="time", title="C brings a long prompt. Who is still in time?")


# %% answer="11.1"
def goodput(run, ttft_target, tpot_target):
    """Requests per second within both targets."""
    ### BEGIN SOLUTION
    met, everyone = 0, run.requests.values()
    for record in everyone:
        first, *later = record.token_times
        tpot = (later[-1] - first) / len(later) if later else 0
        met += first - record.arrival_time <= ttft_target and tpot <= tpot_target
    begin = min(record.arrival_time for record in everyone)
    end = max(record.token_times[-1] for record in everyone)
    return met / (end - begin)
    ### END SOLUTION


# %% check="11.1" points=2
check("11.1")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex11_latency_under_load import rows_of
from toyserve.workload import Lengths, poisson

check(
    "11.1",
    cases=[
        {
            "what": f"{n} requests at {rate}/s, {slots} slots",
            "slots": slots,
            "ttft": ttft,
            "tpot": tpot,
            "requests": rows_of(
                poisson(n, rate, 50 + SEED, Lengths(20, 900, 1, 60, output_median=5))
            ),
        }
        for n, rate, slots, ttft, tpot in ((30, 20, 2, 0.2, 0.02), (60, 60, 16, 0.5, 0.0075))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 11.2 The edge, in twelve runs
#
# A load test on a real server takes ten minutes. You have two hours: **twelve runs**. Behind the door may be
# a server for one request in ten seconds, or for a thousand a second.
#
# Write `edge(measure, target, low, high)`. `measure(rate)` runs a load test and returns the p95 of the wait for a
# first token, in seconds. At `low` (0.1/s) the target is met, at `high` (1000/s) it is not. Return a rate at which
# it is met; one of your runs, at most **3 % above** it, must have missed it.
#
# `low` and `high` need no run. To try `edge`: `p95_at(EDGES[2])` is a `measure` with a real engine; its target is 0.1 s.

# %%
p95_at(EDGES[2])(10.0)


# %% answer="11.2"
def edge(measure, target, low, high):
    """The highest rate that meets the target, to within 3 %."""
    ### BEGIN SOLUTION
    while high > 1.02 * low:
        middle = (low * high) ** 0.5  # the same factor away from both ends
        if measure(middle) <= target:
            low = middle
        else:
            high = middle
    return low
    ### END SOLUTION


# %% check="11.2" points=3
check("11.2")
### BEGIN HIDDEN TESTS
check(
    "11.2",
    cases=[{"what": f"an edge at {at}/s", "edge": at, "target": 0.2} for at in (0.13, 3, 880)]
    + [
        {
            "what": f"{slots} slots on {gpu}",
            "gpu": gpu,
            "slots": slots,
            "target": target,
            "seed": 20 + SEED,
        }
        for gpu, slots, target in (("h100", 2, 0.3), ("a100", 4, 0.2), ("l4", 8, 0.8))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 11.3 The load test that holds its breath
#
# A colleague's load test has two clients. They are to send a small request every 0.1 s, taking turns; but a client
# whose answer is still missing waits for it, and sends its next one late. Into the middle somebody else throws three
# long documents. The test reports a p99 of the wait for a first token that looks fine. Here is its picture:

# %%
log = log_of(breath(SEED))
print(log[0])
log_picture(log)

# %% [markdown]
# - `silence`: for how many seconds, at the longest, was no request sent? The picture is enough.
# - `honest_p99(log)`: the p99 of the wait of users who had come **as planned**, in seconds. `log` is a
#   list of dicts as above, all times in seconds. (`numpy.percentile` will do.)


# %% answer="11.3"
### BEGIN SOLUTION
import numpy as np

silence = np.diff([entry["sent"] for entry in log]).max()


### END SOLUTION
def honest_p99(log):
    """Seconds."""
    ### BEGIN SOLUTION
    return np.percentile([entry["first_token"] - entry["planned"] for entry in log], 99)
    ### END SOLUTION


# %% check="11.3" points=3
check("11.3")
### BEGIN HIDDEN TESTS
check(
    "11.3",
    cases=[
        {"what": "another day", "papers": [[3.0 + SEED % 5, 6000], [12.0, 4000], [12.1, 7000]]},
        {
            "what": "always a little late",
            "log": [
                {"planned": t / 4, "sent": t / 3, "first_token": t / 3 + 0.1 + 0.01 * (t % 7)}
                for t in range(40)
            ],
        },
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 11.4 How many are in the house: predict, then measure
#
# Little's law: on average, *number inside = arrivals per second × seconds inside*. It holds for a house, for its queue
# and for its stools alike. All that you are told of your server are averages:

# %%
mine = house(SEED)
run = house_run(mine)
facts = known(mine, run)
print(f"{facts['rate']:.2f} requests/s; arrival to end {facts['e2e']:.3f} s, ", end="")
print(f"of that {facts['wait']:.3f} s in the queue, before a slot is free")
print(f"{facts['slots']} slots, {facts['tokens']:.1f} answer tokens per request, ", end="")
print(f"${facts['dollars_per_hour']} per GPU hour")

# %% [markdown]
# Predict from `facts` alone:
#
# - `in_house`: how many requests are in the server on average, waiting or being served?
# - `busy`: which share of the slots (0 to 1) is in use on average?
# - `dollars`: what do a million answer tokens cost?
#
# Then **measure** `measured`, which is to agree with `in_house`: look at the `run` at many moments, evenly spaced between its first arrival and
# its last token, count who is in the house then (`arrival_time` to the last of `token_times`), and average.

# %% answer="11.4"
### BEGIN SOLUTION
in_house = facts["rate"] * facts["e2e"]
busy = facts["rate"] * (facts["e2e"] - facts["wait"]) / facts["slots"]
dollars = 1e6 * facts["dollars_per_hour"] / (3600 * facts["rate"] * facts["tokens"])
stays = [(record.arrival_time, record.token_times[-1]) for record in run.requests.values()]
begin, end = min(a for a, _ in stays), max(b for _, b in stays)
moments = [begin + (end - begin) * (i + 0.5) / 2000 for i in range(2000)]
measured = sum(a <= moment < b for a, b in stays for moment in moments) / 2000
### END SOLUTION

# %% check="11.4" points=2
check("11.4")

# %% [markdown]
# ## 11.5 More tokens, or a calmer stream
#
# Fifty people send long prompts at once, to a server with 32 slots. A large token budget reads prompts fast, and whoever is
# already reading along sits through long steps. Your targets:

# %%
hour = rush(SEED)
print(f"at least {hour['tokens_per_s']:,} answer tokens/s, ", end="")
print(f"and a p99 gap between tokens of at most {hour['gap_ms']} ms")

# %% [markdown]
# Find a `token_budget` that meets both. `serve(hour, ChunkedScheduler(32, token_budget)).summary()` has
# `["output_tokens_per_s"]` and `["itl_ms"]["p99"]`.


# %% answer="11.5"
### BEGIN SOLUTION
def fits(tokens):
    found = serve(hour, ChunkedScheduler(32, tokens)).summary()
    fast = found["output_tokens_per_s"] >= hour["tokens_per_s"]
    return fast and found["itl_ms"]["p99"] <= hour["gap_ms"]


token_budget = next(tokens for tokens in range(104, 260, 4) if fits(tokens))
### END SOLUTION

# %% check="11.5" points=2
check("11.5")

# %% [markdown]
# ## 11.6 Explain
#
# Three sentences, for a manager who says: **"95 % of the slots are in use, tokens per second were never so high, and the
# average wait is fine. Why buy a second GPU?"** Which numbers are missing, and what do they look like
# there? This part is read by a person.

# %% [markdown] explain="11.6" points=2
# ### BEGIN SOLUTION
# The tail is missing: p95 and p99 of the wait from arrival, and goodput, the requests per second that met their
# targets. Near capacity the queue gets long and drains slowly after every small burst, so one in twenty waits many
# times the average, and a few per cent more arrivals let it grow without bound. Tokens per second stay at their
# maximum all the while, even when everybody is late, so they cannot tell a full server from one that is drowning.
# ### END SOLUTION
