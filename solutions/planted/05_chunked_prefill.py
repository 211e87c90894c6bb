"""Planted answers to exercise 05: each wrong one must fail with these words, each right one pass."""


# %% wrong 05.1 | and max_prompts is 1
class FewPrompts(ChunkedScheduler):  # the lesson's version
    pass


# %% wrong 05.1 | and max_prompts is 2
class FewPrompts(Scheduler):  # counts only the newcomers
    max_prompts = 1

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
            if request.is_prefilling and n > 0:
                self.run(plan, request, n)
        while self.waiting and len(self.running) < self.max_running:
            n = self.token_budget - plan.total_tokens
            if len(plan.admitted) == self.max_prompts or n <= 0:
                break
            if not self.admit(plan, self.next_waiting(), n):
                break
        return plan


# %% wrong 05.1 | plans 10 tokens in one step; token_budget is 4
class FewPrompts(Scheduler):  # prompts whole
    max_prompts = 1

    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if len(plan.admitted) == self.max_prompts:
                break
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


# %% wrong 05.1 | decodes come first
class FewPrompts(Scheduler):  # prompts first
    max_prompts = 1

    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        count = 0
        for request in list(self.running):
            n = min(request.num_uncomputed_tokens, self.token_budget - plan.total_tokens)
            if request.is_prefilling and n > 0:
                self.run(plan, request, n)
                count += 1
        while self.waiting and len(self.running) < self.max_running and count < self.max_prompts:
            n = self.token_budget - plan.total_tokens
            if n <= 0 or not self.admit(plan, self.next_waiting(), n):
                break
            count += 1
        for request in list(self.running):
            if not request.is_prefilling and plan.total_tokens < self.token_budget:
                self.run(plan, request, 1)
        return plan


# %% right 05.1 | on top of the library's class, by hiding slots
class FewPrompts(ChunkedScheduler):
    max_prompts = 1

    def schedule(self):
        slots = self.max_running
        reading = sum(r.is_prefilling for r in self.running)
        self.max_running = min(slots, len(self.running) + self.max_prompts - reading)
        try:
            return super().schedule()
        finally:
            self.max_running = slots


# %% right 05.1 | one budget that is counted down
class FewPrompts(Scheduler):
    max_prompts = 1

    def __init__(self, max_running=16, token_budget=256):
        super().__init__(max_running)
        self.token_budget = token_budget

    def schedule(self):
        plan = SchedulerOutput()
        left, prompts = self.token_budget, self.max_prompts
        for request in sorted(self.running, key=lambda r: r.is_prefilling):
            n = min(left, request.num_uncomputed_tokens)
            prompts -= request.is_prefilling
            if n and self.run(plan, request, n):
                left -= n
        while left and prompts and self.waiting and len(self.running) < self.max_running:
            newcomer = self.next_waiting()
            if not self.admit(plan, newcomer, left):
                return plan
            left -= plan.num_scheduled_tokens[newcomer]
            prompts -= 1
        return plan


