"""KV managers: who owns which block, what fragments, what is shared, and that nothing is lost."""

from __future__ import annotations

import pytest
from sim import Job, ToyModel, make_engine, serve

from toyserve.kv import ContiguousKV, KVIntegrityError, PagedKV, ReservedKV
from toyserve.kv.prefix import SharingPool
from toyserve.kv.swap import SwapSpace, check_host_memory
from toyserve.replay import replay_memory
from toyserve.request import FinishReason, Request, SamplingParams
from toyserve.schedulers import (
    ChunkedScheduler,
    ContinuousScheduler,
    SequentialScheduler,
    StaticScheduler,
)

ENDLESS = ToyModel(end_every=0)


def request(request_id: str, num_tokens: int, max_tokens: int = 1) -> Request:
    return Request(request_id, list(range(num_tokens)), SamplingParams(max_tokens=max_tokens))


# -- contiguous: the address space of the seed ------------------------------------------------


def test_contiguous_memory_refuses_a_request_though_enough_is_free_in_total() -> None:
    kv = ContiguousKV(num_blocks=14, block_size=1)
    slabs = {name: request(name, n) for name, n in zip("ABCD", (4, 2, 3, 4), strict=True)}
    for slab in slabs.values():
        assert kv.allocate(slab, slab.num_tokens)
    kv.free(slabs["B"])  # [A A A A][    ][C C C][D D D D][ ]
    e = request("E", 3)
    assert kv.num_free_blocks == 3
    assert kv.holes() == [(4, 2), (13, 1)]
    assert kv.largest_hole == 2
    assert kv.external_fragmentation == pytest.approx(1 / 3)
    assert not kv.allocate(e, 3)
    assert e.block_table == []
    kv.free(slabs["C"])
    assert kv.allocate(e, 3)
    assert e.block_table == [4, 5, 6]
    kv.check_integrity([slabs["A"], slabs["D"], e])
    paged = PagedKV(num_blocks=3, block_size=1)
    assert paged.allocate(request("E", 3), 3)  # the same three blocks, without the hole


def test_contiguous_growth_is_in_place_or_not_at_all() -> None:
    kv = ContiguousKV(num_blocks=8, block_size=2)
    a, b = request("a", 4), request("b", 4)
    assert kv.allocate(a, 4)
    assert kv.allocate(b, 4)
    b.num_computed_tokens = a.num_computed_tokens = 4
    assert kv.allocate(b, 3)
    assert b.block_table == [2, 3, 4, 5]
    assert not kv.allocate(a, 1)
    assert kv.in_the_way(a) == [a, b]
    assert kv.internal_fragmentation == pytest.approx(1 - 8 / 12)
    kv.free(b)
    assert kv.allocate(a, 1)
    kv.check_integrity([a])


def test_a_slab_at_the_end_of_memory_moves_by_being_preempted() -> None:
    jobs = [Job(tuple(range(6)), max_tokens=3), Job((1, 2), max_tokens=9)]
    served = serve(jobs, ContinuousScheduler(2), ContiguousKV(10, 1), model=ENDLESS, max_steps=60)
    assert served.requests[1].num_preemptions >= 1


# -- paged --------------------------------------------------------------------------------------


def test_paged_memory_wastes_less_than_a_block_per_request_and_reserved_most_of_it() -> None:
    jobs = [Job(tuple(range(n)), max_tokens=6) for n in (5, 9, 14)]
    wasted = {}
    for kv in (PagedKV(60, 4), ReservedKV(60, 4, max_model_len=64)):
        served = serve(jobs, ContinuousScheduler(3), kv, model=ENDLESS, max_model_len=64)
        wasted[type(kv)] = [m.num_wasted_slots for _, m in replay_memory(served.recording)]
    assert max(wasted[PagedKV]) <= 3 * 3
    assert min(wasted[ReservedKV]) >= 16 * 4 - 20


