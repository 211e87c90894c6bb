# %% [markdown]
# # 09 · Preemption
#
# A, B, C and D are reading their answers, and their KV cache fills the memory to the last block.
# Now E comes, and E is urgent.
#
# **The server can let E wait. Or it can take somebody's memory away in the middle of an answer.
# What does that somebody lose, and can the answer still come out right?**
#
# In this lesson you choose the victim, plug your choice into the engine, and compare two ways of
# bringing the victim back. At the end you find a bug that makes one user's answer depend on what
# another user wrote.
#
# *35–45 minutes. No GPU, no network. Run the cells one by one, in order.*

# %% [markdown]
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **preempt** | take a running request out of the batch and its KV out of memory; it goes on later |
# | **victim** | the request that is preempted |
# | **recompute** | forget the victim's KV; on its return, run prompt and answer so far once more |
# | **host** | the computer that the GPU sits in: its memory is larger, and far away |
# | **swap** | copy the victim's KV to the host's memory, and back on its return |
# | **thrash** | so many preemptions that the server mostly repeats work |
# | **watermark** | a share of memory that no *newcomer* may take, so that the running can grow |
#
# From before: a **block** is 16 token slots of KV (lesson 07), and **decode** adds one token per step.

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.tables import entry_steps, text_table
from toyserve.kv import PagedKV
from toyserve.policies import FCFS
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import timeline
from toyserve.workload import Workload, WorkloadRequest


def simulate(scheduler, workload, policy, num_blocks=16):
    """The engine on the clock of an H100 that runs Llama-3-8B; no model in it."""
    clock = VirtualClock()
    cost, kv = cost_model("h100", "llama-3-8b"), PagedKV(num_blocks)
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost, clock)
    engine = Engine(scheduler=scheduler, kv=kv, policy=policy, runner=runner, clock=clock)
    return engine.run(workload.requests_for_engine())


LENGTHS = {"A": 47, "B": 47, "C": 47, "D": 80}
four = [WorkloadRequest(k, num_prompt_tokens=17, output_len=n, priority=1)
        for k, n in LENGTHS.items()]  # fmt: skip
E = WorkloadRequest("E", arrival_time=0.22, num_prompt_tokens=49, output_len=8, priority=0)
scene = Workload("scene", (*four, E))
patient = simulate(ContinuousScheduler(8), scene, FCFS())
title = "First come, first served: E waits (grey) for somebody to end"
timeline(patient, by="request", title=title)

# %% [markdown]
# Each of the four has a prompt of 17 tokens. After 32 answer tokens each needs a fourth block,
# and 4 × 4 = 16 is all there is. E has a prompt of 49 tokens and needs four blocks as well.
#
# E comes after 0.22 seconds. `priority=0` is more urgent than `priority=1`, as with a process in Unix. First come, first
# served (FCFS) does not look at it.

# %%
waited = patient.requests["E"].token_times[0] - E.arrival_time
before = entry_steps(patient)["E"] - 1
free = min(step.num_free_blocks for step in patient.steps)
print(f"free blocks when it is fullest: {free} of 16")
print(
    f"E is let in at step {before + 1}, its first token comes {1e3 * waited:.0f} ms after it came"
)
assert (free, before) == (0, 47)

# %% [markdown]
# ## Predict first
#
# Instead, let E push somebody out. Say D. What D *has* is two different things:
#
# - its **tokens**: a list of numbers, a few hundred bytes, kept by the scheduler;
# - its **KV cache**: what the model computed from these tokens. On this model that is 128 KiB
#   *per token*, and it is what fills the memory.
#
# Only the second has to go. When D is paused, it has its 17 prompt tokens and 37 tokens of its
# answer. E runs for 8 steps, ends, and D comes back with **recompute**.

# %%
from toyserve.course.quiz import quiz

quiz("09.tokens-run-again")

# %%
quiz("09.steps-later")

# %% [markdown]
# ## Build it
#
# Three questions to a **policy** (lesson 10 is full of them) decide all of this:
#
# | method | question |
# |---|---|
# | `next(waiting, now)` | who is let in first? |
# | `displaces(candidate, victim, now)` | may `candidate` push out `victim`, who runs? |
# | `victim(running, now)` | of those who may be pushed out, who goes? |
#
# The first two are written. **Your turn: `victim`.** It gets a list in the order in which they were let
# in. Choose the *least urgent* (the highest `priority`); of several that are equally urgent, whoever
# was let in *last*: that one usually has the least to compute again.
#
# <details><summary>A hint</summary>
#
# `max(running, key=...)` with the priority as key gives the *first* of several that are equal.
# `reversed(running)` is the same list from the other end.
#
# </details>


