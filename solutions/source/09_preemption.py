# %% [markdown]
# # Exercise 09 · Preemption
#
# In the lesson one request was paused, once. Here memory is short all day. You choose victims so
# that it does not always hit the same, put a price on the pauses, end a quarrel that would never
# end, and set the watermark for two targets that pull in opposite directions.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import Bully
from toyserve.course.checks.ex09_preemption import (
    QUARREL,
    VICTIMS,
    costs_of,
    crowd,
    patient,
    run_of,
)
from toyserve.course.checks.runs import serve
from toyserve.policies import FCFS
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 09.3 and 09.5 come from it

# %% [markdown]
# `serve(case, scheduler, policy=…)` runs a real engine on the virtual clock and returns its
# recording. A case has requests (name, arrival in seconds, prompt tokens, answer tokens, priority)
# and a number of KV blocks. Five of one class, and memory for two or three of them:

# %%
busy = VICTIMS[3]
lesson = serve(busy, ContinuousScheduler(busy["slots"]), policy=FCFS())
print({name: record.num_preemptions for name, record in lesson.requests.items()})
timeline(lesson, by="request", title="Let in last, paused first: who is hit again and again?")

# %% [markdown]
# ## 09.1 A victim that is not always the same
#
# Write `victim`. `running` is in the order in which they were let in. Choose
#
# 1. the **least urgent** (the highest `priority`);
# 2. of several in that class, whoever has been **paused least often** so far (`num_preemptions`);
# 3. of several that are still equal, whoever was **let in last**.


# %% answer="09.1"
class FairVictim(FCFS):
    def victim(self, running, now):
        ### BEGIN SOLUTION
        return min(reversed(running), key=lambda r: (-r.priority, r.num_preemptions))
        ### END SOLUTION


# %% check="09.1" points=2
check("09.1")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex09_preemption import arrivals, crew

