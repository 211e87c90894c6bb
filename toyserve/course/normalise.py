"""Take out of an executed notebook whatever differs between two runs of the same code."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable

from nbformat import NotebookNode

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_PNG_START = b"\x89PNG\r\n\x1a\n"
# What an image needs to be drawn; the rest (software, date, comments) may differ and goes.
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"pHYs", b"gAMA", b"sRGB", b"IDAT", b"IEND"}


class NotReproducible(Exception):
    """An output that cannot be made equal in two builds; says which cell and why."""


def normalise(notebook: NotebookNode, *, forbidden: Iterable[str] = ()) -> None:
    """Change ``notebook`` in place. ``forbidden``: paths of this machine that no output may show.

    Raises NotReproducible for an output to stderr and for a forbidden path.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell.outputs = [out for out in map(_normalise_output, cell.outputs) if out is not None]
        _refuse(cell, tuple(forbidden))


def _normalise_output(output: NotebookNode) -> NotebookNode | None:
    """None for an output that says nothing without its running kernel."""
    if output.output_type == "stream":
        output.text = _without_addresses(output.text)
    if "data" not in output:
        return output
    data, metadata = output.data, output.metadata
    # A widget's view names a model that lives only in the kernel that made it.
    had_view = data.pop(_WIDGET_VIEW, None) is not None
    metadata.pop(_WIDGET_VIEW, None)
    if had_view and set(data) <= {"text/plain"}:
        return None
    for mime, value in data.items():
        if mime == "image/png":
            data[mime] = base64.b64encode(strip_png(base64.b64decode(value))).decode("ascii")
        elif isinstance(value, str):
            data[mime] = _without_addresses(value)
    return output


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("0x…", text)


def strip_png(data: bytes) -> bytes:
    """The same picture without its comments and dates."""
    if not data.startswith(_PNG_START):
        raise ValueError("these bytes are not a PNG image")
    kept, at = [_PNG_START], len(_PNG_START)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        end = at + 12 + length  # length, name, data, checksum
        if data[at + 4 : at + 8] in _PNG_CHUNKS:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def _refuse(cell: NotebookNode, forbidden: tuple[str, ...]) -> None:
    start = cell.source.strip().splitlines()[0] if cell.source.strip() else "(empty)"
    for output in cell.outputs:
        if output.get("name") == "stderr":
            raise NotReproducible(f"the cell {start!r} writes to stderr: {output.text.strip()}")
        text = _text_of(output)
        for path in forbidden:
            if path in text and len(path) > 1:
                raise NotReproducible(f"the cell {start!r} shows {path}, a path of this machine")


def _text_of(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    values = output.get("data", {}).items()
    return "\n".join(str(v) for mime, v in values if not mime.startswith("image/"))
