"""Planted answers to exercise 13: each wrong one must fail with these words, each right one pass."""


# %% wrong 13.1 | which heads' K and V are stored
def request_kv_bytes(m, length, full_layers):  # as in lesson 06
    kept = min(length, m.sliding_window or length)
    tokens = full_layers * length + (m.num_layers - full_layers) * kept
    return 2 * m.num_heads * m.head_dim * dtype_bytes(m.kv_dtype) * tokens


# %% wrong 13.1 | a token leaves a K and a V
def request_kv_bytes(m, length, full_layers):
    kept = min(length, m.sliding_window or length)
    tokens = full_layers * length + (m.num_layers - full_layers) * kept
    return m.num_kv_heads * m.head_dim * dtype_bytes(m.kv_dtype) * tokens


# %% wrong 13.1 | the weights are in
def request_kv_bytes(m, length, full_layers):
    kept = min(length, m.sliding_window or length)
    tokens = full_layers * length + (m.num_layers - full_layers) * kept
    return 2 * m.num_kv_heads * m.head_dim * dtype_bytes(m.weight_dtype) * tokens


# %% wrong 13.1 | keep 4,096 tokens at most
def request_kv_bytes(m, length, full_layers):  # no window
    return m.kv_bytes_per_token * length


# %% wrong 13.1 | 4 layers keep all
def request_kv_bytes(m, length, full_layers):  # the lesson's: a window in every layer
    return m.kv_bytes_per_token * min(length, m.sliding_window or length)


# %% wrong 13.1 | too much: 28 layers keep
def request_kv_bytes(m, length, full_layers):  # the window even for who is shorter
    kept = m.sliding_window or length
    tokens = full_layers * length + (m.num_layers - full_layers) * kept
    return m.kv_bytes_per_token // m.num_layers * tokens


# %% wrong 13.1 | crashed with TypeError
def request_kv_bytes(m, length, full_layers):  # forgets models without a window
    kept = min(length, m.sliding_window)
    tokens = full_layers * length + (m.num_layers - full_layers) * kept
    return m.kv_bytes_per_token // m.num_layers * tokens


# %% right 13.1 | layer by layer, in numpy's numbers
import numpy as np


def request_kv_bytes(m, length, full_layers):
    window = np.inf if m.sliding_window is None else m.sliding_window
    kept = [length if layer < full_layers else min(length, window) for layer in range(m.num_layers)]
    return np.sum(kept) * m.kv_bytes_per_token / m.num_layers


