"""Planted answers to exercise 03: each wrong one must fail with these words, each right one pass."""

# %% wrong 03.1 | is one request at a time
steps, last_starts, wasted, faster = sum(r[3] for r in mine["requests"]), 1, 0.5, 1

# %% wrong 03.1 | without a hole
steps, last_starts, wasted, faster = -(-sum(r[3] for r in mine["requests"]) // 4), 1, 0.5, 1

# %% wrong 03.1 | the batch before it ends
lens = [r[3] for r in mine["requests"]]
last_starts = max(lens[:4]) + max(lens[4:8])
steps, wasted, faster = last_starts + max(lens[8:]), 0.5, 1

# %% wrong 03.1 | leaves out the two rows
lens = [r[3] for r in mine["requests"]]
last_starts = max(lens[:4]) + max(lens[4:8]) + 1
steps = last_starts - 1 + max(lens[8:])
wasted, faster = 1 - sum(lens) / (4 * (last_starts - 1) + 2 * max(lens[8:])), 1

# %% wrong 03.1 | looks like per cent
lens = [r[3] for r in mine["requests"]]
last_starts = max(lens[:4]) + max(lens[4:8]) + 1
steps = last_starts - 1 + max(lens[8:])
wasted, faster = 100 - 100 * sum(lens) / (4 * steps), 1

# %% wrong 03.1 | (one at a time over the batch) is too high
lens = [r[3] for r in mine["requests"]]
last_starts = max(lens[:4]) + max(lens[4:8]) + 1
steps = last_starts - 1 + max(lens[8:])
wasted, faster = 1 - sum(lens) / (4 * steps), 4

# %% right 03.1 | all from the run, with numpy
import numpy as np

run = serve(mine, StaticScheduler(4))
steps = np.int64(run.num_steps)
last_starts = max(i for i, s in enumerate(run.steps, 1) if s.admitted)
wasted = np.mean([(4 - len(s.num_scheduled_tokens)) / 4 for s in run.steps])
faster = serve(mine, SequentialScheduler()).summary()["makespan_s"] / run.summary()["makespan_s"]


# %% wrong 03.2 | fewer are enough
def groups(answers, rows):  # in order of arrival
    names = list(answers)
    return [names[i : i + rows] for i in range(0, len(names), rows)]


# %% wrong 03.2 | a row too few
def groups(answers, rows):  # shortest first
    names = sorted(answers, key=lambda n: answers[n])
    return [names[i : i + rows] for i in range(0, len(names), rows)]


# %% wrong 03.2 | and must be in one
def groups(answers, rows):  # loses what does not fill a batch
    names = sorted(answers, key=lambda n: answers[n])
    return [names[i : i + rows] for i in range(0, len(names) - rows + 1, rows)]


# %% wrong 03.2 | a list of lists of names
def groups(answers, rows):
    return sorted(answers, key=lambda n: -answers[n])


# %% wrong 03.2 | fewer are enough
def groups(answers, rows):  # balanced: a long one for each batch
    names = sorted(answers, key=lambda n: -answers[n])
    num = -(-len(names) // rows)
    return [names[i::num] for i in range(num)]


# %% right 03.2 | shortest first, the small batch in front
def groups(answers, rows):
    names = sorted(answers, key=lambda n: answers[n])
    over = len(names) % rows
    result = [tuple(names[:over])] if over else []
    return result + [tuple(names[i : i + rows]) for i in range(over, len(names), rows)]


# %% right 03.2 | takes the longest away, again and again
def groups(answers, rows):
    rest, result = dict(answers), []
    while rest:
        batch = []
        while rest and len(batch) < rows:
            batch.append(max(rest, key=rest.get))
            del rest[batch[-1]]
        result.insert(0, batch)
    return result


# %% wrong 03.3 | to more than twice its length
class Alike(StaticScheduler):  # the lesson's, unchanged
    pass


# %% wrong 03.3 | and is left outside
class Alike(StaticScheduler):  # stops at the first that does not fit
    def schedule(self):
        plan = SchedulerOutput()
        if self.batch:
            return super().schedule()
        while self.waiting and len(self.batch) < self.max_running:
            lens = [r.num_prompt_tokens for r in [*self.batch, self.waiting[0]]]
            if max(lens) > 2 * min(lens):
                break
            self.admit(plan, self.waiting[0])
        longest = max((r.num_prompt_tokens for r in self.batch), default=0)
        for request in self.batch:
            if request.num_prompt_tokens < longest:
                plan.num_padded_tokens[request] = longest - request.num_prompt_tokens
        return plan


# %% wrong 03.3 | to more than twice its length
class Alike(StaticScheduler):  # compares with the first of the batch alone
    def schedule(self):
        plan = SchedulerOutput()
        if self.batch:
            return super().schedule()
        for request in list(self.waiting):
            first = self.batch[0] if self.batch else request
            a, b = sorted((first.num_prompt_tokens, request.num_prompt_tokens))
            if len(self.batch) < self.max_running and b <= 2 * a:
                self.admit(plan, request)
        longest = max((r.num_prompt_tokens for r in self.batch), default=0)
        for request in self.batch:
            if request.num_prompt_tokens < longest:
                plan.num_padded_tokens[request] = longest - request.num_prompt_tokens
        return plan


# %% wrong 03.3 | too short: pad it
class Alike(StaticScheduler):  # does not pad
    def schedule(self):
        plan = SchedulerOutput()
        if self.batch:
            return super().schedule()
        for request in list(self.waiting):
            lens = [r.num_prompt_tokens for r in [*self.batch, request]]
            if len(self.batch) < self.max_running and max(lens) <= 2 * min(lens):
                self.admit(plan, request)
        return plan


# %% wrong 03.3 | mutated during iteration
class Alike(StaticScheduler):
    def schedule(self):
        plan = SchedulerOutput()
        if self.batch:
            return super().schedule()
        for request in self.waiting:
            self.admit(plan, request)
        return plan


# %% right 03.3 | chooses first, then admits, keeps two bounds
class Alike(StaticScheduler):
    def schedule(self):
        if self.batch:
            return super().schedule()
        plan, chosen, low, high = SchedulerOutput(), [], 0, 10**9
        for request in self.waiting:
            n = request.num_prompt_tokens
            if low <= n <= high and len(chosen) < self.max_running:
                chosen.append(request)
                low, high = max(low, n / 2), min(high, 2 * n)
        for request in chosen:
            self.admit(plan, request, whole_answer=True)
        longest = max([r.num_prompt_tokens for r in chosen] or [0])
        for request in chosen:
            if longest > request.num_prompt_tokens:
                plan.num_padded_tokens[request] = longest - request.num_prompt_tokens
        return plan


# %% wrong 03.4 | the peak of step 1
too_many = sum(sum(s.num_padded_tokens.values()) for s in his.steps[1:])


def written(run):
    return [len(step.num_scheduled_tokens) for step in run.steps]


# %% wrong 03.4 | for each of the four
too_many = sum(dashboard(his)) - sum(len(r.token_ids) - 1 for r in his.requests.values())


def written(run):
    return [len(step.num_scheduled_tokens) for step in run.steps]


# %% wrong 03.4 | is all padding
too_many = sum(sum(s.num_padded_tokens.values()) for s in his.steps)


def written(run):
    return [len(step.num_scheduled_tokens) for step in run.steps]


# %% wrong 03.4 | and the users got
too_many = 0
written = dashboard


# %% wrong 03.4 | and the users got
too_many = 0


def written(run):  # prompts are answers
    return [sum(step.num_scheduled_tokens.values()) for step in run.steps]


# %% wrong 03.4 | one per step
too_many = 0


def written(run):
    return sum(len(step.num_scheduled_tokens) for step in run.steps)


# %% right 03.4 | from the users' side
def written(run):
    import numpy as np

    ends = [step.end_time for step in run.steps]
    times = [t for r in run.requests.values() for t in r.token_times]
    return np.array([times.count(end) for end in ends])


too_many = sum(a - b for a, b in zip(dashboard(his), written(his), strict=True))

# %% wrong 03.5 | the batches are too small
max_wait = 0

# %% wrong 03.5 | the median user waits
max_wait = 0.8

# %% wrong 03.5 | as long for a bus
max_wait = 200

# %% right 03.5 | by halving
server = quiet(SEED)
low, high = 0.0, 1.0
for _ in range(12):
    max_wait = (low + high) / 2
    run = serve(server, StaticScheduler(8, max_wait=max_wait))
    if run.summary()["ttft_ms"]["p50"] > 0.97 * server["ttft_ms"]:
        high = max_wait
    else:
        low = max_wait
