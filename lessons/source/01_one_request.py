# %% [markdown]
# # 01 · One request at a time
#
# Three people ask a language model at the same moment:
#
# - **A** brings a long prompt and wants a short answer,
# - **B** brings a short prompt and wants a long answer,
# - **C** brings a short prompt and wants a short answer. C comes last, by a hair.
#
# The server does the obvious thing: it finishes A, then B, then C.
#
# **What does C think of this server?**
#
# You take a request apart, build the memory that makes answers fast, and learn the four
# numbers by which every server is judged.
#
# *30–40 minutes. No GPU, no network. Run the cells in order. The first builds a server;
# its parts are explained below the picture.*

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.course.tables import text_table
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import SequentialScheduler
from toyserve.viz import explore, timeline
from toyserve.workload import Workload, WorkloadRequest

SIZES = {"A": (600, 8), "B": (12, 200), "C": (12, 8)}  # tokens in the prompt, in the answer
three = Workload("three", tuple(
    WorkloadRequest(name, num_prompt_tokens=prompt, output_len=answer)
    for name, (prompt, answer) in SIZES.items()
))  # fmt: skip


def simulate(scheduler, workload, gpu="h100", model="llama-3-8b"):
    """The engine with no model in it: a step lasts as long as a cost model says it would."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(gpu, model), clock)
    engine = Engine(scheduler=scheduler, kv=PagedKV(200), runner=runner, clock=clock)
    return engine.run(workload.requests_for_engine())


run = simulate(SequentialScheduler(), three)
timeline(run, by="request", x="time", title="Grey is waiting. C wants only 8 tokens")

# %% [markdown]
# `simulate` is a whole server: a queue, a scheduler, memory, and in the model's place a stopwatch that
# knows how long each step of Llama-3-8B (a usual mid-sized model) would take on an H100 (a data-centre GPU).
# (How it knows is lesson 02. `PagedKV(200)` is the memory, in pages: more than enough today. `Workload` is a
# list of requests, each with its arrival time and its two sizes.)
#
# Nearly all of C's time is grey: **head-of-line blocking**, a large request at the front delays
# the small ones behind it.
#
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **token** | a piece of a word; the model reads and writes nothing else |
# | **step** | one run of the model |
# | **prefill** | the step that reads a request's whole prompt; it yields the first token |
# | **decode** | every later step: one token in, one token out |
# | **KV cache** | what the model keeps of every token it has read ("K" and "V": keys, values) |
# | **FCFS** | first come, first served: this server's policy |

# %% [markdown]
# ## Predict
#
# The model reads tokens and says what comes next. That new token is put at the end, and the model
# is asked again. Each of these runs needs the model's opinion about *all* tokens so far.
#
# Suppose the server remembers nothing between two runs. A **position** is one token read by the
# model once.

# %%
from toyserve.course.quiz import quiz

quiz("01.positions")

# %% [markdown]
# ## Build it: an answer, token by token
#
# Here is the real model: a small GPT-2, trained on Shakespeare, bundled with the course. What it keeps of the
# tokens it has read, it writes into `Notes`.
#
# You needn't follow the tensors in there (how attention works inside is lesson 08). Only this matters: the model
# needs the keys and values of *all* tokens so far. Those of earlier runs lie in `kept`; those of the new tokens
# are put behind them.

# %%
import torch
import torch.nn.functional as F

from toyserve import LLM, SamplingParams

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a small model: one core is enough, and steadier to measure
llm = LLM("toy", scheduler="sequential", dtype="float32")
model, shape, device = llm.model, llm.model.config, llm.device


class Notes:
    """Keys and values of the tokens read so far, layer by layer: a KV cache."""

    def __init__(self):
        self.kept = {}

    def __call__(self, layer, qkv):  # attention: the new tokens look back at all tokens so far
        q, k, v = qkv.view(len(qkv), 3, shape.n_head, shape.head_dim).permute(1, 2, 0, 3)
        if layer in self.kept:
            k, v = (torch.cat(pair, 1) for pair in zip(self.kept[layer], (k, v), strict=True))
        self.kept[layer] = k, v
        new, total = q.shape[1], k.shape[1]
        visible = torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=visible)[0]
        return out.transpose(0, 1).reshape(new, -1)


# %% [markdown]
# And this is an answer, made by a loop that forgets everything: every round starts with empty notes and
# reads all tokens again.


# %% tags=["real-model"]
@torch.inference_mode()
def next_token(token_ids, first_position, notes):
    """Run the model on these tokens; the likeliest next one."""
    ids = torch.tensor(token_ids, device=device)
    positions = torch.arange(first_position, first_position + len(ids), device=device)
    last_row = torch.tensor([len(ids) - 1], device=device)
    return int(model.forward(ids, positions, notes, last_row).argmax())


def forgetful(prompt_ids, num_answer):
    token_ids, work = list(prompt_ids), []
    for _ in range(num_answer):
        token = next_token(token_ids, 0, Notes())
        work.append(len(token_ids))  # positions run in this step
        token_ids.append(token)
    return token_ids[len(prompt_ids) :], work


prompt = llm.tokenizer.encode("HAMLET:\nTo be, or not to be, that is")[:12]
answer, work = forgetful(prompt, num_answer=8)
print(repr(llm.tokenizer.decode(prompt)), "→", repr(llm.tokenizer.decode(answer)))
print("positions in each step:", *work, "together:", sum(work))
once = len(prompt) + 8 - 1  # each token needs to be read once, but for the last, which nobody reads
print(f"needed: {once}; read again what had been read before: {sum(work) - once}")
assert (len(prompt), sum(work), once) == (12, 124, 19)

# %% [markdown]
# 124 positions for 8 tokens, and 105 of them had been run before.
#
# **Your turn.** Keep the notes. Then each step needs to read only what is *not yet in them*.
# Two counters tell: how many tokens there are (`len(token_ids)`), and how many are computed
# (`num_computed`). The cell below still reads everything again. Change the lines between the arrows.
#
# <details><summary>A hint</summary>
#
# The tokens that have not been read are `token_ids[num_computed:]`. The first of them stands at
# position `num_computed`. After the step, everything there was is computed: the new token is not.
#
# </details>


# %%
def remembering(prompt_ids, num_answer):
    token_ids, work = list(prompt_ids), []
    notes, num_computed = Notes(), 0
    for _ in range(num_answer):
        # ↓ still forgetful: all tokens, empty notes, and num_computed never moves
        new, notes = token_ids, Notes()
        # ↑
        token = next_token(new, num_computed, notes)
        work.append(len(new))
        token_ids.append(token)
    return token_ids[len(prompt_ids) :], work


# %% tags=["real-model"]
def judge(loop):
    """Same tokens, and no position twice?"""
    try:
        tokens, positions = loop(prompt, 8)
    except Exception as error:
        print(f"Not yet: {type(error).__name__}: {error}")
        return False
    if tokens != answer:
        print(f"Not yet: the tokens differ. Yours say {llm.tokenizer.decode(tokens)!r}.")
    elif sum(positions) == 19:
        print("✓ The same tokens from 19 positions: 12 of the prompt, then 1 per token.")
    else:
        print(f"Not yet: the tokens are right, but {sum(positions)} positions (wanted: 19).")
    return tokens == answer and sum(positions) == 19


solved = judge(remembering)

# %% [markdown]
# Here is one way to write it, folded away so that you can try first. **Click the three dots to
# open it.** Should yours not work yet, the lesson goes on with this one; if it works, with yours.


# %% jupyter={"source_hidden": true}
def cached(prompt_ids, num_answer):
    token_ids, work = list(prompt_ids), []
    notes, num_computed = Notes(), 0
    for _ in range(num_answer):
        new = token_ids[num_computed:]
        token = next_token(new, num_computed, notes)
        num_computed = len(token_ids)
        work.append(len(new))
        token_ids.append(token)
    return token_ids[len(prompt_ids) :], work


mine = remembering if solved else cached

# %% [markdown]
# ## See it: two counters racing

# %%
import itertools

from toyserve.viz.style import THEMES, new_axes

look = THEMES["light"]
tokens, work_kept = mine(prompt, 8)
left, right = new_axes((10, 3), look, num_columns=2, sharex=False)
steps = range(1, 9)
left.bar([s - 0.2 for s in steps], work, 0.4, color=look.series[1], label="forgetful")
left.bar([s + 0.2 for s in steps], work_kept, 0.4, color=look.series[0], label="with notes")
left.set(xlabel="step", ylabel="positions run", xticks=list(steps), yticks=range(0, 21, 4))
left.set_title(f"Work per step: {sum(work)} against {sum(work_kept)}", loc="left", fontsize=11)
known = [len(prompt) + s for s in range(9)]  # each step adds one token
computed = list(itertools.accumulate(work_kept, initial=0))  # and computes what you gave it
right.step(range(9), known, where="post", color=look.series[1], label="tokens that exist")
right.step(range(9), computed, where="post", color=look.series[0], label="tokens computed")
right.set(xlabel="steps done", ylabel="tokens", yticks=range(0, 21, 4))
right.set_title("A request is two counters racing", loc="left", fontsize=11)
for ax in (left, right):
    ax.legend(frameon=False, fontsize=9)
assert (tokens == answer, sum(work_kept)) == (True, 19)
left.figure

# %% [markdown]
# The blue counter, the lower one, jumps by 12 in the first step: **prefill**. From then on it is always one behind,
# and every step moves both by one: **decode**. Keep this picture: what later lessons do to a request, they do by
# moving the lower counter in another way.
#
# What you changed, coloured:

# %%
from toyserve.course.show import show_diff, show_source

show_diff(forgetful, mine)

# %% [markdown]
# ## How much time does it save?
#
# 124 against 19 positions; the longer the answer, the wider the gap. Does that mean so much faster? First
# measured on this machine (as it was when this lesson was written), then on the clock of the H100:

# %% tags=["wall-clock"]
import time


def seconds(function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


forgot, kept = (min(seconds(loop, prompt, 60) for _ in range(2)) for loop in (forgetful, mine))
print(f"this machine, 12 + 60 tokens: the notes make it {forgot / kept:.1f} × faster")

# %%
# prefill_time(n): seconds of a step that reads n tokens. decode_time(1, n): of one that writes one
# token, for 1 request, with n tokens in its notes.
h100, rows, saved = cost_model("h100", "llama-3-8b"), [], {}
for num_prompt, num_answer in ((12, 200), (600, 200), (4000, 200)):
    lengths = range(num_prompt, num_prompt + num_answer)
    without = sum(h100.prefill_time(n) for n in lengths)
    with_notes = h100.prefill_time(num_prompt) + sum(h100.decode_time(1, n) for n in lengths[1:])
    positions = sum(lengths) / (num_prompt + num_answer - 1)
    saved[num_prompt] = without / with_notes
    row = (f"{num_prompt} + {num_answer}", f"{positions:.0f} ×", f"{saved[num_prompt]:.1f} ×")
    rows.append(row)
print(text_table(("H100: prompt + answer", "fewer positions", "faster"), rows))
assert saved[12] < 1.1 < 10 < saved[4000]
one, many = (1e3 * h100.prefill_time(n) for n in (1, 200))
print(f"\na step that reads 1 token takes {one:.1f} ms, one that reads 200: {many:.1f} ms")
assert many / one < 1.01

# %% [markdown]
# Look at the first row: over a hundred times fewer positions, and **no gain in time**! The last line says why: on a
# big GPU a step spends its time fetching the model's **weights** (the billions of numbers it consists of), and that
# takes as long for one token as for 200. Only when the prompt is long does the arithmetic count, and then the notes
# decide everything. A CPU is slow at arithmetic, so it gains at once.
#
# Why that is so is the whole of lesson 02. Keep the riddle.

# %% [markdown]
# ## Build it: the server everybody writes first
#
# So much for one request. Who is served, and when, is the scheduler's business. It has one method,
# `schedule()`, which is called before each step and returns a plan: which request runs how many tokens. Its
# moves:
#
# | move | what it does |
# |---|---|
# | `self.run(plan, request, n)` | plan `n` tokens of a request that is running |
# | `self.next_waiting()` | whoever is first in the queue |
# | `self.admit(plan, request)` | let it in and plan its whole prompt; `False` if memory is short |
#
# **Your turn.** Finish the running request before you admit (one!) other. `self.waiting` is the
# queue, `self.running` a list with at most one request in it, and `request.num_uncomputed_tokens` the
# gap between its two counters. Who has finished is already gone.

# %%
from toyserve.schedulers import Scheduler, SchedulerOutput


class MyServer(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        # ↓ nobody is ever admitted
        # ↑
        return plan


# The same three, and a fourth who comes ten seconds later, when nobody is left.
late = Workload("late", (*three.requests,
                         WorkloadRequest("D", arrival_time=10, num_prompt_tokens=12, output_len=8)))  # fmt: skip
try:
    steps = simulate(MyServer(max_running=1), late).num_steps
    served = steps == 8 + 200 + 8 + 8
    print("✓ A, B, C, one after the other, and D later." if served else f"Not yet: {steps} steps.")
except IndexError:
    served = False
    print("Not yet: it asks for the next in a queue that is empty. Look into self.waiting first.")
except Exception as error:
    served = False
    print("Not yet:", error)

# %% [markdown]
# One way to write it, folded away, and then the library's own beside it. (That one also notes *why*
# somebody waits, for the pictures.)


# %% jupyter={"source_hidden": true}
class OneByOne(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running and self.waiting:
            self.admit(plan, self.next_waiting())
        return plan


Mine = MyServer if served else OneByOne

# %%
show_source(Mine, SequentialScheduler)

# %%
run = simulate(Mine(max_running=1), three)
assert run.num_steps == 8 + 200 + 8  # one token per step
explore(run, by="request")

# %% [markdown]
# Press play, or click into the picture: below it stands who ran in that step, and who waited for what.
#
# ## What users feel: four numbers
#
# | number | from … to … | the user's question |
# |---|---|---|
# | **TTFT** | arrival → first token | does it react? |
# | **ITL** | a token → the next one, every single gap | does it stutter? |
# | **TPOT** | mean gap after the first token, one number per answer | how fast does it read? |
# | **E2E** | arrival → last token | when can I go on? |
#
# (Time to first token, inter-token latency, time per output token, end to end.) All of them count from
# *arrival*: the queue is part of the wait. Here they are, for a request that comes while another one runs.

# %%
from toyserve.metrics import e2e, itl, tpot, ttft

pair = (
    WorkloadRequest("early", num_prompt_tokens=12, output_len=6),
    WorkloadRequest("you", arrival_time=0.01, num_prompt_tokens=600, output_len=5),
)
you = simulate(Mine(max_running=1), Workload("pair", pair)).requests["you"]
at = [1e3 * t for t in (you.arrival_time, you.first_scheduled_time, *you.token_times)]
spans = [(0, "E2E", at[0], at[-1]), (-1, "TTFT", at[0], at[2]),
         (-2, "queue", at[0], at[1]), (-2, "prefill", at[1], at[2])]  # fmt: skip
spans += [(-2, f"ITL {n}", *gap) for n, gap in enumerate(itertools.pairwise(at[2:]), 1)]
(ax,) = new_axes((10, 2.9), look)
for y, name, start, end in spans:
    ax.annotate("", (start, y), (end, y), arrowprops={"arrowstyle": "<->", "color": look.ink})
    ax.text((start + end) / 2, y + 0.12, name, ha="center", fontsize=9, color=look.ink)
ax.plot(at[:1], [-3], "v", color=look.series[1])
ax.plot(at[2:], [-3] * 5, "o", color=look.series[0])
for x, word in ((at[0], "   arrival"), (at[-1], "   tokens")):
    ax.text(x, -3, word, va="center", fontsize=9, color=look.ink)
ax.set(xlabel="time (ms)", yticks=[], ylim=(-3.5, 0.6), xlim=(5, at[-1] + 6))
ax.set_title("One request, as its user feels it", loc="left", fontsize=11)
ax.figure

# %%
gaps = itl(you)
print(f"TTFT {1e3 * ttft(you):.1f} ms, of it in the queue "
      f"{1e3 * (you.first_scheduled_time - you.arrival_time):.1f} ms")  # fmt: skip
print(f"TPOT {1e3 * tpot(you):.1f} ms, E2E {1e3 * e2e(you):.1f} ms")
assert abs(e2e(you) - (ttft(you) + tpot(you) * len(gaps))) < 1e-9
print("E2E = TTFT + TPOT × (tokens − 1)")

# %% [markdown]
# ## Head-of-line blocking, in numbers
#
# Back to A, B and C. Each of them alone on the server first:

# %%
alone = {}
for request in three.requests:
    record = simulate(Mine(max_running=1), Workload("alone", (request,))).requests
    alone[request.request_id] = e2e(record[request.request_id])
    print(f"{request.request_id} alone: {1e3 * alone[request.request_id]:6.0f} ms")

# %%
quiz("01.blocked")

# %%
results = {}
for order in itertools.permutations(three.requests):
    records = simulate(Mine(max_running=1), Workload("order", order)).requests.values()
    results["".join(r.request_id for r in order)] = {r.request_id: e2e(r) for r in records}
rows = []
for order, ends in results.items():
    mean, slow = sum(ends.values()) / 3, {k: ends[k] / alone[k] for k in "ABC"}
    rows.append((order, *(f"{slow[k]:.1f} ×" for k in "ABC"), f"{1e3 * mean:.0f}",
                 f"{1e3 * max(ends.values()):.0f}"))  # fmt: skip
header = ("order", "A slowed", "B slowed", "C slowed", "mean E2E, ms", "all done, ms")
print(text_table(header, rows))
blocked = results["ABC"]["C"] / alone["C"]
order_gain = sum(results["ABC"].values()) / sum(results["CAB"].values())
assert blocked > 25
means = [sum(ends.values()) for ends in results.values()]
assert max(means) / min(means) > 2
assert max(results["ABC"].values()) / max(results["CAB"].values()) < 1.001

# %% [markdown]
# The last column never changes: the work is the same, and the GPU is never idle. **Only who waits for
# whom changes**, and with it the mean, by more than a factor of two. Shortest first would be best, but a server doesn't
# know how long an answer will be. (Lesson 10.)
#
# Whatever the order, one thing is odd: during 216 steps the GPU worked for one person at a time. Was it
# busy? Or only occupied? (Lesson 02.)

# %% [markdown]
# At which arrival rate does a server like this drown? Move `arrivals per s` and read the line above the
# picture: at 1 most users get their first token at once. Once *tokens per second* stops growing while *first token
# after* goes on growing, the server is full. (The picture counts steps: time in which nobody is there isn't one.)

# %%
from toyserve.viz import playground

playground(scheduler="sequential", rate=1, num_requests=20)

# %% [markdown]
# ## On a real model
#
# The same three on the bundled GPT-2, one after the other. First the check that matters: does your loop say what
# the engine says?

# %% tags=["real-model"]
greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
engine_says = llm.generate([prompt], greedy)[0]
loop_says, _ = mine(prompt, 40)
print(llm.tokenizer.decode(prompt) + engine_says.text)
print("\nyour loop and the engine:", "equal" if loop_says == engine_says.token_ids else "differ")
assert loop_says == engine_says.token_ids or device.type == "cuda"

# %% tags=["real-model"]
PLAY = """HAMLET:
To be, or not to be, that is the question:
Whether 'tis nobler in the mind to suffer
The slings and arrows of outrageous fortune,
Or to take arms against a sea of troubles
And by opposing end them.
"""
texts = {"A": PLAY * 20, "B": "JULIET:\nO Romeo, Romeo! wherefore art thou", "C": "ROMEO:\nBut, soft! what light through yonder window"}  # fmt: skip
real = Workload("real", tuple(
    WorkloadRequest(k, prompt=tuple(llm.tokenizer.encode(text)[: SIZES[k][0]]), output_len=SIZES[k][1])
    for k, text in texts.items()
))  # fmt: skip
# replay: serve a workload at its arrival times, each answer as long as the workload says
outputs = llm.replay(real, SamplingParams(temperature=0.8, top_p=0.95, seed=4))
for out in outputs:
    print(f"[{out.request_id}] …{out.prompt[-30:]}{out.text}\n")
assert llm.recording.num_steps == run.num_steps

# %% [markdown]
# The same 216 steps as in the simulation: it's the same scheduling code. The times are others:

# %% tags=["wall-clock"]
llm.replay(real)
here = llm.recording
durations = [step.end_time - step.start_time for step in here.steps]
decode_here = sorted(durations)[len(durations) // 2]
decode_h100 = h100.decode_time(1, 100)
rows = (
    ("A's prompt, 600 tokens, costs so many decode steps",
     f"{durations[0] / decode_here:.0f}", f"{h100.prefill_time(600) / decode_h100:.1f}"),
    ("C waits for its first token so many decode steps",
     f"{ttft(here.requests['C']) / decode_here:.0f}", f"{ttft(run.requests['C']) / decode_h100:.0f}"),
)  # fmt: skip
print(text_table(("", "here", "H100, 8B model"), rows))

# %% [markdown]
# A prompt of 600 tokens costs an H100 little more than two decode steps: the weights
# are fetched once, for all 600. Here each of the 600 is paid for in arithmetic, so A's *prompt* is a
# noticeable part of C's wait, too. What C waits for most is the same on both: B's 200 steps.
#
# ## Break it
#
# The server gets a dashboard. A colleague writes it, and it is a joy: everything is green. Every user
# sees a first token within 15 ms.


# %%
def dashboard_ttft(record):
    return record.token_times[0] - record.first_scheduled_time


def dashboard_tpot(record):
    return (record.token_times[-1] - record.token_times[0]) / len(record.token_times)


records = run.requests.values()
left, right = new_axes((10, 2.6), look, num_columns=2, sharex=False)
left.barh(list("ABC"), [1e3 * dashboard_ttft(r) for r in records], color=look.series[2])
left.set(xlabel="TTFT (ms)", ylabel="request", xlim=(0, 20))
left.set_title("What the dashboard says", loc="left", fontsize=11)
left.invert_yaxis()
timeline(run, by="request", x="time", ax=right, legend=False, title="What happened")
left.figure

# %% [markdown]
# C, it says, is one of the fastest. Then come busy days: on each, 60 people come at random moments, 0.5 to 4 of
# them per second. The picture shows the **p99**, the TTFT that 99 of 100 users stay below:

# %%
from toyserve.metrics import percentile
from toyserve.workload import Lengths, poisson

lengths = Lengths(prompt_max=64, output_max=128)  # bounds; poisson: arrivals at random moments
rates, says, felt = [0.5, 1, 1.5, 2, 3, 4], [], []
for rate in rates:
    day = simulate(Mine(max_running=1), poisson(n=60, rate=rate, lengths=lengths))
    says.append(percentile([dashboard_ttft(r) for r in day.requests.values()], 99))
    felt.append(percentile([ttft(r) for r in day.requests.values()], 99))
one = sum(r.finish_time - r.first_scheduled_time for r in day.requests.values()) / 60
print(f"an answer takes {one:.2f} s on average: the server can end {1 / one:.1f} per second")
(ax,) = new_axes((7, 3), look)
ax.plot(rates, [1e3 * t for t in says], "o-", color=look.series[2])
ax.set(xlabel="arrivals per second", ylabel="TTFT p99 (ms), the dashboard", ylim=(0, 20))
ax.set_title("All green, and the support line rings", loc="left", fontsize=11)
assert 2.5 < 1 / one < 3.5
ax.figure

# %% [markdown]
# And yet users complain.

# %%
quiz("01.dashboard")

# %% [markdown]
# **Mend it.** Both functions are wrong. A record has the times `arrival_time` and `first_scheduled_time`,
# and `token_times`, a list with one for each token, which may be empty. Run the cell until all four lines have
# their ✓.


# %%
from toyserve.recording import RequestRecord


def my_ttft(record):
    return record.token_times[0] - record.first_scheduled_time  # ← a fault


def my_tpot(record):
    times = record.token_times
    return (times[-1] - times[0]) / len(times)  # ← another


def verdict(name, function, record, wanted):
    try:
        got = function(record)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    right = got == wanted or (isinstance(got, float) and wanted and abs(got - wanted) < 1e-9)
    got, wanted = (f"{x:.4f} s" if isinstance(x, float) else x for x in (got, wanted))
    print("✓" if right else "✗", f"{name}: {got} (wanted: {wanted})")
    return bool(right)


def try_out(first, per_token):
    short = Workload("one", (WorkloadRequest("yes/no", num_prompt_tokens=12, output_len=1),))
    one = simulate(Mine(max_running=1), short).requests["yes/no"]
    c, gone = run.requests["C"], RequestRecord("gone", 0.0, 12, 8)  # who left while it waited
    verdict("C's TTFT", first, c, ttft(c))
    verdict("TTFT of somebody who left before the first token", first, gone, None)
    verdict("C's TPOT", per_token, c, tpot(c))
    verdict("TPOT of an answer of one token", per_token, one, None)


try_out(my_ttft, my_tpot)

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# The clock starts when the user presses Enter: `record.token_times[0] - record.arrival_time`, and
# `None` if there is no token. Eight tokens have *seven* gaps: divide by `len(times) - 1`, and return
# `None` where there is no gap at all. What was never measured is left out and counted: a 0 would
# look like a perfect value.
#
# </details>
#
# The library's own, and the busy days once more:

# %%
try_out(ttft, tpot)
(ax,) = new_axes((7, 3), look)
ax.plot(rates, felt, "s-", color=look.series[1], label="from arrival: what users feel")
ax.plot(rates, says, "o-", color=look.series[2],
        label=f"from the first step: the dashboard's {1e3 * says[-1]:.0f} ms")  # fmt: skip
ax.set(xlabel="arrivals per second", ylabel="TTFT, p99 (s)", ylim=(0, None))
ax.set_title("Nearly all of the wait is in the queue", loc="left", fontsize=11)
ax.legend(frameon=False)
hidden = felt[-1] / says[-1]
assert hidden > 100
ax.figure

# %% [markdown]
# ## "The average latency is fine"
#
# 200 people chat, one every 300 ms. Nineteen of twenty want 8 tokens; every twentieth wants 200.

# %%
from toyserve.viz import latency

chat = Workload("chat", tuple(
    WorkloadRequest(f"u{i}", arrival_time=0.3 * i, num_prompt_tokens=12,
                    output_len=200 if i % 20 == 10 else 8)
    for i in range(200)
))  # fmt: skip
office = simulate(Mine(max_running=1), chat)
waits = [ttft(r) for r in office.requests.values()]
mean = sum(waits) / len(waits)
p50, p99 = percentile(waits, 50), percentile(waits, 99)
near = sum(0.75 * mean <= w <= 1.25 * mean for w in waits) / len(waits)
print(f"TTFT: mean {1e3 * mean:.0f} ms, p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms")
print(f"users whose own TTFT is within a quarter of the mean: {near:.0%}")
assert p99 > 3 * mean > 10 * p50
latency(office, metrics=("ttft", "e2e"), title="Read the curve, not the mean")

# %% [markdown]
# p50 and p99 are **percentiles**: what half of the users stay below, and what 99 of 100 do. The curve says it
# all: where it has risen to 95 %, nineteen of twenty users have had their token. (The left axis is
# logarithmic: each big tick is ten times the one before.)
#
# The mean describes almost nobody. Half of the users wait far less, and those who come behind one of the long
# answers wait far more. A server is judged by its *tail*, the slowest few per cent: whoever clicks twenty
# times a day meets one of the slowest 5 % every day.
#
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | run to completion, FCFS | one request at a time |
# | convoy effect | **head-of-line blocking** |
# | response time | TTFT |
# | turnaround time | E2E |
# | a process's state in RAM | a request's KV cache |
# | program counter | `num_computed_tokens` |

# %% [markdown]
# **Or at the noodle bar.** One stool, one cook, one pot.
#
# A guest sits down and reads out a long list of wishes (*prefill*). Then the cook serves one bite at a
# time (*decode*), looking at the notes on the counter: what has been ordered, what has been served
# (*KV cache*). Without notes, he'd ask for the whole list again before each bite.
#
# At the door stands somebody who wants one dumpling. The man inside has ordered a twelve-course menu.
# The owner's report says: "average time at the table, excellent." It doesn't count the time at
# the door.
#
# ## Recap

# %%
print(f"KV cache, 12 + 8 tokens       : {sum(work) / sum(work_kept):.1f} × fewer positions")
print(f"KV cache, 12 + 200, H100      : {saved[12]:.1f} × faster: no gain (lesson 02)")
print(f"KV cache, 4000 + 200, H100    : {saved[4000]:.0f} × faster")
print(f"C behind A and B              : {blocked:.0f} × slower than alone")
print(f"order C, A, B instead of ABC  : {order_gain:.1f} × lower mean, same total time")
print(f"dashboard from the first step : hides a TTFT that is {hidden:.0f} × higher")
print(f"p99 against mean, office chat : {p99 / mean:.0f} ×")

# %% [markdown]
# **Say it in an interview:**
#
# > A request is a prefill, which reads the prompt in one go, and then one decode step per token; the KV cache
# > is what lets a step read one new token instead of all. TTFT is queue plus prefill, TPOT the mean gap after the
# > first token, and both must count from arrival. Served one at a time, a short request waits for whole long ones:
# > head-of-line blocking, and only the tail percentiles show it.
#
# Pope et al., [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102), 2022,
# takes prefill and decode apart in just this way.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Give A an answer of 200, too. By how much does C's wait grow?
# 2. Let C arrive 0.5 s later. Its TTFT falls. Did the server get faster?
# 3. Call `mine(prompt, 2000)`. What stops it, and why can't more memory help? (GPT-2 learned one vector for each
#    position that a token can have. `shape.n_positions` says how many.)
#
# **Exercise:** `exercises/01_one_request.ipynb`.
#
# **Next in the course:** lesson 02, why batching pays: the riddle of the GPU that takes as long for
# one token as for 200.
