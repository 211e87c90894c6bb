# %% [markdown]
# # Exercise 14 · The live server
#
# The lesson put an engine behind a door. Here you build the parts on both sides of it: a client that reads whatever
# the network delivers, a stop-watch that can't be flattered, a door that says when to come again. You read a server's
# books, and find out who a colleague's server works for.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what is not. Parts don't
# depend on each other. About 60 minutes; no GPU, no network, not even a port.

# %%
import itertools
import json

from toyserve.course.checks import check
from toyserve.course.checks.colleague import Lazy
from toyserve.course.checks.ex14_live_server import FAULT, hour
from toyserve.course.checks.street import street
from toyserve.course.checks.wires import pieces_of, scrapes, wire
from toyserve.course.show import show_source
from toyserve.viz import timeline

SEED = 0  # your own numbers in 14.4 come from it

# %% [markdown]
# ## 14.1 What the network delivers
#
# A server sends one line for each token. The network delivers *bytes*, cut anywhere: in the middle of a line, even in
# the middle of a character (`é` is two bytes).

# %%
for piece in pieces_of({"stream": wire("Caf", "é!"), "size": 50}):
    print(piece)

# %% [markdown]
# Write `read_stream(pieces)`: it returns the whole text, and how it ended.
#
# - Only lines that begin with `data:` count; a space may follow. Others (comments such as `: ping`, empty ones) are
#   skipped. A line ends in `\n` or `\r\n`.
# - `data: [DONE]` is the end: return `(text, "done")` **at once**. The connection may stay open; whoever reads on waits
#   for ever.
# - A chunk with an `"error"` in it: return `(text, "error")` with the text so far.
# - A chunk's `choices` may be empty (it then tells the usage). Else the first one has a `"text"`.
# - No more pieces and no `[DONE]`: return `(text, "broken")`.


# %% answer="14.1"
def read_stream(pieces):
    """pieces: an iterator of bytes. Returns (text, "done" or "error" or "broken")."""
    ### BEGIN SOLUTION
    text, rest = "", b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                return text, "done"
            chunk = json.loads(payload)
            if "error" in chunk:
                return text, "error"
            for choice in chunk["choices"][:1]:
                text += choice["text"]
    return text, "broken"
    ### END SOLUTION


