# %% [markdown]
# # Exercise 05 · Chunked prefill
#
# In the lesson you cut a prompt so that a step keeps its budget. Here you limit how many prompts are
# read at once, predict the pieces of a prompt beside streams that come to an end, turn a promise in
# milliseconds into a chunk, find a fault in the very last chunk, and set a budget for two targets.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%
from toyserve.course.checks import check
from toyserve.course.checks.colleague import WholeChunks
from toyserve.course.checks.ex05_chunked_prefill import FEW, USERS, hour_of, late_prompt
from toyserve.course.checks.runs import serve
from toyserve.course.show import show_source
from toyserve.metrics import itl, ttft
from toyserve.schedulers import ChunkedScheduler, ContinuousScheduler, Scheduler, SchedulerOutput
from toyserve.viz import timeline

SEED = 0  # your own numbers in 05.2 and 05.5 come from it

# %% [markdown]
# `serve(case, scheduler)` runs a real engine on the virtual clock and returns its recording. A case
# has requests: name, arrival in seconds, prompt tokens, answer tokens. This is the lesson's rule, one
# row per user:

# %%
case = FEW[2]
lesson = serve(case, ChunkedScheduler(5, token_budget=12))
print([dict(step.num_scheduled_tokens) for step in lesson.steps[:4]])
timeline(lesson, by="request", title="Budget 12: A's prompt is long, the others' are short")

# %% [markdown]
# ## 05.1 At most so many prompts at once
#
# Each prompt in a step costs the kernel some extra work, so a server may say: **at most
# `self.max_prompts` prompts are read from in one step**, those under way and newcomers together. All
# else is the lesson's rule:
#
# 1. everybody who decodes gets one token;
# 2. prompts under way get what is left of the budget, in the order in which they were let in;
# 3. newcomers enter while there is a slot, some budget, and a prompt may still be added. When `admit`
#    says `False`, memory is short and nobody else enters in this step.


# %% answer="05.1"
class FewPrompts(Scheduler):
    max_prompts = 1

    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        ### BEGIN SOLUTION
        for request in self.running:
            if not request.is_prefilling:
                self.run(plan, request, 1)
        num_prompts = 0
        for request in list(self.running):
            n = min(request.num_uncomputed_tokens, self.token_budget - plan.total_tokens)
            if request.is_prefilling and n > 0:
                self.run(plan, request, n)
                num_prompts += 1
        while self.waiting and len(self.running) < self.max_running:
            n = self.token_budget - plan.total_tokens
            full = num_prompts == self.max_prompts or n <= 0
            if full or not self.admit(plan, self.next_waiting(), n):
                break
            num_prompts += 1
        ### END SOLUTION
        return plan


