# %% [markdown]
# # 02 · Why batching pays
#
# A benchmark sheet says: *this model makes 100 tokens per second.* That was measured with one user.
#
# Now 128 users come. **How many tokens per second does the server make?** 100 in all, shared
# by everybody? 12,800? And how fast does each user's text grow?
#
# Here is the answer for a model with 8 billion weights on a data-centre GPU. Why it looks
# like this is what you find out in this lesson, by counting bytes, by measuring this computer, and by
# writing the few lines that count.
#
# *30–40 minutes. No GPU, no network. Run the cells one by one, in order.*

# %%
from toyserve.costs import cost_model
from toyserve.viz import throughput_vs_batch

BATCHES = [1, 8, 32, 128]
h100 = cost_model("h100", "llama-3-8b")
modelled = [(b, h100.decode_throughput(b, context_len=200)[0]) for b in BATCHES]
throughput_vs_batch(modelled)

# %% [markdown]
# Left: 128 users together get over a hundred times as many tokens. (Both axes grow by multiples, not by steps.)
# Right: each of them hardly notices the others. It looks like something for nothing.
#
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **weights** | the numbers a model consists of; each step needs all of them |
# | **batch** | requests that share a step; one *row* each |
# | **FLOP** | one multiplication or addition; FLOP/s: how many per second |
# | **bandwidth** | bytes per second from memory to where the arithmetic is done |
# | **arithmetic intensity** | FLOPs done per byte moved |
# | **memory-bound** | the arithmetic waits for the bytes |
# | **compute-bound** | the bytes wait for the arithmetic |
# | **throughput** | tokens per second of all users together |

# %% [markdown]
# ## Predict
#
# The sheet goes on:
#
# | batch | tokens/s in all |
# |---|---|
# | 1 | 100 |
# | 8 | 600 |
# | 32 | 1,500 |
# | 128 | 2,500 |
#
# Throughput in all decides what a token costs the owner. But what does one user feel?

# %%
from toyserve.course.quiz import quiz

quiz("02.per-user")

# %% [markdown]
# ## Where the time goes: one matrix
#
# Nearly all weights of a model lie in big matrices. Take one, `W`, 4096 × 4096, in fp16 (two bytes a number): 34 MB.
# A request in decode brings one row of 4096 numbers, and the step computes `[1, 4096] · W`. With
# 128 requests it computes `[128, 4096] · W`.
#
# - FLOPs: each row meets each weight, one multiplication and one addition. 2 · rows · 4096 · 4096.
# - Bytes: the weights, and the rows that go in and come out.

# %%
quiz("02.intensity")

# %% [markdown]
# **Your turn.** The function below counts the bytes as if every row fetched the weights for itself. But
# the rows go through `W` *together*. Change the line with the arrow.


# %%
def my_bill(rows, width=4096, num_bytes=2):
    """FLOPs done and bytes moved for [rows, width] · W."""
    flops = 2 * rows * width * width
    moved = rows * (width * width + 2 * width) * num_bytes  # ← W once per row?
    return flops, moved


# %%
def intensity(bill, rows):
    flops, moved = bill(rows)
    return flops / moved


def judge_bill(bill):
    try:
        one, many = intensity(bill, 1), intensity(bill, 128)
    except Exception as error:
        print(f"Not yet: {type(error).__name__}: {error}")
        return False
    right = abs(one - 1) < 0.01 and abs(many - 120.5) < 0.1
    if right:
        print(f"✓ From {one:.2f} to {many:.1f} FLOPs per byte.")
    elif many < 2:
        print(f"Not yet: 128 rows have {many:.2f} FLOPs per byte, no more than one row.")
    else:
        print(f"Not yet: {one:.2f} and {many:.1f} FLOPs per byte (wanted: 1.00 and 120.5).")
        print("You count numbers: each has num_bytes bytes." if one > 1.5 else
              "Rows go in and come out: 2 · rows · width numbers besides the weights.")  # fmt: skip
    return right


solved = judge_bill(my_bill)

# %% [markdown]
# One way to write it, folded away. **Click the three dots to open it.** Should yours not work yet, the
# lesson goes on with this one.


