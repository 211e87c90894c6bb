# %% [markdown]
# # Exercise 04 · Continuous batching
#
# In the lesson you filled every free slot in every step. Real servers hold back now and then, and
# here you build two such rules, find somebody else's fault in its picture, and choose a number that
# two targets pull in opposite directions.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 45 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import Impatient
from toyserve.course.checks.ex04_continuous_batching import FAULT, rush, six_requests, together
from toyserve.course.checks.runs import serve
from toyserve.course.show import show_source
from toyserve.schedulers import ContinuousScheduler, Scheduler, SchedulerOutput, StaticScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 04.4 and 04.5 come from it

# %% [markdown]
# `serve(case, scheduler)` runs a real engine on the virtual clock and returns its recording. A case
# is a list of requests: name, arrival in seconds, prompt tokens, answer tokens. This is the lesson's
# rule, for you to compare with. Your classes make the same moves: `self.run`, `self.next_waiting()` and `self.admit`;
# `self.waiting` is the queue, `self.running` the batch, `self.max_running` the number of slots.

# %%
case = {"requests": together(6, 2, 4, 4, 3)}
timeline(serve(case, ContinuousScheduler(max_running=4)))

# %% [markdown]
# ## 04.1 At most so many newcomers per step
#
# Every newcomer brings a whole prompt into the step, and everybody who is decoding waits for it to
# be read. So let in **at most `self.max_joins` per step**, however many slots are free. All else is
# as in the lesson: everybody in the batch goes on, the queue is served in its order, and when
# `admit` says `False`, memory is short and nobody else enters in this step.


# %% answer="04.1"
class JoinLimit(Scheduler):
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        ### BEGIN SOLUTION
        while self.waiting and len(self.running) < self.max_running:
            if len(plan.admitted) == self.max_joins or not self.admit(plan, self.next_waiting()):
                break
        ### END SOLUTION
        return plan


