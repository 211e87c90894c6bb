"""Where the kernels can run, and why not, in words; what a launcher refuses."""

import os
import subprocess
import sys

import pytest
import torch
from toyserve_kernels import backend
from toyserve_kernels.decode_attention import decode_attention, make_partials
from toyserve_kernels.problems import PagedProblem, make_problem
from toyserve_kernels.ragged_attention import ragged_attention
from toyserve_kernels.tuning import Tile, choose_num_splits
from toyserve_kernels.write_kv import write_kv


def python(code: str, **env: str) -> str:
    """What a fresh process prints."""
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=inherited | env, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


def test_importing_the_package_imports_neither_torch_nor_triton() -> None:
    code = "import sys, toyserve_kernels, toyserve_kernels.backend as b; b.triton_mode()"
    assert python(code + "; print({'torch', 'triton'} & set(sys.modules))") == "set()"


def test_the_public_names_are_there() -> None:
    import toyserve_kernels

    for name in toyserve_kernels._HOME:
        assert callable(getattr(toyserve_kernels, name))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        toyserve_kernels.nonsense  # noqa: B018


WITHOUT_TRITON = """
import sys
class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'triton':
            raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == 'triton' else real(name, *a)
sys.meta_path.insert(0, NoTriton())
"""


def test_without_triton_the_references_work_and_the_kernels_say_why_not() -> None:
    code = WITHOUT_TRITON + (
        "from toyserve_kernels.checks import check_attention\n"
        "from toyserve_kernels.ragged_attention import ragged_attention as kernel\n"
        "from toyserve_kernels.ragged_attention import ragged_attention_reference as right\n"
        "from toyserve_kernels.backend import support\n"
        "print(check_attention(right), support('cuda').mode)\n"
        "print(check_attention(kernel)[0])\n"
    )
    right, wrong = python(code).splitlines()
    assert right == "[] absent"
    assert "Triton is not installed" in wrong


@pytest.mark.skipif(backend.triton_mode() == "absent", reason=backend.NOT_INSTALLED)
def test_the_mode_is_fixed_when_triton_is_imported() -> None:
    ask = "from toyserve_kernels.backend import triton_mode as m, support as s; "
    assert python(ask + "print(m())") == "compiled"
    assert python(ask + "print(m())", TRITON_INTERPRET="1") == "interpreter"
    assert python(ask + "import triton; print(m())", TRITON_INTERPRET="1") == "interpreter"
    late = "import os, triton; os.environ['TRITON_INTERPRET'] = '1'; print(m(), s('cpu').reason)"
    said = python(ask + late)
    assert said.startswith("compiled ")
    assert said.endswith("restart the process")


@pytest.mark.skipif(backend.triton_mode() != "compiled", reason="needs Triton, not interpreting")
def test_a_cpu_says_why_it_cannot_run_what_is_compiled() -> None:
    here = backend.support("cpu", torch.float32)
    assert not here.ok
    assert here.reason.startswith("Triton compiles for GPUs, not for 'cpu'; set TRITON_INTERPRET")
    with pytest.raises(RuntimeError, match="kernels cannot run here: Triton compiles for GPUs"):
        backend.require(torch.device("cpu"), torch.float32)


@pytest.mark.skipif(backend.why_no_interpreter() is not None, reason="no interpreter here")
def test_an_interpreting_process_runs_on_a_cpu_but_not_in_bfloat16() -> None:
    ask = "import torch; from toyserve_kernels.backend import support as s; "
    both = "print(s('cpu', torch.float32).ok, s('cpu', torch.bfloat16).reason)"
    said = python(ask + both, TRITON_INTERPRET="1")
    assert said.startswith("True Triton's interpreter multiplies bfloat16 wrongly")


def test_a_context_is_split_only_as_far_as_the_gpu_has_room_for() -> None:
    cpu = torch.device("cpu")
    assert choose_num_splits(cpu, 1, 1, 10**6, 32) == 2
    assert choose_num_splits(cpu, 8, 12, 10**6, 32) == 1
    assert choose_num_splits(cpu, 1, 1, 100, 32) == 1
    assert choose_num_splits(cpu, 0, 12, 0, 32) == 1


