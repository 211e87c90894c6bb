# %% [markdown]
# # Exercise 03 · Static batching
#
# In the lesson everybody who came was put into the next batch. Here you count what that costs a queue,
# decide who should share a batch, keep questions and documents apart, and correct a dashboard that is
# proud of its holes.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 45 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import dashboard
from toyserve.course.checks.ex03_static_batching import board, in_batches, quiet, run_of, ten
from toyserve.course.checks.pictures import board_picture
from toyserve.course.checks.runs import serve
from toyserve.schedulers import SchedulerOutput, SequentialScheduler, StaticScheduler
from toyserve.viz import timeline

SEED = 0  # your own numbers in 03.1, 03.4 and 03.5 come from it

# %% [markdown]
# ## 03.1 Ten in a queue, four rows: predict, then measure
#
# Ten requests are there at time 0 and are let in **in this order**, four to a batch, the last two by
# themselves. Every step gives each row one token, the first step too. `serve(case, scheduler)` runs a
# case in a real engine on the virtual clock and returns its recording.

# %%
mine = ten(SEED)
print({name: answer for name, _, _, answer in mine["requests"]})

# %% [markdown]
# On paper first:
#
# - `steps`: how many steps until the last one has finished?
# - `last_starts`: in which step (from 1) does J, the tenth, get its first token?
# - `wasted`: the share (0 to 1) of all places that give nobody a token. A step has four places, whether
#   or not somebody has ever sat there.
#
# Then measure `faster`: the time one at a time (`SequentialScheduler()`) over the time of the batches
# (`StaticScheduler(4)`). A run is over at `run.steps[-1].end_time`.

# %% answer="03.1"
### BEGIN SOLUTION
lens = [answer for *_, answer in mine["requests"]]
first, second, third = (max(lens[i : i + 4]) for i in (0, 4, 8))
steps = first + second + third
last_starts = first + second + 1
wasted = 1 - sum(lens) / (4 * steps)
times = [serve(mine, s).steps[-1].end_time for s in (SequentialScheduler(), StaticScheduler(4))]
faster = times[0] / times[1]
### END SOLUTION

# %% check="03.1" points=2
check("03.1")

# %% [markdown]
# ## 03.2 Who should share a batch?
#
# Suppose an oracle tells how long each answer will be. Write `groups(answers, rows)`: `answers` is a dict
# from a request's name to its answer's tokens; return the batches, as a list of lists of names. At most
# `rows` in a batch, everybody in exactly one, and **as few steps in all as possible**. If several ways are
# equally good, any will do.
#
# `in_batches(case, groups)` runs them:

# %%
case = {"rows": 2, "requests": [[n, 0.0, 16, a] for n, a in zip("ABCD", (9, 2, 8, 3), strict=True)]}
run = in_batches(case, [["A", "B"], ["C", "D"]])
timeline(run, title=f"In order of arrival: {run.num_steps} steps. Can you do better?")


# %% answer="03.2"
def groups(answers, rows):
    """Lists of names, one for each batch."""
    ### BEGIN SOLUTION
    longest_first = sorted(answers, key=answers.get, reverse=True)
    return [longest_first[i : i + rows] for i in range(0, len(longest_first), rows)]
    ### END SOLUTION


# %% check="03.2" points=2
check("03.2")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex03_static_batching import rows_of

