"""The interactive view's script and style, as text."""

from __future__ import annotations

from importlib.resources import files

# In order of use; only the last one exports, so that their texts joined are one ES module.
_SCRIPTS = (
    "data.js", "paint.js", "blockmap.js", "words.js", "play.js", "hands.js", "timeline.js",
)  # fmt: skip


def module_source() -> str:
    """The ES module that draws a packed recording into an element."""
    return "\n".join(read(name) for name in _SCRIPTS)


def script_of(starter: str) -> str:
    """The same module with a model that needs no kernel, then ``starter``, which begins to draw."""
    return "\n".join((module_source(), read("model.js"), starter))


def page_source() -> str:
    """What draws a page of its own."""
    return script_of(read("page.js"))


def style_source() -> str:
    return read("timeline.css")


def read(name: str) -> str:
    """One file of the static folder."""
    return files("toyserve.viz").joinpath("static", name).read_text(encoding="utf-8")