check(
    "09.1",
    cases=[
        {
            "what": f"{len(classes)} requests of classes {classes}, {blocks} blocks",
            "slots": len(classes),
            "blocks": blocks,
            "requests": crew(*classes, answer=answer),
        }
        for classes, blocks, answer in (
            ([1, 1], 5, 50),
            ([2, 1, 2, 1], 10, 60),
            ([0, 3, 3, 3, 1, 1], 14, 70 + SEED % 5),
        )
    ]
    + [
        {
            "what": f"{n} requests of one class, {blocks} blocks",
            "slots": n,
            "blocks": blocks,
            "requests": arrivals(n, gap, prompt),
        }
        for n, blocks, gap, prompt in ((4, 9, 0.05, 9), (6, 10, 0.05, 17), (5, 12, 0.0, 17))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 09.2 What the pauses cost
#
# Write `tokens_again(run)`: how many tokens of the run were computed **more than once**. A recording
# has `run.steps`, each with `num_scheduled_tokens` (a map from a request's name to the tokens it runs
# in that step), and `run.requests`, each with `num_prompt_tokens` and `token_ids` (of its answer).
# Everybody in these runs is served to the end.
#
# For this run it must be 0, because nobody is paused:

# %%
quiet = run_of({"slots": 2, "blocks": 40, "requests": [["A", 0.0, 17, 5], ["B", 0.0, 17, 3]]})
[dict(step.num_scheduled_tokens) for step in quiet.steps]


# %% answer="09.2"
def tokens_again(run):
    """How many tokens were run more than once."""
    ### BEGIN SOLUTION
    total = sum(sum(step.num_scheduled_tokens.values()) for step in run.steps)
    # The last token of an answer comes out of the model and is never run.
    needed = sum(r.num_prompt_tokens + len(r.token_ids) - 1 for r in run.requests.values())
    return total - needed
    ### END SOLUTION


# %% check="09.2" points=2
check("09.2")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex09_preemption import crew

check(
    "09.2",
    cases=[
        {
            "what": f"{n} requests, {blocks} blocks, {host} on the host",
            "slots": n,
            "blocks": blocks,
            "host": host,
            "requests": crew(*[1] * n, prompt=prompt, answer=45 + SEED % 7),
        }
        for n, blocks, host, prompt in ((1, 6, 0, 20), (4, 9, 0, 9), (5, 9, 3, 20), (4, 9, 30, 20))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 09.3 Out and back: predict, then measure
#
# Your victim has read its prompt and has `answered` tokens of its answer. Then it is paused.

# %%
mine = patient(SEED)
cost = costs_of(mine)
print(mine)
print(f"{cost.model.kv_bytes_per_token:,} bytes of KV per token of {cost.model.name}")
print(f"{cost.swap_time(1e9) * 1e3:.1f} ms to move a gigabyte to the host, or back")

# %% [markdown]
# - `tokens_run`: with **recompute**, how many tokens does its first step after the pause run?
# - `swap_ms`: with **swap**, how many milliseconds does its KV need, out and back? (Paper is enough.)
# - `ratio`: measure it. The extra time of recompute (in a step with eight others that decode, 500
#   tokens behind each) over the time of the swap. `cost.time_of_rows([(done, to_run), …])` gives the
#   seconds of a step; *extra* is against the step in which your victim had simply gone on.

# %% answer="09.3"
### BEGIN SOLUTION
tokens_run = mine["prompt"] + mine["answered"]
held = tokens_run - 1  # the newest token has no KV yet
swap_ms = 1e3 * 2 * cost.swap_time(held * cost.model.kv_bytes_per_token)
others = [(500, 1)] * 8
with_it = cost.time_of_rows([*others, (0, tokens_run)])
extra = with_it - cost.time_of_rows([*others, (held, 1)])
ratio = 1e3 * extra / swap_ms
### END SOLUTION

# %% check="09.3" points=2
check("09.3")

# %% [markdown]
# ## 09.4 The endless quarrel
#
# A colleague wants newcomers to see their first word at once: "Whoever has had fewer tokens goes
# first." Here is the rule, two users, and one slot:

# %%
run = serve(QUARREL, ContinuousScheduler(1), policy=Bully())
timeline(run, by="request", title="Two users, one slot. What is going on from step 30 on?")

# %% [markdown]
# Give `pauses`, the number of preemptions in this run. Then write `displaces` of `Calm`, so that the
# wish comes true and the quarrel ends: **a newcomer who has not had a token yet may push out somebody
# who has had one; nobody else may push.** (`next` and `victim` stay the colleague's.)


# %% answer="09.4"
class Calm(Bully):
    def displaces(self, candidate, victim, now):
        ### BEGIN SOLUTION
        return candidate.num_output_tokens == 0 and victim.num_output_tokens > 0
        ### END SOLUTION


### BEGIN SOLUTION
pauses = sum(record.num_preemptions for record in run.requests.values())
### END SOLUTION

# %% check="09.4" points=3
check("09.4")
### BEGIN HIDDEN TESTS
check(
    "09.4",
    cases=[
        {
            "what": f"{n} users, {gap} s apart, {slots} slots",
            "slots": slots,
            "requests": [[chr(65 + i), gap * i, 12, 8 + (5 * i + SEED) % 9] for i in range(n)],
        }
        for n, gap, slots in ((1, 0.0, 1), (4, 0.03, 1), (7, 0.02, 3))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 09.5 A watermark for two targets
#
# 60 users within a few seconds, and memory is short. Without a watermark, newcomers take the last
# blocks and somebody is paused a moment later. With a large one, memory stands empty. Your targets:

# %%
hour = crowd(SEED)
print(f"at most {hour['pauses']} pauses, and at least {hour['tokens_per_s']:,} answer tokens/s")

# %% [markdown]
# Find a `watermark` that meets both. `serve(hour, ContinuousScheduler(64, watermark=…)).summary()`
# has `["num_preemptions"]` and `["output_tokens_per_s"]`.


# %% answer="09.5"
### BEGIN SOLUTION
def fits(share):
    summary = serve(hour, ContinuousScheduler(64, watermark=share)).summary()
    enough = summary["output_tokens_per_s"] >= hour["tokens_per_s"]
    return enough and summary["num_preemptions"] <= hour["pauses"]


watermark = next(share for share in (0.04, 0.05, 0.06, 0.07, 0.08) if fits(share))
### END SOLUTION

# %% check="09.5" points=2
check("09.5")

# %% [markdown]
# ## 09.6 Explain
#
# Two sentences, for a colleague: **"A paused request has lost its answer" is wrong. What has it
# lost, and why does it nevertheless say the same as if nothing had happened?** This part is read by a
# person.

# %% [markdown] explain="09.6" points=2
# ### BEGIN SOLUTION
# It has lost its KV cache, which is only a stored result: the tokens of prompt and answer are kept,
# and the KV follows from them. On its return all these tokens are run in one prefill (or the KV is
# copied back from the host), so the next token is computed from the same numbers as before, and the
# user sees one long gap.
# ### END SOLUTION
