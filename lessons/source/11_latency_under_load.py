# %% [markdown]
# # 11 · Latency under load
#
# A benchmark asks: how fast is this model for one user? Whoever runs a server asks something else:
# **how many users per second, before waiting becomes unbearable?**
#
# The answer isn't a slope, it is an edge. In this lesson you find it twice, in a picture and by
# bisection, go past it, and build two dashboards and a load test that hide it.
#
# *40 minutes. No GPU, no network. Run the cells one by one, in order.*

# %%
from toyserve import Engine
from toyserve.clock import VirtualClock
from toyserve.costs import cost_model
from toyserve.kv import PagedKV
from toyserve.metrics import percentile, ttft
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.schedulers import ChunkedScheduler
from toyserve.viz import latency_vs_rate, queue_length
from toyserve.viz.style import THEMES, new_axes
from toyserve.workload import poisson


def serve(workload, max_running=16, token_budget=256):
    """Llama-3-8B on an H100, on the virtual clock: chunked prefill, plenty of memory."""
    clock = VirtualClock()
    cost = cost_model("h100", "llama-3-8b")
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost, clock)
    scheduler = ChunkedScheduler(max_running, token_budget)
    engine = Engine(scheduler=scheduler, kv=PagedKV(20_000), runner=runner, clock=clock)
    return engine.run(workload.requests_for_engine())


def at_rate(rate, n=300):
    return serve(poisson(n, rate=rate, seed=11))


