# %% [markdown]
# # 03 · Static batching
#
# Lesson 02 found that a step costs a GPU nearly the same for one request as for many. So take four
# requests and run them together. A wants 100 tokens, B 10, C 60, D 8.
#
# **Four times as fast? How much of the batch does work that anybody wants?**
#
# In this lesson you build the batch everybody builds first, watch it fill with holes, pay for its padding, ask how
# long it should wait for company, and hear a model mutter "murder!" because somebody forgot two lines.
#
# *40 minutes. No GPU, no network. Run the cells one by one, in order.*

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import StepShape, cost_model
from toyserve.course.tables import step_table, text_table
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import SequentialScheduler, StaticScheduler
from toyserve.viz import timeline
from toyserve.viz.style import THEMES, new_axes
from toyserve.workload import Workload, WorkloadRequest

ANSWERS = {"A": 100, "B": 10, "C": 60, "D": 8}  # tokens


def simulate(scheduler, workload, gpu="h100", model="llama-3-8b"):
    """The engine with no model in it: a step lasts as long as a cost model says it would."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(gpu, model), clock)
    engine = Engine(scheduler=scheduler, kv=PagedKV(4000), runner=runner, clock=clock)
    return engine.run(workload.requests_for_engine())


parts = (WorkloadRequest(name, num_prompt_tokens=4, output_len=n) for name, n in ANSWERS.items())
four = Workload("four", tuple(parts))
alone = simulate(SequentialScheduler(), four)
timeline(
    alone, title=f"One at a time: {alone.num_steps} steps, each reads all the weights for one row"
)

# %% [markdown]
# This is lesson 01's server: one slot, one request, 178 steps. Each step fetches the model's weights (15 GB,
# lesson 02) for a single token.
#
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **batch** | the requests that one step computes together |
# | **row**, **slot** | one request's place in the batch |
# | **static batch** | starts together, ends together; nobody enters in between |
# | **padding** | places computed for nobody, so that the batch stays a rectangle |
# | **mask** | which tokens a token may look at |
# | **position** | a token's number in its own text: 0, 1, 2, … |
#
# Why a rectangle? Most tensor code wants one: rows of equal length, and the same number of rows from
# the first step to the last.

# %% [markdown]
# ## Predict first
#
# All four start in step 1, each with a prompt of four tokens. Every step gives everybody one token. The
# batch is over when *all* have finished; who has finished earlier stays as an empty row.

# %%
from toyserve.course.quiz import quiz

quiz("03.steps")

# %%
quiz("03.wasted")

# %% [markdown]
# ## Build it
#
# A scheduler writes `schedule()`: it returns a plan, before each step.
#
# | move | what it does |
# |---|---|
# | `self.admit(plan, self.next_waiting())` | let the first in the queue in, and plan its prompt |
# | `self.run(plan, request, 1)` | plan one more token of a running request |
# | `plan.num_padded_tokens[request] = n` | compute `n` positions in its row for nobody |
# | `request in self.running` | has it not finished yet? |
#
# The base class keeps `self.batch`, the rows of the batch: whoever is admitted joins it, and it is emptied
# when all have finished. `self.waiting` is the queue, `self.max_running` the number of rows.

# %% [markdown]
# **Your turn.** The class below makes batches of one. Change it: an empty batch is filled *up to*
# `max_running`; a batch under way gives one token to each row that runs, and one padded token to each row
# that has finished.
#
# <details><summary>A hint</summary>
#
# The `if` becomes a `while` with a second condition: fewer than `max_running` rows are taken. In the
# `else`, ask for each row whether its request is in `self.running`.
#
# </details>

# %%
from toyserve.schedulers import SchedulerOutput


class MyBatch(StaticScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        if not self.batch:
            # ↓ a new batch, of one
            if self.waiting:
                self.admit(plan, self.next_waiting())
            # ↑
        else:
            # ↓ the batch goes on
            for request in self.batch:
                self.run(plan, request, 1)
            # ↑
        return plan


# %%
def padded(run):
    """How many positions each step computed for nobody."""
    return [sum(step.num_padded_tokens.values()) for step in run.steps]


def try_out(cls):
    """None if all is well, else a sentence about the first thing that is wrong."""
    try:
        run = simulate(cls(max_running=4), four)
        in_pairs = simulate(cls(max_running=2), four).num_steps
    except Exception as error:  # the engine's own words, or Python's
        return f"{error}"
    if len(run.steps[0].admitted) != 4:
        return f"{len(run.steps[0].admitted)} of 4 start in the first step"
    if run.num_steps != 100:
        return f"the batch lasts {run.num_steps} steps (wanted: 100, as long as its longest)"
    if in_pairs != 100 + 60:
        return f"with two rows it takes {in_pairs} steps (wanted: 100 for A and B, 60 for C and D)"
    holes = padded(run)
    return None if sum(holes) == 222 else f"{sum(holes)} padded rows in all (wanted: 222)"


problem = try_out(MyBatch)
solved = problem is None
print(
    f"Not yet: {problem}." if problem else "✓ four start together, 100 steps, every hole is padded."
)

# %% [markdown]
# One way to write it, folded away. **Click the three dots to open it.** If yours isn't finished, the
# lesson goes on with this one; if it is, with yours.


# %% jupyter={"source_hidden": true}
class Batch(StaticScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        if not self.batch:
            while self.waiting and len(self.batch) < self.max_running:
                if not self.admit(plan, self.next_waiting()):
                    break
        else:
            for request in self.batch:
                if request in self.running:
                    self.run(plan, request, 1)
                else:
                    plan.num_padded_tokens[request] = 1
        return plan


Mine = MyBatch if solved else Batch
assert try_out(Batch) is None

# %% [markdown]
# ## See it

# %%
batch = simulate(Mine(max_running=4), four)
timeline(batch, title=f"A static batch: {batch.num_steps} steps; hatched is computed for nobody")

# %%
print(step_table(batch, [1, 2, 8, 9, 10, 11, 60, 61, 100]))

useful, places = sum(ANSWERS.values()), 4 * batch.num_steps
print(f"\n{useful} useful places of {places}: {1 - useful / places:.1%} wasted")
fewer = alone.num_steps / batch.num_steps
# makespan: seconds from the first arrival to the last token
faster = alone.summary()["makespan_s"] / batch.summary()["makespan_s"]
print(f"against one at a time: {fewer:.2f} × fewer steps, {faster:.2f} × as fast")
assert (batch.num_steps, useful) == (100, 178)
assert faster < 4  # four rows, but not four times as fast

# %% [markdown]
# D leaves a hole after step 8, B after 10, C after 60. From step 61 on, a machine for four serves
# one. The batch is as long as its **longest** row, and pays for all four rows to the end.
#
# Two lengths are enough for it. Beside a request for 800 tokens sits one for 30:

# %%
pair = simulate(Mine(max_running=2), Workload("pair", (
    WorkloadRequest("long", num_prompt_tokens=4, output_len=800),
    WorkloadRequest("short", num_prompt_tokens=4, output_len=30),
)))  # fmt: skip
hole = 1 - (800 + 30) / (2 * pair.num_steps)
print(f"{pair.num_steps} steps, {hole:.0%} wasted: the short row is empty for {800 - 30} steps")

# %% [markdown]
# ## The library's version, and what changed
#
# The engine's own fills a batch in a method of its own, `_fill_batch`, which does two things more: it may wait for a
# fuller batch (up to `deadline`), and it pads the *prompts* of a batch to one length. Both come below. It also claims
# memory for the longest possible answer (`whole_answer`), because nobody can be sent out of a static batch.

# %%
from toyserve.course.show import show_diff, show_source

show_source(Mine.schedule, StaticScheduler.schedule, StaticScheduler._fill_batch)

# %% [markdown]
# From one at a time to a batch, red goes, green comes:

# %%
show_diff(SequentialScheduler.schedule, Mine.schedule)

# %% [markdown]
# ## Padding a prompt
#
# Prompts differ in length too, and the first step computes them all. In a rectangle, each takes as much room as the
# longest. Seven questions of 20 tokens and one document of 2000:

# %%
prompts = [20] * 7 + [2000]
h100 = cost_model("h100", "llama-3-8b")


def reading_time(lengths):
    """Seconds of a step that reads prompts of these lengths."""
    return h100.time_of(StepShape.of_rows([(0, n) for n in lengths]))


rectangle = [max(prompts)] * len(prompts)
cases = {"as they are": prompts, "as a rectangle": rectangle}
rows = [(name, sum(c), f"{1e3 * reading_time(c):.0f} ms") for name, c in cases.items()]
print(text_table(("eight prompts", "positions", "time of the step"), rows))
prompt_price = reading_time(rectangle) / reading_time(prompts)
print(f"the padding makes reading {prompt_price:.1f} × as long")
assert prompt_price > 5

# %% [markdown]
# Reading prompts is bound by arithmetic, and padding is arithmetic like any other. And the holes later
# on, in the decode steps?

# %%
full_step, lonely_step = h100.decode_time(4, 50), h100.decode_time(1, 50)
row_price = full_step / lonely_step
print(f"a decode step with four rows takes {row_price:.3f} × the time of one with one row")
assert row_price < 1.02

# %% [markdown]
# Almost nothing: that step waits for the weights anyway. So there are two kinds of waste. **A padded prompt
# costs time. A padded decode row costs a chance**: somebody in the queue could have sat there for free. (That is
# lesson 04.)
#
# Bucketing, putting prompts of similar length into one batch, helps against the first kind. Against
# the second it doesn't: nobody knows how long an answer will be.

# %% [markdown]
# ## On a real model
#
# The same four lengths on the bundled GPT-2, one at a time and as a batch. First the text: must it
# change?

# %% tags=["real-model"]
import torch

from toyserve import LLM, SamplingParams

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a small model: one core is enough, and steadier to measure

PROMPTS = {
    "A": "JULIET:\n",
    "B": "ROMEO:\nWhat light",
    "C": "KING LEAR:\nBlow, winds, and crack your cheeks! rage! blow!\nYou cataracts and "
    "hurricanoes, spout\nTill you have drench'd our steeples, drown'd the cocks!\n",
    "D": "HAMLET:\nTo be, or not to be:",
}
plays = Workload("plays", tuple(
    WorkloadRequest(name, prompt=PROMPTS[name], output_len=n) for name, n in ANSWERS.items()
))  # fmt: skip
answers = []
for scheduler in (SequentialScheduler(), StaticScheduler(max_running=4)):
    llm = LLM("toy", scheduler=scheduler, dtype="float32")
    answers.append(llm.replay(plays))
    print(f"{type(scheduler).__name__}: {llm.recording.num_steps} steps")
equal = sum(a.token_ids == b.token_ids for a, b in zip(*answers, strict=True))
print(f"{equal} of 4 answers are equal, token by token. The two short ones:\n")
assert equal == 4 or llm.device.type == "cuda"  # a GPU may round differently in another batch
for out in answers[1]:
    if out.request_id in "BD":
        print(f"[{out.request_id}] {out.prompt}{out.text}\n")

# %% [markdown]
# A batch changes *when* a token is computed, never which one.
#
# ## Both clocks
#
# How much faster is the batch, here and on the modelled GPU? The steps are the same.

# %% tags=["wall-clock"]
took = []
for scheduler in (SequentialScheduler(), StaticScheduler(max_running=4)):
    server = LLM("toy", scheduler=scheduler)
    server.replay(plays)  # once to warm up, once to count
    server.replay(plays)
    took.append(server.recording.summary()["makespan_s"])
here = took[0] / took[1]
print(f"bundled GPT-2 on {server.device}, measured : {here:.2f} × as fast as one at a time")
print(f"Llama-3-8B on an H100, modelled: {faster:.2f} ×")
print(f"in steps                       : {fewer:.2f} ×")

# %% [markdown]
# **The GPU** gains exactly what the steps say: it reads its 15 GB once per step, whoever is in it.
# **The CPU** gains less. A step's fixed part here is Python and calls into torch; each row's arithmetic comes on
# top, and a padded row is arithmetic too. It pays for its holes in time.

# %% [markdown]
# ## Wait for a fuller batch, or run now?
#
# Requests arrive one by one. When a batch may start and only two people are there, there is a choice.
# `StaticScheduler(8, max_wait=1.0)` lets the first in the queue wait up to a second for others. A GPU likes large batches,
# users don't like to wait:
#
# ```
# wait longer → bigger batches → the GPU works better → users wait
# run now     → smaller batches → the GPU works worse → nobody waits
# ```
#
# Is that so? Predict; then we try it with 800 requests that come at random moments.

# %%
quiz("03.wait")

# %%
from toyserve.workload import Lengths, burst, poisson

SHORT = Lengths(prompt_min=16, prompt_max=128, output_min=4, output_max=64, output_median=16)
WAITS = [0.0, 0.1, 0.2, 0.4, 0.8]


def one_wait(rate, max_wait, seed=1):
    """Mean batch; seconds the GPU is busy per 1000 tokens; TTFT p50 and p95 in ms."""
    work = poisson(800, rate=rate, seed=seed, lengths=SHORT)
    run = simulate(StaticScheduler(8, max_wait=max_wait), work)
    s, batches = run.summary(), sum(bool(step.admitted) for step in run.steps)
    busy = sum(step.end_time - step.start_time for step in run.steps)
    p50, p95 = s["ttft_ms"]["p50"], s["ttft_ms"]["p95"]
    return len(work) / batches, 1e3 * busy / s["output_tokens"], p50, p95


waits = {}
for rate in (8, 26, 60):
    waits[rate] = {max_wait: one_wait(rate, max_wait) for max_wait in WAITS}
    head = (f"{rate} arrivals/s", "mean batch", "GPU s per 1000 tokens", "TTFT p50, ms", "p95")
    rows = [(f"wait {k:g} s", f"{v[0]:.1f}", f"{v[1]:.2f}", f"{v[2]:.0f}", f"{v[3]:.0f}")
            for k, v in waits[rate].items()]  # fmt: skip
    print(text_table(head, rows), "\n")

# %% [markdown]
# Three regimes (p50: half of the users wait less; p95: nineteen of twenty do):
#
# - **Quiet (8/s).** The trade of the textbook: with a long wait the GPU works much less for the same
#   tokens, and the median user waits several times as long for the first one.
# - **Nearly full (26/s).** 0.1 or 0.2 s change next to nothing. With 0.4 s the first token comes *sooner*, by p50 and
#   by p95: fuller batches are fewer batches, so the queue is shorter.
# - **Overrun (60/s).** The queue is always full, no batch ever waits, and the setting does next to nothing.
#
# One run is one throw of the dice. Does the middle one hold for other arrivals?

# %%
quiet, full, overrun = waits.values()
saved, later = quiet[0.0][1] / quiet[0.8][1], quiet[0.8][2] / quiet[0.0][2]
print(f"quiet, wait 0.8 s: GPU works {saved:.2f} × less, median first token {later:.1f} × as late")
sooner = [one_wait(26, 0.0, seed)[3] / one_wait(26, 0.4, seed)[3] for seed in (2, 3)]
sooner.append(full[0.0][3] / full[0.4][3])
print("nearly full, wait 0.4 s: p95", *(f"{x:.2f}" for x in sooner), "× shorter (three seeds)")
assert saved > 1.5 and later > 3 and min(sooner) > 1.05

look = THEMES["light"]
(ax,) = new_axes((7, 3.2), look)
for (rate, result), color, mark in zip(waits.items(), look.series, "os^", strict=False):
    ratio = [result[w][3] / result[0.0][3] for w in WAITS]
    ax.plot(WAITS, ratio, mark + "-", color=color, label=f"{rate} arrivals/s")
ax.axhline(1, color=look.faint, linewidth=0.8)
ax.set(xlabel="max_wait (s)", ylabel="TTFT p95\n(without waiting = 1)", ylim=(0, None))
ax.set_title("Waiting hurts a quiet server, not a full one", loc="left", fontsize=11)
ax.legend(frameon=False)
ax.figure

# %% [markdown]
# The same question at full size. Suppose decoding is cheapest with 128 rows, and 20 people are there,
# five more arriving each second. Wait for the rest?

# %%
speed = {n: h100.decode_throughput(n, 500)[0] for n in (20, 128)}
dearer, until_full = speed[128] / speed[20], (128 - 20) / 5
print(f"128 rows make {dearer:.1f} × the tokens per second of 20 rows")
print(f"but the first of the 20 would wait {until_full:.0f} s for the 128th")
assert dearer > 4 and until_full > 20

# %% [markdown]
# ## "A bigger batch is always better"
#
# More rows, more reuse of the weights: true while every row has work. In a static batch the longest of *all* rows
# decides, and the more rows, the longer the longest. Heavy-tailed answers (most are short, a few very long):

# %%
crowd = burst(128, seed=7)
wanted = sorted(crowd.output_lens.values())
print(f"answers: half of them at most {wanted[63]} tokens, the longest {wanted[-1]}\n")
sizes = [1, 2, 4, 8, 16, 32, 64]
grow = {n: simulate(StaticScheduler(n), crowd).summary() for n in sizes}
rows = [
    (n, f"{s['output_tokens_per_s'] / grow[1]['output_tokens_per_s']:.1f} ×",
     f"{1 - s['slots_used']:.0%}") for n, s in grow.items()
]  # fmt: skip
print(text_table(("rows", "tokens/s (one row = 1)", "slots wasted"), rows))
gain32 = grow[32]["output_tokens_per_s"] / grow[1]["output_tokens_per_s"]
wasted32 = 1 - grow[32]["slots_used"]
assert gain32 < 16 and wasted32 > 0.5

# %% [markdown]
# Throughput still rises, because an empty row is nearly free on a GPU. But far from 32 times with 32 rows: the waste
# rises too. The machine is there, and most of it computes for nobody.

# %% [markdown]
# ## Break it
#
# Our engine lays all rows one after another and needs no padding tokens. Most tensor code pads for real: on the
# **left**, so that every row ends with its newest token, the one whose successor we want.
#
# ```
#  !  !  !  !  !  JULIET :  ⏎
#  KING LEAR : ⏎ Blow , winds
# ```
#
# Let's run the bundled GPT-2 that way. The first class is attention over a rectangle (no need to follow its tensors);
# `real` is False where padding stands.
#
# (From lesson 02 you may know half of it: positions wrong, mask right. Here a colleague has forgotten both.)

# %% tags=["real-model"]
import torch.nn.functional as F

llm = LLM("toy", dtype="float32", device="cpu", attention="torch")
heads, head_dim = llm.config.n_head, llm.config.head_dim


class RectangleAttention:
    def __init__(self, real, visible):
        self.rows, width = real.shape
        itself = torch.eye(width, dtype=torch.bool)  # a padded row looks at itself, or at nothing
        self.mask = (visible(real) | itself)[:, None]

    def __call__(self, layer, qkv):
        q, k, v = qkv.view(self.rows, -1, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return out.transpose(1, 2).reshape(qkv.shape[0], -1)


def left_padded(prompts):
    """Token ids as a rectangle, padded with token 0, and where a real token stands."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    real = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
    return ids, real