@pytest.mark.parametrize("kv", [PagedKV(2, 4), PagedKV(2, 4, prefix_caching=True)])
def test_a_table_that_names_a_block_twice_is_found_out(kv: PagedKV) -> None:
    a = request("a", 4)
    assert kv.allocate(a, 4)
    kv.check_integrity([a])
    b = request("b", 4)
    b.block_table, b.num_slots = list(a.block_table), 4
    with pytest.raises(KVIntegrityError):
        kv.check_integrity([a, b])
    with pytest.raises(KVIntegrityError):
        kv.check_integrity([])


# -- what can never run (O1) ----------------------------------------------------------------------


@pytest.mark.parametrize("make_kv", [PagedKV, ContiguousKV])
@pytest.mark.parametrize("extra", [-1, 0, 1, 2])
def test_what_can_never_fit_is_refused_at_once_and_the_next_is_served(make_kv, extra) -> None:
    num_slots = 3 * 4
    served = serve(
        [Job(tuple(range(num_slots + extra)), max_tokens=1), Job((1, 2, 3))],
        ChunkedScheduler(2, 5),
        make_kv(3, 4),
        model=ENDLESS,
    )
    first, second = served.requests
    assert (first.finish_reason is FinishReason.REFUSED) == (extra > 0)
    if extra > 0:
        assert first.finish_time == 0
        assert str(num_slots) in (first.error or "")
        assert str(first.max_num_tokens - 1) in (first.error or "")
    assert second.finish_reason is FinishReason.LENGTH


def test_a_short_prompt_with_too_long_an_answer_is_refused_too() -> None:
    served = serve([Job((1,), max_tokens=13), Job((1,), max_tokens=12)], ChunkedScheduler(2, 5),
                   PagedKV(3, 4), model=ENDLESS)  # fmt: skip
    assert served.requests[0].finish_reason is FinishReason.REFUSED
    assert served.requests[1].num_output_tokens == 12


@pytest.mark.parametrize("num_blocks", [0, -1, 2.5, True, "8"])
def test_a_pool_of_no_blocks_is_refused_with_the_value(num_blocks) -> None:
    for make in (PagedKV, ContiguousKV, SharingPool):
        with pytest.raises(ValueError, match="num_blocks is"):
            make(num_blocks, 4)


def test_swap_space_must_fit_the_host() -> None:
    check_host_memory(10, 100, 1000)
    with pytest.raises(ValueError, match=r"num_host_blocks is 11.*1100 bytes.*1000"):
        check_host_memory(11, 100, 1000)
    with pytest.raises(ValueError, match="num_host_blocks is -1"):
        SwapSpace(-1, 4)
    with pytest.raises(ValueError, match="preemption='swap'"):
        ChunkedScheduler(2, 8, num_host_blocks=3)


# -- prefix cache: hits (O3, O9) ------------------------------------------------------------------


def hits(served) -> list[int]:
    return [r.num_cached_tokens for r in served.requests]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 12])
@pytest.mark.parametrize("budget", [1, 3, 64])
def test_a_prompt_found_whole_still_runs_a_token(length: int, budget: int) -> None:
    kv = PagedKV(16, 4, prefix_caching=True)
    prompt = tuple(range(length))
    jobs = [Job(prompt, max_tokens=3), Job(prompt, max_tokens=3, arrival_time=40.0)]
    served = serve(jobs, ChunkedScheduler(1, budget), kv, model=ENDLESS)
    full = length // 4 * 4
    assert hits(served) == [0, min(full, length - 1)]
    # Every other prompt token ran exactly once, and one sample came after the last.
    computed = sum(sum(s.num_scheduled_tokens.values()) for s in served.recording.steps)
    assert computed == (length + 2) + (length - hits(served)[1] + 2)
    copies = sum(step.num_copied_blocks for step in served.recording.steps)
    assert copies == (1 if length % 4 == 0 else 0)


