"""``toyserve serve`` as a process, and the package without what it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from toyserve import Recording
from toyserve.cli import main


def test_serve_says_where_it_is_and_ends_on_a_signal_with_its_recording_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "toyserve", "serve", "--port", "0", "--record", str(path)]
    command += ["--scheduler", "continuous", "--max-running", "2", "--model-name", "bard"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving bard at http://127.0.0.1:")
        url = line.split(" at ")[1].split("/v1")[0]
        body = {"model": "bard", "prompt": "KING:\n", "max_tokens": 4, "ignore_eos": True}
        assert httpx.post(url + "/v1/completions", json=body, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    recording = Recording.load(path)
    (record,) = recording.requests.values()
    assert len(record.token_ids) == 4 and record.finish_reason == "length"
    assert recording.meta["scheduler"] == "ContinuousScheduler"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "70000"], "port is 70000"),
        (["--scheduler", "fastest"], "scheduler is 'fastest'"),
        (["--max-queue", "-1"], "max_queue is -1"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
        (["--record", "/no/such/folder/run.jsonl"], "/no/such/folder/run.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words, capsys) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def run_without(module: str, statement: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.modules[{module!r}] = None\n{statement}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_missing_extra_says_how_to_install_it(module: str) -> None:
    done = run_without(module, "from toyserve.cli import main; sys.exit(main(['serve']))")
    assert done.returncode == 2
    assert "pip install 'toyserve[serve]'" in done.stderr and done.stderr.count("\n") == 1


def test_the_package_and_the_load_client_load_neither_torch_nor_a_web_framework() -> None:
    statement = (
        "import toyserve.server, toyserve.server.load_client, toyserve.server.load_sweep\n"
        "from toyserve.cli import make_parser; make_parser()\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = run_without("no_such_module", statement)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "fastapi", "uvicorn", "starlette", "tokenizers", "matplotlib"}
