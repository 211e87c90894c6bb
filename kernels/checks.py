"""Is this attention right? Problems that wrong kernels fail, and the answer in words.

    from toyserve_kernels.checks import check_attention
    check_attention(my_kernel)      # [] when right, else one sentence for each kind of problem

The functions judge results only, so any right answer passes, however it is written. The cases
hold what the usual mistakes need to show themselves: several sequences (an index left out), a
chunk behind a context (a mask left out or shifted), lengths around a block boundary (a block left
out), grouped heads (the wrong KV head), head sizes that are no power of two, a sequence without
context, scores whose exponential no float holds, and NaN wherever nothing was written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from .decode_attention import decode_attention_reference
from .problems import PagedProblem, make_problem
from .ragged_attention import ragged_attention_reference
from .write_kv import write_kv_reference

# How far a result may be from float64, as a share of its length, by dtype
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}

AttentionFn = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One launch: what it looks at, and the shape of its problem."""

    about: str
    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    num_heads: int = 2
    num_kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    loud: float = 0.0

    def tolerance(self, dtype: torch.dtype) -> float:
        """How far from float64; large scores lose more to rounding."""
        return TOLERANCE[dtype] * (10 if self.loud else 1)

    def problem(self, dtype: torch.dtype, device: torch.device | str, wild: bool) -> PagedProblem:
        return make_problem(
            self.context_lens,
            self.query_lens,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=dtype,
            device=device,
            wild=wild,
            loud=self.loud,
        )


CASES = (
    Case("one prompt", (5,), (5,)),
    Case("prompts of several lengths", (1, 15, 16, 17, 33), (1, 15, 16, 17, 33)),
    Case("decodes around a block boundary", (1, 15, 16, 17, 31, 32, 33), (1,) * 7),
    Case("a chunk behind a context", (40, 70), (7, 33)),
    Case("chunks and decodes together", (20, 47, 1, 64, 130), (3, 1, 1, 17, 1)),
    Case("a long context", (300, 129), (1, 5)),
    Case("a sequence without context", (9, 0, 18), (1, 1, 1)),
    Case("scores far from zero", (41, 50, 70), (5, 1, 3), loud=150.0),
    Case("3 heads share a KV head", (18, 33), (4, 1), num_heads=6, num_kv_heads=2),
    Case("4 heads share the only KV head", (18, 33), (1, 6), num_heads=4, num_kv_heads=1),
    Case("head size 24", (18, 7), (1, 7), head_dim=24),
    Case("head size 80, blocks of 1", (18, 7), (3, 1), head_dim=80, block_size=1),
    Case("head size 96, blocks of 8", (18, 7), (3, 1), head_dim=96, block_size=8),
    Case("head size 128, blocks of 32", (70, 31), (3, 1), head_dim=128, block_size=32),
)
DECODE_CASES = tuple(
    replace(case, query_lens=(1,) * len(case.context_lens))
    for case in CASES
    if "prompt" not in case.about
)


def check_attention(
    fn: AttentionFn,
    *,
    cases: Sequence[Case] = CASES,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    wild: bool = False,
) -> list[str]:
    """Problems of a ragged paged attention, called with the six tensors of `ragged_attention`.

    `wild` makes unused block-table entries name blocks that do not exist; the default names a
    block of NaN, which a wrong kernel can read without a crash.
    """
    return _check(fn, ragged_attention_reference, "ragged_args", cases, dtype, device, wild)


def check_decode_attention(
    fn: AttentionFn,
    *,
    cases: Sequence[Case] = DECODE_CASES,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    wild: bool = False,
) -> list[str]:
    """Problems of a decode attention, called with the five tensors of `decode_attention`."""
    return _check(fn, decode_attention_reference, "decode_args", cases, dtype, device, wild)