def test_a_whole_hit_in_a_pool_that_is_all_cache_needs_no_block_more_than_the_prompt() -> None:
    kv = PagedKV(3, 4, prefix_caching=True)
    prompt = tuple(range(12))
    served = serve([Job(prompt, 1), Job(prompt, 1), Job(prompt, 1)], SequentialScheduler(), kv)
    assert hits(served) == [0, 11, 11]
    assert kv.num_free_blocks == 3


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    kv = PagedKV(8, 2, prefix_caching=True)
    jobs = [Job(tuple(range(5)), 5), Job(tuple(range(10, 14)), 8)]
    served = serve(jobs, ContinuousScheduler(2), kv, model=ENDLESS)
    resumed = [s for s in served.recording.steps if any(s.admitted.values())]
    assert sum(r.num_preemptions for r in served.requests) >= 1
    assert resumed
    computed = served.runner.num_computed
    plain = serve(jobs, ContinuousScheduler(2), PagedKV(8, 2), model=ENDLESS)
    assert computed < plain.runner.num_computed


# -- prefix cache: no false hits (O4) -------------------------------------------------------------


def test_a_block_reused_by_another_prompt_is_not_found_under_its_old_name() -> None:
    x, y = (0, 1, 2, 3), (3, 2, 1, 0)
    jobs = [Job(p, 1, arrival_time=10.0 * i) for i, p in enumerate([x, y, x, x])]
    served = serve(jobs, SequentialScheduler(), PagedKV(1, 4, prefix_caching=True))
    assert hits(served) == [0, 0, 0, 3]


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [
        ((1, 1, 1, 1, 5, 5, 5, 5, 0), (2, 2, 2, 2, 5, 5, 5, 5, 0), 0),  # [P1][C] and [P2][C]
        ((1, 1, 1, 1, 5, 5), (1, 1, 1, 1, 5, 6), 4),  # they differ in a half-full block
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), 4),  # a half-full block is never shared
        ((9, 1, 2, 3, 4, 0), (1, 2, 3, 4, 0), 0),  # the same tokens at another position
        ((1, 2, 3, 4, 1, 2, 3, 4, 0), (1, 2, 3, 4, 0), 4),
        ((5, 5, 5, 5, 1), (5, 5, 5, 5, 5, 5, 5, 5, 1), 4),  # the same block twice in a row
    ],
)
@pytest.mark.parametrize("all_hashes_equal", [False, True])
def test_only_the_same_tokens_after_the_same_tokens_are_a_hit(
    first: tuple[int, ...], second: tuple[int, ...], hit: int, all_hashes_equal: bool
) -> None:
    kv = PagedKV(16, 4, prefix_caching=True)
    if all_hashes_equal:
        assert kv.sharing is not None
        kv.sharing.hash_block = lambda parent, token_ids: 0
    jobs = [Job(first, 1), Job(second, 1, arrival_time=9.0)]
    served = serve(jobs, SequentialScheduler(), kv, model=ENDLESS)
    if all_hashes_equal:
        assert hits(served)[1] <= hit  # a hash that tells nothing apart costs hits, never truth
    else:
        assert hits(served) == [0, hit]


def test_a_block_is_not_found_before_its_step_has_computed_it() -> None:
    prompt = tuple(range(8))
    served = serve([Job(prompt, 4), Job(prompt, 4)], ContinuousScheduler(2),
                   PagedKV(16, 4, prefix_caching=True), model=ENDLESS)  # fmt: skip
    assert hits(served) == [0, 0]  # both came in with the first step


# -- prefix cache: shared blocks (O5) -------------------------------------------------------------


@pytest.mark.parametrize("apart", [0.0, 1.0, 2.0])
def test_two_running_requests_with_one_prefix_keep_their_blocks_when_others_fill_the_pool(
    apart: float,
) -> None:
    prompt = tuple(range(8))
    jobs = [Job(prompt, 14), Job(prompt, 14, arrival_time=apart)]
    jobs += [Job((7 + i, *range(11)), 3, arrival_time=3.0 + i) for i in range(6)]
    kv = PagedKV(16, 4, prefix_caching=True)
    served = serve(jobs, ChunkedScheduler(6, 32), kv, model=ENDLESS)
    shared = [len(o) for _, m in replay_memory(served.recording) for o in m.owners if len(o) > 1]
    assert bool(shared) == (apart > 0)