# %%
class MyPolicy(FCFS):
    def next(self, waiting, now):
        return min(waiting, key=lambda r: r.priority)  # the first of those that are most urgent

    def displaces(self, candidate, victim, now):
        return candidate.priority < victim.priority

    def victim(self, running, now):
        # ↓ yours: least urgent; of equals, let in last
        return running[0]
        # ↑


# %%
mixed = Workload("mixed", tuple(  # as before, but B and C are the least urgent, and D comes last
    WorkloadRequest(r.request_id, 0.01 if r.request_id == "D" else r.arrival_time,
                    r.num_prompt_tokens, r.output_len,
                    priority={"B": 2, "C": 2}.get(r.request_id, r.priority))
    for r in scene.requests
))  # fmt: skip


def first_victim(policy, workload):
    """Who is paused first, or what went wrong."""
    try:
        run = simulate(ContinuousScheduler(8), workload, policy)
    except Exception as error:  # whatever a class in progress does
        return f"an error, {error!r}"
    return next((name for step in run.steps for name in step.preempted), "nobody")


chosen = [first_victim(MyPolicy(), w) for w in (scene, mixed)]
solved = chosen == ["D", "C"]
for got, wanted, who in zip(chosen, "DC", ("all of class 1", "B and C of class 2"), strict=True):
    print("✓" if got == wanted else "✗", f"{who}: your victim is {got} (wanted: {wanted})")

# %% [markdown]
# Here is one way, folded away. **Click the three dots to open it.** Should yours not work yet, the
# lesson goes on with this one; if it works, with yours.


# %% jupyter={"source_hidden": true}
class Urgent(MyPolicy):
    def victim(self, running, now):
        return max(reversed(running), key=lambda r: r.priority)


Mine = MyPolicy if solved else Urgent

# %% [markdown]
# ## See it
#
# First the picture, then, from `why`, what the scheduler thought in that step.

# %%
paused = simulate(ContinuousScheduler(8), scene, Mine())
out = next(step.index + 1 for step in paused.steps if step.preempted)
back = next(step.index + 1 for step in paused.steps if "D" in step.admitted and step.index)
timeline(paused, by="request", title=f"D gives way in step {out} and is back in step {back}")

# %%
from toyserve.viz import why

ran_again = paused.steps[back - 1].num_scheduled_tokens["D"]
sooner = waited / (paused.requests["E"].token_times[0] - E.arrival_time)
later = (paused.num_steps - patient.num_steps, back - out)
print(f"D is out of the batch for {back - out} steps; on its return {ran_again} tokens are run")
print(f"E has its first token {sooner:.1f} × sooner")
assert (out, back, ran_again) == (38, 46, 54)
why(paused, out)

# %% [markdown]
# The step that brings D back runs all 54 tokens that D has, and like any prefill it yields a token
# at its end: D's next one. So D loses the 8 steps of E and not one more.
#
# And the memory? Physical blocks, one step before the pause and in the step of the pause. The
# blocks that were D's are E's now: remember that for later.

# %%
from toyserve.viz import block_map
from toyserve.viz.style import THEMES, new_axes

axes = new_axes((10, 4.6), THEMES["light"], 2)
for ax, number in zip(axes, (out - 1, out), strict=True):
    what = (
        "all 16 blocks are taken, four by each" if number < out else "D's four blocks are E's now"
    )
    block_map(paused, number, ax=ax, title=f"Step {number}: {what}")
axes[0].figure

# %% [markdown]
# Play it yourself: press ▶, or click on step 38 and go on with the arrow keys.

# %%
from toyserve.viz import explore

explore(paused, by="request", step=out)

# %% [markdown]
# ## The library's version, and what changed
#
# First your class beside the engine's `Priority`. That one lets even the less urgent grow old and
# respectable, which is a subject of lesson 10. Then the move itself, which the scheduler makes for you.

