# %% [markdown]
# # 05 · Chunked prefill
#
# Fifty people are reading along while a language model answers them: each stream brings a new token
# every few milliseconds. Then somebody pastes a document of 50,000 tokens and asks about it.
#
# **What do the fifty see in the next three seconds?**
#
# In this lesson you cut the document into pieces, write the few lines that mix the pieces with
# other people's tokens, and find out who gains, who pays, and how little.
#
# *40 minutes. No GPU, no network. Run the cells one by one, in order.*

# %% [markdown]
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **prefill** | reading a prompt: many tokens of one request in one step |
# | **decode** | one further token of an answer: one token in, one out |
# | **TTFT** | time to first token: from a request's arrival, the queue included |
# | **gap** (ITL) | time between two neighbouring tokens of one answer; TPOT is an answer's mean gap |
# | **token budget** | how many tokens one step may hold, of all requests together |
# | **chunk** | the piece of a prompt that is read in one step |
#
# The server is the continuous one from lesson 04: whoever finishes leaves at once, whoever waits
# enters at once, and a prompt is read *whole* in the step that lets it in.

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.scenarios import budget_example, freeze, long_prompt
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import occupancy, token_raster
from toyserve.viz.style import THEMES, new_axes
from toyserve.workload import Workload, WorkloadRequest