RATES = [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
sweep = {rate: at_rate(rate) for rate in RATES}
TARGET = 0.5  # seconds until the first token, for nineteen of twenty users
title = "Up to 16 requests/s nothing happens; then waiting grows, for the unlucky (p99) first"
latency_vs_rate(list(sweep.items()), target=TARGET, title=title)

# %% [markdown]
# Each point is a run of 300 users who arrive at random, so many per second on average (`poisson`). For a long
# while nothing happens. Then waiting grows more than tenfold within a few requests per second, for one user in a hundred (p99)
# first, then for one in twenty (p95), and last for half of them (p50). (The upright axis grows by multiples.)
#
# ## The words you need
#
# | word | here it means |
# |---|---|
# | **TTFT** | arrival to first token, the queue included |
# | **p50, p95, p99** | what half, 95 % and 99 % of the users stay below |
# | **knee**, or edge | the last rate at which p95 is still within its target |
# | **capacity** | what the server can finish per second when it never idles |
# | **open loop** | users arrive when they like, whether or not others have been served |
# | **closed loop** | a fixed number of users; each sends the next request after the answer |
# | **goodput** | requests per second *that met their targets* |

# %% [markdown]
# ## Predict first
#
# Above capacity the queue grows, by how much arrivals exceed what is served. No scheduler changes that.

# %%
from toyserve.course.quiz import quiz

quiz("11.backlog")

# %%
quiz("11.average")

# %% [markdown]
# ## Build it: where is the edge?
#
# Ten rates give a picture. For a number, don't try all rates: **bisect**. Below is a rate that meets the
# target, above one that misses it. Try the middle, and keep the half in which the edge must lie.
#
# **Your turn.** Fill in what is between the arrows, then run this cell and the next.
#
# <details><summary>A hint</summary>
#
# `middle = (low + high) / 2`. If `meets(middle)`, the edge is above it: `low = middle`. Else
# `high = middle`.
#
# </details>


# %%
def my_bisect(meets, low, high, precision=0.02):
    """The highest rate that meets the target: ``meets(low)`` is true, ``meets(high)`` is not."""
    while high - low > precision * low:
        # ↓ gives up at once
        break
        # ↑
    return low


# %%
def try_out(bisect):
    """None if all is well, else a sentence."""
    for edge in (5.5, 17.3, 39.0):
        asked = []

        def meets(rate, edge=edge, asked=asked):
            asked.append(rate)
            if len(asked) > 40:
                raise ValueError("it asked 40 times and isn't done: does the range shrink?")
            return rate <= edge

        try:
            found = bisect(meets, 4, 40)
        except Exception as error:
            return f"{error}"
        if not 0.97 * edge <= found <= edge:
            return f"with the edge at {edge} it says {found:.3g}"
    return None


problem = try_out(my_bisect)
solved = problem is None
print(f"Not yet: {problem}." if problem else "✓ it finds the edge, wherever it is.")

# %% [markdown]
# Here is one way to write it, folded away. **Click the three dots to open it.** Should yours not work yet, the lesson goes on
# with this one; if it works, with yours.


# %% jupyter={"source_hidden": true}
def bisect(meets, low, high, precision=0.02):
    while high - low > precision * low:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


find = my_bisect if solved else bisect

# %% [markdown]
# Now both ways: the edge by bisection, and the knee read from a sweep in steps of 5 %.

# %%
from toyserve.viz.load import knee


def p95_ttft(rate):
    return percentile([ttft(r) for r in at_rate(rate).requests.values()], 95)


edge = find(lambda rate: p95_ttft(rate) <= TARGET, RATES[0], RATES[-1])
grid = [24 * 1.05**k for k in range(12)]
seen = knee([(rate, p95_ttft(rate)) for rate in grid], TARGET)
print(f"edge by bisection: {edge:.1f} requests/s; knee of the sweep: {seen:.1f} requests/s")
assert abs(seen - edge) <= 0.10 * edge

# %% [markdown]
# ## Below, at and past the edge
#
# How many stand in the queue, over time:

# %%
look = THEMES["light"]
shares = {"60 %": 0.6, "100 %": 1.0, "150 %": 1.5}
happens = (
    "a few wait for a moment",
    "lines form and dissolve",
    "the line grows until nobody comes",
)
runs = {name: at_rate(share * edge, n=400) for name, share in shares.items()}
axes = new_axes((10, 6), look, 3)
for ax, (name, run), what in zip(axes, runs.items(), happens, strict=True):
    title = f"{name} of the edge ({shares[name] * edge:.0f} requests/s): {what}"
    queue_length(run, ax=ax, title=title)
axes[0].figure

# %%
past = list(runs["150 %"].requests.values())
first, last = (percentile([ttft(r) for r in part], 50) for part in (past[:100], past[-100:]))
print(f"150 %: the first hundred wait {first:.2f} s (median), the last hundred {last:.2f} s")
calm = [ttft(r) for r in runs["60 %"].requests.values()]
print(f" 60 %: the last hundred wait {percentile(calm[-100:], 50):.3f} s")
twice = [ttft(r) for r in at_rate(1.5 * edge, n=800).requests.values()]
later = percentile(twice[-100:], 50)
print(f"150 %, 800 users instead of 400: the last hundred wait {later:.2f} s")
assert last > 3 * first and later > 1.8 * last

# %% [markdown]
# At 60 % the queue comes and goes. At 150 % it grows until the last of the 400 has come: **past the edge "the latency" doesn't exist**, it
# depends on how long you measure: a run twice as long shows at least twice the wait. So a load test past
# capacity says nothing but "past capacity".
#
# And *near* the edge? Look at what the users get, with targets: first token within half a second, then 25 tokens per second
# (TPOT 40 ms). *Slots busy* is the average share of the 16 slots in use. Dollars per token are what the GPU costs per second,
# divided by the tokens it makes per second.

# %%
from toyserve.course.tables import text_table

PRICE = 3.0  # $ per GPU hour: an assumption, put yours here
rows, good, dollars = [], {}, {}
for rate in RATES:
    run = serve(poisson(300, rate=rate, seed=11).with_targets(ttft=TARGET, tpot=0.040))
    s = run.summary()
    good[rate] = s["goodput"]["requests_per_s"]
    dollars[rate] = PRICE / 3600 / s["output_tokens_per_s"] * 1e6
    mean, p99 = s["ttft_ms"]["mean"], s["ttft_ms"]["p99"]
    rows.append((rate, f"{s['slots_used']:.0%}", f"{s['output_tokens_per_s']:.0f}",
                 f"{dollars[rate]:.2f}", f"{good[rate]:.1f}", f"{mean:.0f}", f"{p99:.0f}"))  # fmt: skip
head = (
    "arrivals/s",
    "slots busy",
    "tokens/s",
    "$/million tokens",
    "goodput/s",
    "TTFT mean, ms",
    "p99",
)
print(text_table(head, rows))
best = max(good, key=good.get)
print(f"\nbest goodput at {best}/s; at {RATES[-1]}/s only {good[RATES[-1]] / good[best]:.0%} of it")
assert good[RATES[-1]] < 0.6 * good[best]
assert dollars[4] > 3 * dollars[best]

# %% [markdown]
# (Goodput above the arrivals? 300 users "at 4 per second" came, by chance, at 4.3.)
#
# Three lessons in one table. **Tokens per second** never falls, nor does the share of busy slots: past the edge both stay near their
# maximum, so whoever watches only them sees nothing. **Cost per token** falls with load, steeply at first: an idle GPU costs as
# much as a busy one. **Goodput** rises with the load, peaks at the edge, and collapses. So the cheapest
# honest place to work is a little below the edge.
#
# ## "The average latency is fine"

# %%
run = at_rate(0.75 * edge)
waits = [ttft(r) for r in run.requests.values()]
mean, tail = sum(waits) / len(waits), percentile(waits, 99)
below = sum(w < mean for w in waits) / len(waits)
print(
    f"at 75 % of the edge: mean {1e3 * mean:.0f} ms, p99 {1e3 * tail:.0f} ms = {tail / mean:.1f} × the mean"
)
print(f"{below:.0%} of the users wait less than 'the average user'")
assert tail > 4 * mean and below > 0.6

# %% [markdown]
# An average is a person who isn't there. Most wait much less, and one in a hundred waits many times as long. A page with
# twenty model calls meets such a wait on nearly every fifth visit: 1 − 0.99²⁰ = 18 %.
#
# ## More throughput, worse p99
#
# A change can be good for the sum and bad for the tail. Here the token budget goes up from 256 to 1024 (lesson
# 05), for a hundred users in one rush, with prompts of 200 to 4000 tokens and very unequal answers:

# %%
from toyserve.workload import Lengths, burst

long = Lengths(200, 4000, 20, 400, output_median=120, output_sigma=0.8)
rush = burst(100, seed=5, lengths=long)
small, large = (serve(rush, 64, budget).summary() for budget in (256, 1024))
lift = large["output_tokens_per_s"] / small["output_tokens_per_s"]
worse = large["itl_ms"]["p99"] / small["itl_ms"]["p99"]
print(f"budget 1024 against 256: {lift:.2f} × the tokens/s, p99 gap between tokens {worse:.1f} ×")
assert lift > 1.02 and worse > 2

# %% [markdown]
# A few per cent more throughput, and every reader's stream stutters. Whether that is a good trade depends on the
# application: for a nightly batch job yes, for a chat no. Throughput alone can't tell you.
#
# Try others: more slots, a larger budget, a higher rate. Watch p99 in the note, not only tokens per second.

# %%
from toyserve.viz import playground

playground(rate=30, num_requests=150, num_blocks=3200)

# %% [markdown]
# ## On a real model
#
# The bundled GPT-2 on this machine. First its capacity: 24 requests at once, how many per second? Then the same 24 at
# a third of that rate, and at three times that rate.

# %% tags=["wall-clock"]
import torch

from toyserve import LLM

if not torch.cuda.is_available():
    torch.set_num_threads(1)  # a small model: one core is enough, and steadier to measure

mix = Lengths(8, 48, 8, 64, output_median=24)
llm = LLM("toy", max_running=8)
llm.replay(burst(24, seed=2, lengths=mix))  # once to warm up, once to count
print("one of the answers:", repr(llm.replay(burst(24, seed=2, lengths=mix))[3].text[:60]))
capacity = 24 / llm.recording.summary()["makespan_s"]
real = {}
for share in (1 / 3, 3):
    llm.replay(poisson(24, rate=share * capacity, seed=2, lengths=mix))
    real[share] = llm.recording.summary()["ttft_ms"]
growth = real[3]["p50"] / real[1 / 3]["p50"]
print(f"on {llm.device}: median wait, three times capacity against a third: {growth:.1f} ×")

# %% [markdown]
# The same on the modelled H100, with the same 24 requests:

# %%
mix = Lengths(8, 48, 8, 64, output_median=24)
h100_capacity = 24 / serve(burst(24, seed=2, lengths=mix), 8).summary()["makespan_s"]
medians = []
for share in (1 / 3, 3):
    run = serve(poisson(24, rate=share * h100_capacity, seed=2, lengths=mix), 8)
    medians.append(run.summary()["ttft_ms"]["p50"])
print(f"modelled: {medians[1] / medians[0]:.1f} ×")
assert medians[1] > 2 * medians[0]

# %% [markdown]
# Two machines, one law: measured in units of its own capacity, each is quiet below and drowns above. What differs is how
# high the calm level is: a GPU step takes as long with one row as with eight, a CPU step doesn't, so
# on a CPU neighbours are felt even before there is a queue.

# %% [markdown]
# ## Break it
#
# A dashboard goes live. Its TTFT stays around ten milliseconds at every rate, even past the edge. The manager is delighted.


# %%
def dashboard_ttft(record):
    return record.token_times[0] - record.first_scheduled_time


def sweep_p95(measure):
    return [
        1e3 * percentile([measure(r) for r in run.requests.values()], 95) for run in sweep.values()
    ]


shown, felt = sweep_p95(dashboard_ttft), sweep_p95(ttft)
(ax,) = new_axes((8, 3.2), look)
ax.plot(RATES, felt, "o-", color=look.series[1], label="what users feel")
ax.plot(RATES, shown, "s-", color=look.series[0], label="the dashboard")
ax.set(xlabel="arrival rate (requests per second)", ylabel="TTFT p95 (ms)", yscale="log")
ax.set_title("The same runs: users wait a hundred times longer, the dashboard stays flat",
             loc="left", fontsize=11)  # fmt: skip
ax.legend(frameon=False)
ax.figure

# %%
quiz("11.dashboard")

# %% [markdown]
# **Mend it** (the marked line below). A record knows `arrival_time`, `first_scheduled_time` and `token_times`.


# %%
def mended_ttft(record):
    return record.token_times[0] - record.first_scheduled_time  # ← the fault


def is_right(measure):
    return all(abs(measure(r) - ttft(r)) < 1e-9 for r in sweep[RATES[-1]].requests.values())


mended_by_you = is_right(mended_ttft)
print("✓ the queue is in it" if mended_by_you else "✗ somebody's wait is missing")
hidden = felt[-1] / shown[-1]
print(f"at {RATES[-1]}/s users wait {hidden:.0f} × what the dashboard said")
assert hidden > 20 and is_right(lambda record: record.token_times[0] - record.arrival_time)

# %% [markdown]
# The clock must start when the *user* sends, not when the scheduler looks. The queue is where all the trouble is, and this dashboard
# leaves out exactly the queue.
#
# ### A second one: p99 of what?
#
# "Every step's duration, and the 99th percentile of them": that is easy to log. A day: for a long while one user after the other.
# Then forty read along at once, and six times somebody sends a long document, read whole (the budget is larger than it):

# %%
from toyserve.metrics import itl
from toyserve.workload import Workload, WorkloadRequest

quiet_hours = [WorkloadRequest(f"q{i}", 0.35 * i, 50, 50) for i in range(200)]
class_room = [WorkloadRequest(f"u{i}", 80.0, 50, 300) for i in range(40)]
papers = [WorkloadRequest(f"d{i}", 80.3 + 0.3 * i, 7000, 10) for i in range(6)]
day = serve(Workload("day", (*quiet_hours, *class_room, *papers)), 64, 8192)
steps = [step.end_time - step.start_time for step in day.steps]
gaps = [gap for r in day.requests.values() for gap in itl(r)]
step_p99, token_p99 = (1e3 * percentile(values, 99) for values in (steps, gaps))
print(f"p99 over {len(steps):,} steps : {step_p99:.0f} ms")
print(f"p99 over {len(gaps):,} tokens: {token_p99:.0f} ms, {token_p99 / step_p99:.0f} × as much")
assert token_p99 > 5 * step_p99

# %% [markdown]
# A long step that forty people sit through is *one* step and *forty* bad gaps. And most steps happen in quiet hours, when hardly
# anybody is there. Percentiles of users are taken over what users get: **tokens, or requests, never steps.**
#
# ### A third: the load generator that waits
#
# A load test with 16 clients, each sending its next request when the last answer is complete. It reports a fine p99 at "full load". What would
# real users, who don't wait for each other, have felt?


# %%
def closed_loop(num_clients, n=300):
    """So many clients, each sending its next request when it has its answer."""
    workload = burst(n, seed=11)
    clock = VirtualClock()
    cost = cost_model("h100", "llama-3-8b")
    runner = TimedRunner(SimulatedRunner(workload.output_lens), cost, clock)
    engine = Engine(
        scheduler=ChunkedScheduler(16, 256), kv=PagedKV(20_000), runner=runner, clock=clock
    )
    todo = iter(workload.requests_for_engine())

    def send_next(step):
        for _ in step.finished:
            request = next(todo, None)
            if request is not None:
                request.arrival_time = clock.now()
                engine.add_request(request)

    engine.on_step.append(send_next)  # the engine calls it after each step
    return engine.run([next(todo) for _ in range(num_clients)])


# %%
closed = closed_loop(16).summary()
throughput = closed["num_finished"] / closed["makespan_s"]
opened = at_rate(throughput).summary()
optimism = opened["ttft_ms"]["p99"] / closed["ttft_ms"]["p99"]
print(
    f"closed loop, 16 clients: {throughput:.1f} requests/s, p99 {closed['ttft_ms']['p99']:.0f} ms"
)
print(f"open loop, same rate   : p99 {opened['ttft_ms']['p99']:.0f} ms, {optimism:.0f} × as much")
inside = throughput * closed["e2e_ms"]["mean"] / 1e3
print(f"requests/s × mean time from arrival to the end: {inside:.1f} requests in the house")
assert optimism > 5 and 14 < inside <= 16

# %% [markdown]
# In a closed loop a slow answer delays the next *question*: just when the server is slow, the generator stops asking. The bad moments are
# hardly sampled. Gil Tene named it **coordinated omission**. Sixteen clients can never have more than sixteen requests in
# the house, so no queue ever grows. Users on the internet are an open loop.
#
# (The last line is **Little's law**: rate × mean time inside = mean number inside. It holds for every stable server, and
# says how many slots a rate needs. Sixteen were here, and fewer at the very end, when the questions had run out.)

# %% [markdown]
# ## You have seen this before
#
# | operating system | LLM server |
# |---|---|
# | load average above the number of cores | arrivals above capacity |
# | run queue grows without bound | `waiting` grows without bound |
# | wall time against CPU time of a process | TTFT from arrival against from the first schedule |
# | thrashing: busy, and nothing gets done | full throughput, no goodput |
# | `ulimit`, admission control | refuse early rather than answer late |
#
# **At the noodle bar.** With four stools and a quarter of an hour per guest, sixteen guests an hour can eat. At fourteen an hour there is
# sometimes a short line. At twenty, the line grows by four every hour until closing time, and the till has never been so full. The owner who only
# reads the till opens a bottle. The owner who times guests *from the door* opens a second bar.

# %% [markdown]
# ## Recap

# %%
print(f"edge by bisection against knee : {seen / edge:.2f} ×")
print(f"150 % of the edge              : last hundred wait {last / first:.1f} × the first hundred")
print(f"at 75 % of the edge            : p99 = {tail / mean:.1f} × the mean")
print(f"cost per token, 4/s against {best}/s : {dollars[4] / dollars[best]:.1f} ×")
print(f"goodput past the edge          : {good[RATES[-1]] / good[best]:.0%} of the best")
print(f"budget 1024 for 256            : {lift:.2f} × throughput, {worse:.1f} × p99 gap")
print(
    f"timed from the first schedule  : hides {hidden:.0f} ×; p99 over steps: {token_p99 / step_p99:.0f} ×"
)
print(f"closed loop                    : hides {optimism:.0f} ×")

# %% [markdown]
# **Say it in an interview:**
#
# > Capacity is a rate at which the tail is still within its target, not a number of tokens per second. Below it queues
# > come and go, above it they grow for ever, so I find it with an open-loop sweep or by bisection on p95, and run below
# > it. I measure from arrival, take percentiles over requests or tokens, and compare goodput, since throughput stays high
# > while users leave.
#
# Schroeder, Wierman, Harchol-Balter, *Open Versus Closed: A Cautionary Tale*, NSDI 2006; Dean and Barroso, *The Tail at Scale*,
# CACM 2013; Zhong et al., *DistServe* (goodput), OSDI 2024; Little, *A Proof for the Queuing Formula L = λW*, 1961.

# %% [markdown]
# ## Try it
#
# Change one thing, predict, then run:
#
# 1. `at_rate(edge, n=1200)`: does a longer run at the edge find the same p95?
# 2. Put `max_running=64` into `serve`. Where is the edge now, and what happens to TPOT?
# 3. `closed_loop(64)`: does it still hide the queue?
#
# **Exercise:** `exercises/11_latency_under_load.ipynb`.
#
# **Next in the course:** lesson 12, prefix caching. Many prompts begin with the same words. Why read them again?