check(
    "03.2",
    cases=[
        {
            "what": f"{n} requests, {rows} rows",
            "rows": rows,
            "requests": rows_of([3 + (spread * i + SEED) % 61 for i in range(n)]),
        }
        for n, rows, spread in ((5, 4, 17), (7, 3, 23), (16, 4, 29), (3, 8, 11), (13, 6, 37))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 03.3 Questions with questions, documents with documents
#
# No oracle knows an answer's length, but everybody knows the prompt's, and a padded prompt costs time.
# Write the scheduler `Alike`. When the batch is empty:
#
# 1. whoever waits longest opens the new batch;
# 2. go through the rest of the queue in its order and let in, up to `self.max_running`, **everybody with
#    whom no prompt in the batch is padded to more than twice its own length**; pass over the others;
# 3. pad all prompts of the batch to the longest (`plan.num_padded_tokens`).
#
# A batch under way goes on as in the lesson. `request.num_prompt_tokens` is a prompt's length;
# `self.admit(plan, …)` also takes the request out of `self.waiting`. Memory is plenty.


# %% answer="03.3"
class Alike(StaticScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        ### BEGIN SOLUTION
        if self.batch:
            for request in self.batch:
                if request in self.running:
                    self.run(plan, request, 1)
                else:
                    plan.num_padded_tokens[request] = 1
            return plan
        for request in list(self.waiting):
            lens = [r.num_prompt_tokens for r in [*self.batch, request]]
            if len(self.batch) < self.max_running and max(lens) <= 2 * min(lens):
                self.admit(plan, request)
        longest = max((r.num_prompt_tokens for r in self.batch), default=0)
        for request in self.batch:
            if request.num_prompt_tokens < longest:
                plan.num_padded_tokens[request] = longest - request.num_prompt_tokens
        ### END SOLUTION
        return plan


# %% check="03.3" points=3
check("03.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex03_static_batching import rows_of

check(
    "03.3",
    cases=[
        {
            "what": f"{n} requests, {rows} rows",
            "rows": rows,
            "requests": [
                [name, late * i, prompt, answer]
                for i, (name, _, prompt, answer) in enumerate(
                    rows_of(
                        [2 + 3 * i % 7 for i in range(n)],
                        [8 + (step * i + SEED) % 97 for i in range(n)],
                    )
                )
            ],
        }
        for n, rows, step, late in ((2, 1, 50, 0.0), (9, 3, 41, 0.0), (12, 8, 29, 0.02))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 03.4 A number that is too good
#
# "Our batches are perfect," says a colleague, "full throughput in every step!" Here is a run of four, all
# there at time 0, and below it what his dashboard calls "tokens served".

# %%
his = run_of(board(SEED))
print("prompt, answer:", {r.request_id: (r.num_prompt_tokens, len(r.token_ids))
                          for r in his.requests.values()})  # fmt: skip
print("he counts", sum(dashboard(his)), "tokens")
board_picture(his)

# %% [markdown]
# Give `too_many`: by how much is his sum above the answer tokens that users got? Then write `written(run)`,
# the corrected line: a list with, for each step of the run, the answer tokens that came out of it. (Whoever
# reads a prompt gets one token from that very step.)
#
# A step has `num_scheduled_tokens` and `num_padded_tokens`, dicts from a request's name to a number.


# %% answer="03.4"
def written(run):
    """Answer tokens of each step."""
    ### BEGIN SOLUTION
    return [len(step.num_scheduled_tokens) for step in run.steps]
    ### END SOLUTION


### BEGIN SOLUTION
too_many = sum(dashboard(his)) - sum(written(his))
### END SOLUTION

# %% check="03.4" points=2
check("03.4")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex03_static_batching import rows_of

check(
    "03.4",
    cases=[
        {
            "what": f"{len(answers)} requests, {rows} rows",
            "rows": rows,
            "requests": rows_of(answers, prompts),
        }
        for rows, answers, prompts in (
            (3, [1, 9, 4, 1, 2], [7, 1, 30, 2, 2]),
            (8, [12, 1, 3, 40 + SEED % 9], 5),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 03.5 How long to wait for company
#
# A quiet server, eight requests a second. A batch that starts at once is small and keeps the GPU busy for
# few; a batch that waits keeps people waiting. Your targets:

# %%
server = quiet(SEED)
print(f"at most {server['busy_s']} s of GPU work per 1000 answer tokens,")
print(f"at most {server['ttft_ms']} ms until the first token, for half of the users")

# %% [markdown]
# Find a `max_wait`, in seconds, that meets both. `serve(server, StaticScheduler(8, max_wait=…))` gives the
# run. Its `summary()` has `["output_tokens"]` and `["ttft_ms"]["p50"]`; the GPU works during its steps, each
# from `start_time` to `end_time`.


# %% answer="03.5"
### BEGIN SOLUTION
def fits(wait):
    run = serve(server, StaticScheduler(8, max_wait=wait))
    work = sum(step.end_time - step.start_time for step in run.steps)
    found = run.summary()
    cheap = 1e3 * work / found["output_tokens"] <= server["busy_s"]
    return cheap and found["ttft_ms"]["p50"] <= server["ttft_ms"]


max_wait = next(w / 100 for w in range(10, 34) if fits(w / 100))
### END SOLUTION

# %% check="03.5" points=2
check("03.5")

# %% [markdown]
# ## 03.6 Explain
#
# Three sentences, for a colleague: **"Padding is padding." Why does a padded prompt cost a GPU real time and
# an empty row in a decode step almost none, and who pays for the empty row nevertheless?** This part is
# read by a person.

# %% [markdown] explain="03.6" points=2
# ### BEGIN SOLUTION
# Reading a prompt is bound by arithmetic, and each padded position is as much arithmetic as a real one, so
# the step takes longer. A decode step waits for the weights to be fetched from memory, which takes the same
# time for one row as for four, so an empty row adds next to nothing. Whoever stands in the queue pays: they
# could have had that row for nearly nothing, and must wait until the longest of the batch has finished.
# ### END SOLUTION