def test_the_memory_map_tells_free_cached_and_shared_apart() -> None:
    prompt = tuple(range(8))
    jobs = [Job(prompt, 6), Job((*prompt, 1), 4, arrival_time=3.0)]
    served = serve(jobs, ContinuousScheduler(2), PagedKV(8, 4, prefix_caching=True), model=ENDLESS)
    maps = [memory for _, memory in replay_memory(served.recording)]
    both = next(m for m in maps if ("r0", "r1") in m.owners)
    assert both.owners.count(("r0", "r1")) == 2
    assert [both.cached[i] for i, o in enumerate(both.owners) if len(o) == 2] == [True, True]
    last = maps[-1]
    kept = [i for i in range(8) if last.cached[i] and not last.owners[i]]
    assert kept
    assert all(last.num_written[i] == 4 for i in kept)


def test_the_least_recently_used_prefix_is_forgotten_first() -> None:
    a, b, c = ((t,) * 5 for t in (1, 2, 3))
    order = [a, b, a, c, a, b]  # c takes the blocks of b, which was used before a
    jobs = [Job(p, 1, arrival_time=5.0 * i) for i, p in enumerate(order)]
    served = serve(jobs, SequentialScheduler(), PagedKV(3, 4, prefix_caching=True), model=ENDLESS)
    assert hits(served) == [0, 0, 4, 0, 4, 0]


def test_a_static_batch_keeps_its_blocks_until_it_is_over_and_then_they_are_cached() -> None:
    prompt = tuple(range(8))
    jobs = [Job(prompt, 2), Job((5, 6), 6), Job(prompt, 3)]
    served = serve(jobs, StaticScheduler(2), PagedKV(12, 4, prefix_caching=True), model=ENDLESS)
    assert hits(served) == [0, 0, 7]


# -- abort (O6) -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_two_hundred_aborts_leave_no_block_behind(prefix_caching: bool) -> None:
    kv = PagedKV(24, 4, prefix_caching=prefix_caching)
    engine, _ = make_engine(ChunkedScheduler(4, 6), kv, model=ENDLESS)
    for i in range(200):
        job = Job(tuple(range(i % 13 + 1)), 30, arrival_time=engine.clock.now() + i % 3 // 2)
        engine.add_request(job.request(f"r{i}"))
        for _ in range(i % 4):
            engine.step()
        assert engine.abort(f"r{i}")
        assert not engine.abort(f"r{i}")
    assert not engine.abort("nobody")
    assert kv.num_free_blocks == 24
    assert not engine.has_unfinished
    kv.check_integrity([])


def test_an_abort_from_inside_the_step_that_ends_the_request_comes_too_late() -> None:
    kv = PagedKV(8, 4)
    engine, runner = make_engine(ContinuousScheduler(2), kv, model=ENDLESS)
    execute = runner.execute

    def execute_and_abort(plan):
        result = execute(plan)
        for request_id in ("a", "b"):
            engine.abort(request_id)
        return result

    runner.execute = execute_and_abort
    a, b = Job((1, 2), 1).request("a"), Job((1, 2), 5).request("b")
    engine.run([a, b])
    assert a.finish_reason is FinishReason.LENGTH
    assert b.finish_reason is FinishReason.ABORT
    assert b.num_output_tokens == 1
    assert kv.num_free_blocks == 8
    records = engine.recording.requests
    assert [r.finish_reason for r in records.values()] == ["length", "abort"]


def test_a_new_recording_does_not_begin_with_the_blocks_of_an_abort_of_the_last() -> None:
    kv = PagedKV(8, 4)
    engine, _ = make_engine(ContinuousScheduler(2), kv, model=ENDLESS)
    engine.add_request(Job((1, 2), 9).request("a"))
    engine.step()
    engine.abort("a")
    engine.restart()
    engine.run([Job((1, 2), 2).request("b")])
    assert [m.num_used_blocks for _, m in replay_memory(engine.recording)] == [1, 1]