# %% jupyter={"source_hidden": true}
def shared_bill(rows, width=4096, num_bytes=2):
    """FLOPs done and bytes moved for [rows, width] · W."""
    flops = 2 * rows * width * width
    moved = (width * width + rows * 2 * width) * num_bytes
    return flops, moved


bill = my_bill if solved else shared_bill

# %% [markdown]
# Now the time. Bytes and FLOPs flow side by side, so the slower of the two decides. An H100's data sheet
# says 3.35 TB/s and (in 16 bits) 989 TFLOP/s:

# %%
from toyserve.costs import get_hardware
from toyserve.course.tables import text_table

gpu, rows_table, times = get_hardware("h100"), [], {}
for rows in (1, 4, 32, 128, 512, 2048):
    flops, moved = bill(rows)
    for_bytes, for_flops = moved / gpu.bandwidth, flops / gpu.peak_flops_for("fp16")
    times[rows] = max(for_bytes, for_flops)
    limit = "memory" if for_bytes > for_flops else "arithmetic"
    rows_table.append((rows, f"{flops / moved:.0f}", f"{1e6 * for_bytes:.1f}",
                       f"{1e6 * for_flops:.1f}", limit, f"{times[rows] / times[1]:.2f} ×"))  # fmt: skip
header = ("rows", "FLOPs/byte", "µs for the bytes", "µs for the FLOPs", "limit", "time")
print(text_table(header, rows_table))
assert times[128] / times[1] < 1.1

# %% [markdown]
# **128 rows take 6 % longer than one.** The weights have to come either way, and the
# arithmetic of 128 rows hides behind that. This is the riddle of lesson 01, solved: 200
# positions took as long as one, because they are 200 rows of one matrix product.
#
# Where both take equally long is the **ridge**: peak FLOP/s divided by bandwidth. Left of it rows are nearly free;
# right of it each one costs its full time.

# %% [markdown]
# ## Measure it: the same product on this computer
#
# In fp32 (four bytes), with the engine's own linear layer (`packed`: its weights are laid out once in the order in
# which this processor reads them), on one core. What you see before you run it was measured
# where this lesson was written.

# %% tags=["wall-clock"]
import time

import torch

from toyserve.models.linear import make_linear, packing_available

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # one core: steadier to measure
layer = make_linear(torch.randn(4096, 4096), None, packed=packing_available())
measured = {}
for rows in (1, 4, 32, 128):
    x, best = torch.randn(rows, 4096), float("inf")
    for _ in range(4):  # the fastest counts: other programs only make it slower
        start = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - start)
    measured[rows] = best
for rows, seconds in measured.items():
    flops, moved = shared_bill(rows, num_bytes=4)
    print(f"{rows:4} rows: {1e3 * seconds:6.1f} ms, {moved / seconds / 1e9:5.1f} GB/s, "
          f"{flops / seconds / 1e9:6.1f} GFLOP/s, {seconds / measured[1]:5.1f} × the time of one row")  # fmt: skip

# %% [markdown]
# One row moves many bytes and does little arithmetic; 128 rows reach many more FLOP/s, and yet they take longer
# than one row: this processor's ridge comes much earlier than that of a GPU. **Every machine
# has a ridge, and it decides how large a batch is nearly free.**
#
# ## The roofline
#
# Draw what a machine can do at best for each intensity: bandwidth × intensity, up to the peak. That is a *roofline*
# (Williams, Waterman and Patterson, 2009). Now put a server's steps under it. 128 users start together;
# their answers have 1, 2, 3, … 128 tokens, and whoever has finished leaves (`ContinuousScheduler`, lesson 04), so
# the batch shrinks by one in every step:

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.kv import PagedKV
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ContinuousScheduler
from toyserve.viz import roofline
from toyserve.workload import Workload, WorkloadRequest


def simulate(scheduler, workload, gpu="h100", model="llama-3-8b"):
    """The engine with no model in it: a step lasts as long as a cost model says it would."""
    clock = VirtualClock()
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost_model(gpu, model), clock)
    engine = Engine(scheduler=scheduler, kv=PagedKV(6000), runner=runner, clock=clock, check=False)
    return engine.run(workload.requests_for_engine())  # check=False: no audit after each step


def users(answers):
    """One request for each answer's length, all there at once, 200 tokens of prompt each."""
    return Workload("users", tuple(
        WorkloadRequest(f"u{i}", num_prompt_tokens=200, output_len=n) for i, n in enumerate(answers)
    ))  # fmt: skip


