# %% [markdown]
# # Exercise 13 · Models meet schedulers
#
# In the lesson you wrote two formulas, for one GPU and one window. Here the window is in some of the
# layers only, and the model is cut over several GPUs. You say what four servers wait for, find a fault
# of which only one half shows in a picture, and buy the cheapest server that does the job.
#
# Write where it says `YOUR CODE HERE`; the cell below each part says at once what is right and what
# is not. Parts do not depend on each other. About 50 minutes, and no GPU.

# %%

from toyserve.costs import cost_model, get_model
from toyserve.course.checks import check
from toyserve.course.checks.colleague import planned_slots
from toyserve.course.checks.ex13_models_meet_schedulers import (
    COUNTS,
    KV,
    NIGHT,
    PRICES,
    WEIGHTS,
    houses,
    model_of,
    night,
    offer,
    order_of,
)
from toyserve.course.show import show_source
from toyserve.hardware import dtype_bytes
from toyserve.viz import token_raster

SEED = 0  # your own numbers in 13.3 and 13.5 come from it

# %% [markdown]
# A model `m` knows its shape: `num_layers`, `num_heads`, `num_kv_heads`, `head_dim`,
# `sliding_window` (or `None`), `total_params`, `active_params`, `weight_dtype`, `kv_dtype`, and from
# these `weight_bytes` and `kv_bytes_per_token`. `dtype_bytes("int4")` is 0.5.

# %%
m = get_model("mistral-7b").with_dtypes(kv="fp8")
print(m)
print(f"{m.weight_bytes:,.0f} bytes of weights, {m.kv_bytes_per_token:,.0f} bytes of KV per token")

# %% [markdown]
# ## 13.1 A window in some of the layers
#
# Newer models look through a window in most layers, and at everything in a few. Write the bytes of KV
# that one request holds after `length` tokens: `full_layers` of the layers keep every token, the others
# no more than `m.sliding_window`. (`None`: there is no window, and all layers keep everything.)


# %% answer="13.1"
def request_kv_bytes(m, length, full_layers):
    """Bytes of one request's KV."""
    ### BEGIN SOLUTION
    one_layer = 2 * m.num_kv_heads * m.head_dim * dtype_bytes(m.kv_dtype)
    kept = length if m.sliding_window is None else min(length, m.sliding_window)
    return one_layer * (full_layers * length + (m.num_layers - full_layers) * kept)
    ### END SOLUTION