# %% [markdown]
# And this one generates. A colleague left two small functions: which positions the tokens have, and what
# each may look at.


# %% tags=["real-model"]
@torch.inference_mode()
def generate(prompts, num_tokens, positions, visible):
    ids, real = left_padded(prompts)
    for _ in range(num_tokens):
        attention = RectangleAttention(real, visible)
        last = torch.arange(1, len(ids) + 1) * ids.shape[1] - 1  # the last token of each row
        logits = llm.model.forward(ids.flatten(), positions(real).flatten(), attention, last)
        new = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
        real = torch.cat([real, torch.ones_like(new, dtype=torch.bool)], dim=1)
    return ids[:, -num_tokens:].tolist()


def positions(real):
    return torch.arange(real.shape[1]).expand(real.shape)  # 0, 1, 2, … from the left edge


def visible(real):
    width = real.shape[1]
    return torch.ones(width, width, dtype=torch.bool).tril().expand(len(real), -1, -1)


prompts = [llm.tokenizer.encode(PROMPTS[name]) for name in "ABCD"]
for name, token_ids in zip("ABCD", generate(prompts, 16, positions, visible), strict=True):
    print(
        f"[{name}, prompt of {len(prompts['ABCD'.index(name)])}] …{llm.tokenizer.decode(token_ids)}\n"
    )