# %%
from toyserve.course.show import show_diff, show_source
from toyserve.policies import Priority
from toyserve.schedulers import Scheduler

show_source(Mine, Priority)

# %%
show_source(Scheduler.preempt)

# %% [markdown]
# Look for what is *not* there: nothing touches `token_ids`, `token_times` or the arrival time.
# `num_computed_tokens = 0` says it all: the tokens exist, none of them is computed. On its return
# D is a request with a prompt of 54 tokens, and no other code needs to know.
#
# From a policy that never pushes anybody out to one that does:

# %%
show_diff(FCFS, Priority)

# %% [markdown]
# ## Why let in so many that it can come to this?
#
# A careful server would admit a request only if its *whole* answer fits, so it would never have to
# pause anybody for memory. But nobody knows how long an answer will be. All it can go by is the
# limit that the user declared, `max_tokens`. The difference is one argument, `whole_answer`:


# %%
from toyserve.schedulers import SchedulerOutput


class Careful(ContinuousScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and not plan.preempted:
            if not self.free_slot(plan):
                break
            if not self.admit(plan, self.next_waiting(), whole_answer=True):
                break
        return plan


show_diff(Careful.schedule, ContinuousScheduler.schedule)

# %% [markdown]
# A crowd for it: 120 users, 25 a second, a pool of 600 blocks. Everybody declares up to 1,024 tokens;
# most need far fewer.

# %%
from toyserve.workload import Lengths, poisson

lengths = Lengths(100, 400, output_min=32, output_max=1024, output_median=160)
crowd = poisson(120, rate=25, seed=9, lengths=lengths)
needed = sum(r.num_prompt_tokens + r.output_len - 1 for r in crowd.requests)
print(crowd.describe())


def count(run):
    """Requests per step, preemptions, share of tokens run again, tokens/s, longest gap in s."""
    per_step = sum(len(step.num_scheduled_tokens) for step in run.steps) / run.num_steps
    total = sum(sum(step.num_scheduled_tokens.values()) for step in run.steps)
    s = run.summary()
    gap = s["itl_ms"]["max"] / 1e3
    return per_step, s["num_preemptions"], total / needed - 1, s["output_tokens_per_s"], gap


HEADER = ("", "in a step", "pauses", "run again", "tokens/s", "longest gap")
FORMATS = ("{:.1f}", "{}", "{:.1%}", "{:.0f}", "{:.2f} s")


def row(name, run):
    return (name, *(form.format(x) for form, x in zip(FORMATS, count(run), strict=True)))


careful = simulate(Careful(64), crowd, FCFS(), 600)
bold = simulate(ContinuousScheduler(64), crowd, FCFS(), 600)
print(text_table(HEADER, [row("careful", careful), row("bold", bold)]))
gain = count(bold)[3] / count(careful)[3]
assert count(careful)[1] == 0 < count(bold)[1]
assert gain > 1.3

# %% [markdown]
# (*Pauses* are preemptions; *run again*: tokens computed twice, as a share of those that had to be computed.)
#
# The careful server never pauses anybody, and keeps memory empty for answers that are never
# written. The bold one lets in whoever fits *now* and, when it has promised too much, takes something back. It
# repeats work for that, some stream stands still for a second, and it serves twice as much all the same. **Preemption is what makes it safe to be
# bold.** Airlines call it overbooking.

# %% [markdown]
# ## On a real model
#
# "Preempted" sounds as if the answer were lost, or at least damaged. Ask the real GPT-2. Same scene, same
# steps; the pool is its real KV cache, and each step lasts as long as on the H100 above, so that E comes at the same
# moment. (The next two cells only prepare that.)

# %%
import torch

from toyserve import LLM, SamplingParams

if not torch.cuda.is_available():
    torch.set_num_threads(1)
SAID = {
    "A": "ROMEO:\nBut soft! what light through yonder window breaks?",
    "B": "HAMLET:\nTo be, or not to be: that is the question:",
    "C": "JAQUES:\nAll the world's a stage, and all the men and women",
    "D": "PORTIA:\nThe quality of mercy is not strain'd, it droppeth",
}
NEWS = (
    "MESSENGER:\nMy lord, the enemy is at the gates; the walls are down, the captains fled, and "
    "all the city burns. The people cry for you in every street, and none will stand."
)

# %%
style = SamplingParams(temperature=0.8, seed=4)


def serve(scheduler, news=NEWS, num_blocks=16):
    """The scene on the real model: its outputs by name, and the recording."""
    llm = LLM("toy", scheduler=scheduler, policy=Mine(), num_blocks=num_blocks,
              clock="h100", clock_model="llama-3-8b", dtype="float32")  # fmt: skip
    encode = llm.tokenizer.encode
    requests = tuple(
        WorkloadRequest(r.request_id, r.arrival_time, output_len=r.output_len, priority=r.priority,
                        prompt=tuple(encode(SAID.get(r.request_id, news))[: r.num_prompt_tokens]))
        for r in scene.requests
    )  # fmt: skip
    answers = llm.replay(Workload("scene", requests), style)
    return {out.request_id: out for out in answers}, llm


# %% tags=["real-model"]
undisturbed, _ = serve(ContinuousScheduler(8), num_blocks=100)  # room for all: nobody is paused
recomputed, llm = serve(ContinuousScheduler(8))
swapped, llm_swap = serve(ContinuousScheduler(8, preemption="swap", num_host_blocks=16))
GPU = llm.device.type == "cuda"  # may round differently in another batch
print(f"pauses of D: {undisturbed['D'].metrics.num_preemptions} in a large pool, "
      f"{recomputed['D'].metrics.num_preemptions} and {swapped['D'].metrics.num_preemptions} in 16 "
      "blocks")  # fmt: skip
equal = {}
for name, answers in (("recompute", recomputed), ("swap", swapped)):
    equal[name] = [answers[k].token_ids == undisturbed[k].token_ids for k in "ABCDE"]
    print(f"{name:9}: {sum(equal[name])} of 5 answers equal the undisturbed ones, token by token")
assert all(map(all, equal.values())) or GPU
before_and_after = zip(undisturbed["D"].token_ids, recomputed["D"].token_ids, strict=True)
lost = sum(a != b for a, b in before_and_after)
seen = recomputed["D"].token_ids[: out - 1]  # what D had read when it was paused
rest = recomputed["D"].token_ids[out - 1 :]
decode = llm.tokenizer.decode
print(f"\nD: {recomputed['D'].prompt}{decode(seen)} ‖ {decode(rest)}")

# %% [markdown]
# At `‖` D was paused, its memory went to E, and E's words were written where D's had been. Then D goes
# on in the middle of the sentence, and the rest equals the undisturbed answer, token by token.
#
# **Misconception: "preempted means the tokens are lost."** What came out stays out; the user has read it
# already. What was thrown away is work: the KV of these tokens. The user sees one long gap and
# nothing else. The tables of both ways, side by side:

# %%
from toyserve.metrics import itl

fast = {"recompute": paused}
keep = ContinuousScheduler(8, preemption="swap", num_host_blocks=16)
fast["swap"] = simulate(keep, scene, Mine())
rows = []
for name, run in fast.items():
    leave, again = run.steps[out - 1], run.steps[back - 1]
    gap = max(itl(run.requests["D"]))  # of all gaps between two of D's tokens
    moved = len(leave.swapped_out.get("D", ())), len(again.swapped_in.get("D", ()))
    rows.append((name, again.num_scheduled_tokens["D"], moved[0], moved[1], f"{1e3 * gap:.1f} ms"))
print(text_table(("D's return", "tokens run", "blocks out", "blocks in", "longest gap"), rows))
title = "With swap D comes back as it left: no prompt to read (no orange) on its return"
timeline(fast["swap"], by="request", title=title)

# %% [markdown]
# The same schedule, to the step. Recompute runs 54 tokens on D's return; swap copies four blocks out
# and four back, and runs one token, as if nothing had happened. Either way D was active all the time, and for eight
# steps got nothing from the GPU: what a user feels and how fast a step is are two things.
#
# On the real model these are real blocks of real KV, on their way to the host and back:

# %%
real = llm_swap.recording
assert real.steps[out - 1].swapped_out["D"] == fast["swap"].steps[out - 1].swapped_out["D"]
config = llm_swap.config
per_token = 2 * config.n_layer * config.n_head * config.head_dim * 4  # K and V, fp32
num_moved = len(real.steps[out - 1].swapped_out["D"])
print(f"{num_moved} blocks of {16 * per_token / 1024:.0f} KiB went to the host and came back")
print(f"per token: {per_token / 1024:.0f} KiB here, {131072 / 1024:.0f} KiB for Llama-3-8B")

# %% [markdown]
# ## Recompute or swap?
#
# Which one costs less depends on how long the victim's context is. First do the swap by hand:
# 2,048 tokens, 131,072 bytes each, out and back, over a bus (PCIe) that really moves 51.2 GB in a second.

# %%
quiz("09.swap-time")

# %% [markdown]
# Recompute has a discount: the victim does not come back alone. The step reads all
# weights anyway, for those who decode. So count what D's tokens cost *extra* in a step that
# already has eight decodes in it.


# %%
cost = cost_model("h100", "llama-3-8b")
others = [(500, 1)] * 8  # (tokens behind, tokens run): eight decode, 500 behind each


def recompute_time(n, cost=cost):
    """Extra seconds to run n tokens again, beside eight decodes, instead of one."""
    return cost.time_of_rows([*others, (0, n)]) - cost.time_of_rows([*others, (n, 1)])


def swap_time(n, cost=cost):
    return 2 * cost.swap_time(n * cost.model.kv_bytes_per_token)


rows = []
for n in (64, 128, 256, 512, 1024, 2048, 4096):
    a, b = 1e3 * abs(recompute_time(n)), 1e3 * swap_time(n)
    rows.append((n, f"{a:.2f}", f"{b:.2f}", "recompute" if a < b else "swap"))
print(text_table(("tokens of context", "recompute, ms", "swap, ms", "cheaper"), rows))
crossover = next(n for n in range(16, 4096) if recompute_time(n) > swap_time(n))
print(f"they cross at {crossover} tokens")
assert 200 < crossover < 400
assert f"{1e3 * swap_time(2048):.1f}" == "10.5"

# %%
look = THEMES["light"]
(ax,) = new_axes((8, 3.6), look)
sizes = list(range(16, 2049, 16))
ax.plot(sizes, [1e3 * recompute_time(n) for n in sizes], color=look.series[0], label="recompute")
for share, line in ((1, "-"), (0.25, "--")):
    label = f"swap, bus at {share:.0%} of its usual rate"
    times = [1e3 * swap_time(n) / share for n in sizes]
    ax.plot(sizes, times, line, color=look.series[1], label=label)
ax.axvline(crossover, color=look.ink, linestyle=":", linewidth=1)
ax.annotate(f" {crossover} tokens", (crossover, 40), color=look.ink)
ax.set(xlabel="tokens of context", ylabel="ms on an H100", xlim=(0, 2048), ylim=(0, 50))
ax.set_title("Short contexts: recompute. Long ones: swap, if the bus is quick", loc="left")
ax.legend(frameon=False)
ax.figure

# %% [markdown]
# - **Short contexts cost nothing to recompute.** The step waits for the weights anyway (lesson 02); the extra
#   arithmetic hides behind that, up to some hundred tokens.
# - **Then recompute grows with the arithmetic**, and swap with the bytes.
# - **The bus is the doubtful part.** KV lies in small blocks, and many small copies never reach its full rate. The
#   authors of vLLM measured that with small blocks swap lost to recompute, and today's vLLM recomputes by
#   default. The dashed line is such a bus.
#
# Other machines, other crossings:

# %%
rows = []
for gpu in ("l4", "a100", "h100", "h200"):
    there = cost_model(gpu, "llama-3-8b")
    n = next(n for n in range(16, 4096) if recompute_time(n, there) > swap_time(n, there))
    rows.append((gpu, n, f"{recompute_time(2048, there) / swap_time(2048, there):.1f} ×"))
print(text_table(("Llama-3-8B on", "they cross at", "recompute / swap at 2,048"), rows))

# %% [markdown]
# And on this machine, with the real model: the time of D's return step with each method.
# These numbers depend on the machine; what you see was measured where the lesson was written.


# %% tags=["wall-clock"]
from toyserve.request import Request


def return_time(num_tokens, **how):
    """Seconds of the steps in which D leaves and comes back, the better of two tries."""
    best = float("inf")
    for _ in range(2):
        server = LLM("toy", scheduler=ContinuousScheduler(1, **how), policy=Mine(), num_blocks=80)
        ids = [i % 500 for i in range(num_tokens)]
        long = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        server.engine.add_request(Request("D", ids, long, priority=1))
        server.engine.step()
        server.engine.step()
        short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        server.engine.add_request(Request("E", ids[:4], short, priority=0))
        steps = server.engine.run().steps
        moves = [s for s in steps if s.preempted or ("D" in s.admitted and s.index)]
        best = min(best, sum(s.end_time - s.start_time for s in moves))
    return best


here = {}
for n in (64, 256, 900):
    swap = return_time(n, preemption="swap", num_host_blocks=80)
    here[n] = 1e3 * return_time(n), 1e3 * swap
rows = [(n, f"{a:.1f}", f"{b:.1f}", f"{a / b:.1f} ×") for n, (a, b) in here.items()]
print(text_table(("tokens of context", "recompute, ms", "swap, ms", "ratio"), rows))

# %% [markdown]
# On the CPU where this was measured there is no crossing: swap wins at every length. There, "device" and "host" are
# the same memory, so swapping is a mere copy, and no arithmetic hides behind the reading of weights, because it is
# the arithmetic that everybody waits for. The GPU's two reasons are both absent.
#
# ## Who should be the victim?
#
# Without urgency there are many rules. The crowd from above, nobody urgent, memory short all the
# time:

# %%
RULES = {
    "let in last": lambda running: running[-1],
    "let in first": lambda running: running[0],
    "shortest": lambda running: min(running, key=lambda r: r.num_tokens),
    "longest": lambda running: max(running, key=lambda r: r.num_tokens),
}


class Rule(FCFS):
    def __init__(self, name):
        self.name = name

    def victim(self, running, now):
        return RULES[self.name](running)


by_rule = {n: simulate(ContinuousScheduler(64), crowd, Rule(n), 600) for n in RULES}
rows = []
for name, run in by_rule.items():
    unlucky = max(r.num_preemptions for r in run.requests.values())
    rows.append((*row(name, run), unlucky))
print(text_table((*HEADER, "most often paused"), rows))
again = {name: count(run)[2] for name, run in by_rule.items()}
assert again["longest"] > again["let in last"] > again["shortest"]
assert rows[2][-1] > rows[0][-1]

# %% [markdown]
# - **Let in last** costs little: it has the least behind it. And it is safe: the oldest is never paused, so
#   somebody always gets done, and then the next. It is what most servers do.
# - **Longest** frees most at once and throws most work away.
# - **Shortest** repeats least, but the same few are hit again and again: look at the last column.
#
# A rule must also *end*: if A may push out B and B may push out A, they can do so for ever.
#
# ## Thrash, and the watermark
#
# Each newcomer takes the last free block, and one step later somebody has to go. The watermark keeps a
# share of the pool from newcomers. How much is right? A sweep:

# %%
marks = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5]
sweep = {m: simulate(ContinuousScheduler(64, watermark=m), crowd, FCFS(), 600) for m in marks}
print(text_table(HEADER, [row(f"watermark {m:.0%}", run) for m, run in sweep.items()]))

