"""Planted answers to exercise 08: each wrong one must fail with these words, each right one pass."""


# %% wrong 08.1 | the plain average
def merge(outs, lses):
    return outs.mean(axis=0), lses.max()


# %% wrong 08.1 | answer begins with nan: is a factor infinity, or a sum 0
def merge(outs, lses):  # right until the scores are large
    weights = np.exp(lses)
    if weights.sum() == 0 and np.isinf(lses).all():
        return outs[0], -np.inf
    return weights @ outs / weights.sum(), np.log(weights.sum())


# %% wrong 08.1 | is the largest of the parts'
def merge(outs, lses):  # cannot be merged again
    top = max(lses.max(), -1e30)
    weights = np.exp(lses - top)
    return weights @ outs / max(weights.sum(), 1e-30), lses.max()


# %% wrong 08.1 | nothing to attend to must give zeros
def merge(outs, lses):
    weights = np.exp(lses - lses.max())
    return weights @ outs / weights.sum(), lses.max() + np.log(weights.sum())


# %% wrong 08.1 | the heaviest part alone
def merge(outs, lses):
    return outs[lses.argmax()], lses.max()


# %% wrong 08.1 | must return two things
def merge(outs, lses):
    weights = np.exp(lses - lses.max())
    return weights @ outs / weights.sum()


# %% right 08.1 | one part after the other, by numpy's own logaddexp
def merge(outs, lses):
    out, lse = np.zeros(outs.shape[1]), -np.inf
    for one, other in zip(outs, lses, strict=False):
        both = np.logaddexp(lse, other)
        if both > -np.inf:
            out = np.exp(lse - both) * out + np.exp(other - both) * one
        lse = both
    return out.tolist(), float(lse)


# %% right 08.2 | gathers each sequence, loops over heads and tokens, float32
def attend(q, load, block_table, query_start, seq_lens, block_size):
    out = []
    for s, n in enumerate(seq_lens):
        both = [load(b) for b in block_table[s]]
        k = np.concatenate([k for k, _ in both])[:n].astype(np.float32)
        v = np.concatenate([v for _, v in both])[:n].astype(np.float32)
        rows = q[query_start[s] : query_start[s + 1]]
        for i, row in enumerate(rows):
            end = n - len(rows) + i + 1
            heads = []
            for h in range(q.shape[1]):
                g = h * k.shape[1] // q.shape[1]
                w = k[:end, g] @ row[h] / q.shape[2] ** 0.5
                w = np.exp(w - w.max())
                heads.append(w @ v[:end, g] / w.sum())
            out.append(heads)
    return np.array(out)


# %% right 08.2 | whole pages, masked with a large negative number
def attend(q, load, block_table, query_start, seq_lens, block_size):
    out = np.empty(q.shape)
    for s in range(len(seq_lens)):
        a, b = query_start[s], query_start[s + 1]
        pages = [load(x) for x in block_table[s]]
        k, v = (np.concatenate(x) for x in zip(*pages, strict=False))
        group = q.shape[1] // k.shape[1]
        for h in range(q.shape[1]):
            w = q[a:b, h] @ k[:, h // group].T / np.sqrt(q.shape[-1])
            w = np.where(np.tri(b - a, len(k), seq_lens[s] - (b - a), dtype=bool), w, -1e30)
            w = np.exp(w - w.max(axis=1, keepdims=True)) if b > a else w
            out[a:b, h] = w @ v[:, h // group] / w.sum(axis=1, keepdims=True)
    return out


# %% wrong 08.2 | slots behind the last token are read
def attend(q, load, block_table, query_start, seq_lens, block_size):  # no mask
    out = np.zeros_like(q)
    for s, _n in enumerate(seq_lens):
        k, v = (np.concatenate(x) for x in zip(*[load(b) for b in block_table[s]], strict=False))
        g = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, g, axis=1), np.repeat(v, g, axis=1)
        rows = slice(query_start[s], query_start[s + 1])
        w = np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2])
        w = np.exp(w)
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | the causal mask is missing inside the chunk
def attend(
    q, load, block_table, query_start, seq_lens, block_size
):  # lengths right, no causal mask
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        k, v = (
            np.concatenate(x)[:n] for x in zip(*[load(b) for b in block_table[s]], strict=False)
        )
        g = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, g, axis=1), np.repeat(v, g, axis=1)
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2]))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | walks along the block table of the first one
def attend(q, load, block_table, query_start, seq_lens, block_size):  # batch index ignored
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        pages = [load(block_table[0][i % len(block_table[0])]) for i in range(-(-n // block_size))]
        k, v = (np.concatenate(x)[:n] for x in zip(*pages, strict=False))
        g = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, g, axis=1), np.repeat(v, g, axis=1)
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2]))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | is skipped
def attend(q, load, block_table, query_start, seq_lens, block_size):  # last page left out
    out = np.full(q.shape, np.nan)
    for s, n in enumerate(seq_lens):
        full = block_table[s][: n // block_size]
        if not full:
            continue
        k, v = (np.concatenate(x) for x in zip(*[load(b) for b in full], strict=False))
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2]))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | without the division
def attend(q, load, block_table, query_start, seq_lens, block_size):  # scale left out
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        k, v = (
            np.concatenate(x)[:n] for x in zip(*[load(b) for b in block_table[s]], strict=False)
        )
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | modulo their number
def attend(q, load, block_table, query_start, seq_lens, block_size):  # tile instead of repeat
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        k, v = (
            np.concatenate(x)[:n] for x in zip(*[load(b) for b in block_table[s]], strict=False)
        )
        g = q.shape[1] // k.shape[1]
        k, v = np.tile(k, (1, g, 1)), np.tile(v, (1, g, 1))
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2]))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | times, and once is enough
def attend(q, load, block_table, query_start, seq_lens, block_size):  # the lesson's: per head
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        a, b = query_start[s], query_start[s + 1]
        for i in range(a, b):
            end = n - (b - a) + i - a + 1
            for h in range(q.shape[1]):
                pages = [load(x) for x in block_table[s]]
                k, v = (np.concatenate(x)[:end] for x in zip(*pages, strict=False))
                g = h // (q.shape[1] // k.shape[1])
                w = np.exp(k[:, g] @ q[i, h] / np.sqrt(q.shape[2]))
                out[i, h] = w @ v[:, g] / w.sum()
    return out