# %% wrong 05.2 | the whole budget
chunks = [mine["budget"]] * (prompt // mine["budget"]) + [prompt % mine["budget"]]
calmer = later = 1.0

# %% wrong 05.2 | all your chunks but the last are equal
size = mine["budget"] - 5
chunks = [size] * (prompt // size) + [prompt % size]
calmer = later = 1.0

# %% wrong 05.2 | in each of the steps 1 to n
chunks, at = [], 2
while sum(chunks) < prompt:  # a stream leaves a step too early
    chunks.append(min(mine["budget"] - sum(a > at for *_, a in streams), prompt - sum(chunks)))
    at += 1
calmer = later = 1.0

# %% wrong 05.2 | How much of the prompt is left by then
chunks, at = [], 2
while sum(chunks) < prompt:  # the last chunk is a full one
    chunks.append(mine["budget"] - sum(a >= at for *_, a in streams))
    at += 1
calmer = later = 1.0

# %% wrong 05.2 | longest gap whole over chunked
cut = serve(mine, ChunkedScheduler(6, token_budget=mine["budget"]))
chunks = [s.num_scheduled_tokens["G"] for s in cut.steps if s.num_scheduled_tokens.get("G", 0) > 1]
uncut = serve(mine, ContinuousScheduler(6))
calmer = max(itl(cut.requests["A"])) / max(itl(uncut.requests["A"]))  # upside down
later = 1.0

# %% wrong 05.2 | must be a list of numbers
chunks, calmer, later = 5, 1.0, 1.0

# %% right 05.2 | read off the run, in numpy's numbers
import numpy as np

cut = serve(mine, ChunkedScheduler(6, token_budget=mine["budget"]))
uncut = serve(mine, ContinuousScheduler(6))
sizes = np.array([step.num_scheduled_tokens.get("G", 0) for step in cut.steps])
chunks = sizes[sizes > 1]
longest = [
    np.max(np.concatenate([itl(r) for key, r in run.requests.items() if key != "G"]))
    for run in (uncut, cut)
]
calmer = longest[0] / longest[1]
later = np.divide(*[ttft(run.requests["G"]) for run in (cut, uncut)])


# %% wrong 05.3 | of a prompt of which 100 are left
def chunk_for(cost, streams, done, left, limit_ms):
    n = 0
    while 1e3 * cost.time_of_rows([*((s, 1) for s in streams), (done, n + 1)]) <= limit_ms:
        n += 1
    return n


# %% wrong 05.3 | if nobody else is in the step
def chunk_for(cost, streams, done, left, limit_ms):
    n = 0
    while n < left and 1e3 * cost.time_of_rows([(done, n + 1)]) <= limit_ms:
        n += 1
    return n


# %% wrong 05.3 | fit at the start of a prompt
def chunk_for(cost, streams, done, left, limit_ms):
    n, rows = 0, [(s, 1) for s in streams]
    while n < left and 1e3 * cost.time_of_rows([*rows, (0, n + 1)]) <= limit_ms:
        n += 1
    return n


# %% wrong 05.3 | were promised
def chunk_for(cost, streams, done, left, limit_ms):  # seconds
    n, rows = 0, [(s, 1) for s in streams]
    while n < left and cost.time_of_rows([*rows, (done, n + 1)]) <= limit_ms:
        n += 1
    return n


# %% wrong 05.3 | and one more would take
def chunk_for(cost, streams, done, left, limit_ms):  # in whole blocks
    n, rows = 0, [(s, 1) for s in streams]
    while n < left and 1e3 * cost.time_of_rows([*rows, (done, n + 1)]) <= limit_ms:
        n += 1
    return n // 16 * 16 if n < left else n


# %% wrong 05.3 | whole and not negative
def chunk_for(cost, streams, done, left, limit_ms):  # counts down once too often
    n, rows = left, [(s, 1) for s in streams]
    while n >= 0 and 1e3 * cost.time_of_rows([*rows, (done, n)]) > limit_ms:
        n -= 1
    return n


# %% right 05.3 | down from all that is left
def chunk_for(cost, streams, done, left, limit_ms):
    rows = [(s, 1) for s in streams]
    for n in range(left, 0, -1):
        if cost.time_of_rows([*rows, (done, n)]) <= limit_ms / 1e3:
            return n
    return 0


# %% wrong 05.4 | Whose prompt is still being read
late, steps, Mended = "Cem", 66, WholeChunks

# %% wrong 05.4 | is what it should be
late, steps, Mended = "Ann", 4, WholeChunks

# %% wrong 05.4 | prompt tokens that X still has
late, steps, Mended = "Ann", 66, WholeChunks

# %% wrong 05.4 | a chunk is 64 at most
late, steps, Mended = "Ann", 66, ChunkedScheduler

# %% wrong 05.4 | prompt tokens that X still has
late, steps = "Ann", 66


class Mended(WholeChunks):  # rounds up: right alone, wrong when streams cut the chunks
    def in_prompt(self, request):
        done = -(-request.num_computed_tokens // self.chunk)
        return done < -(-request.num_prompt_tokens // self.chunk)


# %% right 05.4 | the library's class with max_chunk
late, steps = "Ann", 3 + 63


class Mended(ChunkedScheduler):
    def __init__(self, max_running, token_budget):
        super().__init__(max_running, token_budget, max_chunk=64)


# %% right 05.4 | by the two counters
late, steps = "Ann", 66


class Mended(WholeChunks):
    def in_prompt(self, request):
        return request.num_computed_tokens < request.num_prompt_tokens


# %% wrong 05.5 | prompts queue for their share
token_budget = 100

# %% wrong 05.5 | a stream stands still
token_budget = 2048

# %% wrong 05.5 | must be a whole number from 48
token_budget = "256"


# %% right 05.5 | from above, the largest that fits
def one_run(n):
    s = serve(hour, ChunkedScheduler(48, token_budget=n)).summary()
    return s["itl_ms"]["p99"] <= hour["itl_ms"] and s["ttft_ms"]["p95"] <= hour["ttft_ms"]


token_budget = max(n for n in range(240, 540, 50) if one_run(n))