# %% check="14.1" points=2
check("14.1")
### BEGIN HIDDEN TESTS
check(
    "14.1",
    cases=[
        {
            "what": f"pieces of {size} bytes, {how}",
            "size": size,
            "stream": wire("Žluť", "oučký", " kůň", " 🐎", usage=True, comment=True, **options),
        }
        for size in (1, 3, 64, 100_000)
        for how, options in {
            "complete": {"newline": "\r\n"},
            "without a space": {"colon": "data:"},
            "an error at its end": {"end": "error"},
            "broken off": {"end": ""},
        }.items()
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 14.2 A stop-watch that can't be flattered
#
# A client has noted each chunk: when it came, and how many tokens were in it. A chat begins with a chunk of no token
# (who speaks); usage comes in one of no token; and a busy server puts several tokens into one chunk, which then all
# came in the same moment.
#
# Write `latencies(sent, chunks)`, which returns `(ttft, tpot, gaps)` as lesson 01 defined them, in seconds. `gaps` has one
# entry for each token after the first (ITL). What was never measured is `None`, and never 0.


# %% answer="14.2"
def latencies(sent, chunks):
    """sent: when the user asked. chunks: [(time, number of tokens), …] in order."""
    ### BEGIN SOLUTION
    times = [time for time, num_tokens in chunks for _ in range(num_tokens)]
    ttft = times[0] - sent if times else None
    tpot = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return ttft, tpot, gaps
    ### END SOLUTION


# %% check="14.2" points=2
check("14.2")
### BEGIN HIDDEN TESTS
check(
    "14.2",
    cases=[
        {"what": "all tokens in one chunk", "sent": 1.0, "chunks": [[1.5, 4]]},
        {"what": "only a role", "sent": 0.0, "chunks": [[0.2, 0]]},
        {"what": "nothing came", "sent": 0.0, "chunks": []},
        {"what": "role, one token, usage", "sent": 5.0, "chunks": [[5.1, 0], [6.0, 1], [6.1, 0]]},
        {
            "what": "a long answer",
            "sent": 2.0,
            "chunks": [[2.1, 0], *[[2.5 + 0.3 * i, 1 + i % 3] for i in range(20)], [9.0, 0]],
        },
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 14.3 The door
#
# Write the class that decides who is let in. In the house are those who run and those who wait: at most `max_running +
# max_queue`. `ask()` is called for each newcomer, `ended(now)` whenever somebody's answer is complete.
#
# `ask()` returns `None` for whoever is let in. Anybody else is told after how many seconds to come again
# (`Retry-After`): **the mean time between two ends, as of the last ends (eight at most), rounded up to whole seconds**; at
# least 1 and at most 60. As long as fewer than two have ended: 1.
#
# It's tried in the real engine, on the virtual clock.


# %% answer="14.3"
class Door:
    def __init__(self, max_running, max_queue):
        ### BEGIN SOLUTION
        self.capacity, self.inside, self.ends = max_running + max_queue, 0, []
        ### END SOLUTION

    def ask(self):
        """None: come in (and count it). Else the seconds until it should ask again."""
        ### BEGIN SOLUTION
        if self.inside < self.capacity:
            self.inside += 1
            return None
        if len(self.ends) < 2:
            return 1
        mean = (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)
        return min(60, max(1, -int(-mean // 1)))
        ### END SOLUTION

    def ended(self, now):
        """Somebody's answer is complete at the time ``now``, in seconds."""
        ### BEGIN SOLUTION
        self.inside -= 1
        self.ends = [*self.ends, now][-8:]
        ### END SOLUTION


# %% check="14.3" points=3
check("14.3")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex14_live_server import stream_of_people

check(
    "14.3",
    cases=[
        {
            "what": f"{n} people, {slots} slots, {queue} may wait",
            "slots": slots,
            "queue": queue,
            "gpu": gpu,
            "requests": stream_of_people(n, gap, answer),
        }
        for n, slots, queue, gap, answer, gpu in (
            (12, 2, 3, 0.4, 90, "h100"),
            (40, 3, 0, 0.25, 300, "t4"),
            (30, 1, 2, 1.5, 200, "t4"),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 14.4 Read the books
#
# Prometheus has fetched `/metrics` of a server twice. These are yours. Both times the server was idle; much happened in
# between, and some before.

# %%
before, after = scrapes(hour(SEED))
for name in before:
    print(f"{name:45}{before[name]:12.3f}{after[name]:12.3f}")

# %% [markdown]
# Between the two moments:
#
# - `inside`: how many requests were in the house on average, running or waiting?
# - `waiting`: how many of them were in the queue, on average?
# - `full_after`: requests were served at a certain rate (per second). Suppose that is all the server can do, and twice as
#   many come from now on. After how many seconds is an empty queue of 32 places full?
#
# Little's law: the mean number inside is the arrival rate × the time that each one stays. Compute them from the
# numbers above.

# %% answer="14.4"
### BEGIN SOLUTION
grown = {name: after[name] - before[name] for name in before}
inside = grown["vllm:e2e_request_latency_seconds_sum"] / grown["time"]
waiting = grown["vllm:request_queue_time_seconds_sum"] / grown["time"]
full_after = 32 / (grown["vllm:request_success_total"] / grown["time"])
### END SOLUTION

# %% check="14.4" points=2
check("14.4")

# %% [markdown]
# ## 14.5 Whom does it work for?
#
# A colleague's front end. "A reader who has gone is noticed when we write to him: the write fails." It is told when a
# connection has closed (`gone`), and when a token is there to be sent (`write`); `abort(name)` leaves the engine a note.


# %%
show_source(Lazy)

# %%
for name, _, _, _, *left in FAULT["requests"]:
    print(name, f"leaves after {left[0]} s" if left else "stays")
timeline(street(FAULT, Lazy), by="request", x="time", title="Two slots. For whom are prompts read?")

# %% [markdown]
# Some had gone *before they were let in*, and their whole prompts were computed nevertheless. Name them in `ghosts` (a
# list), and write `Mended`: from the moment when somebody has gone, no step runs anything for him. Everybody else gets the
# whole answer. `gone` may also be called for those whose answer is complete.

# %% answer="14.5"
### BEGIN SOLUTION
ghosts = ["D", "E"]


class Mended(Lazy):
    def gone(self, name):
        self.abort(name)


### END SOLUTION

# %% check="14.5" points=3
check("14.5")
### BEGIN HIDDEN TESTS
from toyserve.course.checks.ex14_live_server import impatient

check(
    "14.5",
    cases=[
        {
            "what": f"{n} people, every {every}. leaves",
            "slots": slots,
            "requests": impatient(n, every, patience),
        }
        for n, every, patience, slots in ((6, 2, 0.05, 1), (9, 3, 0.3, 2), (8, 1, 0.2, 2))
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 14.6 Explain
#
# "An LLM server is an operating system." Choose **two rows of the lesson's map that hold, and one place where the map is
# wrong**, and say for each in one or two sentences what it means for somebody who builds a server. This part is read by
# a person.

# %% [markdown] explain="14.6" points=2
# ### BEGIN SOLUTION
# Pages and block tables hold: a request's KV lies in blocks that need not be neighbours, so nobody waits beside free
# memory, and the kernel must translate every access as an MMU does. An orphaned process holds, too: a request whose
# reader has gone works on and keeps its blocks until somebody ends it, so every way out of a handler must end in an abort.
#
# Wrong is paging out a part of a process: a request needs all of its KV in each step, so a victim goes as a whole, and
# preemption is dear. (Or: a core runs one process per slice, a step runs all requests, and a fuller step is nearly free. Or:
# a process says how much memory it wants.)
# ### END SOLUTION
