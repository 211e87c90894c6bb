"""Planted answers to exercise 09: each wrong one must fail with these words, each right one pass."""


# %% wrong 09.1 | had been paused
class FairVictim(FCFS):  # the lesson's rule
    def victim(self, running, now):
        return max(reversed(running), key=lambda r: r.priority)


# %% wrong 09.1 | less urgent than
class FairVictim(FCFS):  # forgets the classes
    def victim(self, running, now):
        return min(reversed(running), key=lambda r: r.num_preemptions)


# %% wrong 09.1 | came in later
class FairVictim(FCFS):  # of equals the first
    def victim(self, running, now):
        return min(running, key=lambda r: (-r.priority, r.num_preemptions))


# %% wrong 09.1 | it is not running
class FairVictim(FCFS):  # forgets the return
    def victim(self, running, now):
        min(running, key=lambda r: r.num_preemptions)


# %% right 09.1 | with sort and pop
class FairVictim(FCFS):
    def victim(self, running, now):
        order = sorted(
            enumerate(running), key=lambda p: (-p[1].priority, p[1].num_preemptions, -p[0])
        )
        return order[0][1]


# %% right 09.1 | a loop
class FairVictim(FCFS):
    def victim(self, running, now):
        best = running[0]
        for r in running[1:]:
            same = r.priority == best.priority and r.num_preemptions <= best.num_preemptions
            if r.priority > best.priority or same:
                best = r
        return best


# %% wrong 09.2 | off by one token per request
def tokens_again(run):
    total = sum(sum(step.num_scheduled_tokens.values()) for step in run.steps)
    return total - sum(r.num_prompt_tokens + len(r.token_ids) for r in run.requests.values())


# %% wrong 09.2 | that is the prompts of the paused
def tokens_again(run):
    return sum(r.num_preemptions * r.num_prompt_tokens for r in run.requests.values())


# %% wrong 09.2 | too few
def tokens_again(run):
    return 0


# %% right 09.2 | by counting positions one by one
def tokens_again(run):
    done, again, best = {}, 0, {}
    for step in run.steps:
        for name in step.preempted:
            done[name] = done.get(name, 0) if name in step.swapped_out else 0
        for name, n in step.num_scheduled_tokens.items():
            for position in range(done.get(name, 0), done.get(name, 0) + n):
                again += position < best.get(name, 0)
            done[name] = done.get(name, 0) + n
            best[name] = max(best.get(name, 0), done[name])
    return again


# %% wrong 09.3 | is the prompt alone
tokens_run, swap_ms, ratio = mine["prompt"], 1.0, 1.0

# %% wrong 09.3 | is the way out
tokens_run = mine["prompt"] + mine["answered"]
swap_ms = 1e3 * cost.swap_time(tokens_run * cost.model.kv_bytes_per_token)
ratio = 1.0

# %% wrong 09.3 | is in seconds
tokens_run = mine["prompt"] + mine["answered"]
swap_ms = 2 * cost.swap_time(tokens_run * cost.model.kv_bytes_per_token)
ratio = 1.0

# %% wrong 09.3 | recompute over swap
tokens_run = mine["prompt"] + mine["answered"]
swap_ms = 1e3 * 2 * cost.swap_time(tokens_run * cost.model.kv_bytes_per_token)
ratio = 1e3 * cost.time_of_rows([(0, tokens_run)]) / swap_ms  # the whole step, not the extra

# %% right 09.3 | all tokens swapped, a hair more than is held
tokens_run = mine["prompt"] + mine["answered"]
swap_ms = 2e3 * cost.swap_time(tokens_run * cost.model.kv_bytes_per_token)
eight = [(500, 1)] * 8
ratio = (
    1e3
    * (cost.time_of_rows([*eight, (0, tokens_run)]) - cost.time_of_rows([*eight, (tokens_run, 1)]))
    / swap_ms
)

# %% wrong 09.4 | it is another number
pauses = 1


class Calm(Bully):
    def displaces(self, candidate, victim, now):
        return candidate.num_output_tokens == 0 and victim.num_output_tokens > 0


# %% wrong 09.4 | still a quarrel
pauses = sum(record.num_preemptions for record in run.requests.values())
Calm = Bully

# %% wrong 09.4 | longer for its first token than it must
pauses = sum(record.num_preemptions for record in run.requests.values())


class Calm(Bully):  # peace at any price
    def displaces(self, candidate, victim, now):
        return False


# %% right 09.4 | the smaller of two numbers
pauses = sum(len(step.preempted) for step in run.steps)


class Calm(Bully):
    def displaces(self, candidate, victim, now):
        return candidate.num_output_tokens < min(1, victim.num_output_tokens)


# %% wrong 09.5 | newcomers take the room
watermark = 0

# %% wrong 09.5 | too much memory stands empty
watermark = 0.5

# %% wrong 09.5 | it is a share of the pool
watermark = 6

# %% right 09.5 | where the targets come from
watermark = 0.06
