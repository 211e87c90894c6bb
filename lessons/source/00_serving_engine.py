# %% [markdown]
# # 00 · A serving engine, in one minute
#
# Eight people ask one small language model at the same moment. It can work on four answers at a
# time.
#
# **Who gets the next word?**
#
# Somebody has to decide that before every single word. That somebody is the *scheduler* of a serving
# engine, and in this course you build one. First, watch it work: run the cell below (Shift+Enter). You
# needn't follow its code yet. It makes eight requests, starts a server with four places, and shows the
# answers as they grow.
#
# *5–10 minutes. No GPU, no network, nothing to know beforehand.*

# %% tags=["real-model"]
import torch

from toyserve import LLM, Request, SamplingParams
from toyserve.course.watch import watch

torch.set_num_threads(1)  # the model is small: one core is enough
ASKED = {
    "ROMEO": 40, "JULIET": 12, "HAMLET": 30, "OPHELIA": 8,
    "MACBETH": 24, "PORTIA": 16, "KING LEAR": 20, "FALSTAFF": 10,
}  # how many tokens each of them wants  # fmt: skip


def burst(llm):
    """Eight fresh requests, all there at once (seed: the same dice in every run)."""
    return [
        Request(name, llm.tokenizer.encode(f"{name}:\n"),
                SamplingParams(temperature=0.8, top_p=0.95, seed=i, max_tokens=n, min_tokens=n))
        for i, (name, n) in enumerate(ASKED.items())
    ]  # fmt: skip


llm = LLM("toy", scheduler="continuous", max_running=4, clock="h100", clock_model="llama-3-8b")
texts = watch(llm, burst(llm))

# %% [markdown]
# That was a real GPT-2: a tiny one, trained on Shakespeare and bundled with the course. It writes
# verse of little sense, and that is fine. It's here to be *served*. (`# fmt: skip`, by the way, you may always
# overlook: it speaks to the authors' tools.)
#
# What happened, as a picture. Each row is one of the four places (a **slot**), each column one **step**: one
# run of the model, which gives one more **token** (a piece of a word) to everybody who has a place. Those
# are the **batch**.

# %%
from toyserve.viz import explore, timeline

timeline(llm.recording)

# %% [markdown]
# Orange: a request has just been let in (▶), and its **prompt**, the user's text, is read (*prefill*; the number
# counts its tokens). The same step already yields its first token (○). Blue: it writes on, one token per step
# (*decode*). Whoever has finished (■) leaves, and the next in the queue gets the place.
#
# White at the right: nobody is left in the queue to sit there. So of the 4 × 48 squares 160 are filled, one for
# each token: the 83.3% of the title.
#
# And now from the users' side. Grey is waiting:

# %%
timeline(llm.recording, by="request")

# %% [markdown]
# **Play it.** Space plays and pauses, the arrow keys go step by step, a click on the picture jumps
# there. Below the picture you see the memory, the queue, and the scheduler's decision in words.
# (The seconds it shows are those of a big GPU, not of this computer. Lesson 02 tells you how
# that is known.)

# %%
explore(llm.recording)

# %% [markdown]
# ## Predict
#
# Eight answers, 160 tokens in all. With four places that took 48 steps, because each step gives a token
# to *everybody* who has a place.
#
# Now take three of the places away. Before you try: what will happen?

# %%
from toyserve.course.quiz import quiz

quiz("00.one-place")

# %% [markdown]
# ## Change one number
#
# **Your turn.** Find the *smallest* number of places with which all eight answers are ready within
# 60 steps. Change `PLACES`, run the cell, read its last line.


# %%
def serve(places, **options):
    """The same burst on a server with so many places: what happened, and the texts."""
    llm = LLM("toy", scheduler="continuous", max_running=places, **options)
    requests = burst(llm)
    recording = llm.engine.run(requests)
    return recording, [llm.tokenizer.decode(r.output_token_ids) for r in requests]


PLACES = 2  # ← change me

mine, _ = serve(PLACES)
steps = mine.num_steps
first_step = 1 + next(step.index for step in mine.steps if "FALSTAFF" in step.admitted)
print(f"{PLACES} places: all ready after {steps} steps")
print(f"FALSTAFF, last in the queue, gets his first token in step {first_step}")
solved = steps <= 60 and PLACES == 3
if solved:
    print("✓ Three places do it, and two would not.")
elif steps > 60:
    print(f"Not yet: {steps} steps are more than 60.")
else:
    print("It works. But would one place fewer do, too?")

# %% [markdown]
# All of them, side by side:

# %%
table = {}
for places in (1, 2, 3, 4, 8):
    recording, _ = serve(places)
    table[places] = recording.num_steps
    print(f"{places} places: {table[places]:3} steps")
assert table[1] == sum(ASKED.values()) == 160  # one token per step
assert table[8] == max(ASKED.values()) == 40  # as long as the longest answer

# %% [markdown]
# With one place, a step makes one token, so 160 tokens take 160 steps. With eight places nobody waits,
# and the longest answer, 40 tokens, decides.
#
# So why not a million places? Because every place needs **memory**, and because a fuller step takes
# longer. How much longer is the surprise of lesson 02.
#
# ## Four layers
#
# ```
#   requests ──▶ queue ──▶ scheduler ──▶ memory manager ──▶ model ──▶ tokens
#                             ▲                                         │
#                             └──────────── after every step ───────────┘
# ```
#
# | layer | its question |
# |---|---|
# | **queue** | who is waiting, since when? |
# | **scheduler** | whose tokens are computed in the next step? |
# | **memory manager** | whose notes fit, and on which pages? |
# | **model** | given the notes: what is the next token? |

# %% [markdown]
# **The notes** are the model's working memory: for each token it has read, a request keeps some numbers,
# so that nothing has to be read twice. They lie on *pages* of 16 tokens. (Their usual name is
# *KV cache*. You build one in lesson 01.)
#
# The engine turns one crank. Here is all of it:
#
# ```
# while somebody is unfinished:
#     plan   = scheduler.schedule()                # who runs, and how many tokens
#     result = runner.execute(plan)                # the model, once, for all of them
#     scheduler.update_from_output(plan, result)   # hand out tokens, see who is done
# ```
#
# Turn it yourself: each call of `step()` is one turn. Three people, two places, four tokens each.

# %% tags=["real-model"]
hand = LLM("toy", scheduler="continuous", max_running=2)
for name in ("ROMEO", "JULIET", "HAMLET"):
    ids = hand.tokenizer.encode(f"{name}:\n")
    hand.engine.add_request(Request(name, ids, SamplingParams(temperature=0, max_tokens=4)))


def look():
    waiting, running = hand.scheduler.waiting, hand.scheduler.running
    last = {r.request_id: hand.tokenizer.decode(r.token_ids[-1:]) for r in running}
    pages = hand.kv.num_blocks - hand.kv.num_free_blocks
    print(f"queue: {[r.request_id for r in waiting]}  memory: {pages} pages  latest: {last}")


look()
for _ in range(6):  # ← more turns? change the number
    hand.engine.step()
    look()

# %% [markdown]
# After the fourth turn ROMEO and JULIET have their four tokens, and their pages are free. HAMLET is let in
# at the beginning of the next.
#
# ## Break it
#
# Every part can be exchanged for one of yours. Somebody has exchanged the memory manager: *"once a
# request has moved on to its second page, its first one has been read. Why not give that page to
# somebody else?"*
#
# The engine calls `allocate` when a request needs another page: one for its prompt, and later one whenever
# the last is full. *Block* is the engine's word for page: `request.block_table` lists the request's pages in order,
# `self.pool.free_blocks` those that are nobody's. With the new manager that saves memory, and nothing crashes:

# %% tags=["real-model"]
from toyserve.kv import PagedKV


class Thrifty(PagedKV):
    def allocate(self, request, num_tokens, keep_free=0):
        granted = super().allocate(request, num_tokens, keep_free)  # False: no page is left
        if granted and request.num_output_tokens > 0:  # it writes, and has just got another page
            self.pool.free_blocks.append(request.block_table[0])  # so the first is free again
        return granted


thrifty = Thrifty(64)
_, broken = serve(4, kv=thrifty, check=False)  # check: we come to that
for name, was, now in zip(ASKED, texts, broken, strict=True):
    print(" " if was == now else "✗", f"{name:9}", " / ".join(now.strip().split("\n")))
    if was != now:
        print(" " * 8, "was", " / ".join(was.strip().split("\n")))

# %% [markdown]
# No error. Some of the answers (✗) begin as before and then wander off: their notes have been
# written over with somebody else's. The model doesn't mind. It takes whatever notes it is given.
#
# Such faults have happened in real engines, where the text that comes out may be *another user's*.

# %%
quiz("00.pages")

# %% [markdown]
# How would anybody notice? Not from the text. From the books:

# %%
print(f"everybody has left: {thrifty.num_free_blocks} pages free, and there are only 64")
assert thrifty.num_free_blocks > 64

