"""A recording as one HTML page that plays itself: no server, no network, to mail to a colleague."""

from __future__ import annotations

import base64
import html
import json
import zlib
from pathlib import Path

from toyserve.recording import Recording
from toyserve.viz.assets import page_source, style_source
from toyserve.viz.widget_data import pack
from toyserve.viz.words import run_name

MAX_MB = 10.0

# The policy forbids the page every request: what it shows is in it.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 16px auto; padding: 0 16px; max-width: 1280px; font: 14px system-ui, sans-serif; }}
{style}
</style>
</head>
<body>
<p>Press <b>▶ Play</b> (or space); the arrow keys take one step, a click on the picture goes to that
step. Ctrl and the wheel zoom, dragging moves. Point at a cell or a block to see whose it is.</p>
<div id="view"></div>
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<script type="text/plain" id="header">{header}</script>
<script type="text/plain" id="grid">{grid}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""


def to_html(
    recording: Recording, path: str | Path, *, title: str | None = None, max_mb: float = MAX_MB
) -> Path:
    """Write the interactive view of ``recording`` as one self-contained page; returns its path.

    Raises ValueError if the page would be larger than ``max_mb`` megabytes.
    """
    page = page_text(recording, title)
    size = len(page.encode()) / 1e6
    if size > max_mb:
        raise ValueError(
            f"the page of {len(recording.requests):,} requests and {len(recording.steps):,} steps "
            f"would be {size:.1f} MB and the limit is {max_mb:g} MB (max_mb): record a shorter run"
        )
    target = Path(path)
    target.write_text(page, encoding="utf-8")
    return target


def page_text(recording: Recording, title: str | None = None) -> str:
    header, grid = pack(recording, explain=True)
    name = title or f"{run_name(recording)}, {len(recording.requests):,} requests"
    return _PAGE.format(
        title=html.escape(name),
        style=style_source(),
        header=_deflate(json.dumps(header, separators=(",", ":")).encode()),
        grid=_deflate(grid),
        script=page_source().replace("</script", "<\\/script"),
    )


def _deflate(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")
