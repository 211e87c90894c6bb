"""Lesson 08 from a clean kernel: it runs, and what it says is what it computes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lesson_runs import SOURCES, assert_committed_is_today_s, printed, run_changed, run_lesson

from toyserve.course.builder import read_source

NAME = "08_attention_kernel"
PROBE = """
knobs["users"].value, knobs["context"].value = 1, 250
print(json.dumps({
    "mode": here.mode, "of_e": of_e.blocks, "keys": of_e.num_keys, "idle": idle,
    "slid": shown.value, "update_solved": update_solved, "solved": solved,
    "wanted": wanted.item(), "merged": merged,
    "fetched": fetched, "ids": ids, "texts": [out.text for outs in runs.values() for out in outs],
    "plans": list(plans.values()), "slower": list(slower.values()), "points": points,
    "scores": scores_ratio, "split": {n: [p.blocks for p in r.programs] for n, r in split.items()},
    "split_rows": rows_of_splits, "off": list(off.values()), "first": LENGTHS[0],
    "broken": [texts["right"].token_ids, texts["colleague"].token_ids],
    "curves": list(curves.values()), "faster": list(faster.values()),
    "rounding": rounding, "smallest": margins[0], "apart": apart,
}))
"""
UPDATE = {
    "    total = total + p.sum()\n    acc = acc + p @ values\n": (
        "    fix = torch.exp(m - m_new)\n"
        "    total, acc = fix * total + p.sum(), fix * acc + p @ values\n"
    )
}
WALK = {
    "        slot = page * BLOCK_SIZE + offset\n        inside = offset < BLOCK_SIZE\n": (
        "        start = tl.load(block_table + seq * stride_table + page) * BLOCK_SIZE\n"
        "        slot, inside = start + offset, page * BLOCK_SIZE + offset < seq_len\n"
    )
}
UPDATE_TO_DO, WALK_TO_DO = next(iter(UPDATE)), next(iter(WALK))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed here"
    ),
]


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return run_lesson(NAME, PROBE)[1]


def test_the_first_picture_shows_pages_read_where_they_lie(values: dict[str, Any]) -> None:
    assert values["of_e"] == [17, 42, 9, 31]
    assert values["keys"] == 7
    assert values["idle"] == 2


def test_the_online_softmax_by_hand_is_the_softmax(values: dict[str, Any]) -> None:
    weights = [2.718281828**s for s in (1, 3, 5, 2)]
    right = sum(w * v for w, v in zip(weights, (10, 20, 30, 40), strict=True)) / sum(weights)
    assert values["wanted"] == pytest.approx(right)
    assert values["merged"] == pytest.approx(right)


def test_the_real_model_says_the_same_with_three_attentions(values: dict[str, Any]) -> None:
    torch_ids, engine, mine = values["ids"].values()
    assert torch_ids == engine == mine
    assert len(torch_ids[0]) == 5
    assert all(text.strip() for text in values["texts"])
    assert (
        values["plans"][0] == values["plans"][1] == values["plans"][2] == [[6], [1], [1], [1], [1]]
    )


def test_bytes_and_rooflines(values: dict[str, Any]) -> None:
    one, engine = values["fetched"]["kernel of this lesson"], values["fetched"]["engine"]
    assert (one, engine) == (4 * 2080, 2080)
    assert values["slower"] == sorted(values["slower"])
    assert values["slower"][0] < 1.05
    assert 2.5 < values["slower"][-1] < 3
    kernel, gathering, prompt = (intensity for intensity, _ in values["points"].values())
    assert kernel == pytest.approx(4)  # four query heads use each fetched key, with two bytes
    assert kernel == pytest.approx(3 * gathering)
    assert prompt > 100 * kernel
    assert values["scores"] == pytest.approx(25)


def test_the_sliders_still_move_after_the_whole_lesson_has_run(values: dict[str, Any]) -> None:
    assert "1 users × 250 tokens" in values["slid"]


def test_splits_share_a_context_out(values: dict[str, Any]) -> None:
    (whole,), parts = values["split"]["1"], values["split"]["4"]
    assert [block for part in parts for block in part] == whole
    assert values["split_rows"][0][2:] == ["6%", 32, "100%"]
    assert values["split_rows"][-1][3] == 1


def test_the_colleague_s_kernel_is_right_only_at_multiples_of_a_block(
    values: dict[str, Any],
) -> None:
    skipped, no_mask, no_scale = values["curves"]
    assert skipped == values["off"]
    lengths = range(values["first"], values["first"] + len(skipped))
    full = [n % 16 == 0 for n in lengths]
    assert sum(full) == 3
    assert [e < 1e-5 for e in skipped] == full
    assert [e < 1e-5 for e in no_mask] == full
    assert min(no_scale) > 0.1
    right, broken = values["broken"]
    assert right[0] == broken[0]
    assert right != broken


def test_a_faster_kernel_changes_the_clock_and_fp16_only_near_ties(values: dict[str, Any]) -> None:
    (same, gain), (arriving, _) = values["faster"]
    assert (same, arriving) == (True, False)
    assert gain > 1.3
    assert values["rounding"] < values["smallest"] / 10
    assert all(margin < 0.1 for _, margin in values["apart"])


def test_the_learner_s_cells_start_unsolved_and_the_lesson_goes_on(values: dict[str, Any]) -> None:
    assert values["update_solved"] is False
    assert values["solved"] is False


def test_the_committed_outputs_are_today_s() -> None:
    assert_committed_is_today_s(NAME, run_lesson(NAME, PROBE)[0])


def test_a_learner_who_solves_both_is_told_so_and_goes_on_with_the_own_kernel() -> None:
    notebook, end = run_changed(NAME, {**UPDATE, **WALK}, "mine = launcher(kernel)")
    code = [i for i, cell in enumerate(notebook.cells[:end]) if cell.cell_type == "code"]
    said = "".join(printed(notebook, i) for i in code)
    assert "✓ the same answer as a softmax that sees everything" in said
    assert "✓ right, in all kinds of problems" in said


def test_what_is_wrong_with_a_half_right_kernel_is_said() -> None:
    """The walk without the mask."""
    (old,) = WALK
    half = old.replace("page *", "tl.load(block_table + seq * stride_table + page) *")
    notebook, end = run_changed(NAME, {old: half}, "complaints = judge(my_kernel)")
    said = printed(notebook, end)
    assert "Not yet" in said
    assert "it used a slot nothing was written to" in said


def test_code_in_progress_that_raises_gets_a_sentence_and_the_lesson_goes_on() -> None:
    slips = {
        UPDATE_TO_DO: "    total = total * fixx + p.sum()\n",
        WALK_TO_DO: "        slot = pgae\n",
    }
    notebook, end = run_changed(NAME, slips, "mine = launcher(kernel)")
    code = [i for i, cell in enumerate(notebook.cells[:end]) if cell.cell_type == "code"]
    said = "".join(printed(notebook, i) for i in code)
    assert "Not yet, an error: NameError: name 'fixx' is not defined" in said
    assert "name 'pgae' is not defined" in said


COMPILE = """
import sys
import torch
from toyserve_kernels._triton import tl, triton
from toyserve_kernels.ahead_of_time import compiling_for
from toyserve_kernels.problems import make_problem
from kernels_of_lesson_08 import *

shape = dict(num_heads=4, num_kv_heads=2, head_dim=64, block_size=16)
problem = make_problem((40, 25), (1, 1), **shape)
for target in ("sm_75", "sm_90"):
    for kernel in (my_kernel, paged_kernel, colleague):
        with compiling_for(target) as compiled:
            launcher(kernel)(*problem.decode_args)
        assert compiled, (target, kernel)
print("compiled")
"""


def test_the_lesson_s_kernels_compile_for_gpus_too(tmp_path: Path) -> None:
    cells = [c.source for c in read_source(SOURCES / f"{NAME}.py").cells if c.cell_type == "code"]
    code = [c for c in cells if c.startswith("@triton.jit")]
    code = [c.split("\n\n\nkernel = ")[0] for c in code]
    code += [c.split("\n\n\ndef judge")[0] for c in cells if "def launcher" in c]
    head = "import torch\nfrom toyserve_kernels._triton import tl, triton\n"
    (tmp_path / "kernels_of_lesson_08.py").write_text(head + "\n\n".join(code), encoding="utf-8")
    (tmp_path / "compile_them.py").write_text(COMPILE, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "compile_them.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "compiled" in done.stdout