shrinking = simulate(ContinuousScheduler(128), users(range(1, 129)))
roofline("h100", "llama-3-8b", shrinking)

# %% [markdown]
# Each blue dot is a decode step: far left the last one, with a single user, far right those with over a hundred. They
# climb along the roof, and none reaches the ridge. The orange square is the first step, which reads 128 prompts at
# once, 25,600 tokens: it is beyond the ridge, where more rows don't help any more.
#
# (The dots stay a little under the roof, because nobody reaches the data sheet: the cost model
# assumes 80 % of the bandwidth and 60 % of the arithmetic.)
#
# ## Build it: a server for many
#
# Lesson 01's scheduler lets one request in when nobody runs. Let in as many as there is room for
# (`admit` returns `False` when memory is short):

# %%
from toyserve.schedulers import Scheduler, SchedulerOutput, SequentialScheduler


class Together(Scheduler):
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running:
            while self.waiting and len(self.running) < self.max_running:
                if not self.admit(plan, self.next_waiting()):
                    break
        return plan


# %%
from toyserve.course.show import show_diff

show_diff(SequentialScheduler.schedule, Together.schedule)

# %% [markdown]
# (The last two lines that go only noted *why* somebody waits, for the pictures.) All start together here, and all answers
# are equally long. What happens when they aren't is lesson 03.
#
# The engine at batch 1, 8, 32 and 128, on the clock of the H100:

# %%
from toyserve.metrics import tpot


def decode_rates(run):
    """Tokens per second while everybody decodes: of all together, of each."""
    gaps = [tpot(record) for record in run.requests.values()]
    each = 1 / (sum(gaps) / len(gaps))
    return len(gaps) * each, each


def show_rates(rates, title):
    rows = [(b, f"{total:,.0f}", f"{each:,.1f}", f"{total / rates[1][0]:.1f} ×",
             f"{each / rates[1][1]:.2f} ×") for b, (total, each) in rates.items()]  # fmt: skip
    header = ("batch", "tokens/s in all", "tokens/s each", "in all", "each")
    print(f"{title}\n{text_table(header, rows)}")


on_h100 = {b: decode_rates(simulate(Together(b), users([100] * b))) for b in BATCHES}
show_rates(on_h100, "Llama-3-8B on an H100, modelled, 200 tokens of prompt")
assert on_h100[128][0] / on_h100[1][0] > 90

# %% [markdown]
# ## On a real model
#
# The same scheduler, the same batches, the bundled GPT-2, for real. (128 rows of the same prompt:
# the arithmetic doesn't know that.)

# %% tags=["real-model"]
from toyserve import LLM, SamplingParams

PROMPT = "HAMLET:\nTo be, or not to be"
style = [
    SamplingParams(temperature=0.8, seed=i, max_tokens=20, ignore_eos=True) for i in range(128)
]
servers, outputs = {}, {}
for batch in BATCHES:
    servers[batch] = LLM("toy", scheduler=Together(batch), num_blocks=400)
    outputs[batch] = servers[batch].generate([PROMPT] * batch, style[:batch])
for i in range(3):
    print(f"user {i}: {PROMPT}{outputs[128][i].text}\n")
same = sum(outputs[1][0].token_ids == outputs[b][0].token_ids for b in BATCHES)
print(f"user 0 gets the same tokens in {same} of {len(BATCHES)} batch sizes")
assert same == len(BATCHES) or servers[1].device.type == "cuda"