# %%
axes = new_axes((8, 5.2), look, 2)
for ax, column, color in ((axes[0], 2, 1), (axes[1], 3, 0)):
    scale = 100 if column == 2 else 1
    values = [scale * count(run)[column] for run in sweep.values()]
    ax.plot([100 * m for m in marks], values, "o-", color=look.series[color])
    ax.set_ylim(0, 1.1 * max(values))
axes[0].set_ylabel("tokens run again, %")
axes[0].set_title("Too little: work is repeated", loc="left", fontsize=11)
axes[1].set(xlabel="watermark, % of the pool", ylabel="answer tokens / s")
axes[1].set_title("Too much: memory stands empty", loc="left", fontsize=11)
figures = {m: count(run) for m, run in sweep.items()}
assert figures[0.05][1] < figures[0][1] / 3  # preemptions
assert figures[0.05][3] > 0.98 * figures[0][3]  # throughput
assert figures[0.2][1] == 0 and 0.85 < figures[0.2][3] / figures[0][3] < 0.95
assert figures[0.5][3] < 0.75 * figures[0][3]
axes[0].figure

# %% [markdown]
# A few per cent remove most of the pauses and cost no throughput. A fifth of the pool removes the last few and
# costs a tenth of it; half of the pool gains nothing more and costs a third. Thrash hurts less in *tokens per second* than one would think, because a
# GPU that waits for weights has arithmetic to spare. It hurts in the **longest gap**: some user's stream
# stood still for so long.
#
# ## Break it
#
# A colleague reads the table above and has an idea. "54 tokens again, and 37 of them are
# D's own answer. But these tokens *exist*! I'll read only the prompt again and go on from
# there."


