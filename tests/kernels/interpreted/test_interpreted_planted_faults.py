"""Wrong kernels fail the checks, and a right kernel written another way passes them.

Each wrong kernel is the real file with one line changed: what a person would get wrong.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import toyserve_kernels
from toyserve_kernels.checks import check_attention, check_decode_attention, check_write_kv
from toyserve_kernels.tuning import Tile

HERE = Path(toyserve_kernels.__file__).parent
SEQUENCE_IGNORED = ("table = block_table + seq.to(tl.int64) * stride_table", "table = block_table")
DECODE_SEQUENCE_IGNORED = ("table = block_table + at * stride_table", "table = block_table")
SCALE_LEFT_OUT = ("* scale_log2e", "* 1.4426950408889634")
VALUES_ARE_KEYS = ("v = tl.load(v_head +", "v = tl.load(k_head +")
EMPTY_ROW_IS_NAN = ("tl.where(l > 0, l, 1.0)", "l")
SHRINK_FORGOTTEN = ("l = l * fix + ", "l = l + ")
ACC_NOT_SHRUNK = ("acc=acc * fix[:, None]", "acc=acc")
NO_RUNNING_MAXIMUM = ("m_new = tl.maximum(m, tl.max(scores, axis=1))", "m_new = m * 0.0")
PLACE_IN_BLOCK_IGNORED = (" + (n % BLOCK_SIZE).to(tl.int64) * stride_slot", "")
ONE_KEY_TOO_MANY = ("inside = n < end", "inside = n < end + 1")
TABLE_OFF_BY_ONE = ("n // BLOCK_SIZE", "(n + 1) // BLOCK_SIZE")

RAGGED = {
    "no causal mask": ("<= position[:, None]", "<= position[:, None] + 1000"),
    "mask off by one": ("<= position[:, None]", "< position[:, None]"),
    "chunk at position 0": ("position = num_past + token", "position = token"),
    "sequence index ignored": SEQUENCE_IGNORED,
    "last block skipped": (
        "end = tl.minimum(num_past + first + BLOCK_Q, seq_len)",
        "end = (tl.minimum(num_past + first + BLOCK_Q, seq_len) - 1) // BLOCK_SIZE * BLOCK_SIZE",
    ),
    "scale left out": SCALE_LEFT_OUT,
    "wrong GQA head": (
        "head = kv_head * GROUP + row % GROUP",
        "head = row % GROUP * tl.num_programs(1) + kv_head",
    ),
    "values are keys": VALUES_ARE_KEYS,
    "empty row is NaN": EMPTY_ROW_IS_NAN,
    "old sum not shrunk": SHRINK_FORGOTTEN,
    "old values not shrunk": ACC_NOT_SHRUNK,
    "one key too many": ONE_KEY_TOO_MANY,
    "table off by one": TABLE_OFF_BY_ONE,
    "table's stride off by one": (
        "seq.to(tl.int64) * stride_table",
        "seq.to(tl.int64) * (stride_table - 1)",
    ),
    "place in the block ignored": PLACE_IN_BLOCK_IGNORED,
    "keys of KV head 0": (
        "k_head = k_cache + kv_head.to(tl.int64) * stride_kv_head",
        "k_head = k_cache",
    ),
    "no running maximum": NO_RUNNING_MAXIMUM,
}
DECODE = {
    "sequence index ignored": DECODE_SEQUENCE_IGNORED,
    "last block skipped": (
        "end = tl.minimum(begin + tiles_per_split * TILE, seq_len)",
        "end = (tl.minimum(begin + tiles_per_split * TILE, seq_len) - 1) // BLOCK_SIZE"
        " * BLOCK_SIZE",
    ),
    "scale left out": SCALE_LEFT_OUT,
    "wrong GQA head": (
        "head = kv_head * GROUP + row",
        "head = row * tl.num_programs(1) + kv_head",
    ),
    "values are keys": VALUES_ARE_KEYS,
    "old sum not shrunk": SHRINK_FORGOTTEN,
    "last split lost": ("real = split < NUM_SPLITS", "real = split < NUM_SPLITS - 1"),
    "splits not weighted": ("weight = tl.exp2(m - tl.max(m, axis=0))", "weight = m * 0 + 1"),
    "splits overlap": ("end = tl.minimum(begin + ", "end = tl.minimum(begin + TILE + "),
    "empty sequence is NaN": ("tl.where(total > 0, total, 1.0)", "total"),
    "table's stride off by one": ("at * stride_table", "at * (stride_table - 1)"),
    "place in the block ignored": PLACE_IN_BLOCK_IGNORED,
    "last partial tile lost": (
        "end = tl.minimum(begin + tiles_per_split * TILE, seq_len)",
        "end = tl.minimum(begin + tiles_per_split * TILE, seq_len // TILE * TILE)",
    ),
    "no running maximum": NO_RUNNING_MAXIMUM,
    "an empty split weighs as if it had scores of 0": (
        "m = tl.full([GROUP_PAD], -1.0e38, tl.float32)",
        "m = tl.zeros([GROUP_PAD], tl.float32)",
    ),
    "splits merged without their maximum": (
        "weight = tl.exp2(m - tl.max(m, axis=0))",
        "weight = tl.exp2(m)",
    ),
    "partials of another head": ("* GROUP + head) * NUM_SPLITS", "* GROUP + kv_head) * NUM_SPLITS"),
}
WRITE = {
    "slot -1 written": ("    if slot < 0:\n        return\n", ""),
    "slot 0 skipped": ("if slot < 0:", "if slot <= 0:"),
    "values are keys": ("v = tl.load(value +", "v = tl.load(key +"),
    "values by the keys' strides": ("token * stride_value_token", "token * stride_key_token"),
    "last head lost": ("(head < NUM_KV_HEADS)", "(head < NUM_KV_HEADS - 1)"),
    "padding of a head written": ("& (dim < HEAD_DIM)\n", "& (dim < DIM_PAD)\n"),
    "place in the block ignored": (" + (slot % BLOCK_SIZE) * stride_slot", ""),
}


def module_with(file: str, change: tuple[str, str], folder: Path) -> ModuleType:
    """The kernel file with one line changed, imported beside the right one."""
    text = (HERE / file).read_text()
    old, new = change
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    path = folder / file
    path.write_text(text.replace(old, new))
    name = f"toyserve_kernels.changed_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("fault", RAGGED)
def test_a_wrong_ragged_kernel_fails(fault: str, tmp_path: Path) -> None:
    wrong = module_with("ragged_attention.py", RAGGED[fault], tmp_path).ragged_attention
    assert check_attention(lambda *args: wrong(*args, tile=Tile(16, 16))) != []


@pytest.mark.parametrize("fault", DECODE)
def test_a_wrong_decode_kernel_fails(fault: str, tmp_path: Path) -> None:
    wrong = module_with("decode_attention.py", DECODE[fault], tmp_path).decode_attention
    assert check_decode_attention(lambda *a: wrong(*a, num_splits=3, tile=Tile(16, 16))) != []


@pytest.mark.parametrize("fault", WRITE)
def test_a_wrong_write_kernel_fails(fault: str, tmp_path: Path) -> None:
    wrong = module_with("write_kv.py", WRITE[fault], tmp_path).write_kv
    assert check_write_kv(wrong) != []


def test_the_unchanged_files_pass_the_same_way(tmp_path: Path) -> None:
    same = ("import math\n", "import math\n")
    ragged = module_with("ragged_attention.py", same, tmp_path).ragged_attention
    decode = module_with("decode_attention.py", same, tmp_path).decode_attention
    assert check_attention(lambda *args: ragged(*args, tile=Tile(16, 16))) == []
    assert check_decode_attention(lambda *a: decode(*a, num_splits=3, tile=Tile(16, 16))) == []


def test_a_right_kernel_written_another_way_passes() -> None:
    from one_row_kernel import one_row_attention

    assert check_attention(one_row_attention) == []
    assert check_attention(one_row_attention, dtype=torch.float16) == []
