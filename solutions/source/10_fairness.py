# %% [markdown]
# # Exercise 10 · Fairness and policy
#
# In the lesson two users had equal shares. Here shares are unequal, the less urgent grow old, and
# somebody pays for a fault in the books that no throughput number shows. At the end you put a price
# on a gold account.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import ByPromise
from toyserve.course.checks.ex10_fairness import BOOKS, PAYS, office_run, tiers
from toyserve.course.checks.runs import serve
from toyserve.policies import FCFS, FairShare
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 10.5 come from it

# %% [markdown]
# ## 10.1 Shares that are not equal
#
# The lesson's counter, with **weights**: whoever weighs 3 pays a third of the points, and so gets
# three times as much while everybody has work. A user without a weight weighs 1. The price is the
# lesson's: 1 point per prompt token when a request is let in, 2 points per answer token when it comes.
# The lowest counter of its user goes first; of equals, whoever came first (`waiting` is in that order).


# %% answer="10.1"
class WeightedShare(FCFS):
    def __init__(self, weights):
        self.weights = weights  # user -> weight
        self.counters = {}

    ### BEGIN SOLUTION
    def charge(self, user, points):
        self.counters[user] = self.counters.get(user, 0) + points / self.weights.get(user, 1)

    def next(self, waiting, now):
        return min(waiting, key=lambda r: self.counters.get(r.user, 0))

    def on_admit(self, request, now):
        self.charge(request.user, request.num_prompt_tokens)

    def on_tokens(self, requests, now):
        for request in requests:
            self.charge(request.user, 2)

    ### END SOLUTION


# %% check="10.1" points=2
check("10.1")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex10_fairness import from_users

