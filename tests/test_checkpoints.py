"""Any GPT-2 checkpoint loads and gives transformers' logits; a broken one is named and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from models_for_tests import EOS, random_gpt2
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, GPT2LMHeadModel

from toyserve import LLM, SamplingParams
from toyserve.models.linear import PackedLinear, PlainLinear, packing_available
from toyserve.models.weights import TOY_FOLDER, load_checkpoint

PROMPT = [1, 9, 4, 33, 2]
PARAMS = SamplingParams(temperature=0, max_tokens=8, logprobs=5, ignore_eos=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_gpt2(tmp_path / "model")


def rewrite(folder: Path, change: object) -> None:
    """Apply ``change(tensors)`` to the folder's weights."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")  # type: ignore[operator]


def answer(folder: Path) -> tuple[list[int], list[float]]:
    out = LLM(folder).generate([PROMPT], PARAMS)[0]
    assert out.logprobs is not None
    return out.token_ids, [entry.logprob for entry in out.logprobs]


def test_both_key_layouts_buffers_and_a_repeated_tied_head_give_the_same(folder: Path) -> None:
    expected = answer(folder)

    def bare(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name.removeprefix("transformer."): x for name, x in t.items()}

    def with_buffers(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = torch.ones(1, 1, 64, 64).tril()
        return t | {"h.0.attn.bias": mask, "h.1.attn.masked_bias": torch.tensor(-1e4)}

    def with_head(t: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return t | {"lm_head.weight": t["wte.weight"].clone()}

    for change in (bare, with_buffers, with_head):
        rewrite(folder, change)
        assert answer(folder) == expected


def test_untied_head_and_n_inner_are_used(tmp_path: Path) -> None:
    folder = random_gpt2(tmp_path / "m", tie_word_embeddings=False, n_inner=40)
    oracle = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert not torch.equal(oracle.lm_head.weight, oracle.transformer.wte.weight)
    ids, logprobs = answer(folder)
    with torch.inference_mode():
        logits = oracle(torch.tensor([PROMPT + ids])).logits[0, len(PROMPT) - 1 : -1]
    rows = logits.log_softmax(-1)
    assert rows.argmax(-1).tolist() == ids
    for row, token_id, logprob in zip(rows, ids, logprobs, strict=True):
        assert abs(row[token_id].item() - logprob) < 1e-4


def test_sharded_and_pickled_checkpoints_load(folder: Path, tmp_path: Path) -> None:
    expected = answer(folder)
    model = GPT2LMHeadModel.from_pretrained(folder)
    sharded = tmp_path / "sharded"
    model.save_pretrained(sharded, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").exists()
    pickled = tmp_path / "pickled"
    shutil.copytree(folder, pickled)
    (pickled / "model.safetensors").unlink()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    for other in (sharded, pickled):
        shutil.copy(folder / "tokenizer.json", other)
        assert answer(other) == expected


def test_transposed_square_projection_is_caught_by_comparison_with_transformers(
    folder: Path,
) -> None:
    """attn.c_proj is square: left untransposed it raises nothing and is silently wrong."""
    expected = answer(folder)
    rewrite(
        folder,
        lambda t: {n: x.t().contiguous() if "attn.c_proj.w" in n else x for n, x in t.items()},
    )
    assert answer(folder) != expected


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: {n: x for n, x in t.items() if "ln_f" not in n}, ["lacks", "ln_f.weight"]),
        (lambda t: t | {"h.0.attn.q_norm.weight": torch.ones(3)}, ["h.0.attn.q_norm.weight"]),
        (lambda t: t | {"transformer.wpe.weight": torch.ones(9, 24)}, ["wpe.weight", "9", "64"]),
        (lambda t: t | {"lm_head.weight": torch.ones(64, 24)}, ["lm_head", "tie_word_embeddings"]),
    ],
)
def test_missing_unused_and_misshapen_tensors_are_named(
    folder: Path, change: object, words: list[str]
) -> None:
    rewrite(folder, change)
    with pytest.raises(ValueError) as error:
        LLM(folder)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_half_and_corrupt_folders_are_refused_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    def message(path: Path | str) -> str:
        with pytest.raises(ValueError) as error:
            LLM(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "config.json" in message(empty)
    assert "is not a folder" in message(tmp_path / "nowhere")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "cut short" in message(folder)
    (folder / "model.safetensors").unlink()
    assert "half a model" in message(folder)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "tokenizer.json").write_text("{]", encoding="utf-8")
    assert "tokenizer" in message(folder)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in message(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for field, value, word in (
        ("model_type", "llama", "llama"),
        ("activation_function", "relu", "relu"),
        ("n_layer", None, "n_layer"),
        ("n_head", 5, "5"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {field: value}), encoding="utf-8")
        assert word in message(folder)
    (folder / "config.json").write_text("not json", encoding="utf-8")
    assert "config.json" in message(folder)


def test_bundled_model_is_what_the_card_says() -> None:
    config, weights, _ = load_checkpoint("toy")
    num_parameters = sum(t.numel() for t in weights.values())
    assert 4e6 <= num_parameters <= 7e6
    assert (config.n_positions, config.vocab_size) == (1024, 2048)
    assert all(t.dtype is torch.float16 for t in weights.values())
    assert (TOY_FOLDER / "model.safetensors").stat().st_size <= 14e6
    tokenizer = AutoTokenizer.from_pretrained(TOY_FOLDER)
    text = "ROMEO:\nO, wilt thou leave me so unsatisfied?\n"
    llm = LLM("toy")
    assert tokenizer(text).input_ids == llm.tokenizer.encode(text)
    assert tokenizer.eos_token_id == llm.config.eos_token_id == 2047
    card = (TOY_FOLDER / "README.md").read_text(encoding="utf-8")
    facts = json.loads((TOY_FOLDER / "training.json").read_text(encoding="utf-8"))
    assert f"{facts['held_out_loss']:.2f}" in card


def test_packed_linear_agrees_with_plain_or_is_not_used() -> None:
    if not packing_available():
        pytest.skip("this torch has no oneDNN packing operators; F.linear is used")
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 32), torch.randn(48)
    packed, plain = PackedLinear(weight, bias), PlainLinear(weight, bias)
    for rows in (1, 3, 4, 33, 200):
        x, residual = torch.randn(rows, 32), torch.randn(rows, 48)
        for a, b in (
            (packed(x), plain(x)),
            (packed.gelu(x), plain.gelu(x)),
            (packed.add_to(x, residual.clone()), plain.add_to(x, residual.clone())),
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_plain_fallback_gives_the_same_tokens(tiny_gpt2: Path) -> None:
    from toyserve.models.gpt2 import GPT2

    llm = LLM(tiny_gpt2)
    prompts = [[i % EOS for i in range(n)] for n in (3, 20, 9)]
    expected = [o.token_ids for o in llm.generate(prompts, PARAMS)]
    config, weights, _ = load_checkpoint(tiny_gpt2)
    plain = GPT2(config, weights, llm.device, torch.float32, packed=False)
    llm._torch_runner.model = plain
    assert [o.token_ids for o in llm.generate(prompts, PARAMS)] == expected