# %%
class Thrifty(ContinuousScheduler):
    def admit(self, plan, request, num_tokens=None):
        if request is not None and request.num_preemptions:
            num_tokens = request.num_prompt_tokens  # read the prompt again …
        return super().admit(plan, request, num_tokens)

    def update_from_output(self, plan, result):
        finished = super().update_from_output(plan, result)
        for request in plan.admitted:
            if request.num_preemptions:  # … the answer is there already
                request.num_computed_tokens = request.num_tokens - 1
        return finished


# %% tags=["real-model"]
broken, llm_broken = serve(Thrifty(8))
print(f"D: {broken['D'].prompt}{decode(seen)} ‖ {decode(broken['D'].token_ids[out - 1 :])}")
print(f"\nright:  ‖ {decode(rest)}")
same = [k for k in "ABCDE" if broken[k].token_ids == undisturbed[k].token_ids]
print(f"\nequal to the undisturbed answers: {', '.join(same)}")
assert "D" not in same
assert set("ABCE") <= set(same) or GPU

# %% [markdown]
# No error, no warning, and almost good English. Only the comparison shows it. And now the worst
# of it. Let E say something else, and look at **D**:

# %% tags=["real-model"]
LOVE = (
    "VIOLA:\nMake me a willow cabin at your gate, and call upon my soul within the house; write "
    "loyal cantons of contemned love and sing them loud even in the dead of night; O, you should"
)
other, _ = serve(Thrifty(8), LOVE)
print(f"E brings news : ‖ {decode(broken['D'].token_ids[out - 1 :])}")
print(f"\nE is in love  : ‖ {decode(other['D'].token_ids[out - 1 :])}")
right, _ = serve(ContinuousScheduler(8), LOVE)
assert other["D"].token_ids != broken["D"].token_ids
assert right["D"].token_ids == recomputed["D"].token_ids or GPU

