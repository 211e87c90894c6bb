"""The bill of a KV pool: worked out by hand for pools of four blocks."""

from __future__ import annotations

import pytest

from toyserve import Engine
from toyserve.course.memory import MemoryBill, draw_bills, memory_bill
from toyserve.kv import ContiguousKV, KVManager, ReservedKV
from toyserve.recording import Recording
from toyserve.runners import SimulatedRunner
from toyserve.schedulers import ContinuousScheduler
from toyserve.workload import Workload, WorkloadRequest


def serve(kv: KVManager, lengths: dict[str, tuple[int, int]]) -> Recording:
    """lengths: request -> tokens of its prompt and of its answer."""
    parts = (
        WorkloadRequest(name, num_prompt_tokens=prompt, output_len=output)
        for name, (prompt, output) in lengths.items()
    )
    work = Workload("by hand", tuple(parts))
    runner = SimulatedRunner(work.output_lens)
    engine = Engine(scheduler=ContinuousScheduler(8), kv=kv, runner=runner)
    return engine.run(work.requests_for_engine())


def test_what_is_reserved_and_not_written_is_empty() -> None:
    run = serve(ReservedKV(4, max_model_len=65), {"A": (16, 1), "B": (64, 1)})
    # B waits in step 1 only, while A has written 16 of its 64 slots.
    assert memory_bill(run, in_one_piece=True) == MemoryBill(0.25, 0.75, 0.0, 0.0)


def test_free_blocks_beside_the_largest_hole_are_in_pieces() -> None:
    lengths = {"A": (14, 1), "B": (14, 3), "C": (14, 1), "D": (14, 3), "E": (17, 1)}
    run = serve(ContiguousKV(4), lengths)
    # E waits in three steps: with nothing free, then twice with a block here and a block there.
    bill = memory_bill(run, in_one_piece=True)
    assert bill.tokens == pytest.approx((4 * 14 + 2 * 15 + 2 * 16) / (3 * 64))
    assert bill.empty == pytest.approx((4 * 2 + 2 * 1 + 0) / (3 * 64))
    assert bill.apart == pytest.approx((0 + 1 + 1) / (3 * 4))
    assert bill.free == pytest.approx((0 + 1 + 1) / (3 * 4))
    whole = memory_bill(run, in_one_piece=False)
    assert (whole.apart, whole.free) == (0, pytest.approx(2 * bill.free))


def test_without_anybody_waiting_all_steps_count() -> None:
    run = serve(ContiguousKV(4), {"A": (16, 1)})
    assert memory_bill(run, in_one_piece=True) == MemoryBill(0.25, 0.0, 0.0, 0.75)


def test_the_picture_has_a_bar_per_run_and_its_shares_in_words() -> None:
    figure = draw_bills(
        {"one": MemoryBill(0.5, 0.25, 0.2, 0.05), "two": MemoryBill(0.99, 0.01, 0, 0)}
    )
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two"]
    words = [text.get_text() for text in ax.texts]
    assert words == ["50%", "25%", "20%", "5%", "99%"]
