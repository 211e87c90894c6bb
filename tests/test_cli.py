"""The command line: what each command prints, and that every mistake is one sentence and code 2."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import toyserve.doctor
from toyserve.cli import BAD_INPUT, INTERRUPTED, PIPE_CLOSED, main, make_parser
from toyserve.models.weights import TOY_FOLDER
from toyserve.recording import Recording
from toyserve.terminal import BatchState, LiveBatch, RequestRow, batch_table, one_line

SIMULATED = ["run", "--clock", "h100", "--simulate", "--workload", "burst:n=6"]
ROOT = Path(__file__).resolve().parent.parent

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command here: (exit code, stdout, stderr)."""

    def run_command(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run_command


def command(*argv: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "toyserve", *argv],
        env=os.environ | environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


# -- help ---------------------------------------------------------------------------------------


def test_help_needs_neither_torch_nor_pictures() -> None:
    code = (
        "import sys\nfrom toyserve.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*(m for m in ('torch', 'matplotlib', 'rich', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
    assert "toyserve demo" in done.stdout


@pytest.mark.parametrize("name", ["demo", "run", "lab", "doctor"])
def test_every_command_has_help_with_examples_that_parse(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    examples = text.split("examples:\n")[1].strip().splitlines()
    assert examples
    for example in examples:
        words = shlex.split(example, comments=True)
        assert words[0] == "toyserve"
        end = words.index("--") if "--" in words else len(words)
        make_parser().parse_args(words[1:end])


def test_without_a_command_it_helps(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert "commands:" in out


# -- run ----------------------------------------------------------------------------------------


def test_json_is_one_object_with_the_promised_numbers(run: Run) -> None:
    code, out, err = run(*SIMULATED, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    for name in (
        "num_steps", "output_tokens_per_s", "makespan_s", "mean_running", "budget_used",
        "kv_used_max", "num_preemptions",
    ):  # fmt: skip
        assert isinstance(result[name], int | float), name
    for name in ("ttft_ms", "tpot_ms", "itl_ms"):
        assert all(result[name][key] > 0 for key in ("p50", "p95", "p99", "max")), name
    assert result["run"]["clock"] == "h100"


def test_the_table_says_what_ran_and_leaves_out_what_did_not_happen(run: Run) -> None:
    code, out, err = run(*SIMULATED, "--scheduler", "static")
    assert (code, err) == (0, "")
    assert "StaticScheduler" in out.splitlines()[0]
    assert "TTFT" in out
    assert "aborted" not in out


def test_out_writes_a_recording_and_its_timeline(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mit Leerzeichen é"
    code, out, _ = run(*SIMULATED, "--out", str(folder))
    assert code == 0
    assert str(folder) in out
    assert len(Recording.load(folder / "run.jsonl").requests) == 6
    assert (folder / "timeline.png").read_bytes()[:4] == b"\x89PNG"


def test_a_scenario_brings_its_settings_and_the_user_may_overrule_them(run: Run) -> None:
    scenario = ["run", "--clock", "t4", "--simulate", "--json", "--workload", "continuous_example"]
    _, out, _ = run(*scenario, "--scheduler", "continuous")
    result = json.loads(out)
    assert (result["run"]["max_running"], result["num_steps"]) == (4, 100)
    _, out, _ = run(*scenario, "--scheduler", "continuous", "--max-running", "6")
    assert json.loads(out)["run"]["max_running"] == 6


def test_a_model_without_weights_is_simulated_with_the_blocks_that_fit(run: Run) -> None:
    code, out, _ = run(
        "run", "--model", "llama-3-8b", "--clock", "a100", "--json", "--workload", "burst:n=4"
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["run"]["num_blocks"] > 10_000


def test_simulating_loads_no_torch() -> None:
    code = f"import sys\nfrom toyserve.cli import main\nmain({SIMULATED!r})\nassert 'torch' not in sys.modules"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_real_model_answers_prompts(run: Run) -> None:
    code, out, err = run("run", "--prompt", r"ROMEO:\n", "--max-tokens", "4", "--num-blocks", "8")
    assert (code, err) == (0, "")
    assert out.startswith("ROMEO:\n")


def test_a_refused_prompt_is_named_and_the_others_are_served(run: Run) -> None:
    code, out, err = run("run", "--prompt", "", "--prompt", "A", "--max-tokens", "3", "--json")
    assert code == BAD_INPUT
    result = json.loads(out)
    refused, served = result["outputs"]
    assert refused["finish_reason"] == "refused"
    assert served["num_output_tokens"] > 0
    assert err.count("\n") == 1
    assert "prompt is empty" in err


# -- mistakes -----------------------------------------------------------------------------------


def broken_model(folder: Path, keep: tuple[str, ...], cut: str | None = None) -> Path:
    """A model folder with only some of its files, or one of them cut short."""
    folder.mkdir()
    for name in keep:
        shutil.copy(TOY_FOLDER / name, folder / name)
    if cut is not None:
        with open(folder / cut, "r+b") as file:
            file.truncate(5000)
    return folder


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "command": (["serv"], ["'serv'", "demo, run, lab, check, progress, doctor"]),
    "option": (["run", "--wat"], ["--wat", "--help"]),
    "abbreviated option": (["run", "--sched", "static"], ["--sched"]),
    "number": (["run", "--num-blocks", "many"], ["'many'", "whole number"]),
    "scheduler": (["run", "--scheduler", "best"], ["'best'", "sequential, static, continuous"]),
    "kv": ([*SIMULATED, "--kv", "elastic"], ["'elastic'", "paged"]),
    "policy": ([*SIMULATED, "--policy", "mine"], ["'mine'", "fcfs"]),
    "preemption": ([*SIMULATED, "--preemption", "never"], ["'never'", "recompute"]),
    "clock": (["run", "--clock", "sundial"], ["'sundial'", "h100"]),
    "workload": (["run", "--workload", "flood"], ["'flood'", "burst"]),
    "workload's parameter": (["run", "--workload", "burst:m=3"], ["'m=3'", "seed"]),
    "no requests": (["run", "--workload", "burst:n=0"], ["0", "at least 1"]),
    "trace": (["run", "--workload", "azure:/nowhere.csv"], ["/nowhere.csv", "cannot be read"]),
    "temperature": (["run", "--temperature", "nan"], ["nan", "finite"]),
    "negative temperature": (["run", "--temperature", "-1"], ["-1", "0 or more"]),
    "max_tokens": (["run", "--prompt", "A", "--max-tokens", "0"], ["0", "at least 1"]),
    "max_tokens below 0": (["run", "--prompt", "A", "--max-tokens", "-5"], ["-5", "at least 1"]),
    "max_tokens of a workload": (["run", "--max-tokens", "5"], ["--max-tokens", "nothing"]),
    "both": (["run", "--prompt", "A", "--workload", "burst"], ["not both"]),
    "blocks": ([*SIMULATED, "--num-blocks", "0"], ["num_blocks is 0", "at least 1"]),
    "block size": ([*SIMULATED, "--block-size", "-1"], ["block_size", "-1", "at least 1"]),
    "budget": ([*SIMULATED, "--token-budget", "2"], ["token_budget is 2", "16"]),
    "idle option": ([*SIMULATED, "--max-wait", "1"], ["max_wait", "nothing"]),
    "model folder": (["run", "--model", "./nowhere"], ["./nowhere", "not a folder"]),
    "shape on the wall clock": (["run", "--model", "llama-3-8b"], ["llama-3-8b", "--clock"]),
    "simulated wall clock": (["run", "--simulate"], ["--clock h100"]),
    "too big": (["run", "--model", "llama-3-70b", "--clock", "t4"], ["141", "do not fit"]),
    "GPUs": ([*SIMULATED, "--num-gpus", "0"], ["num_gpus is 0"]),
    "simulated prompt": (["run", "--simulate", "--clock", "t4", "--prompt", "A"], ["weights"]),
    "context": ([*SIMULATED, "--max-model-len", "0"], ["0", "1024"]),
    "pace": (["demo", "--pace", "-1"], ["-1", "0"]),
    "demo's scheduler": (["demo", "--scheduler", "best"], ["'best'", "static"]),
    "what follows --": (["run", "--", "x"], ["--"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_with_value_and_limit(mistake: str, run: Run) -> None:
    argv, fragments = MISTAKES[mistake]
    code, out, err = run(*argv)
    assert (code, out) == (BAD_INPUT, ""), err
    assert err.startswith("toyserve")
    assert err.count("\n") == 1
    assert not [f for f in fragments if f not in err], err


def test_half_a_model_and_a_cut_one_are_told_apart(run: Run, tmp_path: Path) -> None:
    half = broken_model(tmp_path / "half", ("config.json", "tokenizer.json"))
    cut = broken_model(
        tmp_path / "cut",
        ("config.json", "tokenizer.json", "model.safetensors"),
        "model.safetensors",
    )
    for folder, words in ((half, "model.safetensors is missing"), (cut, "corrupt or cut short")):
        code, out, err = run("run", "--model", str(folder))
        assert (code, out, err.count("\n")) == (BAD_INPUT, "", 1)
        assert words in err
        assert str(folder) in err


def test_a_trace_with_a_bad_line_names_it(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,abc\n")
    code, _, err = run("run", "--workload", f"azure:{trace}")
    assert (code, err.count("\n")) == (BAD_INPUT, 1)
    assert "line 2" in err


def test_an_output_folder_that_cannot_be_made_is_named_before_the_work(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(*SIMULATED, "--out", str(tmp_path / "file" / "folder"))
    assert (code, out, err.count("\n")) == (BAD_INPUT, "", 1)


def test_a_fault_of_toyserve_itself_is_not_dressed_up_as_the_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("books do not balance")

    monkeypatch.setattr("toyserve.cli.job.make_job", broken)
    with pytest.raises(AssertionError, match="books"):
        main(SIMULATED)


# -- terminals, pipes, locales --------------------------------------------------------------------


def test_a_locale_that_cannot_show_a_character_is_no_reason_to_fail() -> None:
    process = command(
        "run", "--prompt", "JULIET: é 愛\\n", "--max-tokens", "2",
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii",
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert "JULIET" in out


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as on Unix")
def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    process = command("run", "--clock", "h100", "--simulate", "--workload", "burst:n=200")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (PIPE_CLOSED, "")


@pytest.mark.skipif(os.name != "posix", reason="pipes and signals as on Unix")
def test_ctrl_c_stops_the_demo_politely(tmp_path: Path) -> None:
    # A shell that starts jobs in the background lets them ignore Ctrl-C; a terminal does not.
    code = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from toyserve.cli import main\n"
        f"sys.exit(main(['demo', '--pace', '0.5', '--out', {str(tmp_path)!r}]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "starts:" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (INTERRUPTED, "toyserve: stopped.")


ROWS = [
    RequestRow("ROMEO", "decode", 5, 12, 2, "But soft,\nwhat light"),
    RequestRow("JULIET", "waiting", 4),
    RequestRow("IAGO", "stop", 4, 9, 0, "I am not [b]what[/b] I am."),
]
STATE = BatchState(step=7, seconds=0.5, num_tokens=21, num_used_blocks=2, num_blocks=8)


def test_the_live_table_shows_who_runs_and_who_waits() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, markup=False)
    console.print(batch_table(ROWS, STATE, 100))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1 running, 1 in the queue, 1 done" in text
    assert "KV blocks 2 of 8" in text
    assert "5 + 12" in text
    assert "But soft, / what light" in text
    assert "[b]what[/b]" in text


def test_away_from_a_terminal_only_changes_are_told() -> None:
    console = Console(file=io.StringIO(), width=100, markup=False)
    rows = [RequestRow("ROMEO", num_prompt_tokens=5), RequestRow("JULIET")]
    with LiveBatch(console, rows) as live:
        rows[0].phase = "prefill"
        live.update(STATE)
        rows[0].phase = "decode"
        live.update(STATE)
        rows[0].phase, rows[0].num_output_tokens = "stop", 3
        live.update(STATE, last=True)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 2
    assert "starts: 5 prompt tokens, 1 still wait" in lines[0]
    assert "ends (stop), 3 tokens" in lines[1]


def test_long_texts_are_cut_to_one_line() -> None:
    assert one_line("a\n b\n", 20) == "a / b"
    assert one_line("abcdefghij", 6) == "abc..."
    assert one_line("abcdefghij", 6, keep_end=True) == "...hij"


# -- demo, lab, doctor, and commands from elsewhere ---------------------------------------------


def test_the_demo_serves_everybody_and_leaves_a_picture(run: Run, tmp_path: Path) -> None:
    code, out, err = run("demo", "--max-tokens", "6", "--out", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.count(" ends (") == 14
    assert "waited longest" in out
    assert "toyserve lab" in out
    recording = Recording.load(tmp_path / "run.jsonl")
    assert recording.meta["clock"] == "wall"
    assert (tmp_path / "timeline.png").exists()


def test_showing_things_is_not_counted_in_anybodys_latency() -> None:
    from toyserve.cli.demo import SlowMotionClock

    clock = SlowMotionClock()
    with clock.stopped():
        before = clock.now()
        time.sleep(0.05)
    assert clock.now() - before < 0.05


def test_lab_brings_the_notebooks_and_starts_jupyterlab_on_the_start_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(
        "toyserve.cli.lab._become", lambda command, environment: started.append(command) or 0
    )
    folder = tmp_path / "Kurs é"
    code, out, _ = run("lab", str(folder), "--port", "9001", "--", "--ServerApp.ip=127.0.0.1")
    assert code == 0
    assert "Your course folder is" in out
    assert len(list((folder / "lessons").glob("[0-9]*.ipynb"))) > 1
    (words,) = started
    assert "--LabApp.default_url=/lab/tree/lessons/index.ipynb" in words
    assert "--ServerApp.port=9001" in words
    assert words[-1] == "--ServerApp.ip=127.0.0.1"


def test_doctor_says_that_the_course_can_run(run: Run) -> None:
    code, out, err = run("doctor", "--quick")
    assert (code, err) == (0, "")
    assert "can run here" in out or "engine runs" in out


def test_doctor_says_what_is_missing_and_what_to_do(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toyserve.doctor, "MODEL_FILES", ("no-such-file",))
    code, out, _ = run("doctor", "--quick", "--json")
    assert code == 1
    findings = {f["what"]: f for f in json.loads(out)["findings"]}
    assert findings["bundled model"]["state"] == "missing"
    assert findings["bundled model"]["advice"]


def test_a_check_that_breaks_is_a_finding() -> None:
    def gpu() -> toyserve.doctor.Finding:
        """GPU."""
        raise RuntimeError("driver\nmismatch")

    finding = toyserve.doctor._safely(gpu)
    assert (finding.state, finding.found) == ("missing", "RuntimeError: driver mismatch")


def test_a_command_from_elsewhere_gets_its_arguments(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    module = types.ModuleType("toyserve.plan")
    module.main = lambda argv: seen.append(argv) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toyserve.plan", module)
    assert run("plan", "--help", "x")[0] == 0
    assert seen == [["--help", "x"]]


@pytest.mark.parametrize("simulated", [[], ["--simulate", "--clock", "h100"]], ids=["real", "sim"])
@pytest.mark.parametrize("kv", ["paged", "contiguous"])
def test_memory_options_reach_the_engine(
    capsys: pytest.CaptureFixture[str], kv: str, simulated: list[str]
) -> None:
    arguments = ["run", "--kv", kv, "--workload", "burst:n=12", "--num-blocks", "40", "--json"]
    figures = []
    for memory in ([], ["--preemption", "swap", "--num-host-blocks", "40"]):
        assert main([*arguments, *memory, "--policy", "priority", *simulated]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert all(f["num_finished"] == 12 and f["num_preemptions"] > 0 for f in figures)
    recompute, swap = figures
    assert recompute["num_recomputed_tokens"] > swap["num_recomputed_tokens"] == 0


def test_memory_options_that_do_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["--scheduler", "static", "--preemption", "swap"], "static"),
        (["--num-host-blocks", "4"], "recompute"),
        (["--kv", "reserved", "--prefix-caching"], "prefix_caching"),
        (["--watermark", "2"], "watermark is 2.0"),
        (["--policy", "nepotism"], "fair_share"),
    ):
        assert main(["run", "--simulate", "--clock", "h100", *arguments]) == 2
        assert word in capsys.readouterr().err