# %% wrong 08.2 | belongs to none of the sequences
def attend(q, load, block_table, query_start, seq_lens, block_size):  # as in lesson 06: one piece
    out = np.zeros_like(q)
    for s, n in enumerate(seq_lens):
        k, v = (
            np.concatenate(x)[:n]
            for x in zip(*[load(x) for x in range(-(-n // block_size))], strict=False)
        )
        rows = slice(query_start[s], query_start[s + 1])
        w = np.exp(np.einsum("nhd,khd->nhk", q[rows], k) / np.sqrt(q.shape[2]))
        out[rows] = np.einsum("nhk,khd->nhd", w, v) / w.sum(axis=2)[..., None]
    return out


# %% wrong 08.2 | it must return an array of the form
def attend(q, load, block_table, query_start, seq_lens, block_size):
    return np.zeros(q.shape[:2])


# %% wrong 08.3 | is not 'no mask': that would be right wherever
faults = dict.fromkeys("PQRST", "no mask")

# %% wrong 08.3 | is none of the five faults
faults = dict.fromkeys("PQRST", "mask")

# %% wrong 08.3 | your faults must be a dict
faults = ["no mask", "last page", "no scale", "first table", "wrong KV head"]

# %% right 08.3 | by sorting: how many rows and columns are black
faults = {}
for letter, error in error_maps(SEED).items():
    good = error < 1e-6
    if good.all(axis=0).any():
        faults[letter] = "wrong KV head"
    elif good[0].all() and good.sum() == 8:
        faults[letter] = "first table"
    elif good[-1].all() and good.sum() == 8:
        faults[letter] = "no scale"
    else:
        faults[letter] = "last page" if (error == 9).any() else "no mask"

# %% wrong 08.4 | counts 32 heads
kv_gb = 2 * 32 * 32 * 128 * 2 * mine["users"] * mine["context"] / 1e9
share, slower = 0.5, 2

# %% wrong 08.4 | is one layer
kv_gb = 2 * 8 * 128 * 2 * mine["users"] * mine["context"] / 1e9
share, slower = 0.5, 2

# %% wrong 08.4 | is attention alone
bill = bill_of(mine)
kv_gb, share, slower = bill.attention.num_bytes / 1e9, bill.attention.time / bill.time, 3

# %% wrong 08.4 | looks like per cent
bill = bill_of(mine)
kv_gb, share, slower = bill.attention.num_bytes / 1e9, 100 * bill.attention.time / bill.time, 1

# %% right 08.4 | measured, in numpy's numbers
bill = bill_of(mine)
kv_gb, share = np.float64(bill.attention.num_bytes / 1e9), bill.attention.time / bill.time
slower = np.float32(1 + 2 * share)


# %% wrong 08.5 | 6% of the processors
def choose_splits(users, context):
    return 1


# %% wrong 08.5 | of the processors get work in the first round
def choose_splits(users, context):  # the lesson's rule
    splits = 1
    while users * 8 * splits < 2 * 132 and splits < 32:
        splits *= 2
    return splits


# %% wrong 08.5 | so is a smaller number
def choose_splits(users, context):  # the fastest, not the smallest
    return min(range(1, 65), key=lambda n: split_us(users, context, n))


# %% wrong 08.5 | whole number from 1 to 64
def choose_splits(users, context):
    return 132 / (8 * users)


# %% right 08.5 | a loop, the smallest last
def choose_splits(users, context):
    best = min(split_us(users, context, n) for n in range(1, 65))
    for n in range(64, 0, -1):
        if split_us(users, context, n) <= best * 1.05:
            found = n
    return np.int64(found)
