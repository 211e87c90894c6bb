"""Text to token ids and back, byte by byte: a token of a byte-level BPE is a string of bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as BPE


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: each of the 256 bytes is written as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    others = (b for b in range(256) if b not in printable)
    table |= {chr(256 + i): b for i, b in enumerate(others)}
    return table


class Tokenizer:
    """GPT-2's byte-level BPE. ``token_bytes`` of a special token is b"": it is never text."""

    def __init__(self, bpe: BPE, end_token: str = "<|endoftext|>") -> None:
        self.bpe = bpe
        self.vocab_size = bpe.get_vocab_size()
        self.eos_token_id: int | None = bpe.token_to_id(end_token)
        special = {t.content for t in bpe.get_added_tokens_decoder().values() if t.special}
        byte_of = _byte_of_character()
        self._bytes: list[bytes] = [b""] * (max(bpe.get_vocab().values()) + 1)
        for text, token_id in bpe.get_vocab().items():
            if text in special:
                continue
            if all(c in byte_of for c in text):
                self._bytes[token_id] = bytes(byte_of[c] for c in text)
            else:  # an added token that is plain text
                self._bytes[token_id] = text.encode("utf-8")

    @classmethod
    def load(cls, source: str | Path) -> Tokenizer:
        """From a model folder (tokenizer.json, or vocab.json and merges.txt), or a hub name."""
        folder = Path(source)
        if not folder.is_dir():
            from transformers import AutoTokenizer

            return cls(AutoTokenizer.from_pretrained(str(source)).backend_tokenizer)
        try:
            if (folder / "tokenizer.json").exists():
                return cls(BPE.from_str((folder / "tokenizer.json").read_text(encoding="utf-8")))
            if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
                return cls(_from_vocab_and_merges(folder))
        except Exception as error:  # tokenizers raises plain Exception
            raise ValueError(f"the tokenizer in {folder} cannot be read: {error}") from None
        raise ValueError(
            f"{folder} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt"
        )

    def encode(self, text: str) -> list[int]:
        return self.bpe.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are left out; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < len(self._bytes) else b""


def _from_vocab_and_merges(folder: Path) -> BPE:
    from tokenizers import models, pre_tokenizers

    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    bpe = BPE(models.BPE(vocab=vocab, merges=merges))  # type: ignore[arg-type]
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if "<|endoftext|>" in vocab:
        bpe.add_special_tokens(["<|endoftext|>"])
    return bpe
