"""Token by token to text, so that no piece sent to a user ever has to be taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class IncrementalText:
    """Collects one answer's bytes; ``push`` returns the text that is now certain.

    Bytes of a character that is still incomplete are held back, and so is text that may turn out to
    be the beginning of a stop string. A stop string and what follows it are never returned.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(stop)
        self._held = ""  # decoded, but may be the beginning of a stop string
        self.text = ""  # everything returned so far
        self.num_tokens = 0  # pushed so far
        self.stopped = False  # a stop string has been found

    def push(self, token_bytes: bytes, *, final: bool = False) -> str:
        """Add one token's bytes. final: nothing follows, so hold nothing back."""
        self.num_tokens += 1
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(token_bytes, final=final)
        found = [at for at in (text.find(s) for s in self._stop) if at >= 0]
        if found:
            self.stopped, self._held, text = True, "", text[: min(found)]
        else:
            keep = 0 if final else self._possible_stop(text)
            self._held, text = text[len(text) - keep :], text[: len(text) - keep]
        self.text += text
        return text

    def flush(self) -> str:
        """Nothing follows after all: what was held back, an incomplete character as U+FFFD."""
        text = "" if self.stopped else self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        self.text += text
        return text

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of ``text`` with which some stop string begins."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
