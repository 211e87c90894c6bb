"""Planted answers to exercise 01: each wrong one must fail with these words, each right one pass."""


# %% wrong 01.1 | waits in the express lane
class ExpressLane(Scheduler):  # the lesson's server, unchanged
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running and self.waiting:
            self.admit(plan, self.next_waiting())
        return plan


# %% wrong 01.1 | waits with a long prompt, and in_a_row is 2
class ExpressLane(Scheduler):  # the express lane for ever
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running and self.waiting:
            quick = [r for r in self.waiting if r.num_prompt_tokens <= self.express]
            self.admit(plan, quick[0] if quick else self.waiting[0])
        return plan


# %% wrong 01.1 | came earlier, in the same lane
class ExpressLane(Scheduler):  # the shortest first
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running and self.waiting:
            self.admit(plan, min(self.waiting, key=lambda r: r.num_prompt_tokens))
        return plan


# %% wrong 01.1 | came earlier, in the same lane
class ExpressLane(Scheduler):  # "less than" where it says "at most"
    streak = 0

    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if self.waiting and not self.running:
            quick = [r for r in self.waiting if r.num_prompt_tokens < self.express]
            slow = [r for r in self.waiting if r.num_prompt_tokens >= self.express]
            if quick and not (slow and self.streak >= self.in_a_row):
                self.streak += 1
                self.admit(plan, quick[0])
            else:
                self.streak = 0
                self.admit(plan, slow[0])
        return plan


# %% wrong 01.1 | IndexError
class ExpressLane(Scheduler):  # asks for somebody where nobody waits
    def schedule(self):
        plan = SchedulerOutput()
        for request in self.running:
            self.run(plan, request, request.num_uncomputed_tokens)
        if not self.running:
            quick = [r for r in self.waiting if r.num_prompt_tokens <= self.express]
            self.admit(plan, (quick or self.waiting)[0])
        else:
            self.admit(plan, self.waiting[0])
        return plan


# %% right 01.1 | a list of who was let in
class ExpressLane(Scheduler):
    def schedule(self):
        if not hasattr(self, "lanes"):
            self.lanes = []
        plan = SchedulerOutput()
        if self.running:
            (request,) = self.running
            self.run(plan, request, request.num_uncomputed_tokens)
        elif self.waiting:
            tired = len(self.lanes) >= self.in_a_row and all(self.lanes[-self.in_a_row :])

            def rank(request):
                return (request.num_prompt_tokens <= self.express) == tired

            request = sorted(self.waiting, key=rank)[0]  # sorted keeps the order of equals
            self.lanes.append(request.num_prompt_tokens <= self.express)
            self.admit(plan, request)
        return plan