# %% tags=["wall-clock"]
here = {}
for batch, server in servers.items():
    server.generate([PROMPT] * batch, style[:batch])
    steps = sorted(s.end_time - s.start_time for s in server.recording.steps[1:])
    each = 1 / steps[len(steps) // 4]  # a quiet moment's step: other programs only make it slower
    here[batch] = (batch * each, each)
show_rates(here, f"the bundled GPT-2 on {server.device}, measured, one core")
curves = {"H100, 8B model, modelled": on_h100, "here, bundled GPT-2, measured": here}
throughput_vs_batch({name: [(b, r[b][0]) for b in BATCHES] for name, r in curves.items()})

# %% [markdown]
# Two machines, two shapes. (The title speaks of the blue curve; for the other, see the table.) How much has each
# to read in a step?

# %%
from toyserve.costs import StepShape, get_model

one_row = StepShape.of_rows([(200, 1)])  # 200 tokens behind it, 1 new
print(f"8B model on the H100: {h100.model.weight_bytes / 1e9:.0f} GB of weights, "
      f"{h100.breakdown(one_row).linear.num_bytes / 1e9:.0f} GB of them read in each step")  # fmt: skip
print(f"bundled GPT-2 here  : {4 * get_model('toy').total_params / 1e6:.0f} MB (4 bytes each)")

# %% [markdown]
# - **A GPU amortises reading weights.** 15 GB per step, for one row or for 128. (Of the table of token vectors a
#   step looks up only a few rows: the missing gigabyte.) Total throughput grows nearly with the batch, and each
#   user hardly feels it.
# - **A CPU amortises overhead.** The weights of the small model, 22 MB, are quickly read. What a
#   step pays once is Python and the calls into torch. Beyond a few rows each one costs its
#   arithmetic: the total flattens, and each user's text gets slower.
#
# On both, the first few rows are the cheapest thing you can buy.

# %% [markdown]
# Turn the knob: put `batch (slots)` from 1 to 8 and to 32, and read the line above the picture. Tokens per second grow,
# the wait for the first token shrinks, and the gap between tokens hardly moves.

# %%
from toyserve.viz import playground

playground(scheduler="continuous", max_running=1, rate=60, num_requests=60)

# %% [markdown]
# ## Two wrong sentences, measured
#
# **"Twice the batch, twice the throughput, for ever."** Every row also reads its *own* KV cache, which
# nobody shares. With long conversations that is what a step spends its time on:

# %%
rates_by_context, sheet = {}, ("the sheet", "6.0 ×", "15.0 ×", "25.0 ×", "0.20 ×", "")
rows = []
for context in (200, 1000, 4000, 8000):
    alone = h100.decode_throughput(1, context)[0]
    rates_by_context[context] = [h100.decode_throughput(b, context)[0] / alone for b in BATCHES]
    _, *gains = rates_by_context[context]
    kv = 128 * context * h100.model.kv_bytes_per_token / h100.model.weight_bytes
    rows.append(
        (f"{context:,}", *(f"{g:.1f} ×" for g in gains), f"{gains[-1] / 128:.2f} ×", f"{kv:.1f} ×")
    )
header = ("tokens behind each", "8 users", "32", "128", "each of 128", "KV : weights")
print(text_table(header, [*rows, sheet]))
assert rates_by_context[200][-1] > 90
assert rates_by_context[8000][-1] < 20

# %% [markdown]
# At 8,000 tokens the KV caches are many times as large as the weights: they would not even fit on the GPU
# (lesson 06), and reading them is what takes the time. The benchmark sheet, by the way, looks much like the row of
# 4,000.
#
# **"Batching speeds up prompts, too."** A prompt is a batch already: its tokens are rows.

# %%
eight = [(0, 2048)] * 8  # eight rows: 0 tokens behind each, 2048 to read
together, apart = h100.time_of_rows(eight), 8 * h100.prefill_time(2048)
prefill_gain = apart / together
decode_gain = 8 * h100.decode_time(1, 2048) / h100.decode_time(8, 2048)
print(f"eight prompts of 2048 tokens in one step: {prefill_gain:.2f} × as fast as one by one")
print(f"eight decodes behind them in one step   : {decode_gain:.1f} ×")
assert prefill_gain < 1.05 < 6 < decode_gain

# %% [markdown]
# ## Break it: rows of unequal length
#
# Most code that isn't a serving engine puts prompts into a *rectangle*: short ones are filled up on the left with a
# padding token, so that all end in the same column. GPT-2 has no padding token, so people take its end token. Attention
# must not look at padding; the *mask* below (which tokens each token may look at) takes care of that.
#
# (No need to follow the tensors in the next cell: it is right. The fault is in the one after it.)

# %%
import torch.nn.functional as F

llm = LLM("toy", dtype="float32", device="cpu")
model, shape, PAD = llm.model, llm.model.config, llm.config.eos_token_id


class Rectangle:
    """Attention over rows × width tokens: each sees the real tokens up to itself."""

    def __init__(self, real):
        causal = torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril()
        alone = torch.eye(real.shape[1], dtype=torch.bool)  # padding sees itself: not nothing
        self.rows, self.visible = len(real), (causal & real[:, None, :]) | alone

    def __call__(self, layer, qkv):
        qkv = qkv.view(self.rows, -1, 3, shape.n_head, shape.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible[:, None])
        return out.transpose(1, 2).reshape(-1, shape.n_embd)


@torch.inference_mode()
def complete(layout, prompts, num_tokens=12):
    """Greedy answers to all prompts, in one rectangle."""
    rows = [list(p) for p in prompts]
    for _ in range(num_tokens):
        ids, real, positions = layout(rows)
        last = torch.arange(1, len(rows) + 1) * ids.shape[1] - 1
        logits = model.forward(ids.flatten(), positions.flatten(), Rectangle(real), last)
        for row, token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(token)
    return [row[len(p) :] for row, p in zip(rows, prompts, strict=True)]


# %% [markdown]
# `layout` builds the rectangle: the tokens, which of them are real, and the *position* of each. GPT-2
# learned a vector for "I am the first token", "the second", and so on; it is added to every token.


# %% tags=["real-model"]
def layout(rows):
    width = max(len(row) for row in rows)
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    real = ids != PAD
    positions = torch.arange(width).expand(ids.shape)
    return ids, real, positions


encode, decode = llm.tokenizer.encode, llm.tokenizer.decode
SPEECH = (
    "HAMLET:\nTo be, or not to be, that is the question:\nWhether 'tis nobler in the mind to be"
)
texts = [encode("When"), encode("ANTONY:\nFriends"), encode(SPEECH)]
assert [len(text) for text in texts] == [1, 7, 30]


def compare(layout, prompts):
    """Each prompt in the batch and alone: how many answers agree?"""
    batch, right = complete(layout, prompts), 0
    for prompt, now in zip(prompts, batch, strict=True):
        (alone,) = complete(layout, [prompt])
        right += now == alone
        mark, end = "✓" if now == alone else "✗", decode(prompt)[-16:]
        print(f"{mark} prompt of {len(prompt)}, ends in {end!r}")
        print(f"         alone: {decode(alone)!r}")
        print(f"  in the batch: {decode(now)!r}")
    return right


right = compare(layout, texts)

# %% [markdown]
# No error. Whoever has the longest prompt gets a good answer. The others get *an* answer, grammatical and wrong, and which
# one depends on who else is in the batch. Alone, as every test is run, all is well.

# %%
quiz("02.position")

# %% [markdown]
# **Mend it:** a row's first *real* token is number 0. Does your first idea pass the second test, too? There, a prompt
# holds an end token in its middle, between two scenes.
#
# <details><summary>A hint</summary>
#
# `real.cumsum(1)` counts, column by column, how many real tokens there have been in each row: 1 at the first. You want
# 0 there, and no number below 0 (`.clamp(min=0)`) at the padding. And look again at how `real` is found: who else
# might use the token `PAD`?
#
# </details>


# %% tags=["real-model"]
def mended(rows):
    width = max(len(row) for row in rows)
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    real = ids != PAD
    positions = torch.arange(width).expand(ids.shape)  # ← a fault
    return ids, real, positions


def try_out(layout):
    scenes = [texts[0], [*texts[1], PAD, *encode("JULIET:\n")], texts[2]]
    for name, prompts in (("three lengths", texts), ("an end token in a prompt", scenes)):
        wanted = [llm.generate([p], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))[0]
                  for p in prompts]  # fmt: skip
        try:
            got = complete(layout, prompts)
        except Exception as error:  # an IndexError: a position below 0, or one too large
            print(f"✗ {name}: {type(error).__name__}: {error}")
            continue
        right = sum(g == w.token_ids for g, w in zip(got, wanted, strict=True))
        print("✓" if right == 3 else "✗", f"{name}: {right} of 3 answers as the engine gives them")