check(
    "10.1",
    cases=[
        {
            "what": f"{slots} slots, weights {weights}",
            "slots": slots,
            "weights": weights,
            "requests": from_users(ann=(a, 7 + SEED % 3), bob=(b, 11), cy=(c, 5)),
        }
        for slots, weights, a, b, c in (
            (1, {"bob": 4, "cy": 0.25}, 5, 5, 5),
            (3, {"ann": 2.5}, 9, 2, 9),
            (2, {"ann": 1, "bob": 1, "cy": 7}, 6, 6, 6),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 10.2 Growing old
#
# Write `next`: each class is worth `self.aging` seconds of waiting. A request of class 2 that has
# waited for `2 * self.aging` seconds stands where one of class 0 stands that has just come. Who stands
# first, goes first; of equals, whoever came first. (`request.priority`, `request.arrival_time`.)
#
# And give `latest`: with `aging = 30`, how many seconds after a request of class 3 may one of class 1 come
# and *just* still draw level with it?


# %% answer="10.2"
class Aging(FCFS):
    def __init__(self, aging):
        self.aging = aging  # seconds

    def next(self, waiting, now):
        ### BEGIN SOLUTION
        return min(waiting, key=lambda r: r.priority - (now - r.arrival_time) / self.aging)
        ### END SOLUTION


### BEGIN SOLUTION
latest = (3 - 1) * 30
### END SOLUTION

# %% check="10.2" points=2
check("10.2")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex10_fairness import classes

check(
    "10.2",
    cases=[
        {
            "what": f"{len(numbers)} requests, a class is worth {aging} s",
            "slots": slots,
            "aging": aging,
            "requests": classes(*numbers, gap=gap, answer=10 + SEED % 4),
        }
        for slots, aging, gap, numbers in (
            (1, 0.07, 0.02, (3, 0, 2, 0, 1, 0, 0, 3, 0)),
            (1, 5.0, 0.01, (1, 2, 0, 1, 2, 0)),
            (2, 0.15, 0.013, (2, 2, 1, 0, 0, 1, 0, 2, 0, 0)),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 10.3 Who pays
#
# Write `longest_waits(run)`: for each user the longest wait for a **first token**, in seconds, counted
# from the arrival. A recording's `run.requests` holds a record per request, with `user`,
# `arrival_time`, `first_scheduled_time` and `token_times`.
#
# With it you can answer for any policy who pays. Here is a case to try it on:

# %%
run = office_run(PAYS[1])
timeline(run, by="request", title="bob-2 waits for everybody else")


# %% answer="10.3"
def longest_waits(run):
    """{user: seconds}."""
    ### BEGIN SOLUTION
    waits = {}
    for record in run.requests.values():
        wait = record.token_times[0] - record.arrival_time
        waits[record.user] = max(wait, waits.get(record.user, 0))
    return waits
    ### END SOLUTION


# %% check="10.3" points=2
check("10.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex10_fairness import office

check(
    "10.3",
    cases=[
        {"what": f"another office under {name}", "policy": name, **office(40 + SEED + i, 8 + i)}
        for i, name in enumerate(("fcfs", "shortest_first", "fair_share"))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 10.4 A fault in the books
#
# A colleague's counter "saves work": it charges a request once, when it comes in, by the most that it
# may become (`max_tokens`). Dora and Eve write equally much. Dora's program declares 400 tokens to be
# on the safe side; Eve's declares what she needs.

# %%
timeline(
    serve(BOOKS, ContinuousScheduler(2), policy=ByPromise()),
    by="request",
    title="Two users who need the same. Who pays?",
)

# %% [markdown]
# Name who `pays`, and write `Honest`, which charges what was really served, so that both wait equally
# long on average. You may build on `ByPromise`: it has `charge(user, points)`, `next` and `on_admit`.

# %% answer="10.4"
### BEGIN SOLUTION
pays = "dora"


class Honest(ByPromise):
    def on_admit(self, request, now):
        self.charge(request.user, request.num_prompt_tokens)

    def on_tokens(self, requests, now):
        for request in requests:
            self.charge(request.user, 2)


### END SOLUTION

# %% check="10.4" points=3
check("10.4")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex10_fairness import declaring

check(
    "10.4",
    cases=[
        {
            "what": f"{n} requests each of {answer} tokens, {declared} declared",
            "slots": slots,
            "requests": declaring(n, answer, declared),
        }
        for n, answer, declared, slots in ((5, 30, 900, 1), (12, 15 + SEED % 5, 60, 3))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 10.5 What is a gold user worth
#
# Gold and free users share a server that is a little too small for all. `FairShare({"gold": weight})`
# is the library's counter with weights. With the weight 1 gold is nothing; with a very large one, free
# users starve. Your contracts:

# %%
contract = tiers(SEED)
print(
    f"p95 of the wait for a first token: gold {contract['gold_s']} s, free {contract['free_s']} s"
)

# %% [markdown]
# Find a `weight` with which both hold. `serve(contract, ContinuousScheduler(4), policy=…)` gives the
# run; `numpy.percentile(waits, 95)` the percentile; a record's wait is its first of `token_times` less
# its `arrival_time`.

# %% answer="10.5"
### BEGIN SOLUTION
import numpy as np


def fits(weight):
    run = serve(contract, ContinuousScheduler(4), policy=FairShare({"gold": weight}))
    p95 = {}
    for user in ("gold", "free"):
        waits = [r.token_times[0] - r.arrival_time for r in run.requests.values() if r.user == user]
        p95[user] = np.percentile(waits, 95)
    return p95["gold"] <= contract["gold_s"] and p95["free"] <= contract["free_s"]


weight = next(w for w in (3, 2, 2.5, 3.5, 4) if fits(w))
### END SOLUTION

# %% check="10.5" points=2
check("10.5")

# %% [markdown]
# ## 10.6 Explain
#
# Two sentences, for a manager who wants "simply the shortest first, it has the best average": **who
# pays for that average, and what can a server know about an answer's length?** This part is read by a
# person.

# %% [markdown] explain="10.6" points=2
# ### BEGIN SOLUTION
# Whoever asks for long answers pays, without any bound: while short requests keep coming, the long ones
# never run, and the average does not show it because there are few of them. And the server does not
# know the true length, only what the user declares as max_tokens (or a guess), so the rule also rewards
# whoever declares little.
# ### END SOLUTION
