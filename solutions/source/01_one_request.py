# %% [markdown]
# # Exercise 01 · One request at a time
#
# The server of lesson 01 serves one person at a time, and C waits behind A and B. Here you give it an
# express lane, count what a chat costs with and without notes, look for the best order and for
# whoever pays for it, and mend a report in which everything is green.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.costs import cost_model
from toyserve.course.checks import check
from toyserve.course.checks.ex01_one_request import DAY, chat, desk, one_by_one
from toyserve.course.checks.pictures import by_second, draw_seconds
from toyserve.course.checks.runs import serve
from toyserve.metrics import percentile, ttft
from toyserve.schedulers import Scheduler, SchedulerOutput, SequentialScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 01.3 and 01.4 come from it

# %% [markdown]
# `serve(case, scheduler)` runs a real engine on the virtual clock of an H100 and returns its
# recording. A case is a list of requests: name, arrival in seconds, prompt tokens, answer tokens.

# %%
case = {"requests": [["A", 0.0, 300, 3], ["B", 0.0, 8, 4], ["C", 0.0, 12, 3], ["D", 0.0, 9, 2]]}
timeline(serve(case, SequentialScheduler()), by="request", title="Three quick ones behind A")

# %% [markdown]
# ## 01.1 An express lane
#
# Still one request at a time. But whoever has **at most `self.express` tokens of prompt** stands in
# the express lane, and it goes first. So that the others get their turn: **if the last
# `self.in_a_row` requests that were let in were all express, the next one is not**, if anybody else
# waits. Within a lane: first come, first served (`self.waiting` is in that order).
#
# `self.admit(plan, request)` lets in any request of the queue; `request.num_prompt_tokens` is its
# prompt.


# %% answer="01.1"
class ExpressLane(Scheduler):
    express = 20
    in_a_row = 2
    streak = 0  # for you: how many express requests were let in, one directly after another

    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        ### BEGIN SOLUTION
        if self.waiting and not self.running:
            quick = [r for r in self.waiting if r.num_prompt_tokens <= self.express]
            slow = [r for r in self.waiting if r.num_prompt_tokens > self.express]
            if quick and not (slow and self.streak >= self.in_a_row):
                self.streak += 1
                self.admit(plan, quick[0])
            else:
                self.streak = 0
                self.admit(plan, slow[0])
        ### END SOLUTION
        return plan


# %% check="01.1" points=3
check("01.1")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex01_one_request import lane

