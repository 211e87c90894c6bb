"""An outcome as something to look at: a sentence, the smallest case that fails, and the picture."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

from toyserve.course.checks.examine import NOTHING_WRITTEN, Outcome, is_missing
from toyserve.course.checks.part import Exercise
from toyserve.words import counted

# A name with an underscore, a call, or what stands before an equals sign.
_CODE_FIRST = re.compile(r"^(?:\w+(?= = )|\w*_\w*(?:\(\w*\))?(?=[ :,])|[\w.]+\(\w*\)(?=[ :,]))")


class CheckFailed(Exception):
    """Ends a check cell whose answer is not right. It shows as one line: the words are above."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Feedback:
    """What ``check`` shows. str() is the text for a terminal."""

    def __init__(self, outcome: Outcome, exercise: Exercise) -> None:
        self.outcome, self.lines = outcome, feedback_lines(outcome, exercise)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self.html()}

    def html(self) -> str:
        """One block that stands alone, its picture inside."""
        color = "#228833" if self.outcome.right else "#cc6677"
        first, *rest = map(as_html, self.lines)
        body = f"<b>{first}</b>" + "".join(f"<br>{line}" for line in rest)
        png = picture_png(self.outcome)
        if png:
            data = base64.b64encode(png).decode("ascii")
            body += (
                f'<br><img alt="the expected run above, yours below" style="max-width:100%" '
                f'src="data:image/png;base64,{data}"/>'
            )
        return (
            f'<div style="border-left:4px solid {color};padding:6px 12px;line-height:1.5;'
            f'color:inherit">{body}</div>'
        )


def feedback_lines(outcome: Outcome, exercise: Exercise) -> list[str]:
    """The sentences of an outcome: is it right, what is wrong or next, and in which case."""
    part = exercise.part(outcome.key)
    if outcome.right:
        lines = [f"✓ {part.key} is right ({counted(outcome.num_cases, 'case')})."]
        if outcome.text:
            lines.append(outcome.text)
        following = exercise.after(part.key)
        lines.append(
            f"Next: {following.key}, {following.title}."
            if following
            else "That was the last part that is checked by machine."
        )
        return lines
    lines = [f"✗ {part.key}, {part.title}: not yet.", sentence(outcome.text)]
    if outcome.case is not None and outcome.case.get("what") and not was_not_tried(outcome.text):
        lines.append(f"The smallest case that shows it: {outcome.case['what']}.")
    return lines


def was_not_tried(text: str) -> bool:
    """Does this sentence say that nothing has been written for the part? Then no case helps."""
    return is_missing(text) or "still to be written" in text or text == NOTHING_WRITTEN


def sentence(text: str) -> str:
    """With a capital at its start and a full stop at its end; a name of code stays as it is."""
    text = text.strip()
    text = _CODE_FIRST.sub(r"`\g<0>`", text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!", "`")) else text + "."


def as_html(text: str) -> str:
    """Escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def picture_png(outcome: Outcome) -> bytes | None:
    """None when there is none, or when it cannot be drawn: the words are then all there is."""
    if outcome.picture is None:
        return None
    try:
        figure = outcome.picture()
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=90, bbox_inches="tight")
    except Exception:
        return None
    return file.getvalue()


def show(feedback: Feedback) -> None:
    """In a notebook as a block with its picture, elsewhere as text."""
    try:
        from IPython.core.getipython import get_ipython
        from IPython.display import display
    except ImportError:
        print(feedback)
        return
    if get_ipython() is None:
        print(feedback)
    else:
        display(feedback)
