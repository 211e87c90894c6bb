"""What only runs on a GPU, on one that is pretended: see `pretend_gpu`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.testing
from pretend_gpu import PretendedGpu, pretending
from toyserve_kernels import (
    backend,
    gpu_check,
    gpu_correct,
    gpu_engine,
    gpu_shapes,
    gpu_speed,
    rivals,
    write_kv,
)
from toyserve_kernels.bench import at_most

from toyserve import LLM, SamplingParams
from toyserve.models import triton_attention
from toyserve.models.triton_attention import TritonAttention

SHAPE = {"vocab_size": 97, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3}
PROMPTS = [[1, 2, 3], [5] * 9, [7, 8] * 8, [4], [9, 9, 2]]
GREEDY = [SamplingParams(temperature=0, max_tokens=6 - i % 3, ignore_eos=True) for i in range(5)]
WAYS: dict[str, dict[str, Any]] = {
    "torch": {"attention": "torch"},
    "torch, static": {"attention": "torch", "scheduler": "static", "num_blocks": 30},
    "torch, prefix cache": {"attention": "torch", "prefix_caching": True},
    "kernels": {"attention": "triton", "cuda_graphs": False},
    "kernels, static": {"attention": "triton", "scheduler": "static", "num_blocks": 30},
    "graphs": {"attention": "triton", "cuda_graphs": True},
    "graphs, swap": {"attention": "triton", "preemption": "swap", "num_host_blocks": 9},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    gpu_engine.write_random_gpt2(path, SHAPE, scale=0.2)
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    monkeypatch.setattr(TritonAttention, "compiled", True)
    with pretending(monkeypatch) as pretended:
        yield pretended


def engine(folder: Path, device: str, **options: Any) -> LLM:
    few = {"block_size": 4, "max_running": 3, "check": True, "dtype": "float32", "num_blocks": 7}
    if options.get("scheduler") != "static":
        few["token_budget"] = 5
    return LLM(folder, device=device, **(few | options))


def answers(llm: LLM, params: Any = GREEDY) -> list[Any]:
    return [(output.token_ids, output.logprobs) for output in llm.generate(PROMPTS, params)]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_says_on_a_gpu_what_the_cpu_says(
    way: str, folder: Path, gpu: PretendedGpu
) -> None:
    expected = answers(engine(folder, "cpu", attention="torch"))
    llm = engine(folder, "cuda", **WAYS[way])
    gpu.waits = 0
    assert answers(llm) == expected
    steps = llm.recording.steps
    assert gpu.waits <= len(steps), "more than the sampled ids had to be waited for"
    if way not in ("torch, static", "kernels, static"):
        assert sum(r.num_preemptions for r in llm.recording.requests.values()) > 0
    if way.startswith("graphs"):
        assert gpu.captures == 3, "for 1, 2 and 4 rows; the last is padded"
        assert gpu.replays > gpu.captures


def test_draws_and_logprobs_are_those_of_the_cpu(folder: Path, gpu: PretendedGpu) -> None:
    params = [
        SamplingParams(
            temperature=0.5 + i, top_p=0.9, top_k=20, seed=i, max_tokens=5, logprobs=2, min_tokens=2
        )
        for i in range(5)
    ]
    expected = answers(engine(folder, "cpu", attention="torch"), params)
    mine = answers(engine(folder, "cuda", attention="triton", cuda_graphs=True), params)
    assert [ids for ids, _ in mine] == [ids for ids, _ in expected]
    for (_, ours), (_, right) in zip(mine, expected, strict=True):
        assert [list(step.top) for step in ours] == [list(step.top) for step in right]


def test_a_replay_reads_nothing_of_an_earlier_and_larger_batch(
    folder: Path, gpu: PretendedGpu
) -> None:
    """Rows that are padding now were real before: their slots, lengths and blocks must be gone."""
    llm = engine(folder, "cuda", attention="triton", num_blocks=40, max_running=4)
    lengths = [
        SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 3, 9, 9, 2)
    ]
    wide = answers(llm, lengths)
    assert wide == answers(engine(folder, "cpu", attention="torch"), lengths)
    cache = llm._torch_runner.attention.pool.data
    assert torch.isfinite(cache).all()


def test_without_graphs_by_default_where_kernels_are_interpreted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pretending(monkeypatch) as pretended:
        llm = engine(folder, "cuda", attention="triton")
        assert llm.attention == "triton"
        answers(llm)
        assert pretended.captures == 0


class NoCompiler:
    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError("Failed to find C compiler. Please specify via CC.\nmore")


def test_a_gpu_without_a_c_compiler_is_served_by_torch_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "triton_mode", lambda: "compiled")
    monkeypatch.setattr(triton_attention, "triton_mode", lambda: "compiled")
    monkeypatch.setattr(write_kv, "write_kv_kernel", NoCompiler())
    why = "Triton cannot build a kernel here: RuntimeError: Failed to find C compiler"
    backend._support.cache_clear()
    backend._why_no_launch.cache_clear()
    with pretending(monkeypatch):
        with pytest.raises(ValueError, match=f"attention is 'triton', but {why}"):
            engine(folder, "cuda", attention="triton")
        with pytest.warns(UserWarning, match=why):
            llm = engine(folder, "cuda", attention="auto")
        assert llm.attention == "torch"
        answers(llm)
    backend._support.cache_clear()
    backend._why_no_launch.cache_clear()


# -- the GPU check, as on a card of 1 GB ----------------------------------------------------------


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """Everything small, and a stopwatch that always says the same."""
    monkeypatch.setattr(TritonAttention, "compiled", True)
    monkeypatch.setattr(triton.testing, "do_bench", lambda run, **options: (run(), 2.0)[1])
    monkeypatch.setattr(backend, "num_multiprocessors", lambda device: 8)
    monkeypatch.setattr(gpu_speed, "DECODE_SHAPES", gpu_shapes.SMOKE_DECODE)
    monkeypatch.setattr(gpu_speed, "PREFILL_SHAPES", gpu_shapes.SMOKE_PREFILL)
    for name, size in (("COPY_BYTES", 2**10), ("MATRIX_ROWS", 64), ("WRITE_TOKENS", 16)):
        monkeypatch.setattr(gpu_speed, name, size)
    for name in ("CASES", "DECODE_CASES"):
        monkeypatch.setattr(gpu_correct, name, getattr(gpu_correct, name)[6:7])
    for name in ("SMALL", "GPT2_124M"):
        monkeypatch.setattr(gpu_engine, name, gpu_engine.SMOKE)
    monkeypatch.setattr(gpu_engine, "CHECKED", (3, 4, 9))
    monkeypatch.setattr(gpu_engine, "SERVED", (2, 9, 3))
    with pretending(monkeypatch, capability=(7, 5)) as pretended:
        yield pretended


def check(path: Path) -> dict[str, Any]:
    report = gpu_check.run(torch.device("cuda"), False, False, 0.0, 10**9, path)
    saved = json.loads(path.read_text())
    assert saved["problems"] == report.problems
    return saved


def test_the_check_goes_through_on_a_gpu(card: PretendedGpu, tmp_path: Path) -> None:
    saved = check(tmp_path / "report.json")
    assert saved["problems"] == []
    assert saved["ceilings"].keys() == {"GB/s", "TFLOP/s"}
    rows = saved["rows"]
    timed = [row for row in rows if row["section"] != "correct"]
    assert {row["section"] for row in timed} == {"ceiling", "decode", "prefill", "write", "engine"}
    assert all(row["seconds"] and row["rate"] for row in timed)
    decoders = {row["what"] for row in rows if row["section"] == "decode"}
    assert decoders >= {*gpu_speed.OURS, *rivals.DECODE}
    right = [row["what"] for row in rows if row["shape"] == "engine, float32"]
    assert right == ["torch: right", "triton: right", "triton + graphs: right"]
    assert any("beyond 2^31 elements" in text for text in saved["skipped"]), "1 GB is too little"
    assert any("FlexAttention" in text for text in saved["skipped"]), "nothing to compile for here"
    assert card.captures > 0


def test_what_fails_is_told_and_the_rest_is_written(
    card: PretendedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def no_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee docs")

    def waits_in_a_capture(problem: Any) -> Any:
        return lambda: rivals.sdpa_decode(problem)()[: rivals.length_of(problem)]

    def hangs(problem: Any) -> Any:
        with at_most(0.2):  # within the minute that the check gives it
            while True:
                pass

    monkeypatch.setattr(gpu_correct, "check_kernels", broken)
    monkeypatch.setattr(gpu_speed, "measure_prefill", no_memory)
    monkeypatch.setattr(gpu_engine, "measure_engine", broken)
    monkeypatch.setattr(gpu_engine, "check_engine", broken)
    monkeypatch.setattr(gpu_correct, "check_capture", broken)
    monkeypatch.setattr(
        rivals,
        "LIBRARIES",
        {
            "raises": broken,
            "hangs": hangs,
            "wrong": lambda p: lambda: torch.zeros_like(p.q),
            "waits": waits_in_a_capture,
        },
    )
    saved = check(tmp_path / "report.json")
    illegal = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert saved["problems"] == [f"broken: {illegal}"] * 4
    said = "\n".join(saved["skipped"])
    assert "no_memory: CUDA out of memory. Tried to allocate 2 GiB." in said
    assert "raises: RuntimeError: CUDA error" in said
    assert "hangs: TimeoutError: not done after 0 s" in said
    assert "wrong is off by 1" in said
    decoders = {row["what"] for row in saved["rows"] if row["section"] == "decode"}
    assert decoders == {*gpu_speed.OURS, *rivals.DECODE, "waits"}


def test_a_timed_run_of_ours_may_not_wait(card: PretendedGpu) -> None:
    """The instrument itself: on a GPU this ends a capture, and with it the whole check."""
    problem = gpu_shapes.random_problem(
        gpu_shapes.SMOKE_DECODE[0], gpu_speed.Bench(torch.device("cuda"), torch.float16, True, 0)
    )
    with (
        pytest.raises(RuntimeError, match="not permitted in a capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        rivals.length_of(problem)