# %% [markdown]
# D's answer changes with what a *stranger* wrote. Here are the books. For each step of D: how
# many tokens it ran, how many positions have been written since it last got its blocks, and how many
# its attention reads.


# %%
def books(run, name, steps):
    """(step, tokens run, positions written since it got its blocks, positions read)."""
    rows, written, record = [], 0, run.requests[name]
    for step in run.steps:
        if name in step.preempted:
            written = 0
        num_run = step.num_scheduled_tokens.get(name, 0)
        written += num_run
        answered = sum(time <= step.start_time for time in record.token_times)  # tokens it has
        sampled = any(step.start_time < time <= step.end_time for time in record.token_times)
        reads = record.num_prompt_tokens + answered if sampled else written  # all of them
        if step.index + 1 in steps:
            rows.append((step.index + 1, num_run, written, reads))
    return rows


print(text_table(("step", "D runs", "written", "read"), books(llm_broken.recording, "D", [37, 46])))

# %%
quiz("09.holes")

# %%
table = books(llm_broken.recording, "D", [37, 46, 47, 48])
print(text_table(("step", "D runs", "written", "read"), table))
holes = table[2][3] - table[2][2]
print(f"\nin step 47 D reads {holes} positions that nobody has written for it")
assert holes == 36

# %% [markdown]
# In step 46 the colleague's D reads its prompt, and then the counter jumps over the 36 positions of its answer. The
# *tokens* exist. Their *KV* does not: the blocks hold what E left there. (Look at the block maps
# again: they are the very same blocks.) So D pays attention to E's words.
#
# **Mend it.** Run the cell until both lines have their ✓.


