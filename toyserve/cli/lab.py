"""Open the course in JupyterLab, in a folder of your own. What you changed is never overwritten."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

NAME = "lab"
HELP = "open the course in JupyterLab"
EXAMPLES = (
    "toyserve lab                       # ./toyserve-lab, made if it is not there",
    "toyserve lab ~/course --port 9000",
    "toyserve lab --no-browser -- --ServerApp.ip=0.0.0.0   # what follows -- is JupyterLab's",
)

# No news pop-up, no look for updates, no plugin catalogue: the course asks nothing of the network.
_OFFLINE = (
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
    "--ServerApp.tornado_settings={'page_config_data': "
    "{'disabledExtensions': {'@jupyterlab/apputils-extension:announcements': True}}}",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="toyserve-lab", metavar="DIR")
    parser.add_argument("--port", type=int, help="default: 8888, or the next that is free")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument("--prepare-only", action="store_true", help="bring the notebooks, no more")
    parser.add_argument("jupyter", nargs="*", metavar="-- ARGUMENT", help="passed to JupyterLab")


def execute(options: argparse.Namespace) -> int:
    from toyserve.course.workspace import prepare_workspace

    report = prepare_workspace(options.folder)
    print(report, flush=True)
    if options.prepare_only:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        raise ValueError("JupyterLab is not installed: pip install 'toyserve[lab]', or `make lab`")
    # Inside a virtual environment its own kernel comes before one of the same name elsewhere.
    environment = os.environ | {"JUPYTER_PREFER_ENV_PATH": "1"}
    process = subprocess.Popen(
        lab_command(report.folder, report.start, options), env=environment, cwd=report.folder
    )
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # JupyterLab got it too, asks whether to stop, and ends by itself


def lab_command(folder: Path, start: str, options: argparse.Namespace) -> list[str]:
    """What starts JupyterLab on the notebook ``start``."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}", *_OFFLINE]
    if start:
        command.append(f"--LabApp.default_url=/lab/tree/{quote(start)}")
    if options.port is not None:
        command.append(f"--ServerApp.port={options.port}")
    if options.no_browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers and classroom images run as root
    return [*command, *options.jupyter]