# %% wrong 01.2 | of those who stayed
def tail(waits, q):
    stayed = sorted(wait for wait in waits if wait is not None)
    return stayed[-(-q * len(stayed) // 100) - 1]


# %% wrong 01.2 | No mean of two
def tail(waits, q):  # the library's, between two ranks
    return percentile([wait for wait in waits if wait is not None], q)


# %% wrong 01.2 | and a shorter time would do
def tail(waits, q):  # one rank too far
    waits = sorted(float("inf") if wait is None else wait for wait in waits)
    wait = waits[min(len(waits) - 1, q * len(waits) // 100)]
    return None if wait == float("inf") else wait


# %% wrong 01.2 | TypeError
def tail(waits, q):
    return sorted(waits)[-(-q * len(waits) // 100) - 1]


# %% wrong 01.2 | are asked for
def tail(waits, q):  # whoever left is counted as the best of all
    waits = sorted(wait or 0.0 for wait in waits)
    return waits[-(-q * len(waits) // 100) - 1]


# %% right 01.2 | counting, from the shortest up
def tail(waits, q):
    for wait in sorted(wait for wait in waits if wait is not None):
        if 100 * sum(w is not None and w <= wait for w in waits) >= q * len(waits):
            return wait
    return None


# %% right 01.2 | numpy, with infinity for whoever left
import numpy as np


def tail(waits, q):
    times = np.array([np.inf if wait is None else wait for wait in waits])
    wait = np.percentile(times, q, method="inverted_cdf")
    return wait if np.isfinite(wait) else None


# %% wrong 01.3 | nobody reads it
forgetful = per_answer = said = 0
for question, answer in mine["turns"]:
    said += question
    forgetful += sum(range(said, said + answer))
    per_answer += said + answer - 1
    said += answer
whole_chat, faster = said, 20

# %% wrong 01.3 | forgets a token per turn
forgetful = per_answer = said = 0
for question, answer in mine["turns"]:
    said += question
    forgetful += sum(range(said, said + answer))
    per_answer += said + answer - 1
    said += answer
whole_chat = sum(question + answer - 1 for question, answer in mine["turns"])
faster = 20

# %% wrong 01.3 | without any, each token of an answer costs a run
forgetful = said = 0
for question, answer in mine["turns"]:
    said += question
    forgetful += said + answer - 1
    said += answer
per_answer, whole_chat, faster = forgetful, said - 1, 20

# %% wrong 01.3 | here they are thrown away
forgetful = said = 0
for question, answer in mine["turns"]:
    said += question
    forgetful += sum(range(said, said + answer))
    said += answer
per_answer = whole_chat = said - 1
faster = 20

# %% wrong 01.3 | the time without notes over
forgetful = per_answer = said = 0
for question, answer in mine["turns"]:
    said += question
    forgetful += sum(range(said, said + answer))
    per_answer += said + answer - 1
    said += answer
whole_chat, faster = said - 1, 1 / 20

# %% wrong 01.3 | is too
forgetful, per_answer, whole_chat, faster = 1521215, 17722, 6003, 25

# %% right 01.3 | with formulas, in numpy's numbers, and the last turn read as its question only
import numpy as np

cost = cost_model("h100", "llama-3-8b")
questions, answers = np.array(mine["turns"]).T
prompts = np.cumsum(questions + answers) - answers
forgetful = (prompts * answers + answers * (answers - 1) // 2).sum()
per_answer = (prompts + answers - 1).sum()
whole_chat = questions.sum() + answers.sum() - 1
kept = int(prompts[2] - questions[2])
faster = cost.prefill_time(int(prompts[2])) / cost.prefill_time(int(questions[2]), kept)

# %% wrong 01.4 | the order in which they came
order, pays, gain = came, came[0], 1.0

# %% wrong 01.4 | the shortest prompt first
order = [row[0] for row in sorted(people["requests"], key=lambda row: row[2])]
pays, gain = order[-1], 2

# %% wrong 01.4 | the shortest answer first
order = [row[0] for row in sorted(people["requests"], key=lambda row: row[3])]
pays, gain = order[-1], 2

# %% wrong 01.4 | ms are possible
order = [row[0] for row in sorted(people["requests"], key=lambda row: row[2] + row[3])]
pays, gain = order[-1], 2

# %% wrong 01.4 | each of Cy, Eli, Dee, Bo, Ann once
order, pays, gain = came[:4], came[0], 2


# %% wrong 01.4 | Whose TTFT grows by the most
def alone(row):
    return one_by_one({"requests": [row]}, [row[0]]).steps[-1].end_time


order = [row[0] for row in sorted(people["requests"], key=alone)]
pays, gain = order[0], 2


# %% wrong 01.4 | upside down
def alone(row):
    return one_by_one({"requests": [row]}, [row[0]]).steps[-1].end_time


order = [row[0] for row in sorted(people["requests"], key=alone)]
pays, gain = order[-1], 0.5


# %% right 01.4 | by the cost model, each alone at the desk
cost = cost_model("h100", "llama-3-8b")


def alone(row):
    _, _, prompt, answer = row
    return cost.prefill_time(prompt) + sum(
        cost.decode_time(1, prompt + i) for i in range(1, answer)
    )


def mean(names):
    waits = [ttft(record) for record in one_by_one(people, names).requests.values()]
    return sum(waits) / len(waits)


order = tuple(row[0] for row in sorted(people["requests"], key=alone))
pays, gain = order[-1], mean(came) / mean(order)

# %% wrong 01.5 | Over which bar of the picture stand the most users
rush, day_p95 = 0, reported_p95

# %% wrong 01.5 | is still the mean of the seconds
rush, day_p95 = 3, reported_p95

# %% wrong 01.5 | weights each second by its users
rush = 3


def day_p95(records):
    seconds = by_second(records).values()
    return sum(len(w) * percentile(w, 95) for w in seconds) / sum(len(w) for w in seconds)


# %% wrong 01.5 | is the p95 of the worst second only
rush = 3


def day_p95(records):
    return max(percentile(waits, 95) for waits in by_second(records).values())


# %% wrong 01.5 | is the time in the queue
rush = 3


def day_p95(records):
    return percentile([r.first_scheduled_time - r.arrival_time for r in records], 95)


# %% wrong 01.5 | looks like milliseconds
rush = 3


def day_p95(records):
    return percentile([1e3 * ttft(record) for record in records], 95)


# %% wrong 01.5 | stay below
rush = 3


def day_p95(records):  # the number of the picture
    return 0.7088


# %% right 01.5 | all seconds poured together, with numpy
import numpy as np

rush = np.int64(3)


def day_p95(records):
    return np.percentile(np.concatenate(list(by_second(records).values())), 95)