try_out(mended)

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# Count the real tokens: `positions = (real.cumsum(1) - 1).clamp(min=0)`. That passes the first test. The
# second fails because `ids != PAD` takes the user's own end token for padding. What is padding follows from
# the *lengths*, never from the value of a token:
#
# ```
# lengths = torch.tensor([len(row) for row in rows])
# real = torch.arange(width) >= width - lengths[:, None]
# ```
#
# </details>
#
# Padding has a price, too:


# %% tags=["real-model"]
def by_length(rows):
    ids, _, _ = layout(rows)
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]
    return ids, real, (real.cumsum(1) - 1).clamp(min=0)


try_out(by_length)
ids, real, _ = by_length(texts)
padding = 1 - int(real.sum()) / real.numel()
print(f"{real.numel()} places, {int(real.sum())} real tokens: {padding:.0%} computed for nothing")

# %% [markdown]
# This course's engine has no rectangle: the tokens of all requests lie in *one ragged row*, each with its own position,
# and only attention knows whose is whose. No padding token, no mask for padding. (`wte` is the table of token vectors,
# `wpe` the one of positions, `blocks` are the layers; `logits_rows` says after which tokens the next one is wanted.)

# %%
from toyserve.course.show import show_source
from toyserve.models.gpt2 import GPT2