@pytest.fixture
def problem() -> PagedProblem:
    return make_problem([9, 3], [2, 1], num_heads=4, num_kv_heads=2, head_dim=16, block_size=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.zeros(3, 3, 16)}, "3 query heads cannot share 2 KV heads"),
        ({"q": torch.zeros(3, 4, 32)}, "q has head size 32, the cache has 16"),
        ({"q": torch.zeros(3, 4, 16).half()}, "float32 on cpu, the others are torch.float16"),
        ({"q": torch.zeros(3, 16, 4).transpose(1, 2)}, "adjacent head dims"),
        ({"block_table": torch.zeros(2, 5).long()}, "block_table must be torch.int32"),
        ({"block_table": torch.zeros(3, 5).int()}, r"block_table must be \[2, max_blocks\]"),
        ({"seq_lens": torch.tensor([9, 3])}, "seq_lens must be contiguous torch.int32"),
        ({"seq_lens": torch.tensor([9, 99]).int()}, r"must lie in 0\.\.16"),
        ({"query_start_loc": torch.tensor([0, 3]).int()}, r"of shape \[3\]"),
        ({"query_start_loc": torch.tensor([0, 2, 4]).int()}, "ends at 4, q has 3 tokens"),
        ({"query_start_loc": torch.tensor([0, 2, 1]).int()}, "must rise from 0"),
        ({"block_table": torch.full((2, 5), 77).int()}, "a block outside"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_inputs_that_do_not_fit_are_refused_in_words(
    problem: PagedProblem, change: dict, words: str
) -> None:
    names = ("q", "k_cache", "v_cache", "block_table", "seq_lens", "query_start_loc")
    tensors = {name: getattr(problem, name) for name in names} | change
    with pytest.raises(ValueError, match=words):
        ragged_attention(**tensors)


def test_more_that_is_refused_in_words(problem: PagedProblem) -> None:
    cache = torch.zeros(2, 4, 2, 12)
    with pytest.raises(ValueError, match="head size must be 16 to 128, not 12"):
        ragged_attention(torch.zeros(3, 2, 12), cache, cache, *problem.ragged_args[3:])
    with pytest.raises(ValueError, match="one query per sequence: 3 for 2"):
        decode_attention(*problem.decode_args)
    with pytest.raises(ValueError, match="out must be"):
        ragged_attention(*problem.ragged_args, out=torch.zeros(1))
    separate = problem.v_cache.contiguous()
    with pytest.raises(ValueError, match="same strides"):
        ragged_attention(problem.q, problem.k_cache, separate, *problem.ragged_args[3:])
    with pytest.raises(ValueError, match="block_m is 16, a KV head serves 32"):
        Tile(16, 16).check(32)


def test_a_kv_write_that_does_not_fit_is_refused_in_words(problem: PagedProblem) -> None:
    k, v, key = problem.k_cache, problem.v_cache, torch.zeros(3, 2, 16)
    slots = torch.tensor([0, 1, -1])
    num_slots = k.shape[0] * k.shape[1]
    for change, words in (
        ({"key": torch.zeros(3, 1, 16)}, r"must both be \[num_tokens, 2, 16\]"),
        ({"value": torch.zeros(3, 2, 16).half()}, "value is torch.float16"),
        ({"slot_mapping": slots.int()}, "slot_mapping must be contiguous torch.int64"),
        ({"slot_mapping": slots[:2]}, r"of shape \[3\]"),
        ({"slot_mapping": slots + num_slots}, f"past the cache's {num_slots} slots"),
        ({"k_cache": k[0]}, "must both be"),
    ):
        tensors = {"key": key, "value": key, "k_cache": k, "v_cache": v, "slot_mapping": slots}
        with pytest.raises(ValueError, match=words):
            write_kv(**(tensors | change))


def test_partials_for_another_shape_are_refused() -> None:
    problem = make_problem([9], [1], num_heads=2, num_kv_heads=2, head_dim=16, block_size=4)
    code = "the splits of q|cannot run here"  # which comes first depends on the machine
    with pytest.raises((ValueError, RuntimeError), match=code):
        decode_attention(*problem.decode_args, partials=make_partials(1, 3, 16, 2))