# %% wrong 13.2 | 90 % of the memory
def requests_that_fit(m, memory_bytes, length, num_gpus):  # all of the memory
    room = memory_bytes - m.weight_bytes / num_gpus
    return int(room // (m.kv_bytes_per_token * length))


# %% wrong 13.2 | whole blocks of 16
def requests_that_fit(m, memory_bytes, length, num_gpus):  # the lesson's
    room = 0.9 * memory_bytes - m.weight_bytes
    kept = min(length, m.sliding_window or length)
    return max(0, int(room // (m.kv_bytes_per_token * kept)))


# %% wrong 13.2 | a request fits or it does not
def requests_that_fit(m, memory_bytes, length, num_gpus):
    return (0.9 * memory_bytes - m.weight_bytes / num_gpus) / (m.kv_bytes_per_token * length)


# %% wrong 13.2 | Its window is 4,096
def requests_that_fit(m, memory_bytes, length, num_gpus):  # forgets the window
    room = 0.9 * memory_bytes - m.weight_bytes / num_gpus
    block = 16 * m.kv_bytes_per_token / min(num_gpus, m.num_kv_heads)
    return max(0, int(room // block) // -(-length // 16))


# %% wrong 13.2 | which of them must be there
def requests_that_fit(m, memory_bytes, length, num_gpus):  # the active experts
    room = 0.9 * memory_bytes - m.active_params * dtype_bytes(m.weight_dtype) / num_gpus
    block = 16 * m.kv_bytes_per_token / min(num_gpus, m.num_kv_heads)
    return max(0, int(room // block) // -(-min(length, m.sliding_window or length) // 16))


# %% wrong 13.2 | No fewer than 0
def requests_that_fit(m, memory_bytes, length, num_gpus):  # a negative number of people
    room = 0.9 * memory_bytes - m.weight_bytes / num_gpus
    block = 16 * m.kv_bytes_per_token / min(num_gpus, m.num_kv_heads)
    return int(room // block) // -(-min(length, m.sliding_window or length) // 16)


# %% wrong 13.2 | each GPU's room is its own
def requests_that_fit(m, memory_bytes, length, num_gpus):  # every GPU keeps everybody's whole KV
    room = 0.9 * memory_bytes - m.weight_bytes / num_gpus
    block = 16 * m.kv_bytes_per_token
    return max(0, int(room // block) // -(-min(length, m.sliding_window or length) // 16))


# %% wrong 13.2 | A KV head cannot be cut
def requests_that_fit(m, memory_bytes, length, num_gpus):  # one large memory
    room = num_gpus * 0.9 * memory_bytes - m.weight_bytes
    block = 16 * m.kv_bytes_per_token
    return max(0, int(room // block) // -(-min(length, m.sliding_window or length) // 16))


# %% right 13.2 | all GPUs as one, with the heads that are held twice
import math


def requests_that_fit(m, memory_bytes, length, num_gpus):
    room = num_gpus * 0.9 * memory_bytes - m.weight_bytes
    if room <= 0:
        return 0
    copies = max(1, num_gpus / m.num_kv_heads)
    kept = length if m.sliding_window is None else min(length, m.sliding_window)
    tokens = 16 * math.ceil(kept / 16)
    return math.floor(room / (copies * m.kv_bytes_per_token * tokens))


# %% right 13.2 | the library's plan
from dataclasses import replace

from toyserve.capacity import plan


def requests_that_fit(m, memory_bytes, length, num_gpus):
    gpu = replace(cost_model("h100").hardware, memory_bytes=memory_bytes)
    return plan(m, gpu, length, num_gpus=num_gpus).num_requests


# %% wrong 13.3 | longest bill is not weights
bills = dict.fromkeys("PQRS", "weights")
gains = dict.fromkeys("PQRS", 1.0)

# %% wrong 13.3 | longest bill is not KV
bills = dict.fromkeys("PQRS", "KV")
gains = dict.fromkeys("PQRS", 1.0)

# %% wrong 13.3 | must be one of weights, KV, arithmetic
bills = dict.fromkeys("PQRS", "memory")
gains = dict.fromkeys("PQRS", 1.0)

# %% wrong 13.3 | with an entry for each of P, Q, R and S
bills, gains = ["weights", "KV", "KV", "arithmetic"], 1.0

# %% wrong 13.3 | gains['
bills, gains = {}, {}
for name, h in mine.items():
    gpu, m = cost_model(h["gpu"]).hardware, get_model(h["model"])
    kept = min(h["length"], m.sliding_window or h["length"])
    times = (
        (m.weight_bytes / gpu.bandwidth / 0.8, "weights"),
        (h["users"] * kept * m.kv_bytes_per_token / gpu.bandwidth / 0.8, "KV"),
        (2 * m.active_params * h["users"] / gpu.peak_flops_for("fp16") / 0.6, "arithmetic"),
    )
    bills[name] = max(times)[1]
    gains[name] = 4.0  # a quarter of the bytes

# %% right 13.3 | from the cost model's own breakdown, each user's speed
from toyserve.costs import StepShape

bills, gains = {}, {}
for name, h in mine.items():
    cost = cost_model(h["gpu"], h["model"])
    step = cost.breakdown(
        StepShape.of_rows([(h["length"], 1)] * h["users"], cost.model.sliding_window)
    )
    if step.attention.time > step.linear.time:
        bills[name] = "KV"
    else:
        bills[name] = "weights" if step.linear.bound == "memory" else "arithmetic"
    each = [
        cost_model(h["gpu"], get_model(h["model"]).with_dtypes(weight=kind)).decode_throughput(
            h["users"], h["length"]
        )[1]
        for kind in ("int4", None)
    ]
    gains[name] = each[0] / each[1]

# %% wrong 13.4 | the colleague's number
unseen, slots = ("llama-3-8b", "bf16", "fp8"), planned_slots

# %% wrong 13.4 | shows as preemptions
unseen, slots = ("llama-3-8b", "int4", "bf16"), planned_slots

# %% wrong 13.4 | only where right and wrong differ
unseen, slots = ("mixtral-8x7b", "int4", "bf16"), planned_slots
unseen = ("llama-3-8b", "bf16", "bf16")

# %% wrong 13.4 | the known ones are
unseen, slots = ("llama-4", "bf16", "fp8"), planned_slots

# %% wrong 13.4 | must be (model, weight type, KV type)
unseen, slots = "llama-3-8b", planned_slots

# %% wrong 13.4 | fit. What is stored in
unseen = ("llama-3-8b", "bf16", "fp8")


def slots(m, memory_bytes, length):  # right for tonight only: KV is always 16 bits
    room = 0.9 * memory_bytes - m.weight_bytes
    return max(0, int(room // (2 * 2 * m.num_layers * m.num_kv_heads * m.head_dim * length)))


# %% wrong 13.4 | too few
unseen = ("llama-3-8b", "bf16", "fp8")


def slots(m, memory_bytes, length):  # query heads
    room = 0.9 * memory_bytes - m.weight_bytes
    token = 2 * m.num_layers * m.num_heads * m.head_dim * dtype_bytes(m.kv_dtype)
    return max(0, int(room // (token * length)))


# %% right 13.4 | on top of the colleague's
unseen = ["gpt2-xl", "fp32", "fp8"]


def slots(m, memory_bytes, length):
    wide = planned_slots
    spare = 0.9 * memory_bytes - m.total_params * dtype_bytes(m.weight_dtype)
    if wide(m, memory_bytes, 1) <= 0:
        return 0
    token = 2 * m.num_layers * m.num_kv_heads * m.head_dim * dtype_bytes(m.kv_dtype)
    return int(spare / token / length)


# %% wrong 13.5 | there is a cheaper server
choice = ("h200", 8, "bf16", "bf16")

# %% wrong 13.5 | allows one of the two
choice = ("h200", 1, "int4", "fp8")

# %% wrong 13.5 | fit at the same time
choice = ("l4", 1, "int4", "bf16")

# %% wrong 13.5 | tokens/s,
choice = ("l4", 8, "bf16", "fp8")

# %% wrong 13.5 | is none of
choice = ("h200", 3, "bf16", "bf16")

# %% right 13.5 | sorted by price, the first that does it
from itertools import product

fine = (
    c
    for c in sorted(product(PRICES, COUNTS, WEIGHTS, KV), key=lambda c: c[1] * PRICES[c[0]])
    if c[2:] != ("int4", "fp8")
    and offer(order, *c)["fit"] >= order["users"]
    and offer(order, *c)["speed"] >= order["speed"]
)
choice = next(fine)
