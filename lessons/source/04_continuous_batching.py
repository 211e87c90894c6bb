# %% [markdown]
# # 04 · Continuous batching
#
# Four people ask a language model at the same moment. A wants 100 tokens, B 10, C 60, D 8. The
# server runs them as one batch of four. After eight steps D has its answer and is gone.
#
# **What should happen to D's place for the remaining 92 steps, while three more people stand in
# the queue?**
#
# In this lesson you write the few lines that answer it, plug them into a real engine, and watch
# them run: in a picture, on a real GPT-2, and on the clock of a GPU you don't have.
#
# *30–40 minutes. No GPU, no network. Run the cells one by one, in order.*

# %% [markdown]
# No new words today. What you need is from lessons 01 and 03.
#
# <details><summary>The words, should you come straight here</summary>
#
# | word | here it means |
# |---|---|
# | **step** | one run of the model for the whole batch; everybody in it gets one more token |
# | **slot** | a place in the batch; this server has four |
# | **prefill** | the step that reads a request's whole prompt; it yields the first token |
# | **decode** | every later step of that request: one token in, one token out |
# | **static batch** | start together, and let nobody in until *all* have finished; rows that have finished are computed on, as *padding* |
# | **KV cache** | memory that each request in the batch holds; plenty of it today (lesson 06) |
# | **scheduler** | the code that decides, before each step, who runs |
#
# </details>

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.tables import entry_steps, step_table, text_table
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import StaticScheduler
from toyserve.viz import occupancy, timeline
from toyserve.workload import Workload, WorkloadRequest

ANSWERS = {"A": 100, "B": 10, "C": 60, "D": 8, "E": 30, "F": 25, "G": 20}  # tokens
seven = Workload(
    "seven",
    tuple(WorkloadRequest(k, num_prompt_tokens=4, output_len=n) for k, n in ANSWERS.items()),
)


