"""Planted answers to exercise 04: each wrong one must fail with these words, each right one pass."""


# %% wrong 04.1 | lets 2 requests in, and max_joins is 1
class JoinLimit(Scheduler):  # the lesson's rule, unchanged
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


# %% wrong 04.1 | leaves
class JoinLimit(Scheduler):  # one per step, whatever max_joins says: right only for the first case
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        if self.waiting and len(self.running) < self.max_running:
            self.admit(plan, self.next_waiting())
        return plan


# %% wrong 04.1 | max_running is 1
class JoinLimit(Scheduler):  # forgets the slots
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        for _ in range(self.max_joins):
            if self.waiting:
                self.admit(plan, self.next_waiting())
        return plan


# %% wrong 04.1 | had not ended after
class JoinLimit(Scheduler):  # when memory is short it asks for ever
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        joined = 0
        while self.waiting and len(self.running) < self.max_running and joined < self.max_joins:
            try:
                joined += self.admit(plan, self.next_waiting())
            except:
                pass
        return plan


# %% wrong 04.1 | IndexError
class JoinLimit(Scheduler):  # crashes when the queue is empty
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        for _ in range(self.max_joins):
            if len(self.running) < self.max_running:
                self.admit(plan, self.waiting[0])
        return plan


# %% wrong 04.1 | must return its plan
class JoinLimit(Scheduler):  # forgets the return
    def schedule(self):
        plan = SchedulerOutput()


# %% right 04.1 | a for loop with min()
class JoinLimit(Scheduler):
    max_joins = 1

    def schedule(self):
        plan = SchedulerOutput()
        for request in tuple(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        room = self.max_running - len(self.running)
        for _ in range(min(self.max_joins, room, len(self.waiting))):
            if not self.admit(plan, self.next_waiting()):
                return plan
        return plan


# %% right 04.1 | on top of the library's class, by hiding slots
class JoinLimit(ContinuousScheduler):
    max_joins = 1

    def schedule(self):
        slots = self.max_running
        self.max_running = min(slots, len(self.running) + self.max_joins)
        plan = super().schedule()
        self.max_running = slots
        return plan


# %% wrong 04.2 | there is room for all of these
class WaitForRoom(Scheduler):  # asks again after each one that it let in
    min_free = 2

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and self.max_running - len(self.running) >= self.min_free:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


# %% wrong 04.2 | lets somebody in while only 1 of 2 slots
class WaitForRoom(Scheduler):  # the lesson's rule
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while self.waiting and len(self.running) < self.max_running:
            if not self.admit(plan, self.next_waiting()):
                break
        return plan


# %% wrong 04.2 | while yours leaves D out
class WaitForRoom(Scheduler):  # min_free 2 for everybody
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        if self.max_running - len(self.running) >= 2:
            while self.waiting and len(self.running) < self.max_running:
                if not self.admit(plan, self.next_waiting()):
                    break
        return plan


# %% right 04.2 | the number of places first
class WaitForRoom(Scheduler):
    min_free = 2

    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        free = self.max_running - len(self.running)
        places = free if free >= self.min_free else 0
        while places and self.waiting and self.admit(plan, self.waiting[0]):
            places -= 1
        return plan


# %% wrong 04.3 | Whose row in the picture is grey the longest
starved = "s13"
Mended = ContinuousScheduler

# %% wrong 04.3 | who came earlier
starved = "BIG"
Mended = Impatient

# %% wrong 04.3 | nothing is called `Mended`
starved = "BIG"

# %% wrong 04.3 | is the first that differs
starved = "BIG"


class Mended(Scheduler):  # lets nobody in until the batch is empty
    def schedule(self):
        plan = SchedulerOutput()
        for request in list(self.running):
            self.run(plan, request, request.num_uncomputed_tokens)
        while not plan.num_scheduled_tokens.keys() - plan.admitted.keys() and self.waiting:
            if len(self.running) == self.max_running or not self.admit(plan, self.waiting[0]):
                break
        return plan


# %% right 04.3 | the library's class
starved = "BIG"
Mended = ContinuousScheduler

# %% wrong 04.4 | is one request at a time
static_steps = sum(answer for *_, answer in mine["requests"])
continuous_steps, gain = 1, 1

# %% wrong 04.4 | continuous_steps
static_steps = serve(mine, StaticScheduler(max_running=2)).num_steps
continuous_steps, gain = max(answer for *_, answer in mine["requests"]), 1.5

# %% wrong 04.4 | too low
runs = [serve(mine, cls(max_running=2)) for cls in (StaticScheduler, ContinuousScheduler)]
static_steps, continuous_steps = (run.num_steps for run in runs)
gain = continuous_steps / static_steps  # upside down


# %% wrong 04.4 | an object of the class Anything came back
class Anything:
    def __eq__(self, other):
        return True

    __lt__ = __le__ = __gt__ = __ge__ = __eq__


static_steps = continuous_steps = gain = Anything()

# %% right 04.4 | by hand, in numpy's numbers
import numpy as np

answers = [answer for *_, answer in mine["requests"]]
static_steps = np.int64(sum(max(answers[i : i + 2]) for i in (0, 2, 4)))
ends = [0, 0]
for n in answers:
    ends[int(np.argmin(ends))] += n
continuous_steps = max(ends)
gain = np.float64(static_steps / continuous_steps)

# %% wrong 04.5 | people stand in the queue too long
max_running = 4

# %% wrong 04.5 | beside everybody's decodes
max_running = 64

# %% wrong 04.5 | must be a whole number from 1 to 256
max_running = "16"


# %% right 04.5 | the largest that fits instead of the smallest
def ok(slots):
    s = serve(hour, ContinuousScheduler(max_running=slots)).summary()
    return s["ttft_ms"]["p95"] <= hour["ttft_ms"] and s["tpot_ms"]["p99"] <= hour["tpot_ms"]


max_running = max(slots for slots in range(1, 33) if ok(slots))