# %% tags=["real-model"]
class Mended(ContinuousScheduler):
    def admit(self, plan, request, num_tokens=None):
        if request is not None and request.num_preemptions:
            num_tokens = request.num_prompt_tokens
        return super().admit(plan, request, num_tokens)

    def update_from_output(self, plan, result):
        finished = super().update_from_output(plan, result)
        for request in plan.admitted:
            if request.num_preemptions:
                request.num_computed_tokens = request.num_tokens - 1
        return finished


def try_out(cls):
    (news, llm), (love, _) = serve(cls(8)), serve(cls(8), LOVE)
    own = news["D"].token_ids == love["D"].token_ids
    *_, (_, _, written, read) = books(llm.recording, "D", [47])
    print("✓" if own else "✗", "D's answer does not depend on what E wrote")
    print("✓" if read == written else "✗", f"step 47 reads {read} positions, {written} are written")


try_out(Mended)

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# Delete both methods. The engine's own rule is right: everything that a request has is one
# sequence, and after a pause none of it is computed. Wherever code says "prompt" on the way back in, it should
# say "all tokens so far". (And why 55 positions, not 54? The right way yields a token in step 46 already.)
#
# Real engines have had this fault in many forms: a resumed request treated as done after its prompt length,
# outputs appended twice, the position off by one. The invariant that finds all of them: **when a step
# reads a position, somebody has written it for this request.**
#
# </details>

