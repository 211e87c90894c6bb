"""``toyserve plan``: the sum in words, the same as JSON, and one sentence for what cannot be."""

from __future__ import annotations

import json

import pytest

from toyserve.capacity import requests_that_fit
from toyserve.cli import main


def test_words_and_json_agree_with_the_capacity_functions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fits = requests_that_fit("llama-3-8b", "h100", 2048)
    assert main(["plan", "--model", "llama-3-8b", "--gpu", "h100"]) == 0
    assert f"fits: {fits} requests at the same time" in capsys.readouterr().out
    assert main(["plan", "--model", "llama-3-8b", "--gpu", "h100", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["num_requests"] == fits
    assert figures["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    total = [row["tokens_per_s"] for row in figures["decode"]]
    each = [row["per_user"] for row in figures["decode"]]
    assert total == sorted(total)
    assert each == sorted(each, reverse=True)


def test_a_model_that_does_not_fit_says_how_many_gpus_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--model", "llama-3-70b", "--gpu", "h100"]) == 0
    assert "take 2 GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--gpu", "abacus"], "h100"),
        (["--model", "clippy"], "llama-3-8b"),
        (["--context-len", "0"], "context_len is 0"),
        (["--num-gpus", "3"], "3"),
        (["--memory-utilization", "1.5"], "1.5"),
        (["--kv-dtype", "fp3"], "fp3"),
        (["--context-len", "many"], "many"),
        (["--nonsense"], "nonsense"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert word in captured.err
    assert captured.err.strip().count("\n") == 0
    assert captured.out == ""