def simulate(scheduler, workload, gpu="h100", model="llama-3-8b"):
    """The engine with no model in it: a step lasts as long as a cost model says it would."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(gpu, model), clock)
    engine = Engine(scheduler=scheduler, kv=PagedKV(4000), runner=runner, clock=clock)
    return engine.run(workload.requests_for_engine())


static = simulate(StaticScheduler(max_running=4), seven)
timeline(static)

# %% [markdown]
# The first batch is that of lesson 03, with its holes: hatched is computed for nobody. D ends in step 8
# and B in step 10, and their rows go on as padding up to step 100.
#
# What is new is the queue. E, F and G were there from the very first step. When are they let in?

# %%
useful = sum(ANSWERS[name] for name in "ABCD")
places = 4 * 100
print(f"first batch: {useful} useful places of {places}, {1 - useful / places:.1%} wasted")
print("let in at step:", entry_steps(static))
print(f"all seven are served after {static.num_steps} steps")
assert (useful, static.num_steps, entry_steps(static)["E"]) == (178, 130, 101)

# %% [markdown]
# ## Predict first
#
# The model makes one token per request per step. So **between any two steps the server is free to
# change its mind** about who is in the batch. Take that seriously and the rule writes itself:
# whoever has finished leaves at once, and whoever waits takes the free slot.
#
# Two predictions before you see it. A wrong one is worth more than none.

# %%
from toyserve.course.quiz import quiz

quiz("04.first-entry")

# %%
quiz("04.makespan")

# %% [markdown]
# ## Build it
#
# A scheduler has one method, `schedule()`. It returns a plan: *which request runs how many of its
# tokens in this step*. You have three moves.
#
# | move | what it does |
# |---|---|
# | `self.run(plan, request, n)` | plan `n` tokens of a request that is in the batch |
# | `self.next_waiting()` | whoever is first in the queue |
# | `self.admit(plan, request)` | let it in and plan its whole prompt; `False` if memory is short |
#
# `self.waiting` is the queue, `self.running` the batch, `self.max_running` the number of slots.
# Who has finished is already gone from `running` when `schedule()` is called.

# %% [markdown]
# **Your turn.** The class below still follows the static rule. Replace the three lines between the
# arrows: fill every free slot, in every step. Then run the cell and the one after it.
#
# <details><summary>A hint</summary>
#
# Two things must both hold for a newcomer to enter: somebody waits, and fewer than
# `max_running` are in the batch. As long as both hold, admit the next one. If `admit` returns
# `False`, memory is short: stop trying in this step.
#
# </details>

# %%
from toyserve.schedulers import Scheduler, SchedulerOutput


class MyScheduler(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):  # everybody in the batch goes on
            self.run(plan, request, request.num_uncomputed_tokens)
        # ↓ the static rule: nobody enters until the batch is empty
        if not self.running:
            for _ in range(min(self.max_running, len(self.waiting))):
                self.admit(plan, self.next_waiting())
        # ↑
        return plan


# %%
def try_it(cls):
    """The run, and None if all is well, else what is wrong."""
    try:
        run = simulate(cls(max_running=4), seven)
    except IndexError:
        return None, "it asks for the next in a queue that is empty. Look into self.waiting first"
    except Exception as error:  # the engine's own words, or Python's
        return None, f"{type(error).__name__}: {error}"
    got = entry_steps(run)
    if (got["E"], got["F"]) == (9, 11):
        return run, None
    if got["E"] > 100:
        return run, f"E enters in step {got['E']}. That is still the static rule"
    return run, f"E enters in step {got['E']} (wanted: 9), F in {got['F']} (wanted: 11)"


mine, problem = try_it(MyScheduler)
solved = problem is None
print(
    f"Not yet: {problem}." if problem else "✓ E takes D's slot in step 9, F takes B's in step 11."
)
if mine:
    display(timeline(mine, title=f"MyScheduler: {mine.num_steps} steps; white is an empty slot"))

# %% [markdown]
# Here is one way to write it, folded away so that you can try first. **Click the three dots to
# open it.** Should yours not work yet, the lesson goes on with this one; if it works, with yours.


# %% jupyter={"source_hidden": true}
class Continuous(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


Mine = MyScheduler if solved else Continuous

# %% [markdown]
# ## See it
#
# The same seven requests, the same four slots, one rule changed. Solid triangles mark where
# somebody is let in. And no row is hatched: this rule has no rectangle to keep, so a free slot is just empty.

# %%
continuous = simulate(Mine(max_running=4), seven)
enters = entry_steps(continuous)
timeline(continuous)

# %%
print(step_table(continuous, [1, 8, 9, 10, 11, 36, 60, 61, 100]))
print("\nlet in at step:", enters)
assert enters["E"] == 9  # D's 8th token came out of step 8
assert enters["F"] == 11  # B's 10th token came out of step 10
assert continuous.num_steps == ANSWERS["A"] == 100  # as long as the longest, not a step longer

# %% [markdown]
# From step 61 on, A is alone in this picture too. That is not the scheduler's fault: the queue is
# empty. **A free slot is only waste while somebody waits.**
#
# (`-` is a slot that does nothing useful.) Nothing in the rule depends on four slots or on these lengths. Three
# slots, and C and then A end early:

# %%
small = {"A": 3, "B": 6, "C": 2, "D": 5, "E": 4}
five = Workload("five", tuple(
    WorkloadRequest(k, num_prompt_tokens=4, output_len=n) for k, n in small.items()
))  # fmt: skip
print(step_table(simulate(Mine(max_running=3), five), [1, 2, 3, 4]))

# %% [markdown]
# Back to the seven. How full was each step? Static above, continuous below, on one scale. The spikes are
# prompts being read: all tokens of a prompt are computed in the step that admits it.

# %%
from toyserve.viz.style import THEMES, new_axes

axes = new_axes((10, 4.4), THEMES["light"], 2)
saved = static.num_steps - continuous.num_steps
every = f"Continuous: every token is wanted by somebody, and the last comes {saved} steps sooner"
occupancy(continuous, ax=axes[1], legend=False, title=every)
occupancy(static, ax=axes[0], title="Static: hatched tokens are computed for nobody")
axes[0].set_xlim(0, static.num_steps)
axes[0].figure

# %% [markdown]
# And what do the *users* see? The same two runs with a row for each request: grey is waiting in the
# queue.

# %%
axes = new_axes((10, 5.6), THEMES["light"], 2)
waits = [enters[name] - 1 for name in "EFG"]
now = "Continuous: they wait {}, {} and {} steps, each for the next free slot".format(*waits)
timeline(continuous, by="request", ax=axes[1], legend=False, title=now)
timeline(static, by="request", ax=axes[0], title="Static: E, F and G wait 100 steps for A")
axes[0].set_xlim(0, static.num_steps)
axes[0].figure

# %% [markdown]
# ## The library's version, and what changed
#
# First the class this lesson uses, beside it (or below, on a narrow page) the engine's own. Its `free_slot(plan)`
# also notes *why* the next in the queue had to wait, for the pictures, and it lets nobody in while memory is so short
# that somebody was just sent out of the batch (`plan.preempted`, lesson 09).

# %%
from toyserve.course.show import show_diff, show_source
from toyserve.schedulers import ContinuousScheduler

show_source(Mine, ContinuousScheduler)

# %% [markdown]
# And this is the step from static to continuous batching: red goes, green comes. The static
# scheduler is longer than what you see of it here: it also has helpers that fill a batch, pad it, keep
# finished rows in it, and close it. All of that goes too.

# %%
from toyserve.course.show import source_of

for cls in (StaticScheduler, ContinuousScheduler):
    print(f"{cls.__name__}: {len(source_of(cls, docstrings=False).splitlines())} lines")
show_diff(StaticScheduler.schedule, ContinuousScheduler.schedule)

# %% [markdown]
# ## On a real model
#
# So far nothing was computed. Now the same scheduler runs a real GPT-2: small, trained on
# Shakespeare, bundled with the course. The engine does not change; only the part that executes a
# plan does. Each answer is cut at its length from the table above, so that you can compare the steps.

# %%
import torch

from toyserve import LLM, SamplingParams
from toyserve.costs import get_model

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a small model: one core is enough, and steadier to measure

SPEAKERS = ["ROMEO", "JULIET", "HAMLET", "LADY MACBETH", "KING LEAR", "FALSTAFF", "OPHELIA"]
plays = Workload(
    "plays",
    tuple(
        WorkloadRequest(key, prompt=f"{who}:\n", output_len=n)
        for (key, n), who in zip(ANSWERS.items(), SPEAKERS, strict=True)
    ),
)
style = SamplingParams(temperature=0.8, seed=4)
llm = LLM("toy", scheduler=Mine(max_running=4), dtype="float32")
answers = llm.replay(plays, style)
print(f"{get_model('toy').total_params / 1e6:.1f} million parameters, on {llm.device}")
real_enters = entry_steps(llm.recording)
print("let in at step:", real_enters)
assert real_enters == enters
for out in answers:
    print(f"\n[{out.request_id}, {len(out.token_ids)} tokens] {out.prompt}{out.text}")

# %% [markdown]
# Not quite Shakespeare, but real tokens from a real model, and the very same steps as in the
# simulation: it is the same scheduling code.
#
# **Does it matter to the text who else was in the batch?** It must not: scheduling decides *when* a
# token is computed, never *which*. Same prompts under the static rule, token by token:

# %%
llm_static = LLM("toy", scheduler=StaticScheduler(max_running=4), dtype="float32")
again = llm_static.replay(plays, style)
equal = sum(a.token_ids == b.token_ids for a, b in zip(answers, again, strict=True))
print(f"{equal} of 7 answers are equal, token by token")
assert equal == 7 or llm.device.type == "cuda"  # a GPU may round differently in another batch
print("steps:", llm_static.recording.num_steps, "static,", llm.recording.num_steps, "continuous")

# %% [markdown]
# ## How unequal are real answers?
#
# The seven lengths were made up. But requests do differ that much: one user asks in 20 tokens for the name of a
# city ("Paris."), the next pastes 20,000 and wants a report of 3,000.
#
# Let the model decide: 24 speeches, each ending when the model itself says so (or after 256 tokens).

# %%
prompts = [f"{who}:\n" for who in [*SPEAKERS, "MACBETH", "PORTIA", "PROSPERO", "IAGO", "VIOLA"]] * 2
free = [SamplingParams(temperature=1.0, seed=i, max_tokens=256) for i in range(len(prompts))]
llm = LLM("toy", scheduler=Mine(max_running=8))
speeches = llm.generate(prompts, free)
lengths = sorted(len(out.token_ids) for out in speeches)
print("answer lengths, sorted:", *lengths)
mean, median = sum(lengths) / len(lengths), lengths[len(lengths) // 2]
longest = lengths[-1]
print(f"\nmedian {median}, mean {mean:.0f}, longest {longest}: {longest / median:.0f} × the median")
assert longest > 2 * median

# %% [markdown]
# A **heavy tail**: most answers are short, a few are very long. That is what comes out when a model
# decides itself when to stop, and it is the worst case for a static batch: of eight rows, one is
# probably long, and then seven wait for it.
#
# ## Measure it, on two clocks
#
# These 24 speeches are the workload now. **Wall clock:** the bundled model on this machine.
# **Virtual clock:** the same requests through the same schedulers, each step as long as a cost
# model says Llama-3-8B would take on an H100. For the wait until the first token, p50 is what half of
# the users stay below, p95 what nineteen of twenty do.

# %%
work = Workload(
    "speeches",
    tuple(
        WorkloadRequest(f"r{i}", prompt=tuple(out.prompt_token_ids), output_len=len(out.token_ids))
        for i, out in enumerate(speeches)
    ),
)


def report(runs):
    """Two runs of the same work: steps, throughput, and how long users wait for a first token."""
    rows = []
    for cls, run in runs.items():
        s = run.summary()
        ttft = s["ttft_ms"]
        row = (s["output_tokens_per_s"], ttft["p50"], ttft["p95"])
        rows.append((cls.__name__, run.num_steps, *(f"{value:.0f}" for value in row)))
    print(text_table(("", "steps", "tokens/s", "first token, ms: p50", "p95"), rows))
    # makespan: seconds from the first arrival to the last token
    old, new = (run.summary()["makespan_s"] for run in runs.values())
    return old / new


gpu = {cls: simulate(cls(max_running=8), work) for cls in (StaticScheduler, Mine)}
print("virtual clock: Llama-3-8B on an H100")
gpu_gain = report(gpu)
steps_gain = gpu[StaticScheduler].num_steps / gpu[Mine].num_steps
print(f"gain: {steps_gain:.2f} × in steps, {gpu_gain:.2f} × in time")
assert gpu_gain > 1.3

# %% [markdown]
# And now for real. These numbers depend on the machine: what you see before you run the cell was
# measured where this lesson was written, on one core of a small server.

# %% tags=["wall-clock"]
wall = {}
for _ in range(2):  # twice, and the faster run counts: other programs only make it slower
    for cls in (StaticScheduler, Mine):
        server = LLM("toy", scheduler=cls(max_running=8))
        server.replay(work)
        run = server.recording
        if cls not in wall or run.summary()["makespan_s"] < wall[cls].summary()["makespan_s"]:
            wall[cls] = run
print(f"wall clock: the bundled GPT-2 on {server.device}, {torch.get_num_threads()} thread(s)")
wall_gain = report(wall)
print(f"gain: {wall_gain:.2f} × in time")

# %% [markdown]
# The steps are the same on both clocks: same scheduler, same lengths. On the H100 the gain in time is
# the gain in steps. Here it need not be. To see why, ask what *one more row* in the batch costs: the
# time of a decode step with 1, 2, 4, 8 and 16 rows, as a multiple of a step with one.


# %% tags=["wall-clock"]
def decode_time(num_rows):
    """The fastest decode step with so many rows, in seconds, on this machine."""
    server = LLM("toy", scheduler=Mine(max_running=16))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    server.generate(["ROMEO:\n"] * num_rows, params)
    return min(step.end_time - step.start_time for step in server.recording.steps[1:])


sizes, look = [1, 2, 4, 8, 16], THEMES["light"]
h100 = cost_model("h100", "llama-3-8b")
here, there = [decode_time(n) for n in sizes], [h100.decode_time(n, 40) for n in sizes]
(ax,) = new_axes((7, 3.2), look)
lines = ((here, "bundled GPT-2, measured here", 1), (there, "Llama-3-8B on an H100, modelled", 0))
for times, name, color in lines:
    ax.plot(sizes, [t / times[0] for t in times], "o-", color=look.series[color], label=name)
    print(f"{name}: 16 rows give {16 * times[0] / times[-1]:.1f} × the tokens/s of one row")
per_row = (here[-1] - here[0]) / (sizes[-1] - 1)
fixed = here[0] - per_row
print(f"measured here: {1e3 * fixed:.2f} ms per step and {1e3 * per_row:.2f} ms per row")
ax.set(xlabel="rows in the batch", xticks=sizes, ylim=(0, None))
ax.set_ylabel("time of a step\n(1 row = 1)")
ax.set_title("What one more row costs", loc="left", fontsize=11)
ax.legend(frameon=False)
ax.figure

# %% [markdown]
# Why is the modelled curve flat? The bill of one step says it. (A GFLOP is a billion multiplications or
# additions. Weights are read by the *linear layers*, each request's KV cache by the *attention*.)

# %%
from toyserve.costs import StepShape

bill = h100.breakdown(StepShape.of_rows([(40, 1)] * 8))  # 8 rows, 40 tokens behind each
for name, part in (("linear layers", bill.linear), ("attention", bill.attention)):
    print(f"{name:13}: {part.num_bytes / 1e9:6.2f} GB moved in {1e3 * part.memory_time:.2f} ms, "
          f"{part.num_flops / 1e9:5.1f} GFLOP in {1e3 * part.compute_time:.3f} ms")  # fmt: skip
here_mb = get_model("toy").total_params * 4 / 1e6
print(f"the bundled model's weights on a CPU: {here_mb:.0f} MB")

# %% [markdown]
# - **A GPU amortises reading weights.** The step fetches all 15 GB of them for one row as for
#   eight, and the arithmetic hides behind that. An empty slot costs as much as a full one, so what
#   counts is the number of steps.
# - **A CPU amortises overhead.** 22 MB are quickly read; what a step pays once is Python and the calls
#   into torch. Each row's arithmetic comes on top. So
#   sixteen rows gain less here, and the gain in time is not exactly that in steps: leaving out a
#   padded row saves a little, too.
#
# Either way a step has a fixed price. Don't run it with empty seats.

# %% [markdown]
# ## Break it
#
# A colleague finds counting cheaper than looking: "I'll keep the number of taken slots myself." One
# up when somebody enters, one down when somebody finishes. It passes the test of the seven
# requests: E still enters at step 9, F at 11.


# %%
class Leaky(Scheduler):
    taken = 0

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and self.taken < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
            self.taken += 1
        return plan

    def update_from_output(self, plan, result):
        finished = super().update_from_output(plan, result)
        if finished:
            self.taken -= 1
        return finished


assert entry_steps(simulate(Leaky(4), seven)) == enters  # looks fine!

# %% [markdown]
# Then comes Monday: twelve requests, and some of their answers happen to end in the same step.

# %%
LENGTHS = [20, 6, 6, 12, 14, 8, 10, 10, 10, 10, 10, 10]
monday = Workload(
    "monday",
    tuple(
        WorkloadRequest(f"P{i}", num_prompt_tokens=4, output_len=n)
        for i, n in enumerate(LENGTHS, 1)
    ),
)
broken = simulate(Leaky(max_running=4), monday)
timeline(broken, title=f"Monday on Leaky: {broken.num_steps} steps. What is wrong?")

# %% [markdown]
# No error, no warning, every request is answered, and by the end the server of four slots is a
# server of one. Operators know the symptom: *it gets slower until somebody restarts it.*
#
# The picture shows the damage. But when was it *done*? Look closely at the first twenty steps.

# %%
quiz("04.leak")

# %% [markdown]
# Now look at both books, in the middle of some steps:

# %%
probe = Leaky(max_running=4)
books = []


class Watched(SimulatedRunner):
    def execute(self, plan):
        books.append((probe.taken, len(probe.running)))
        return super().execute(plan)


engine = Engine(scheduler=probe, kv=PagedKV(100), runner=Watched(monday.output_lens))
engine.run(monday.requests_for_engine())
rows = [(n, *books[n - 1]) for n in (1, 6, 7, 13, 20, 21, 31)]
print(text_table(("step", "its own count", "really in the batch"), rows))
assert books[5] == (4, 4)
assert books[6] == (4, 3)

# %% [markdown]
# In step 7 the count says four and the batch holds three. P2 and P3 ended in the *same* step: two
# slots came free, the count went down by one. That slot never comes back. In step 20 three end at
# once, and two more are lost.
#
# **Mend it** below. Run the cell until both lines have their ✓. Does your first idea pass the second
# test, too? There, a user closes the browser in the middle of an answer. (`Mended` inherits `schedule` from
# `Leaky`. You may give it one of its own.)


# %%
class Mended(Leaky):
    def update_from_output(self, plan, result):
        finished = Scheduler.update_from_output(self, plan, result)
        if finished:
            self.taken -= 1  # ← the fault
        return finished


def try_out(cls):
    wanted, steps = (simulate(c(max_running=4), monday).num_steps for c in (Mine, cls))
    server = cls(max_running=4)
    engine = Engine(scheduler=server, kv=PagedKV(100), runner=SimulatedRunner(monday.output_lens))
    for request in monday.requests_for_engine():
        engine.add_request(request)
    engine.step()
    engine.abort("P1")  # the user is gone
    free = server.max_running - getattr(server, "taken", len(server.running))
    print("✓" if steps == wanted else "✗", f"steps for Monday: {steps} (wanted: {wanted})")
    print("✓" if free == 1 else "✗", f"free slots it sees after an abort: {free} (wanted: 1)")


try_out(Mended)

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# `self.taken -= len(finished)` passes the first test and fails the second: an aborted request does
# not come through here. You could patch `abort()` too, and the next way out after that. The lasting
# repair is to keep **one book**: ask `len(self.running)`, and delete the counter. A number that can be
# computed from the truth should not be kept beside it.
#
# </details>
#
# The scheduler from before has only one book:

# %%
try_out(Mine)
mended = simulate(Mine(max_running=4), monday)
assert (broken.num_steps, mended.num_steps) == (80, 34)
timeline(mended, title=f"One book: {mended.num_steps} steps instead of {broken.num_steps}")

# %% [markdown]
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | process | request |
# | ready queue | `waiting` |
# | processor cores | slots of the batch |
# | time slice | one step of the model |
# | process exits, the next is dispatched | a request ends, the next is admitted |
# | batch monitor of the 1950s: next job when this one ends | static batching |
# | time sharing | **continuous batching** |
# | leaked process-table entry | Monday's lost slots |
#
# The difference: a core runs one process at a time, while here *all* slots run in every slice, and
# an empty one costs almost as much as a full one. An idle core saves power. An idle slot saves
# nothing.

# %% [markdown]
# **Or at a noodle bar.** Four stools, one big pot. Bringing the pot to the boil takes the same gas
# for one bowl as for four.
#
# Last week's rule was *a table eats together*, and three people watched the empty stools through the window
# until the man with the twelve courses was done.
#
# The new rule: whenever a stool is free, whoever is next sits down. As long as there is a line at the door,
# every boil feeds four.

# %% [markdown]
# ## When it does *not* win
#
# "Continuous batching always raises throughput" is the most common wrong sentence about it. Decide
# first:

# %%
quiz("04.no-gain")


# %%
def requests(lengths, gap=0.0):
    """One request per length, ``gap`` seconds apart."""
    parts = (
        WorkloadRequest(f"r{i}", arrival_time=i * gap, num_prompt_tokens=4, output_len=n)
        for i, n in enumerate(lengths)
    )
    return Workload("case", tuple(parts))


cases = {
    "16 × 40 tokens, together": requests([40] * 16),
    "8 × 10 and 8 × 200, together": requests([10, 200] * 8),
    "16 × 40 tokens, 0.1 s apart": requests([40] * 16, gap=0.1),
    "16 × 40 tokens, one at a time": requests([40] * 16, gap=1.0),
}
gains = {}
for name, case in cases.items():
    old, new = (simulate(cls(max_running=4), case).summary() for cls in (StaticScheduler, Mine))
    gains[name] = old["makespan_s"] / new["makespan_s"], old["e2e_ms"]["p95"] / new["e2e_ms"]["p95"]
rows = [(name, *(f"{gain:.2f} ×" for gain in pair)) for name, pair in gains.items()]
print(text_table(("static / continuous, H100 clock", "whole run", "slowest answers (p95)"), rows))
for name in ("16 × 40 tokens, together", "16 × 40 tokens, one at a time"):
    assert all(abs(gain - 1) < 0.005 for gain in gains[name])  # nothing gained, nothing lost

# %% [markdown]
# - **Equal lengths, arriving together:** no holes to fill, no gain.
# - **One user at a time:** a batch of one has no neighbours. Nothing to gain at any length.
# - **Everything else:** the more unequal the lengths and the arrivals, the more.
#
# And it has a price. A newcomer's prompt is read in one piece *inside everybody's step*. Here three
# people are reading along when somebody sends a 4,000-token document:

# %%
readers = [WorkloadRequest(k, num_prompt_tokens=50, output_len=200) for k in "ABC"]
document = WorkloadRequest("doc", arrival_time=0.5, num_prompt_tokens=4000, output_len=50)
crowd = Workload("document", (*readers, document))
for cls in (StaticScheduler, Mine):
    gaps = simulate(cls(max_running=4), crowd).summary()["itl_ms"]
    usual, longest = gaps["p50"], gaps["max"]
    wait = longest / usual
    print(f"{cls.__name__:16} usual gap {usual:.1f} ms, longest {longest:.1f} ms: {wait:.0f} ×")

# %% [markdown]
# Under the static rule nobody notices: the document waits outside. Under the continuous rule every
# stream freezes for the length of that prefill. Cutting the prompt into pieces mends it; that is
# **chunked prefill**, lesson 05.
#
# ## Recap

# %%
fewer, sooner = static.num_steps / continuous.num_steps, entry_steps(static)["E"] - enters["E"]
print(f"seven requests, four slots  : {fewer:.2f} × fewer steps; E starts {sooner} steps earlier")
print(f"24 speeches, heavy tail     : {gpu_gain:.2f} × the throughput (H100 clock)")
print(f"equal lengths, together     : {gains['16 × 40 tokens, together'][0]:.2f} ×, no gain")
print(f"one leaked count, Monday    : {broken.num_steps / mended.num_steps:.2f} × slower, silently")

# %% [markdown]
# **Say it in an interview:**
#
# > On a GPU a decode step costs nearly the same for one row as for many, so throughput is a matter of keeping
# > every slot busy. Static batching leaves slots empty until the longest answer ends. Continuous
# > batching schedules per *step* instead of per *batch*: whoever finishes leaves at once and the next
# > takes the slot, so the gain grows with how unequal the lengths and arrivals are, and is zero
# > when they are equal.
#
# The idea was published as *iteration-level scheduling*: Yu, Jeong, Kim, Kim, Chun,
# [Orca: A Distributed Serving System for Transformer-Based Generative Models](https://www.usenix.org/conference/osdi22/presentation/yu),
# OSDI 2022.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Set `max_running=8` for the seven requests. How many steps now, and why not fewer?
# 2. Let the *last* in the queue enter first (`self.waiting[-1]`). What gets worse: the
#    number of steps, somebody's waiting time, or both?
# 3. Find seven lengths with the same sum (253) for which static and continuous need equally many
#    steps.
#
# **Exercise:** `exercises/04_continuous_batching.ipynb`.
#
# **Next in the course:** lesson 05, chunked prefill. Fifty people read along when somebody sends
# a prompt of 50,000 tokens. What do they see in the next three seconds?