show_source(GPT2.forward)

# %% [markdown]
# ## For the curious: a third wrong sentence
#
# (The rest of the course doesn't need this part. In a hurry? Go on at "You have seen this before".)
#
# *"Greedy answers must be bit-identical, whatever the batch."* (Greedy: always the likeliest token.) Above, user 0's
# tokens were equal at every batch size. In fp32, on this CPU, they are. On a GPU in fp16 they need not be: for
# another number of rows it chooses another *kernel* (a program on the GPU), which adds up the same products *in
# another order*.
#
# Let's do just that: numbers rounded to 16 bits, each sum in one piece, or in four.


# %%
class Rounded:
    """A linear layer as 16-bit hardware does it: rounded inputs, wide sums, a rounded result."""

    def __init__(self, weight, bias, pieces, half):
        self.pieces, self.bias = pieces, 0 if bias is None else bias
        self.round = (lambda t: t.half().float()) if half else (lambda t: t)
        self.weight = self.round(weight)

    def __call__(self, x):
        cuts = zip(
            self.round(x).chunk(self.pieces, 1), self.weight.chunk(self.pieces, 1), strict=True
        )
        parts = [a @ w.t() for a, w in cuts]
        return self.round(sum(parts[1:], parts[0]) + self.bias)

    def gelu(self, x):
        return self.round(F.gelu(self(x), approximate="tanh"))

    def add_to(self, x, residual):
        return self.round(residual + self(x))


# %%
from toyserve.models.gpt2 import Block
from toyserve.models.weights import load_checkpoint


@torch.inference_mode()
def all_logits(token_ids, pieces, half):
    """The logits after every token of a text, with every sum in so many pieces."""
    config, weights, _ = load_checkpoint("toy")
    w = {name: t.float() for name, t in weights.items()}
    net = GPT2(config, weights, torch.device("cpu"), torch.float32, packed=False)
    names = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj"}  # fmt: skip
    for i, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        for field, name in names.items():
            weight, bias = w[f"h.{i}.{name}.weight"].t(), w[f"h.{i}.{name}.bias"]
            setattr(block, field, Rounded(weight, bias, pieces, half))
    net.head = Rounded(net.wte, None, pieces, half)
    ids, n = torch.tensor(token_ids), len(token_ids)
    real = torch.ones(1, n, dtype=torch.bool)
    return net.forward(ids, torch.arange(n), Rectangle(real), torch.arange(n))


long = SamplingParams(temperature=0.9, seed=5, max_tokens=700, ignore_eos=True)
text = llm.generate(["ROMEO:\n"], long)[0].token_ids

# %% tags=["real-model"]
noise, flips, margins = {}, {}, {}
for name, half in (("fp32", False), ("fp16", True)):
    one, four = (all_logits(text, pieces, half) for pieces in (1, 4))
    noise[name] = (one - four).abs().max().item()
    top = one.topk(2).values
    margins[name] = top[:, 0] - top[:, 1]
    differ = one.argmax(-1) != four.argmax(-1)
    flips[name] = margins[name][differ].tolist()
    print(f"{name}: logits differ by up to {noise[name]:.1e}; the likeliest token changes at "
          f"{len(flips[name])} of {len(text)} places")  # fmt: skip