def _check(
    fn: AttentionFn,
    reference: AttentionFn,
    arguments: str,
    cases: Sequence[Case],
    dtype: torch.dtype,
    device: torch.device | str,
    wild: bool,
) -> list[str]:
    problems = []
    for case in cases:
        problem = case.problem(dtype, device, wild)
        args = getattr(problem, arguments)
        expected = reference(*args)
        before = [tensor.clone() for tensor in args]
        try:
            result = fn(*args)
        except Exception as error:  # a learner's kernel may raise anything
            problems.append(f"{case.about}: raised {type(error).__name__}: {error}")
            continue
        said = _judge(result, expected, problem, case, case.tolerance(dtype))
        if said is None and not all(map(_same, before, args)):
            said = "changed its inputs"
        if said is not None:
            problems.append(f"{case.about}: {said}")
    return problems


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _judge(
    result: torch.Tensor,
    expected: torch.Tensor,
    problem: PagedProblem,
    case: Case,
    tolerance: float,
) -> str | None:
    """The first thing wrong with a result in words, or None."""
    if not isinstance(result, torch.Tensor) or result.shape != expected.shape:
        shape = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        return f"returned {shape} where {list(expected.shape)} was expected"
    result = result.detach().double().cpu()
    starts = problem.query_start_loc.tolist()
    for s, length in enumerate(problem.seq_lens.tolist()):
        mine, right = result[starts[s] : starts[s + 1]], expected[starts[s] : starts[s + 1]]
        # the error of each token and head, as a share of how long its vector should be
        error = (mine - right).norm(dim=-1) / right.norm(dim=-1).clamp(min=1e-3)
        wrong = ~(error <= tolerance)  # NaN is wrong too
        if wrong.any():
            token, head = (int(i) for i in wrong.nonzero()[0])
            where = (
                f"sequence {s} ({length} tokens of context in blocks of {case.block_size}), "
                f"new token {token} of {len(mine)}, head {head} of {case.num_heads}"
            )
            return where + _how_wrong(mine[token, head], float(error[token, head]), length, case)
    return None


def _how_wrong(row: torch.Tensor, error: float, length: int, case: Case) -> str:
    if row.isnan().any():
        return ": NaN, so it used a slot nothing was written to" if length else ": NaN, not zeros"
    hint = ""
    if 1e-5 < error < 3e-3:
        hint = '; a little off: tl.dot may round to TF32, pass input_precision="ieee"'
    return f": off by {error:.2g} of its length{hint}"


def check_write_kv(
    fn: Callable[..., None],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[str]:
    """Problems of a KV write, called with the five tensors of `write_kv`."""
    problems = []
    for heads, head_dim, block_size in ((2, 16, 16), (3, 24, 1), (1, 80, 8), (4, 64, 32)):
        about = f"{heads} KV heads of {head_dim}, blocks of {block_size}"
        rng = torch.Generator().manual_seed(head_dim)
        num_slots = 5 * block_size + 32
        num_slots -= num_slots % block_size
        # The cache is all but the first block: a padding token written to slot -1 lands in front
        # of it, or, if -1 counts from the end, in the last slot, which stays free.
        room = torch.randn(block_size + num_slots, 2, heads, head_dim, generator=rng)
        room = room.to(device, dtype).view(-1, block_size, 2, heads, head_dim)
        slots = torch.randperm(num_slots - 1, generator=rng)[:17]
        slots[[3, 10]] = -1
        qkv = torch.randn(17, 4 * heads, head_dim, generator=rng).to(device, dtype)
        key, slots = qkv[:, 2 * heads : 3 * heads], slots.to(device)
        value = qkv[:, 3 * heads :].contiguous()  # other strides than the key's
        expected = room.clone()
        write_kv_reference(key, value, expected[1:, :, 0], expected[1:, :, 1], slots)
        try:
            fn(key, value, room[1:, :, 0], room[1:, :, 1], slots)
        except Exception as error:  # a learner's kernel may raise anything
            problems.append(f"{about}: raised {type(error).__name__}: {error}")
            continue
        wrong = (room != expected).flatten(3).any(-1)  # [num_blocks, block_size, K or V]
        if wrong.any():
            block, offset, which = wrong.nonzero()[0].tolist()
            slot, name = (block - 1) * block_size + offset, "KV"[which]
            owner = (slots == slot).nonzero().flatten().tolist() if slot >= 0 else []
            should = f"token {owner[0]}'s" if owner else "what was there before"
            problems.append(f"{about}: the {name} in slot {slot} is not {should}")
    return problems