# %% check="05.1" points=2
check("05.1")
### BEGIN HIDDEN TESTS
check(
    "05.1",
    cases=[
        {
            "what": f"{n} requests, {slots} slots, budget {budget}, max_prompts = {prompts}",
            "slots": slots,
            "budget": budget,
            "prompts": prompts,
            "blocks": blocks,
            "requests": [
                [f"r{i}", 0.02 * (i // 3), 1 + (13 * i + SEED) % 29, 2 + 5 * i % 7]
                for i in range(n)
            ],
        }
        for n, slots, budget, prompts, blocks in (
            (1, 1, 1, 1, 99),
            (9, 4, 9, 3, 99),
            (12, 6, 30, 2, 99),
            (8, 8, 64, 8, 99),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 05.2 The pieces of a prompt: predict, then measure
#
# Five streams with prompts of one token start in step 1. G comes during that step, so its prompt
# begins in step 2. The rule is the library's `ChunkedScheduler`, with this budget:

# %%
mine = late_prompt(SEED)
*streams, (_, _, prompt, _) = mine["requests"]
print(f"budget {mine['budget']}, G's prompt {prompt} tokens")
print("answers, in tokens:", {name: answer for name, _, _, answer in streams})

# %% [markdown]
# On paper: `chunks`, the list of how many tokens of G's prompt each step reads, from step 2 on. (An
# answer of 3 tokens is in the steps 1, 2 and 3.)
#
# Then measure, against `ContinuousScheduler(6)`, which reads the prompt whole:
#
# - `calmer`: the longest gap between two tokens of the five streams, whole over chunked;
# - `later`: G's time to first token, chunked over whole.
#
# `itl(run.requests["A"])` is the list of A's gaps, `ttft(run.requests["G"])` G's first token.

# %% answer="05.2"
### BEGIN SOLUTION
chunks, step = [], 2
while sum(chunks) < prompt:
    there = sum(answer >= step for *_, answer in streams)
    chunks.append(min(mine["budget"] - there, prompt - sum(chunks)))
    step += 1
cut = serve(mine, ChunkedScheduler(6, token_budget=mine["budget"]))
uncut = serve(mine, ContinuousScheduler(6))
gap_cut, gap_uncut = (
    max(gap for name in "ABCDE" for gap in itl(run.requests[name])) for run in (cut, uncut)
)
calmer = gap_uncut / gap_cut
later = ttft(cut.requests["G"]) / ttft(uncut.requests["G"])
### END SOLUTION

# %% check="05.2" points=2
check("05.2")

# %% [markdown]
# ## 05.3 A budget in milliseconds
#
# Users feel milliseconds, not tokens. So let the promise be *"no step is longer than `limit_ms`"*, and
# ask the cost model how many prompt tokens that leaves. Write `chunk_for`:
#
# - `streams`: for each request that decodes, how many tokens are behind it;
# - `done`, `left`: how much of the prompt has been read, and how much is still to be read;
# - return the **largest** number of prompt tokens, at most `left`, for which the step keeps the
#   promise; 0 if not even one does.
#
# `cost.time_of_rows([(behind, to_run), …])` is the time of a step **in seconds**, one pair per request:

# %%
from toyserve.costs import cost_model

h100 = cost_model("h100", "llama-3.1-8b")
print(f"{1e3 * h100.time_of_rows([(900, 1)] * 40):.2f} ms: 40 streams")
print(f"{1e3 * h100.time_of_rows([(900, 1)] * 40 + [(0, 512)]):.2f} ms: and 512 tokens of a prompt")
print(f"{1e3 * h100.time_of_rows([(900, 1)] * 40 + [(60_000, 512)]):.2f} ms: after 60,000 others")


# %% answer="05.3"
def chunk_for(cost, streams, done, left, limit_ms):
    """The largest chunk that keeps the promise."""
    ### BEGIN SOLUTION
    others = [(behind, 1) for behind in streams]
    low, high = 0, left  # low keeps the promise (or is 0), whatever is above high does not
    while low < high:
        middle = (low + high + 1) // 2
        if 1e3 * cost.time_of_rows([*others, (done, middle)]) <= limit_ms:
            low = middle
        else:
            high = middle - 1
    return low
    ### END SOLUTION


# %% check="05.3" points=2
check("05.3")
### BEGIN HIDDEN TESTS
check(
    "05.3",
    cases=[
        {
            "what": f"{n} streams, {done} read, {left} left, {limit} ms on {gpu}",
            "gpu": gpu,
            "streams": [300 + (97 * i + SEED) % 2000 for i in range(n)],
            "done": done,
            "left": left,
            "limit_ms": limit,
        }
        for gpu, n, done, left, limit in (
            ("a100", 10, 0, 900, 30.0),
            ("a100", 64, 5000, 4000, 60.0),
            ("h100", 5, 20_000, 7, 50.0),
            ("h100", 1, 100, 50, 1.0),
            ("l4", 2, 3000, 2000, 400.0),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 05.4 The fault in the picture
#
# A colleague's scheduler reads prompts in chunks of 64. Its tests, prompts of 64, 128, 192 and 193
# tokens, pass, and every answer is right to the last token. But the support desk has three users:

# %%
show_source(WholeChunks.in_prompt, WholeChunks.schedule)

# %%
timeline(
    serve(USERS, WholeChunks(3, 256)), by="request", title="191, 192, 193 tokens. Who is late?"
)

# %% [markdown]
# - `late`: who has to wait much too long (the name at the left of the row)?
# - `steps`: in how many steps does the colleague's scheduler read a prompt of **255** tokens, with
#   nobody else there? (The step with the last prompt token brings the first token of the answer.)
# - `Mended`: chunks of at most 64, but in no more steps than needed. It is made as
#   `Mended(max_running, token_budget=…)`; you may start from `WholeChunks`.

# %% answer="05.4"
### BEGIN SOLUTION
late = "Ann"
steps = 255 // 64 + 255 % 64


class Mended(WholeChunks):
    def in_prompt(self, request):
        return request.is_prefilling


### END SOLUTION

# %% check="05.4" points=3
check("05.4")
### BEGIN HIDDEN TESTS
check(
    "05.4",
    cases=[
        {
            "what": f"a prompt of {length} tokens, {n} streams, budget {budget}",
            "slots": n + 1,
            "budget": budget,
            "requests": [[f"s{i}", 0.0, 1, 25 + i] for i in range(n)] + [["X", 1e-6, length, 3]],
        }
        for length, n, budget in (
            (63, 0, 64),
            (65, 1, 64),
            (128 - 1, 6, 70),
            (128, 2, 65),
            (321, 6, 80),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 05.5 A budget for two targets
#
# 70 users, fourteen a second, prompts of up to 3,500 tokens, Llama-3.1-8B on an H100. A small budget,
# and prompts queue for their share of the steps (TTFT). A large one, and streams stand still while
# others' prompts are read (gaps). Your targets:

# %%
hour = hour_of(SEED)
print(f"p95 of TTFT at most {hour['ttft_ms']:,} ms, p99 of the gaps at most {hour['itl_ms']} ms")

# %% [markdown]
# Find a `token_budget` that meets both, with 48 slots.
# `serve(hour, ChunkedScheduler(48, token_budget=…)).summary()` has `["ttft_ms"]["p95"]` and
# `["itl_ms"]["p99"]`.


# %% answer="05.5"
### BEGIN SOLUTION
def meets_both(budget):
    summary = serve(hour, ChunkedScheduler(48, token_budget=budget)).summary()
    smooth = summary["itl_ms"]["p99"] <= hour["itl_ms"]
    return smooth and summary["ttft_ms"]["p95"] <= hour["ttft_ms"]


token_budget = next(budget for budget in range(240, 500, 16) if meets_both(budget))
### END SOLUTION

# %% check="05.5" points=2
check("05.5")

# %% [markdown]
# ## 05.6 Explain
#
# "Without a budget there are the fewest steps, so everything is fastest", says somebody. Two or three
# sentences: **what happens to the gaps, to the TTFT of short prompts, and to the throughput when the
# budget grows from 32 tokens to no limit, and why is the best one for throughput in between?** This
# part is read by a person.

# %% [markdown] explain="05.6" points=2
# ### BEGIN SOLUTION
# The gaps grow with the budget, because a stream waits for the whole step that reads somebody else's
# prompt. The TTFT of short prompts first falls (with a tiny budget they queue for tokens) and rises
# again when they wait behind others' whole prompts. Throughput is low with 32, because each step
# reads all weights for few tokens; it is best where a step's arithmetic takes about as long as reading
# the weights, and without a limit it falls a little, because decodes no longer ride along in each
# piece of a prompt.
# ### END SOLUTION