print("margins of the top two where it changes:", *(f"{m:.4f}" for m in flips["fp16"]))
assert noise["fp32"] < noise["fp16"] / 100
assert not flips["fp32"]
assert all(m <= 2 * noise["fp16"] for m in flips["fp16"])

# %% tags=["real-model"]
from toyserve.viz.style import THEMES, new_axes

look = THEMES["light"]
(ax,) = new_axes((8, 3.2), look)
ordered = margins["fp16"].clamp(min=1e-7).sort().values.numpy()
ax.plot(range(1, len(ordered) + 1), ordered, color=look.series[0], label="margin of the top two")
for number, (name, value) in enumerate(noise.items(), 1):
    ax.axhline(value, color=look.series[number], linestyle="--", label=f"noise in {name}")
ax.set(xscale="log", yscale="log", xlabel="tokens of the text, closest decision first")
ax.set_ylabel("difference of logits")
ax.set_title("A token can change only where the margin is below the noise", loc="left", fontsize=11)
ax.legend(frameon=False, fontsize=9)
ax.figure

# %% [markdown]
# A *logit* is the model's score for a candidate token. Where the first candidate leads by more than the rounding noise,
# no order of addition can change it. In fp32 the noise is so small that none of these decisions is that close; in fp16 some
# are. And after *one* changed token, the rest of the answer goes its own way.
#
# So: **fp32 here, equal, and this course tests it. fp16, equal up to near-ties.** A serving engine that promises more has
# to use kernels whose order of addition doesn't depend on the batch.
#
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | one disk read serves all who wait for that page | one read of the weights serves all rows |
# | interrupt coalescing, `writev`: fixed cost once | the fixed cost of a step, once |
# | memory wall | memory-bound decode |
# | working set of each process | KV cache of each request |
# | throughput against response time | tokens/s in all against tokens/s each |

# %% [markdown]
# **Or at the noodle bar.** Bringing the pot to the boil takes the gas it takes (*reading the weights*), for one portion as for
# thirty. So the owner puts in more stools, and cooks for all who sit there at once. The guests hardly notice
# each other. At some point the pot is *full*: from then on every portion costs its own time (*the ridge*).
#
# But each guest also keeps bowls on the counter (*KV cache*), and those are not shared. The counter is
# what runs out first.
#
# ## Recap

# %%
print(f"[1,4096]·W to [128,4096]·W  : {intensity(bill, 128) / intensity(bill, 1):.0f} × the work per byte, "
      f"{times[128] / times[1]:.2f} × the time")  # fmt: skip
for batch in BATCHES[1:]:
    total, each = (on_h100[batch][i] / on_h100[1][i] for i in (0, 1))
    print(f"batch {batch:3} on the H100 clock   : {total:5.1f} × in all, {each:.2f} × each")
print(f"batch 128, 8000 tokens each : {rates_by_context[8000][-1]:.0f} × in all, "
      f"{rates_by_context[8000][-1] / 128:.2f} × each")  # fmt: skip
print(f"eight long prompts together : {prefill_gain:.2f} ×, no gain")
print(f"prompts of 1, 7, 30 padded  : {padding:.0%} of the work for nobody")

# %% [markdown]
# **Say it in an interview:**
#
# > Decode is memory-bound: a step has to read all weights, whoever is in it, so more rows raise the arithmetic
# > intensity and the throughput at nearly the same step time, up to the ridge of the roofline. Prefill is compute-bound
# > already. The batch is limited by KV cache, which isn't shared, and throughput of all is not speed for each.
#
# The papers: Williams, Waterman, Patterson, *Roofline*, 2009; Pope et al.,
# [Efficiently Scaling Transformer Inference](https://arxiv.org/abs/2211.05102), 2022; on results that
# depend on the batch: He, *Defeating Nondeterminism in LLM Inference*, 2025.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. Take `num_bytes=1` (8-bit weights) in the table of times. Where is the ridge now, in rows?
# 2. Simulate on a `"t4"` instead of an `"h100"`, with `model="gpt2"`. How large is a nearly free batch?
# 3. Pad on the right instead of the left. Why does `complete` then read the wrong logits?
#
# **Exercise:** `exercises/02_why_batching_pays.ipynb`.
#
# **Next in the course:** lesson 03, static batching: the answers are *not* equally long.