# %% [markdown]
# Three of the four have gone mad. No error, no warning, shapes all right, and in a test with one prompt everything is
# fine. (The padding token, number 0, happens to be "!". Look what the model makes of a hundred exclamation marks.)

# %%
quiz("03.murder")

# %% [markdown]
# **Find and mend it.** There are two faults, one in each function; `real` tells you where the padding is. The
# check compares with each prompt's answer alone.
#
# <details><summary>A hint</summary>
#
# A prompt's first *real* token has position 0: count the real tokens up to each place
# (`real.cumsum(1)`), minus one, and not below 0. And nobody may look at a padding token: combine the triangle
# with `real[:, None, :]`, which says for each row which *columns* are real.
#
# </details>


# %% tags=["real-model"]
def my_positions(real):
    return torch.arange(real.shape[1]).expand(real.shape)


def my_visible(real):
    width = real.shape[1]
    return torch.ones(width, width, dtype=torch.bool).tril().expand(len(real), -1, -1)


greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
reference = [llm.generate(p, greedy)[0].token_ids for p in PROMPTS.values()]
reference = dict(zip(PROMPTS, reference, strict=True))


def check_padding(positions, visible):
    try:
        rows = dict(zip("ABCD", generate(prompts, 16, positions, visible), strict=True))
    except Exception as error:  # an IndexError: a position below 0, or one too large
        print(f"Not yet: {type(error).__name__}: {error}")
        rows = {name: [] for name in "ABCD"}
    good = {name: rows[name] == reference[name] for name in "ABCD"}
    marks = "   ".join(f"{'✓' if ok else '✗'} {name}" for name, ok in good.items())
    print(marks, "  ", f"{sum(good.values())} of 4 as alone")
    return rows, good