check(
    "01.1",
    cases=[
        {
            "what": f"{len(prompts)} requests, express = {express}, in_a_row = {row}",
            "express": express,
            "in_a_row": row,
            "requests": lane(prompts, gap),
        }
        for express, row, gap, prompts in (
            (50, 1, 0.0, [60, 40, 50, 51, 9]),
            (10, 3, 0.0, [90, 80, 70, 9, 8, 7, 6, 5, 10, 11 + SEED % 5]),
            (30, 2, 0.012, [9, 12, 14, 99, 8, 31, 7, 30, 40, 6]),
            (30, 2, 0.4, [9, 12, 14, 99, 8]),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 01.2 Those who left
#
# Some users close the page before the first token comes. The usual report leaves them out: the worse
# the server, the fewer of the unlucky are counted. Write `tail(waits, q)`, in which they count:
#
# - `waits` is a list with one entry per user: seconds to the first token, or `None` for whoever left;
# - the result is the **smallest wait in the list that covers at least `q` percent of all users**: so
#   many of them waited for that long, or less. It is `None` if no wait covers so many.
#
# (`q` is a whole number. This percentile, by the *nearest rank*, is always somebody's own wait.)


# %% answer="01.2"
def tail(waits, q):
    ### BEGIN SOLUTION
    rank = -(-q * len(waits) // 100)  # rounded up, in whole numbers
    stayed = sorted(wait for wait in waits if wait is not None)
    return stayed[rank - 1] if rank <= len(stayed) else None
    ### END SOLUTION


# %% check="01.2" points=2
check("01.2")
### BEGIN HIDDEN TESTS
import numpy as np

numbers = np.random.default_rng(SEED + 1)
check(
    "01.2",
    cases=[
        {
            "what": f"{n} users, {gone} of whom left, p{q}",
            "waits": [None] * gone + [round(float(w), 4) for w in numbers.exponential(1, n - gone)],
            "q": q,
        }
        for n, gone, q in (
            (7, 0, 50),
            (20, 1, 95),
            (20, 2, 95),
            (200, 2, 99),
            (8, 8, 50),
            (9, 4, 50),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 01.3 What a chat costs
#
# A chat of three turns. In each, the model reads all that was said so far and the new question, and
# answers. Yours, as `[tokens of the question, tokens of the answer]`; the first question brings a
# document:

# %%
mine = chat(SEED)
mine["turns"]

# %% [markdown]
# How many **positions** (one token, read by the model once) does the whole chat cost
#
# - `forgetful`: with no notes at all;
# - `per_answer`: with a KV cache that is thrown away after each answer;
# - `whole_chat`: with a KV cache that is kept from turn to turn?
#
# And `faster`: on an idle H100, how many times sooner does the *first token of the third turn* come
# with the kept cache than without? Measure it: `cost.prefill_time(n, context_len=c)` is the time in
# seconds to read `n` new tokens when `c` are in the cache.

# %% answer="01.3"
cost = cost_model("h100", "llama-3-8b")
### BEGIN SOLUTION
forgetful = per_answer = whole_chat = said = cached = 0
for question, answer in mine["turns"]:
    said += question
    prompt, before = said, cached
    forgetful += sum(prompt + i for i in range(answer))
    per_answer += prompt + answer - 1
    said += answer
    whole_chat += said - 1 - cached  # the newest token has not been read yet
    cached = said - 1
faster = cost.prefill_time(prompt) / cost.prefill_time(prompt - before, context_len=before)
### END SOLUTION

# %% check="01.3" points=3
check("01.3")

# %% [markdown]
# ## 01.4 The best order, and who pays
#
# Five people come at the same moment, in this order. `one_by_one(people, order)` serves them in any
# order you like, as a recording.

# %%
people = desk(SEED)
came = [name for name, *_ in people["requests"]]
for name, _, prompt, answer in people["requests"]:
    print(f"{name:4} {prompt:5} tokens of prompt, {answer:3} of answer")
timeline(one_by_one(people, came), by="request", x="time", title="First come, first served")

# %% [markdown]
# Predict first, then measure:
#
# - `order`: a list of the five names with the **lowest mean TTFT** there is;
# - `pays`: whose TTFT grows by the most seconds against the order in which they came;
# - `gain`: the mean TTFT in the order in which they came, over the mean TTFT in yours.

# %% answer="01.4"
### BEGIN SOLUTION
import itertools


def waits(order):
    return {name: ttft(record) for name, record in one_by_one(people, order).requests.items()}


order = min(itertools.permutations(came), key=lambda names: sum(waits(names).values()))
before, after = waits(came), waits(order)
pays = max(came, key=lambda name: after[name] - before[name])
gain = sum(before.values()) / sum(after.values())
### END SOLUTION

# %% check="01.4" points=2
check("01.4")

# %% [markdown]
# ## 01.5 A report that is all green
#
# A colleague's monitor keeps one p95 per second, because that saves disk space, and reports their
# mean. The promise was: 95 of 100 users see a first token within 0.2 s.


# %%
def reported_p95(records):
    each = [percentile(waits, 95) for waits in by_second(records).values()]
    return sum(each) / len(each)


records = list(serve(DAY, SequentialScheduler()).requests.values())
draw_seconds(records, {"the report": reported_p95(records), "the promise": 0.2})

# %% [markdown]
# The dashed line of the report lies below the promise. Did 95 of 100 users get what they were promised?
#
# Give `rush`, the second that most users came in, and write `day_p95(records)`: the p95 of TTFT, in
# seconds, **that the day's users really had**. `ttft(record)` is one user's.


# %% answer="01.5"
def day_p95(records):
    ### BEGIN SOLUTION
    return percentile([ttft(record) for record in records], 95)
    ### END SOLUTION


### BEGIN SOLUTION
rush = 3
### END SOLUTION

# %% check="01.5" points=2
check("01.5")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex01_one_request import shift

check(
    "01.5",
    cases=[
        {"what": f"users per second: {counts}", "requests": shift(counts, answer)}
        for counts, answer in (([5], 3), ([1, 1, 30 + SEED % 7, 9], 5), ([20, 1, 1, 1, 35], 7))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 01.6 Explain
#
# Two or three sentences, for a manager: **in 01.4 the mean TTFT falls, yet the GPU does the same work
# and is done at the same time. Where does the gain come from, and why can a real server not simply
# use that order?** This part is read by a person.

# %% [markdown] explain="01.6" points=2
# ### BEGIN SOLUTION
# Only who waits for whom has changed: a short job in front delays many people a little, a long job in
# front delays many people a lot, so short ones first means less waiting in the sum, and whoever keeps
# the desk for longest now waits for all the others. A real server does not know beforehand how
# long an answer will be, new short requests keep coming, and a long one might then never get its turn.
# ### END SOLUTION