# %% tags=["real-model"]
try_out(ContinuousScheduler)

# %% [markdown]
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | preempting a process | preempting a request |
# | registers and program counter, saved | tokens and counters, kept |
# | pages swapped to disk | KV blocks swapped to the host |
# | a page that can be read again from its file: dropped | KV that can be computed again: recompute |
# | page replacement: which page goes? | which victim goes? |
# | thrashing: more paging than computing | pauses that only repeat work |
# | low-memory watermark | watermark |
# | a page not wiped before another process gets it | D reads E's words |
#
# One difference: an operating system can evict *single* pages. A request needs its whole KV in every
# step, so it goes as a whole or not at all.

# %% [markdown]
# **At the noodle bar.** All the table space is covered with bowls when an ambulance driver runs in,
# ten minutes to eat. The host takes the man in the corner by the arm: his bowl has to go.
#
# *Swap:* the bowl goes into the fridge and comes back as it was; two trips to the cellar.
# *Recompute:* the bowl is poured away, but the waiter's pad still says what was in it, and it
# is cooked anew, beside the others, on a flame that burns anyway.
#
# *The colleague:* brings him the pad's first line and a half-eaten bowl that stood on his place. It's
# the driver's.
#
# *Watermark:* keep one table free, or each new guest costs somebody his bowl.
#
# ## Recap

# %%
pauses = [figures[m][1] for m in (0, 0.05)]
print(
    f"an urgent request              : first token {sooner:.1f} × sooner; D {back - out} steps later"
)
print(f"tokens of D that the pause lost: {lost} of {LENGTHS['D']}")
print(f"bold against careful           : {gain:.2f} × the throughput")
print(f"recompute and swap cross at    : {crossover} tokens (H100, Llama-3-8B)")
print(
    f"watermark 5 % against 0        : {pauses[0] / pauses[1]:.1f} × fewer pauses, same throughput"
)
print(f"reading only the prompt again  : {holes} positions of somebody else's KV")

# %% [markdown]
# **Say it in an interview:**
#
# > Preemption lets a server admit on what requests need now, not on what they might need,
# > because it can take it back. A paused request keeps its tokens and loses its KV; that is
# > either recomputed in one prefill over prompt and answer so far, or swapped to the host. Recompute is
# > free for short contexts, as a decode step has arithmetic to spare; swap wins for long ones
# > on a quick bus. The youngest goes first, and a small watermark keeps newcomers from causing
# > thrash.
#
# Sources: Kwon et al., [Efficient Memory Management for Large Language Model Serving with
# PagedAttention](https://arxiv.org/abs/2309.06180), SOSP 2023, sections 4.5 and 7.3. Denning, *Thrashing:
# its causes and prevention*, AFIPS 1968.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Let E have 17 prompt tokens instead of 49. Who is paused now, and does `Thrifty` still give the
#    wrong text? (Which of D's blocks does E write?)
# 2. Give the swap only `num_host_blocks=3`. What happens to D?
# 3. `max_running=8` is never reached in the scene. Set it to 4 with 100 blocks: is D still paused?
#
# **Exercise:** `exercises/09_preemption.ipynb`. **Next in the course:** `10_fairness`: everybody is
# equally urgent, and still somebody waits for ever.