mended_by_you = all(check_padding(my_positions, my_visible)[1].values())

# %% [markdown]
# The repair, folded away, and each half of it alone:


# %% jupyter={"source_hidden": true} tags=["real-model"]
def right_positions(real):
    return (real.cumsum(1) - 1).clamp(min=0)


def right_visible(real):
    width = real.shape[1]
    return torch.ones(width, width, dtype=torch.bool).tril() & real[:, None, :]


found = {}
for name, pair in {
    "both mended": (right_positions, right_visible),
    "mask only, no position ids": (positions, right_visible),
    "position ids only, no mask": (right_positions, visible),
}.items():
    print(f"{name}:")
    rows, found[name] = check_padding(*pair)
    print(f"[A] …{llm.tokenizer.decode(rows['A'])}\n")
assert all(found["both mended"].values())
assert found["mask only, no position ids"] == {"A": False, "B": False, "C": True, "D": False}

# %% [markdown]
# - **No mask:** the padding is text like any other, and the model answers to it.
# - **No position ids:** the mean one. The text is fluent. The model only believes that Juliet's name stands
#   far down the page. Nobody notices until answers are compared with those of a prompt alone.
#
# Either way the *longest* row is right, since it has no padding: a test with one prompt, or with equal ones, can't find it.
# So test a batch of **unequal** prompts against each of them alone.