# %% check="04.1" points=2
check("04.1")
### BEGIN HIDDEN TESTS
check(
    "04.1",
    cases=[
        {
            "what": f"{n} requests, {slots} slots, max_joins = {joins}",
            "slots": slots,
            "joins": joins,
            "blocks": blocks,
            "requests": together(*[2 + (7 * i + SEED) % 11 for i in range(n)]),
        }
        for n, slots, joins, blocks in ((1, 1, 1, 9), (7, 3, 3, 9), (9, 5, 2, 9), (8, 6, 4, 3))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 04.2 Open the door only when it is worth it
#
# Some servers read prompts in steps of their own. Each such stop of the decodes has a fixed price, for one short
# prompt nearly the same as for three. They therefore collect: the door stays shut until **at least `self.min_free`
# slots are free**. Then *every* free slot is filled, as long as somebody waits and `admit` says `True`. (An empty
# batch has all slots free, so nobody waits for ever.)


# %% answer="04.2"
class WaitForRoom(Scheduler):
    min_free = 2

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        ### BEGIN SOLUTION
        if self.max_running - len(self.running) >= self.min_free:
            while self.waiting and len(self.running) < self.max_running:
                if not self.admit(plan, self.next_waiting()):
                    break
        ### END SOLUTION
        return plan


# %% check="04.2" points=2
check("04.2")
### BEGIN HIDDEN TESTS
check(
    "04.2",
    cases=[
        {
            "what": f"{n} requests, {slots} slots, min_free = {free}",
            "slots": slots,
            "min_free": free,
            "requests": together(*[2 + (5 * i + SEED) % 13 for i in range(n)]),
        }
        for n, slots, free in ((1, 4, 4), (6, 3, 3), (11, 5, 3), (9, 4, 2))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 04.3 The fault in the picture
#
# A colleague's scheduler. "Why should anybody wait because somebody *else* does not fit?" It has
# passed every test so far. Then, in the case `FAULT`, one user complained. (Grey is waiting.)


# %%
show_source(Impatient.schedule)

# %%
timeline(serve(FAULT, Impatient(max_running=4)), by="request", title="Somebody complained. Who?")

# %% [markdown]
# Name the user who starves (`starved = "…"`, the name at the left of the row), and write `class Mended(Scheduler)`: nobody
# is let in before somebody who came earlier. The memory of this server is tiny, 4 blocks of 16
# tokens; `admit` returns `False` when a prompt does not fit.

# %% answer="04.3"
### BEGIN SOLUTION
starved = "BIG"


class Mended(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        for request in list(self.waiting):
            if len(self.running) == self.max_running or not self.admit(plan, request):
                break
        return plan


### END SOLUTION

# %% check="04.3" points=3
check("04.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex04_continuous_batching import crowd_and_one_big

check(
    "04.3",
    cases=[
        {
            "what": f"{n} short prompts around one of {big} tokens",
            "slots": slots,
            "blocks": blocks,
            "requests": crowd_and_one_big(n, gap, big),
        }
        for n, slots, blocks, gap, big in (
            (6, 2, 4, 0.01, 30),
            (20, 4, 5, 0.008, 60),
            (9, 3, 4, 0.0, 50),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 04.4 Predict, then measure
#
# These six are yours. All are there at the start; the server has **two slots**. Work two
# numbers out on paper: how many steps does the static rule need (`static_steps`), and how many does continuous
# batching (`continuous_steps`)? Each answer's length is its number of steps. (Static takes the queue in pairs, and a pair lasts as long as its longer one.)

# %%
mine = six_requests(SEED)
{name: answer for name, _, _, answer in mine["requests"]}

# %% [markdown]
# Then measure `gain`: the time that static batching needs over the time that continuous batching
# needs, on the virtual clock. `serve(mine, StaticScheduler(max_running=2)).summary()["makespan_s"]` is a run's time.
# Assign all three names below.

# %% answer="04.4"
### BEGIN SOLUTION
runs = [serve(mine, cls(max_running=2)) for cls in (StaticScheduler, ContinuousScheduler)]
static_steps, continuous_steps = (run.num_steps for run in runs)
gain = runs[0].summary()["makespan_s"] / runs[1].summary()["makespan_s"]
### END SOLUTION

# %% check="04.4" points=2
check("04.4")

# %% [markdown]
# ## 04.5 Slots for two targets
#
# Rush hour: 48 people within a few seconds, prompts of up to 1,200 tokens, one A100. Few slots, and
# people wait in the queue for their first token (TTFT). Many slots, and everybody's later tokens come
# slowly (TPOT), because more prompts are read beside them. Your boss wants both below a limit:

# %%
hour = rush(SEED)
print(f"p95 of TTFT at most {hour['ttft_ms']:,} ms, p99 of TPOT at most {hour['tpot_ms']} ms")

# %% [markdown]
# Find a `max_running` of the lesson's `ContinuousScheduler` that meets them. Trying numbers in a loop
# is fine; `serve(hour, …).summary()` has `["ttft_ms"]["p95"]` and `["tpot_ms"]["p99"]`.


# %% answer="04.5"
### BEGIN SOLUTION
def fits(slots):
    summary = serve(hour, ContinuousScheduler(max_running=slots)).summary()
    fast = summary["ttft_ms"]["p95"] <= hour["ttft_ms"]
    return fast and summary["tpot_ms"]["p99"] <= hour["tpot_ms"]


max_running = next(slots for slots in range(1, 33) if fits(slots))
### END SOLUTION

# %% check="04.5" points=2
check("04.5")

# %% [markdown]
# ## 04.6 Explain
#
# Two sentences, for a colleague who has not done this exercise: **who pays when `max_joins` is 1
# instead of 8, and who gains?** Name the latency that gets worse and the one that gets better. This
# part is read by a person.

# %% [markdown] explain="04.6" points=2
# ### BEGIN SOLUTION
# Whoever arrives in a burst pays: with `max_joins = 1` the last of eight newcomers gets its first
# token seven steps later, so TTFT gets worse although slots are free. Whoever is already decoding
# gains: a step never holds more than one prompt, so the longest gap between two tokens (ITL, and with
# it TPOT) stays short.
# ### END SOLUTION