def simulate(scheduler, workload, gpu="h100", model="llama-3.1-8b", check=False):
    """The engine with no model in it: a step lasts as long as a cost model says it would."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(gpu, model), clock)
    kv = PagedKV(num_blocks=20_000)  # memory is plenty today
    engine = Engine(scheduler=scheduler, kv=kv, runner=runner, clock=clock, check=check)
    return engine.run(workload.requests_for_engine())


crowd = freeze(num_decoding=50, prompt_len=50_000, arrival_time=1.0)
whole = simulate(ContinuousScheduler(max_running=51), crowd)
look = THEMES["light"]
(ax,) = new_axes((10, 3.6), look)
token_raster(whole, ax=ax, title="A document arrives after 1 s, and 50 streams freeze")

# %% [markdown]
# `freeze` is a ready-made list of requests: fifty answers of 600 tokens, and after a second the document, with an
# answer of 100. (`check=True` makes the engine look over every plan; that's for code of our own.)
#
# Each row is a user, each blue tick a token that reached them (Llama-3.1-8B on an H100, on the virtual clock). The last
# row is the document. For almost three seconds nobody gets anything: one step holds 50,000 prompt tokens, and a step
# can't be interrupted. Then come stripes: while the document's answer is written, each step reads its 50,000 keys and
# values and takes a quarter longer. (The white hairlines near the end only fall between two pixels.)
#
# In numbers:

# %%
from toyserve.course.tables import text_table
from toyserve.metrics import e2e, itl, percentile, ttft


def freeze_report(runs):
    """What the fifty and the document see in each run."""
    rows = []
    for name, run in runs.items():
        fifty = [r for key, r in run.requests.items() if key != "long"]
        gaps = [gap for r in fifty for gap in itl(r)]
        longest, done = max(gaps), sum(e2e(r) for r in fifty) / len(fifty)
        speed = run.summary()["output_tokens_per_s"]
        first = ttft(run.requests["long"])
        rows.append((name, 1e3 * percentile(gaps, 50), 1e3 * longest, done, first, speed))
    head = ("", "usual gap, ms", "longest, ms", "50 done after, s", "document TTFT, s", "tokens/s")
    print(text_table(head, [(r[0], *(f"{value:.4g}" for value in r[1:])) for r in rows]))
    return {row[0]: row[1:] for row in rows}


before = freeze_report({"whole prompts": whole})["whole prompts"]
assert before[1] > 300 * before[0]  # the freeze, in usual gaps
striped = [s for s in whole.steps if s.num_scheduled_tokens.get("long") == 1]  # it decodes, too
slower = 1e3 * (striped[0].end_time - striped[0].start_time) / before[0]
print(f"a step beside the document's answer: {slower:.2f} × the usual gap")
assert 1.2 < slower < 1.3

# %% [markdown]
# ## Predict first
#
# The step is too long because nothing limits it. So give it a limit: **a step may hold at most 8
# tokens**, say. Six people, A to F, are decoding: six tokens. Two are left. Now G comes with a prompt
# of 100 tokens.
#
# ```
# decode:   A B C D E F
# prefill:  G G
# ```
#
# How long does G's prompt take? And then the same thought at full size.

# %%
from toyserve.course.quiz import quiz

quiz("05.two-tokens")

# %%
quiz("05.last-chunk")

# %%
quiz("05.price")

# %% [markdown]
# ## Build it
#
# `admit` and `run` take a number of tokens, so a chunk is nothing new: you plan fewer than all.
#
# | you need | it is |
# |---|---|
# | what the plan holds so far | `plan.total_tokens` |
# | the limit | `self.token_budget` |
# | tokens of a request that haven't been run | `request.num_uncomputed_tokens` |
# | is it (still) in its prompt? | `request.is_prefilling` |
# | run `n` tokens of somebody in the batch | `self.run(plan, request, n)` |
# | let the next one in with at most `n` tokens | `self.admit(plan, self.next_waiting(), n)` |
#
# A decode is simply a request with one uncomputed token.

# %% [markdown]
# **Your turn.** The class below runs every prompt whole, budget or not. Rewrite what is between the
# arrows, then run this cell and the next.
#
# <details><summary>A hint</summary>
#
# Three groups, in this order. **First** everyone who decodes: one token each. **Then** whoever is in
# the middle of a prompt: `min(what is uncomputed, what is left of the budget)`, and skip them if that is 0.
# **Then** newcomers, as long as a slot *and* some budget is left; `admit` takes the rest of the budget as `n`.
#
# </details>

# %%
from toyserve.schedulers import Scheduler, SchedulerOutput


class MyScheduler(Scheduler):
    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        # ↓ continuous batching: everybody runs all they have, however much
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        # ↑
        return plan


# %%
def tokens_of(run, name):
    """How many tokens of one request each step ran."""
    return [step.num_scheduled_tokens.get(name, 0) for step in run.steps]


def try_out(cls):
    """None if all is well, else a sentence about the first thing that is wrong."""
    try:
        run = simulate(cls(7, token_budget=8), budget_example(), check=True)
        big = simulate(cls(7, token_budget=262), long_prompt(num_decoding=6), check=True)
    except Exception as error:  # the engine's own words, or Python's
        return f"{error}"
    if min(tokens_of(run, "A")[:64]) == 0:
        return f"in step {tokens_of(run, 'A').index(0) + 1} A, who decodes, gets no token"
    if tokens_of(run, "G")[1:51] != [2] * 50:
        return f"G's chunks are {tokens_of(run, 'G')[1:9]}…: 8 - 6 = 2 are free in each step"
    chunks = tokens_of(big, "G")[1:5]
    return None if chunks == [256, 256, 256, 232] else f"the 1000 tokens are cut into {chunks}"


problem = try_out(MyScheduler)
solved = problem is None
print(f"Not yet: {problem}." if problem else "✓ decodes first, then 256 + 256 + 256 + 232.")

# %% [markdown]
# One way to write it, folded away. **Click the three dots to open it.** If yours isn't finished, the
# lesson goes on with this one; if it is, with yours.


# %% jupyter={"source_hidden": true}
class Chunked(Scheduler):
    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            if not request.is_prefilling:
                self.run(plan, request, 1)
        for request in list(self.running):
            n = min(request.num_uncomputed_tokens, self.token_budget - plan.total_tokens)
            if n > 0 and request.is_prefilling:
                self.run(plan, request, n)
        while self.waiting and len(self.running) < self.max_running:
            n = self.token_budget - plan.total_tokens
            if n <= 0 or not self.admit(plan, self.next_waiting(), n):
                break
        return plan


Mine = MyScheduler if solved else Chunked
assert try_out(Chunked) is None

# %% [markdown]
# ## See it
#
# Budget 8, six decodes, G with 100 tokens. Above: requests in the batch, below: tokens in the step.

# %%
small = simulate(Mine(7, token_budget=8), budget_example())
g = tokens_of(small, "G")
last = max(n for n, tokens in enumerate(g, 1) if tokens == 2)
print(f"G's prompt: {g.count(2)} steps of 2 tokens, steps {g.index(2) + 1} to {last}")
assert (g.count(2), g.index(2) + 1, last) == (50, 2, 51)
assert all(sum(step.num_scheduled_tokens.values()) == 8 for step in small.steps[1:51])
occupancy(small, title="Budget 8: six decodes and two tokens of G's prompt, fifty times")

# %% [markdown]
# Not one decode was skipped. G paid: 50 steps instead of one. Two tokens a step is a toy; a real budget
# is a few hundred. Six users and a prompt of 1000 tokens, budget 262:

# %%
thousand = simulate(Mine(7, token_budget=262), long_prompt(num_decoding=6))
start = 0
for number, step in enumerate(thousand.steps[:7], 1):
    tokens = dict(step.num_scheduled_tokens)
    mine = tokens.pop("G", 0)
    print(f"step {number}: {len(tokens)} users + G[{start}:{start + mine}], {mine} tokens")
    start += mine
chunks = tokens_of(thousand, "G")[1:5]
assert chunks == [256, 256, 256, 232]

# %% [markdown]
# `256 + 256 + 256 + 232`: the last chunk is what is left. Only *it* produces a token: the first
# three end in the middle of the prompt, where the next token is already known. From the step after
# it, G is one more decode.
#
# Play it. Below the picture you see what the engine decides in each step, and the blocks of memory
# that fill as the prompt is read.

# %%
from toyserve.viz import explore

explore(thousand)

# %% [markdown]
# ## The library's version, and what changed

# %%
from toyserve.course.show import show_diff, show_source
from toyserve.schedulers import ChunkedScheduler

show_source(Mine.schedule, ChunkedScheduler.schedule)

# %% [markdown]
# The library's has a second limit, `max_chunk`, on one request's tokens per step: then a long prompt
# can't eat the whole budget, and a short one beside it gets its share. It also notes for the
# pictures why the queue waits, and refuses a budget smaller than the batch.
#
# From continuous to chunked, red goes, green comes:

# %%
show_diff(ContinuousScheduler.schedule, ChunkedScheduler.schedule)

# %% [markdown]
# What does the GPU see, then? Not requests one after another, but pieces of many in one step. A, B and D
# decode; C and E come with 100 tokens each. Budget 16, and at most 8 tokens of one request: three for the decodes,
# eight for C, and the five that are left for E.

# %%
work = [WorkloadRequest(k, num_prompt_tokens=1, output_len=40) for k in "ABD"]
work += [WorkloadRequest(k, arrival_time=0.001, num_prompt_tokens=100, output_len=40) for k in "CE"]
both = simulate(ChunkedScheduler(5, 16, max_chunk=8), Workload("both", tuple(work)))
pieces = dict(sorted(both.steps[1].num_scheduled_tokens.items()))  # the second step
print(*(f"{k}-decode" if n == 1 else f"{k}-prefill-chunk ({n})" for k, n in pieces.items()))
assert pieces == {"A": 1, "B": 1, "C": 8, "D": 1, "E": 5}

# %% [markdown]
# ## On a real model
#
# Now the bundled GPT-2. Six readers, and G: a scene of 600 tokens to be continued. This model can look back at
# 1024 tokens and no more (its *context*), so that is a long document for it. First we need the scene: the model
# writes it itself.

# %% tags=["real-model"]
import torch

from toyserve import LLM, SamplingParams

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a small model: one core is enough, and steadier to measure

READERS = ["ROMEO", "JULIET", "HAMLET", "MACBETH", "FALSTAFF", "OPHELIA"]
llm = LLM("toy", dtype="float32")
style = SamplingParams(temperature=0.8, seed=5, max_tokens=100, ignore_eos=True)
speeches = llm.generate([f"{who}:\nGood morrow, cousin.\n" for who in READERS], style)
scene = [token for speech in speeches for token in speech.token_ids]
print(llm.tokenizer.decode(scene[-60:]))

ids = {who: tuple(llm.tokenizer.encode(f"{who}:\n")) for who in READERS}
readers = [WorkloadRequest(who, prompt=ids[who], output_len=100) for who in READERS]
late = WorkloadRequest("G", 0.02, prompt=tuple(scene), output_len=40)  # while the six read along
stage = Workload("stage", (*readers, late))

# %% [markdown]
# Greedy answers (always the likeliest token), with the prompt whole and in chunks. The model computes
# every token; only the clock is that of an H100, so that G comes in the same step on every machine.

# %% tags=["real-model"]
texts, steps = {}, {}
for scheduler in (ContinuousScheduler(7), Mine(7, token_budget=70)):
    llm = LLM("toy", scheduler=scheduler, dtype="float32", clock="h100")
    name = type(scheduler).__name__
    texts[name] = {out.request_id: out for out in llm.replay(stage)}
    steps[name] = [n for n in tokens_of(llm.recording, "G") if n > 1]
    print(f"{name:20} prompt of G in {len(steps[name])} steps: {steps[name]}")
one, cut = texts.values()
equal = sum(one[key].token_ids == cut[key].token_ids for key in one)
print(f"{equal} of 7 answers are equal, token by token")
assert equal == 7 or llm.device.type == "cuda"  # a GPU may round differently in another batch
print(f"\nG goes on: …{cut['G'].text}")

# %% [markdown]
# Cutting a prompt changes *when* its tokens are computed, never what comes out: a later chunk finds
# the keys and values of the earlier ones in the KV cache, just as a decode does.
#
# ## Both clocks
#
# How long do the readers stand still, and how much later does G start? The same workload, measured
# here and on the modelled H100. The standstill is given in usual gaps, G's first token as a multiple of the
# time it takes when the prompt is read whole.


# %%
def schedulers():
    return ContinuousScheduler(7), Mine(7, token_budget=70)


def price(runs):
    """A reader's longest gap in usual gaps, whole and chunked; G's later first token."""
    stand = []
    for run in runs:
        gaps = [gap for who in READERS for gap in itl(run.requests[who])]
        stand.append(max(gaps) / percentile(gaps, 50))
    first, later = (ttft(run.requests["G"]) for run in runs)
    return *stand, later / first


def show_price(name, values):
    whole_gap, chunk_gap, later = values
    print(f"{name}: readers stand still for {whole_gap:.1f} usual gaps, in chunks for "
          f"{chunk_gap:.1f}; G's first token takes {later:.2f} × as long")  # fmt: skip


gpu = price([simulate(scheduler, stage) for scheduler in schedulers()])
show_price("Llama-3.1-8B on an H100, modelled", gpu)

# %% tags=["wall-clock"]
runs = []
for scheduler in schedulers():
    server = LLM("toy", scheduler=scheduler)
    server.generate([list(scene), "ROMEO:\n"], SamplingParams(max_tokens=2))  # to warm up
    server.replay(stage)
    runs.append(server.recording)
here = price(runs)
show_price(f"the bundled GPT-2 on {server.device}, measured", here)

# %% [markdown]
# Both say: chunks shorten the standstill and make G wait longer. How *much* differs, because the
# machines differ.
#
# - **The GPU** reads 15 GB of weights in every step. A step of 70 tokens costs nearly the same as a step of
#   7, so 600 tokens at once freeze the readers only briefly, and ten pieces
#   make G pay for reading the weights ten times: a bad deal there.
# - **The CPU** pays for each token's arithmetic. Ten chunks are hardly more work than one prompt (G waits for
#   the readers' tokens, too), and the standstill shrinks to a fraction.
#
# So the right budget belongs to the machine. Where does a GPU start to pay per token?

# %%
h100 = cost_model("h100", "llama-3.1-8b")
sizes = [16, 32, 64, 128, 256, 512, 1024, 2048]
times = [1e3 * h100.prefill_time(n) for n in sizes]
(ax,) = new_axes((7, 3), look)
ax.plot(sizes, times, "o-", color=look.series[0])
ax.set(xlabel="tokens in the step", ylabel="time of the step (ms)", xscale="log", yscale="log")
ax.set_xticks(sizes, sizes)
ax.set_yticks([5, 10, 20, 50], [5, 10, 20, 50])
ax.minorticks_off()
ax.set_title("Flat up to some 200 tokens: then each token costs", loc="left", fontsize=11)
flat, double = times[sizes.index(128)] / times[0], times[-1] / times[-2]
print(f"16 → 128 tokens: {flat:.2f} × the time; 1024 → 2048 tokens: {double:.2f} ×")
assert flat < 1.2 and double > 1.8
ax.figure

# %% [markdown]
# That is the roofline of lesson 02 once more: below the bend the step waits for the weights, above it
# for the arithmetic. A budget *at* the bend fills a step that would have been paid for anyway.
#
# ## The scheduler's dilemma
#
# Back to the fifty and the document. A scheduler could take a side:
#
# - **all prefill**: stop all decodes until the new prompt is read (vLLM's first versions did);
# - **all decode**: no new prompt while anybody's answer is streaming (static batching, in effect);
# - **mixed**: your chunks.


# %%
class AllPrefill(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        if not plan.num_scheduled_tokens:
            for request in list(self.running):
                self.run(plan, request, 1)
        return plan


class AllDecode(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        quiet = not self.running
        for request in list(self.running):
            self.run(plan, request, 1)
        while quiet and self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


sides = {cls.__name__: simulate(cls(51), crowd) for cls in (AllPrefill, AllDecode)}
sides |= {f"mixed, {n}": simulate(Mine(51, token_budget=n), crowd) for n in (256, 512)}
table = freeze_report(sides)

# %%
names = ["AllPrefill", "AllDecode", "mixed, 512"]
axes = new_axes((10, 7.5), look, 3)
for ax, name in zip(axes, names, strict=True):
    token_raster(sides[name], ax=ax, legend=False, title=f"{name}: longest gap "
                 f"{table[name][1]:.0f} ms, document after {table[name][3]:.2f} s")  # fmt: skip
    ax.set(xlim=(0, 8.1), yticks=[], ylabel="users", xlabel="time (s)" if ax is axes[-1] else "")
axes[0].figure

# %% [markdown]
# *All prefill* gives the document its answer first, and the fifty stand still. *All decode* keeps every
# stream smooth, and the document waits until the last of the fifty has finished: with a steady stream of users,
# for ever.
#
# *Mixed* looks like a compromise, and is more than that. The document pays a few per cent. The longest gap
# shrinks to a fiftieth and less. (The blue lines between 1 s and 4 s: at each of them, *everybody* gets a token. The slope
# at the left: the fifty prompts are read in chunks, too, one after another, so some start, and end, a little later.)

# %%
longer = table["mixed, 512"][3] / table["AllPrefill"][3]
smoother = table["AllPrefill"][1] / table["mixed, 512"][1]
print(f"budget 512 against all-prefill: longest gap {smoother:.0f} × shorter, "
      f"document's first token {longer:.2f} × as late")  # fmt: skip
assert smoother > 50 and longer < 1.15
assert table["AllDecode"][3] > 2 * table["AllPrefill"][3]

book = freeze(num_decoding=50, prompt_len=65_536, arrival_time=1.0)  # a "64K" prompt
read = tokens_of(simulate(Mine(51, token_budget=512), book), "long")
print(f"a prompt of 64K tokens: {sum(n > 1 for n in read)} chunks of {max(read)} or less")
assert max(read) == 512 - 50 and sum(n for n in read if n > 1) == 65_536

# %% [markdown]
# ## "A smaller budget must be slower for everybody"
#
# It sounds obvious: more steps, more overhead. Decide before you measure. (The last table has a hint.)

# %%
quiz("05.who-pays")

# %%
budgets = [64, 128, 256, 512, 1024, 4096, 65_536]
sweep = freeze_report({n: simulate(Mine(51, token_budget=n), crowd) for n in budgets})
best = max(budgets, key=lambda n: sweep[n][4])
print(f"\nhighest throughput: budget {best}")
assert best == 256
assert sweep[256][2] < 0.9 * sweep[65_536][2]  # the fifty are done earlier
assert sweep[256][3] > sweep[65_536][3]  # the document starts later
assert sweep[64][4] < sweep[256][4]  # but too small is too small
assert sweep[256][0] < 1.3 * sweep[65_536][0]  # the usual gap: a little longer
assert sweep[256][1] < 0.01 * sweep[65_536][1]  # the longest: very much shorter

# %% [markdown]
# From "no limit" down to 256, the fifty get their answers *sooner*, and even the tokens per second of all
# together rise: every chunk takes the decodes along in a step that reads the weights anyway. Only
# the document waits a little longer. (The *usual* gap grows by a quarter, since most steps now carry a chunk;
# the longest shrinks to less than a hundredth.)
#
# Below the bend that ends. With 64 a step is hardly shorter than with 128, there are just more of them; now
# the document *and* the throughput suffer.
#
# ## "Chunking speeds everything up"
#
# The opposite mistake. Nobody else is there, just the document:

# %%
alone = Workload("alone", (WorkloadRequest("long", 0.0, 50_000, 100),))
lonely = {n: ttft(simulate(Mine(1, token_budget=n), alone).requests["long"]) for n in budgets}
rows = [(n, f"{t:.2f} s", f"{t / lonely[65_536]:.2f} ×") for n, t in lonely.items()]
print(text_table(("budget, alone", "TTFT", "against whole"), rows))
assert all(lonely[n] >= lonely[65_536] for n in budgets)
assert lonely[64] > 2 * lonely[65_536]

# %% [markdown]
# Alone, no chunk size beats the whole prompt. Each chunk reads the weights again, and the keys and values of
# all chunks before it. **Chunking makes nothing faster by itself: it decides who waits for whom.** What
# it gains, it gains by sharing a step.
#
# ## The triangle
#
# TTFT, TPOT, throughput: can one setting be best for all three? The two latencies come from 150 users, eight
# arriving each second, the throughput from a rush of 100 at once. Prompts have 200 to 4000 tokens, answers
# 20 to 400. p95: nineteen of twenty users stay below it.

# %%
from toyserve.workload import Lengths, burst, poisson

mix = Lengths(200, 4000, 20, 400, output_median=120, output_sigma=0.8)
steady, rush = poisson(150, rate=8, seed=5, lengths=mix), burst(100, seed=5, lengths=mix)
budgets = [128, 256, 512, 1024, 4096, 16_384]
triangle = {}
for n in budgets:
    runs = (simulate(Mine(64, token_budget=n), w) for w in (steady, rush))
    s, r = (run.summary() for run in runs)
    triangle[n] = s["ttft_ms"]["p95"], s["tpot_ms"]["p95"], r["output_tokens_per_s"]
rows = [(n, *(f"{value:.4g}" for value in values)) for n, values in triangle.items()]
print(text_table(("budget", "TTFT p95, ms", "TPOT p95, ms", "tokens/s in the rush"), rows))

# %%
best_for = [
    min(budgets, key=lambda n: triangle[n][0]),
    min(budgets, key=lambda n: triangle[n][1]),
    max(budgets, key=lambda n: triangle[n][2]),
]
print(f"best budget for TTFT: {best_for[0]}, for TPOT: {best_for[1]}, throughput: {best_for[2]}")
assert best_for[1] < min(best_for[0], best_for[2])  # no setting is best for all
names = "TTFT p95", "TPOT p95", "throughput"
(ax,) = new_axes((7, 3.6), look)
for i, (name, color) in enumerate(zip(names, look.series, strict=False)):
    goal = triangle[best_for[i]][i]
    worse = [max(triangle[n][i] / goal, goal / triangle[n][i]) for n in budgets]
    ax.plot(budgets, worse, "os^"[i] + "-", color=color, label=name)
ax.set(xlabel="token budget", ylabel="times worse than its best", xscale="log", yscale="log")
ax.set_xticks(budgets, budgets)
ax.set_yticks([1, 1.5, 2, 4, 8], ["1", "1.5", "2", "4", "8"])
ax.minorticks_off()
ax.set_title("No budget is at 1 for all three", loc="left", fontsize=11)
ax.legend(frameon=False)
ax.figure

# %% [markdown]
# TPOT wants the smallest budget. TTFT has its best in the middle: too small, and prompts queue for budget; too large,
# and *everybody else's* prompt waits while one is read whole. So a budget isn't "tuned to the optimum".
# It is a promise: *how long may a stream stand still?* Choose the largest budget that keeps it.
#
# Now turn the knobs yourself: 60 chat users with short prompts. Below which budget does the median first
# token come later? Does a larger batch or a higher rate move that point?

# %%
from toyserve.viz import playground

playground(rate=60, token_budget=64, max_running=32, num_blocks=1600)

# %% [markdown]
# ## Break it
#
# A colleague's server does chunks of 64. It reads as one would write it: *run a chunk, move the counter on
# by a chunk.* The method below is called after each step.


# %%
class Nominal(ChunkedScheduler):
    CHUNK = 64

    def update_from_output(self, plan, result):
        finished = super().update_from_output(plan, result)
        for request, num_tokens in plan.num_scheduled_tokens.items():
            if request.is_prefilling:  # more of its prompt is to come
                start = request.num_computed_tokens - num_tokens  # where this chunk began
                end = request.num_prompt_tokens - 1  # the last one must run: it yields a token
                request.num_computed_tokens = min(start + self.CHUNK, end)
        return finished


# %% [markdown]
# It passes its test, a long prompt alone on the server. With budget 64 and the six readers, on the real
# model, G's answer is fluent, too. Here it is, asked twice, beside the right one. Greedy: the same
# question must get the same answer.

# %% tags=["real-model"]
server = LLM("toy", scheduler=Nominal(7, token_budget=64), dtype="float32", clock="h100")
answers = []
for _ in range(2):
    answers.append({out.request_id: out.text for out in server.replay(stage)}["G"])
broken_chunks = [n for n in tokens_of(server.recording, "G") if n > 1]
right = cut["G"].text
for name, text in (("right", right), ("first time", answers[0]), ("second time", answers[1])):
    print(f"[{name}] …{text}\n")
assert right not in answers

# %% [markdown]
# No error, no crash, the same machine, and one question has two answers. Nothing in the text says where it
# went wrong, so look at the work: how much of the prompt was read?

# %%
quiz("05.lost")

# %%
print("tokens of G per step:", broken_chunks)
print(f"{sum(broken_chunks)} of {late.num_prompt_tokens} prompt tokens were computed")
assert sum(broken_chunks) == 9 * 58 + 24 == 546

# %% [markdown]
# Six decodes leave 58 of the 64, but the counter moves by 64. Six tokens after each chunk are never
# run. Their places in the KV cache exist all the same, and hold whatever lay there before: other
# requests' leftovers. That is why the second answer differs from the first.
#
# **Mend it** below. The second line of the test has three readers instead of six: does your repair know
# a number that it should not know?


# %%
class MendedChunks(ChunkedScheduler):
    def update_from_output(self, plan, result):
        finished = super().update_from_output(plan, result)  # moves each counter by what was run
        for request, num_tokens in plan.num_scheduled_tokens.items():
            if request.is_prefilling:
                start = request.num_computed_tokens - num_tokens
                end = request.num_prompt_tokens - 1
                request.num_computed_tokens = min(start + 64, end)  # ← the fault
        return finished


def read_tokens(cls, num_readers):
    """Prompt tokens of G that were really run, with so many readers beside it."""
    part = Workload("part", (*readers[:num_readers], late))
    run = simulate(cls(7, token_budget=64), part)
    return sum(n for n in tokens_of(run, "G") if n > 1)


def check_repair(cls):
    for num_readers in (6, 3):
        n = read_tokens(cls, num_readers)
        print("✓" if n == 600 else "✗", f"{num_readers} readers: {n} of 600 tokens were run")


check_repair(MendedChunks)

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# Writing 58 for 64 passes with six readers and fails with three. The counter must move by what was
# *run*, which stands in the plan, and the base class does exactly that: delete the method. A chunk
# size is a limit, never a fact. The same slip in other clothes: code that takes the last chunk to be a
# full one, or that draws a token after an inner chunk.
#
# </details>

# %%
check_repair(ChunkedScheduler)
print(f"and the colleague's own test, nobody beside G: {read_tokens(Nominal, 0)} of 600")
assert read_tokens(Nominal, 0) == 600  # which is why it was never noticed
assert read_tokens(ChunkedScheduler, 6) == read_tokens(ChunkedScheduler, 3) == 600

# %% [markdown]
# ### A second fault: the budget is kept, and the streams starve
#
# "New users hate waiting", says another colleague, and swaps two loops: prompts first, decodes with
# what is left. Budget and chunks are right. Then documents keep coming: one of 4000 tokens, every tenth
# of a second.


# %%
class PromptsFirst(ChunkedScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            n = min(request.num_uncomputed_tokens, self.budget_left(plan))
            if n > 0 and request.is_prefilling:
                self.run(plan, request, n)
        while self.waiting and len(self.running) < self.max_running and self.budget_left(plan) > 0:
            if not self.admit(plan, self.next_waiting(), self.budget_left(plan)):
                break
        for request in list(self.running):
            if request not in plan.num_scheduled_tokens and self.budget_left(plan) > 0:
                self.run(plan, request, 1)
        return plan


talk = [WorkloadRequest(f"user-{i}", 0.0, 20, 300) for i in range(6)]
papers = [WorkloadRequest(f"doc-{i}", 0.3 + 0.1 * i, 4000, 20) for i in range(12)]
library = Workload("library", (*talk, *papers))
starved = simulate(PromptsFirst(32, token_budget=512), library)
token_raster(starved, title="Prompts first: six streams stand still while documents keep coming")


# %%
def longest_gap(run):
    return max(gap for r in run.requests.values() if "user" in r.request_id for gap in itl(r))


fair = simulate(Mine(32, token_budget=512), library)
stood, smooth = longest_gap(starved), longest_gap(fair)
print(f"longest gap of the six: {1e3 * stood:.0f} ms prompts first, "
      f"{1e3 * smooth:.0f} ms decodes first: {stood / smooth:.0f} ×")  # fmt: skip
docs = [ttft(run.requests["doc-11"]) for run in (starved, fair)]
print(f"the last document's first token: {docs[1] / docs[0]:.2f} × as late with decodes first")
assert stood > 20 * smooth

# %% [markdown]
# The six stand still until the documents *stop coming*, not just until one is read. Were there no last
# document, they would never go on. Decodes first is safe the other way round: a decode takes one token, so
# even a full batch leaves budget for prompts, as long as the budget is larger than the batch. That
# is why the library refuses a smaller one.

# %%
try:
    ChunkedScheduler(max_running=16, token_budget=8)
except ValueError as error:
    print(error)

# %% [markdown]
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | a process that computes for minutes | a 50,000-token prompt |
# | a process that answers to keys | a decode |
# | run to completion, no interruption | whole prompts |
# | time slice (quantum) | **token budget** |
# | the process gets the rest of its turn later | the next chunk |
# | interactive before batch | decodes before prompts |
# | short quantum: quick response, more switching | small budget: short gaps, more steps |
# | starvation by a stream of urgent jobs | prompts first |
#
# The difference: a time slice runs *one* process. A step mixes one's chunk with everybody's decodes, and the
# mixture is cheaper than its parts.

# %% [markdown]
# **At the noodle bar** (lesson 04: four stools, one big pot). A guest comes in with an order for a wedding:
# two hundred dumplings.
#
# *Whole:* the cook fills the pot with dumplings. For an hour nobody at the counter gets the next
# spoonful.
#
# *Chunked:* in every boil, first one portion of noodles for each guest at the counter, and then as many
# dumplings as the pot still has room for. The wedding is a few minutes later. Nobody at the counter
# noticed it.

# %% [markdown]
# ## Recap

# %%
print(f"whole prompt, 50 users      : one gap of {before[1] / before[0]:.0f} usual gaps")
print(f"budget 512 against that     : longest gap {smoother:.0f} × shorter, TTFT {longer:.2f} ×")
gain = sweep[256][4] / sweep[65_536][4]
print(f"budget 256 against no limit : {gain:.2f} × the throughput, decodes ride along")
print(f"alone, budget 64            : {lonely[64] / lonely[65_536]:.2f} × the TTFT, nothing gained")
print(f"prompts first               : longest gap {stood / smooth:.0f} × that of decodes first")
print(f"a counter that moves by 64  : {600 - sum(broken_chunks)} of 600 tokens never read")

# %% [markdown]
# **Say it in an interview:**
#
# > A prompt read whole makes a step as long as the prompt, and everybody who decodes waits for it. Chunked
# > prefill gives each step a token budget: decodes first, the rest goes to prompts. It bounds the gap
# > between tokens, and near the roofline's bend it is almost free, because decodes ride along in a step
# > that reads the weights anyway. It makes no request faster alone.
#
# Agrawal et al., [Sarathi-Serve](https://www.usenix.org/conference/osdi24/presentation/agrawal), OSDI
# 2024 (chunks, and "stall-free" batching); Holmes et al., DeepSpeed-FastGen, 2024 (the same idea as *SplitFuse*).
# Zhong et al., DistServe, OSDI 2024, goes the other way: prompts and decodes on different GPUs.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Give the freeze 100 users instead of 50. Which budget keeps the longest gap below 30 ms?
# 2. `ChunkedScheduler(51, 512, max_chunk=128)`: who gains if a short prompt arrives beside the document?
# 3. `simulate(…, gpu="l4")`: where is the bend of a GPU with a tenth of the bandwidth?
#
# **Exercise:** `exercises/05_chunked_prefill.ipynb`.
#
# **Next in the course:** lesson 06, KV memory. Every request in the batch holds keys and values for each
# of its tokens. How many requests fit on a GPU before the budget even matters?