# %% [markdown]
# ## You have seen this before
#
# | operating system, or elsewhere | LLM server |
# |---|---|
# | batch processing of the 1950s: a tape of jobs, run together | static batching |
# | the tape is done when its longest job is | the batch ends with its longest row |
# | convoy effect: short jobs behind a long one | the queue behind A |
# | internal fragmentation: a fixed box for unequal things | padding |
# | uninitialised memory that is read | padding without a mask |
# | an airline boards when the plane is full, a bus leaves on time | `max_wait` large, `max_wait` 0 |
# | a database's group commit, a network that gathers small packets | `max_wait` of a moment |
#
# A batch monitor could at least sort its jobs by length. Here nobody knows the length of an answer before it ends.

# %% [markdown]
# **At the noodle bar.** Four stools, one big pot. Last week the cook boiled it for one guest at a time.
#
# Now the host seats four at once: the pot boils once, four bowls are filled. Much better. But the rule of
# the house is *a table eats together*: the guest with the quick bowl is gone, her stool stays empty, and in
# every boil one bowl is still filled for it and thrown away, until the man with the twelve courses is done.
#
# And at the door, two guests: "Shall we wait until we are four?"

# %% [markdown]
# ## Recap

# %%
print(f"four requests as a batch   : {fewer:.2f} × fewer steps, not 4 ×")
print(f"slots wasted               : {1 - useful / places:.1%}, and {hole:.0%} for 800 beside 30")
print(f"a document among questions : {prompt_price:.1f} × the reading time, by padding")
print(
    f"waiting, quiet server      : GPU works {saved:.2f} × less, first token {later:.1f} × as late"
)
print(f"waiting, nearly full       : p95 {min(sooner):.2f} × to {max(sooner):.2f} × shorter")
print(
    f"32 rows, heavy tail        : {gain32:.1f} × the tokens/s, {wasted32:.0%} of the slots empty"
)

# %% [markdown]
# **Say it in an interview:**
#
# > Static batching reads the weights once for the whole batch, so it beats one at a time by the number of rows
# > that have work. But answers differ in length: rows that have finished stay until the longest ends, and
# > prompts are padded to the longest. Padded prompts cost time, padded decode rows cost the chance to serve
# > somebody. Waiting for a fuller batch trades first-token latency for efficiency; on a nearly full
# > server a short wait may help both.
#
# The weakness is measured in Yu et al., [Orca](https://www.usenix.org/conference/osdi22/presentation/yu), OSDI
# 2022, which also has the remedy. Waiting with a limit is *adaptive batching*: Crankshaw et al., Clipper, NSDI 2017.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Give A only 60 tokens. How many per cent are wasted now?
# 2. In `left_padded`, pad with the end token (`llm.config.eos_token_id`) and leave the mask out. What does
#    the model mutter now?
# 3. Pad on the *right*. Why is the last place of a row the wrong one to ask, and which would be right?
#
# **Exercise:** `exercises/03_static_batching.ipynb`.
#
# **Next in the course:** lesson 04, continuous batching. After eight steps D has its answer and is gone.
# Three people stand in the queue. What should happen to D's place?