try:
    serve(4, kv=Thrifty(64))  # the engine checks by itself whenever a part is not its own
except AssertionError as error:
    print(f"with the check on: {error}")

# %% [markdown]
# One page, two users, both writing on it. **Mend it:** change the class below so that all eight answers
# are right again and no page too many is free, and run the cell.


# %% tags=["real-model"]
class Mended(Thrifty):
    def allocate(self, request, num_tokens, keep_free=0):
        granted = PagedKV.allocate(self, request, num_tokens, keep_free)  # the sound one's
        if granted and request.num_output_tokens > 0:
            self.pool.free_blocks.append(request.block_table[0])  # ← the fault
        return granted


def try_out(kv):
    _, answers = serve(4, kv=kv, check=False)
    right = sum(now == was for now, was in zip(answers, texts, strict=True))
    print("✓" if right == 8 else "✗", f"{right} of 8 answers are right")
    free = kv.num_free_blocks
    print("✓" if free == 64 else "✗", f"{free} of 64 pages free at the end")


try_out(Mended(64))

# %% [markdown]
# <details><summary>The repair, when you have tried</summary>
#
# Delete the two lines that begin with `if granted`. A page may go back only when its request has
# *ended*, because every new token is computed from the notes of **all** tokens before it. When it
# ends, the engine gives all its pages back by itself.
#
# </details>
#
# The memory manager from before:

# %% tags=["real-model"]
try_out(PagedKV(64))

# %% [markdown]
# ## You know this already
#
# | noodle bar | operating system | LLM server |
# |---|---|---|
# | a guest | a process | a request |
# | the line at the door | the ready queue | the queue |
# | the stools | the processor's cores | the places of the batch |
# | the host: who sits down next? | the scheduler | **the scheduler** |
# | one boil of the pot, for all who sit | a time slice | one step of the model |
# | room on the counter for bowls | RAM, in pages | KV cache, in pages |
# | paid and gone | the process exits | the answer is complete |
#
# We'll meet the noodle bar again in every lesson: one pot, a few stools, a line at the door. And
# what operating systems learned in sixty years of sharing one machine turns out to apply to sharing
# one GPU.

# %% [markdown]
# ## The map
#
# | lesson | its question |
# |---|---|
# | 01 one request at a time | what does an answer consist of, and who waits for whom? |
# | 02 why batching pays | why is a step for 32 hardly slower than for one? |
# | 03 static batching | what does it cost to start and end together? |
# | 04 continuous batching | what if anybody may come and go in any step? |
# | 05 chunked prefill | what if somebody brings a 50,000-token prompt? |
# | 06 KV memory | why don't 100 requests fit? |
# | 07 paged KV | how do pages mend that? |
# | 08 the attention kernel | how does a GPU read scattered pages? |

# %% [markdown]
# | lesson | its question |
# |---|---|
# | 09 preemption | memory is full and somebody urgent comes: who goes? |
# | 10 fairness and policy | who pays for whose speed? |
# | 11 latency under load | at which arrival rate does it break? |
# | 12 prefix caching | must the same prompt be read twice? |
# | 13 models meet schedulers | which model is cheap to serve? |
# | 14 the live server | does it work with a real client? |
#
# Each has a picture, a prediction, a few lines to write, a real fault to find, and (from 01 on) an exercise.

# %% [markdown]
# ## Recap

# %%
print(f"four places instead of one : {table[1] / table[4]:.1f} × fewer steps, not 4 ×")
print(f"eight places instead of one: {table[1] / table[8]:.1f} × fewer steps, not 8 ×")

# %% [markdown]
# Not 4 and not 8, because towards the end the queue is empty and long answers run on alone.
#
# **Say it in an interview:**
#
# > A serving engine is four layers: a queue, a scheduler, a memory manager and the model. Before every
# > step the scheduler decides whose tokens are computed, within the memory that there is. The
# > model decides what is said; the other three decide when, and so how fast it feels and what it costs.
#
# Two papers began all this: *Orca* (Yu et al., 2022), which schedules step by step, and
# *PagedAttention* (Kwon et al., 2023), which keeps the notes on pages.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run the notebook again:
#
# 1. Let everybody ask for 20 tokens. With four places, how many steps?
# 2. Put ROMEO, with his 40 tokens, last in `ASKED`. More steps, or fewer? Why?
# 3. Write your own name instead of FALSTAFF's. What does the model think you say?
#
# **Next in the course:** lesson 01, one request at a time. You build the memory that makes answers
# fast, and meet the long request that makes everybody wait.