# %% check="13.1" points=2
check("13.1")
### BEGIN HIDDEN TESTS
check(
    "13.1",
    cases=[
        {
            "what": f"{name}, KV in {kv}, weights in {weight}, {length} tokens, window {window}",
            "model": name,
            "kv": kv,
            "weight": weight,
            "window": window,
            "length": length,
            "full": full,
        }
        for name, kv, weight, window, length, full in (
            ("llama-3-70b", "bf16", "int8", None, 3000 + SEED, 0),
            ("llama-3-70b", "fp8", "bf16", 512, 513, 8),
            ("gpt2-xl", "fp8", "fp16", 128, 1000 + SEED, 48),
            ("mixtral-8x7b", "fp8", "int4", 4096, 30_000 + SEED, 1),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 13.2 Requests that fit, on several GPUs
#
# `num_gpus` GPUs with `memory_bytes` each share every layer: each holds an equal part of the weights
# (of *all* weights: the next token may want any expert), and some of the KV heads of every request.
#
# - A server may use 90 % of the memory.
# - A KV head cannot be cut. With more GPUs than KV heads, each GPU holds one, and some are held twice.
#   (The heads always come out even: 1, 2, 4 … GPUs.)
# - A request holds whole blocks of 16 tokens, and with a window no more than its tokens
#   (all layers alike again).
# - If the weights do not fit, nobody does: 0.


# %% answer="13.2"
def requests_that_fit(m, memory_bytes, length, num_gpus):
    """How many requests of so many tokens fit at the same time."""
    ### BEGIN SOLUTION
    room = 0.9 * memory_bytes - m.weight_bytes / num_gpus
    heads = max(1, m.num_kv_heads // num_gpus)
    kept = min(length, m.sliding_window or length)
    blocks = -(-kept // 16)
    block_bytes = 16 * 2 * m.num_layers * heads * m.head_dim * dtype_bytes(m.kv_dtype)
    return max(0, int(room // block_bytes) // blocks)
    ### END SOLUTION


# %% check="13.2" points=2
check("13.2")
### BEGIN HIDDEN TESTS
check(
    "13.2",
    cases=[
        {
            "what": f"{name} on {gpus} x {gpu}, {length} tokens, {weight} and {kv}",
            "model": name,
            "gpu": gpu,
            "gpus": gpus,
            "length": length,
            "weight": weight,
            "kv": kv,
        }
        for name, gpu, gpus, length, weight, kv in (
            ("gpt2-xl", "t4", 1, 900 + SEED % 100, "fp16", "fp16"),
            ("mixtral-8x7b", "a100", 2, 5000 + SEED % 100, "bf16", "fp8"),
            ("mixtral-8x7b", "t4", 1, 100, "int4", "fp8"),
            ("llama-3-70b", "t4", 16, 555, "int8", "bf16"),
            ("llama-3-8b", "l4", 32, 8000, "int4", "fp8"),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 13.3 The longest bill: predict, then measure
#
# Four servers, all in bf16 (GPT-2 in fp16), and all users decode. What does a step wait for longest:
# for the `"weights"` to be read, for the `"KV"` to be read, or for the `"arithmetic"` of the weights'
# multiplications? Of the printed figures, 80 % of the bandwidth and 60 % of the FLOP/s are reached.

# %%
mine = houses(SEED)["houses"]
for name, h in mine.items():
    gpu, m = cost_model(h["gpu"]).hardware, get_model(h["model"])
    print(
        f"{name}: {h['model']} on one {gpu.name}, {h['users']} users, {h['length']:,} tokens each"
    )
    print(f"   {gpu.bandwidth / 1e9:,.0f} GB/s, {gpu.peak_flops_for('fp16') / 1e12:,.0f} TFLOP/s; "
          f"{m.active_params / 1e9:.1f} of {m.total_params / 1e9:.1f} billion parameters active, "
          f"{m.kv_bytes_per_token / 1e3:.0f} kB KV per token, window {m.sliding_window}")  # fmt: skip

# %% [markdown]
# - `bills`: on paper, a dict such as `{"P": "weights", "Q": …, "R": …, "S": …}`.
# - `gains`: measured, a dict of numbers: how many times as many tokens per second does each server
#   write with its weights in **int4** (everything else as it is)?
#   `cost_model(gpu, model).decode_throughput(users, length)` gives tokens per second of (all, each);
#   `model` is a name, or a model such as `get_model(name).with_dtypes(weight="int4")`.

# %% answer="13.3"
### BEGIN SOLUTION
bills, gains = {}, {}
for name, h in mine.items():
    gpu, m = cost_model(h["gpu"]).hardware, get_model(h["model"])
    kept = min(h["length"], m.sliding_window or h["length"])
    times = {  # with hundreds of users, every expert is wanted by somebody
        "weights": m.weight_bytes / (0.8 * gpu.bandwidth),
        "KV": h["users"] * kept * m.kv_bytes_per_token / (0.8 * gpu.bandwidth),
        "arithmetic": 2 * m.active_params * h["users"] / (0.6 * gpu.peak_flops_for("fp16")),
    }
    bills[name] = max(times, key=times.get)
    narrow = cost_model(h["gpu"], m.with_dtypes(weight="int4"))
    after, _ = narrow.decode_throughput(h["users"], h["length"])
    gains[name] = after / cost_model(h["gpu"], m).decode_throughput(h["users"], h["length"])[0]
### END SOLUTION

# %% check="13.3" points=2
check("13.3")

# %% [markdown]
# ## 13.4 The fault in the picture
#
# A colleague plans slots. "Tested with Llama-3-8B, Mixtral and GPT-2, on every GPU we have." Then the
# model is stored in int4 to fit on a T4, and 60 people come at night:

# %%
show_source(planned_slots)

# %%
tonight = model_of(NIGHT)
slots_tonight = planned_slots(tonight, 16e9, NIGHT["length"])
print(f"{tonight.name} with {tonight.weight_dtype} weights: {slots_tonight} slots planned")
run = night(slots_tonight)
print(f"{run.summary()['num_preemptions']} preemptions")
token_raster(run, title="Each row a user: whose stream stands still, and then goes on?")

# %% [markdown]
# - `slots(m, memory_bytes, length)`: the plan, mended. (Count tokens, not blocks, as the colleague does.)
# - `unseen`: the same fault can also plan **too few** slots, and then no picture shows it. Find a
#   `(model name, weight type, KV type)` for which it does so on an H100 with 1,024 tokens each.
#   Types are `"fp32"`, `"bf16"`, `"fp8"`, `"int8"`, `"int4"`.

# %% answer="13.4"
### BEGIN SOLUTION
unseen = ("llama-3-8b", "bf16", "fp8")


def slots(m, memory_bytes, length):
    room = 0.9 * memory_bytes - m.weight_bytes
    return max(0, int(room // (m.kv_bytes_per_token * length)))


### END SOLUTION

# %% check="13.4" points=3
check("13.4")
### BEGIN HIDDEN TESTS
check(
    "13.4",
    cases=[
        {
            "what": f"{name} on {gpu}, {length} tokens, {weight} and {kv}",
            "model": name,
            "gpu": gpu,
            "length": length,
            "weight": weight,
            "kv": kv,
        }
        for name, gpu, length, weight, kv in (
            ("mixtral-8x7b", "h200", 2048, "int8", "bf16"),
            ("gpt2-xl", "l4", 512 + SEED % 64, "fp16", "fp8"),
            ("llama-3-70b", "a100", 4096, "int4", "fp8"),
        )
    ],
)
### END HIDDEN TESTS

# %% [markdown]
# ## 13.5 The cheapest server
#
# Your boss wants, at the least price per hour, a server on which so many people are served at once:

# %%
order = order_of(SEED)
print(
    f"{order['model']}: {order['users']} users at the same time, {order['length']:,} tokens each,"
)
print(f"at least {order['speed']} tokens/s for each of them")
print("dollars per GPU and hour:", PRICES)

# %% [markdown]
# You may take 1, 2, 4 or 8 GPUs of one kind (`COUNTS`), weights in bf16, int8 or int4 (`WEIGHTS`), KV
# in bf16 or fp8 (`KV`). The quality team allows int4 weights or fp8 KV, **not both**. `offer` says
# what such a server does:

# %%
offer(order, "h200", 8, "bf16", "bf16")

# %% [markdown]
# Set `choice`, such as `("h200", 8, "bf16", "bf16")`, to the cheapest that does it (one of them, if
# there are several). Trying all of them in a loop is fine. Guess first!

# %% answer="13.5"
### BEGIN SOLUTION
possible = []
for gpu in PRICES:
    for number in COUNTS:
        for weight in WEIGHTS:
            for kv in KV:
                what = offer(order, gpu, number, weight, kv)
                enough = what["fit"] >= order["users"] and what["speed"] >= order["speed"]
                if enough and (weight, kv) != ("int4", "fp8"):
                    possible.append((what["price"], (gpu, number, weight, kv)))
choice = min(possible)[1]
### END SOLUTION

# %% check="13.5" points=2
check("13.5")

# %% [markdown]
# ## 13.6 Explain
#
# Two or three sentences, for somebody who has read "int4 makes the model four times as fast": **for
# whom is that nearly true, for whom not at all, and which change helps a server whose batch is limited
# by memory?** This part is read by a person.

# %% [markdown] explain="13.6" points=2
# ### BEGIN SOLUTION
# It is nearly true for a single user (or a small batch), whose step is spent reading the weights. With
# hundreds of users the step is spent on arithmetic, which is still done in 16 bits, or on reading
# everybody's KV, and int4 weights change neither; a prompt gains nothing either. If memory limits the
# batch, smaller KV helps (fp8, fewer KV heads, a window on long chats), and int4 weights help where the
# weights fill most of the card, because the room they leave becomes KV.
# ### END SOLUTION
