"""Planted answers to exercise 10: each wrong one must fail with these words, each right one pass."""


# %% wrong 10.1 | first come, first served
class WeightedShare(FCFS):
    def __init__(self, weights):
        self.weights = weights


# %% wrong 10.1 | first come, first served
class WeightedShare(FCFS):  # the lesson's counter, without weights
    def __init__(self, weights):
        self.counters = {}

    def next(self, waiting, now):
        return min(waiting, key=lambda r: self.counters.get(r.user, 0))

    def on_admit(self, request, now):
        self.counters[request.user] = self.counters.get(request.user, 0) + request.num_prompt_tokens

    def on_tokens(self, requests, now):
        for request in requests:
            self.counters[request.user] = self.counters.get(request.user, 0) + 2


# %% wrong 10.1 | is the first that differs
class WeightedShare(FCFS):  # whoever weighs more pays more
    def __init__(self, weights):
        self.weights, self.counters = weights, {}

    def charge(self, user, points):
        self.counters[user] = self.counters.get(user, 0) + points * self.weights.get(user, 1)

    def next(self, waiting, now):
        return min(waiting, key=lambda r: self.counters.get(r.user, 0))

    def on_admit(self, request, now):
        self.charge(request.user, request.num_prompt_tokens)

    def on_tokens(self, requests, now):
        for request in requests:
            self.charge(request.user, 2)


# %% wrong 10.1 | KeyError
class WeightedShare(FCFS):  # every user has a weight?
    def __init__(self, weights):
        self.weights, self.counters = weights, {}

    def next(self, waiting, now):
        return min(waiting, key=lambda r: self.counters.get(r.user, 0) / self.weights[r.user])


# %% right 10.1 | tokens counted whole, divided when compared
class WeightedShare(FCFS):
    def __init__(self, weights):
        self.weights = weights
        self.served = {}

    def next(self, waiting, now):
        shares = [self.served.get(r.user, 0) / self.weights.get(r.user, 1) for r in waiting]
        return waiting[shares.index(min(shares))]

    def on_admit(self, request, now):
        self.served[request.user] = self.served.get(request.user, 0) + request.num_prompt_tokens

    def on_tokens(self, requests, now):
        for request in requests:
            self.served[request.user] = self.served.get(request.user, 0) + 2


# %% right 10.1 | the library's, with one price changed
class WeightedShare(FairShare):
    pass


# %% wrong 10.2 | what *one* class is worth
latest = 30


class Aging(FCFS):
    def __init__(self, aging):
        self.aging = aging


# %% wrong 10.2 | never grows old
latest = 60


class Aging(FCFS):
    def __init__(self, aging):
        self.aging = aging

    def next(self, waiting, now):
        return min(waiting, key=lambda r: (r.priority, r.arrival_time))


# %% wrong 10.2 | is the first that differs
latest = 60


class Aging(FCFS):  # the sign is wrong: who waits grows less urgent
    def __init__(self, aging):
        self.aging = aging

    def next(self, waiting, now):
        return min(waiting, key=lambda r: r.priority + (now - r.arrival_time) / self.aging)


# %% right 10.2 | without the time: all grow old at one rate
latest = 60.0


class Aging(FCFS):
    def __init__(self, aging):
        self.aging = aging

    def next(self, waiting, now):
        return sorted(waiting, key=lambda r: r.arrival_time + r.priority * self.aging)[0]


# %% wrong 10.3 | is the time in the queue
def longest_waits(run):
    waits = {}
    for record in run.requests.values():
        wait = record.first_scheduled_time - record.arrival_time
        waits[record.user] = max(wait, waits.get(record.user, 0))
    return waits


# %% wrong 10.3 | is a mean
def longest_waits(run):
    waits = {}
    for record in run.requests.values():
        waits.setdefault(record.user, []).append(record.token_times[0] - record.arrival_time)
    return {user: sum(values) / len(values) for user, values in waits.items()}


# %% wrong 10.3 | as keys
def longest_waits(run):
    return {name: r.token_times[0] - r.arrival_time for name, r in run.requests.items()}


# %% wrong 10.3 | looks like milliseconds
def longest_waits(run):
    waits = {}
    for record in run.requests.values():
        wait = 1e3 * (record.token_times[0] - record.arrival_time)
        waits[record.user] = max(wait, waits.get(record.user, 0))
    return waits


# %% right 10.3 | from the metrics, in numpy's numbers
import numpy as np


def longest_waits(run):
    users = {record.user for record in run.requests.values()}
    return {
        user: np.max(
            [r.token_times[0] - r.arrival_time for r in run.requests.values() if r.user == user]
        )
        for user in users
    }


# %% wrong 10.4 | Whose rows in the picture are grey
pays = "eve"
Honest = ByPromise

# %% wrong 10.4 | dora waits
pays = "dora"
Honest = ByPromise

# %% wrong 10.4 | waits
pays = "dora"


class Honest(ByPromise):  # the same fault the other way round
    def on_admit(self, request, now):
        self.charge(request.user, -request.params.max_tokens)


# %% right 10.4 | the library's counter
pays = "dora"
Honest = FairShare


# %% right 10.4 | one point per token, the prompt for nothing
pays = "dora"


class Honest(ByPromise):
    def on_admit(self, request, now):
        pass

    def on_tokens(self, requests, now):
        for request in requests:
            self.charge(request.user, 1)


# %% wrong 10.5 | were promised
weight = 1

# %% wrong 10.5 | the law allows
weight = 50

# %% wrong 10.5 | above 0
weight = -3

# %% right 10.5 | where the contracts come from
weight = 3.0
