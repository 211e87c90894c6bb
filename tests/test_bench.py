"""The benchmark's machinery on a model of two layers. Nothing here is about how fast it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models_for_tests import random_gpt2

from toyserve import bench
from toyserve.bench import command, names, ours, readme_table
from toyserve.bench.host import host_work, scheduler_time
from toyserve.bench.limits import MachineLimits, batch_throughput, ideal_seconds
from toyserve.bench.race import compare, run_race
from toyserve.bench.shapes import get_weights
from toyserve.bench.simulation import simulate_mix
from toyserve.bench.targets import Target, Verdict
from toyserve.bench.theirs import their_contestants
from toyserve.bench.work import BenchClock, Contestant, Served, standard_work

ROOT = Path(__file__).parents[1]
MICRO = ["--model", "micro", "--quick", "--requests", "6"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def micro():
    return get_weights("micro")


@pytest.fixture(scope="module")
def micro_bench(micro):
    return ours.Bench(micro)


@pytest.fixture(scope="module")
def work(micro):
    return standard_work(micro.config.vocab_size, n=6)


def planted(contestant: Contestant, request_id: str, position: int) -> Contestant:
    """The same contestant with one wrong token."""

    def serve(work, clock):
        served = contestant.serve(work, clock)
        if request_id in served.token_ids and len(work.jobs) > 3:
            served.token_ids[request_id][position] += 1
        return served

    return Contestant("wrong", serve)


# -- the same tokens ------------------------------------------------------------------------------


def test_all_contestants_give_the_same_tokens(micro, micro_bench, work):
    contestants = ours.our_contestants(micro_bench, lambda: ours.Bench(micro, packed=False))
    contestants += their_contestants(micro)
    race = run_race(contestants, work, 2, cpu=True, slow_once=True)
    assert race.mismatches == []
    assert {names.CHUNKED, names.HF_STATIC, names.HF_CONTINUOUS} <= set(race.entries)
    assert list(race.entries[names.CHUNKED].seconds) == [0, 1]
    assert list(race.entries[names.HF_ONE_BY_ONE].seconds) == [0]  # slow: first round only
    assert race.speedup(names.CHUNKED, names.HF_STATIC).num_rounds == 2


def test_every_answer_is_as_long_as_the_work_says(micro_bench, work):
    served = micro_bench.contestant("x", "chunked").serve(work, BenchClock(cpu=True))
    lens = {job.request_id: job.output_len for job in work.jobs}
    assert {key: len(ids) for key, ids in served.token_ids.items()} == lens


def test_poisson_arrivals_are_kept_by_ours_and_theirs(micro, micro_bench):
    work = standard_work(micro.config.vocab_size, n=6, rate=200.0)
    theirs = {c.name: c for c in their_contestants(micro)}
    some = [
        micro_bench.contestant(names.CHUNKED, "chunked"),
        theirs[names.HF_STATIC],
        theirs[names.HF_CONTINUOUS],
    ]
    for contestant in some:
        served = contestant.serve(work, BenchClock(cpu=True))
        for job in work.jobs:
            assert served.finish_times[job.request_id] > job.arrival_time
    assert run_race(some, work, 1, cpu=True).mismatches == []


def test_one_wrong_token_is_reported_with_request_and_position(micro_bench, work):
    good = micro_bench.contestant("good", "chunked")
    race = run_race([good, planted(good, "r2", 5)], work, 1, cpu=True)
    assert [(m.contestant, m.request_id, m.position) for m in race.mismatches] == [
        ("wrong", "r2", 5)
    ]
    assert "request r2 at position 5" in str(race.mismatches[0])


@pytest.mark.parametrize(
    "found, position", [([1, 2, 3], None), ([1, 9, 3], 1), ([1, 2], 2), ([1, 2, 3, 4], 3), ([], 0)]
)
def test_answers_that_differ_in_length_differ_where_the_shorter_one_ends(found, position):
    reference = Served({"a": [1, 2, 3]}, {}, 1.0)
    mismatches = compare("x", Served({"a": found}, {}, 1.0), "y", reference)
    assert [m.position for m in mismatches] == ([] if position is None else [position])


def test_a_request_that_was_never_answered_is_a_mismatch():
    reference = Served({"a": [1]}, {}, 1.0)
    assert compare("x", Served({}, {}, 1.0), "y", reference)[0].token_id is None


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "micro.json"
    code = bench.main(
        [*MICRO, "--against", "transformers", "--json", str(path)],
    )
    assert code == 0
    return json.loads(path.read_text())


def test_the_result_says_machine_versions_date_and_verdicts(result):
    assert result["machine"]["versions"]["torch"] == torch.__version__
    assert result["machine"]["date"].endswith("UTC")
    assert result["race"]["contestants"][names.CHUNKED]["share_of_ideal"] > 0
    reached = {t["text"]: t["reached"] for t in result["targets"]}
    assert set(reached.values()) <= {"aim", "must", "missed"}
    assert "host work of a step, 64 running" in reached


def test_a_wrong_contestant_makes_the_command_fail(monkeypatch, capsys, result):
    def with_a_wrong_one(bench, plain):
        good = bench.contestant(names.CHUNKED, "chunked")
        return [good, planted(good, "r1", 3)]

    monkeypatch.setattr(ours, "our_contestants", with_a_wrong_one)
    costs = {key: result[key] for key in ("batch_tokens_per_s", "host", "simulation")}
    monkeypatch.setattr(command, "_engine_costs", lambda *_: costs)
    assert bench.main(MICRO) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "request r1 at position 3" in printed


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--rounds", "0"], "--rounds is 0"),
        (["--rate", "-1"], "above 0"),
        (["--model", "./no-such-folder"], "not a folder"),
        (["--json", "no/such/folder/x.json"], "no folder"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_bad_options_are_one_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        bench.main(arguments)


def test_a_model_of_short_context_is_refused_by_its_number(tmp_path):
    with pytest.raises(ValueError, match="context is 64 tokens"):
        bench.main(["--model", str(random_gpt2(tmp_path))])


def test_help_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from toyserve import bench\n"
        "try: bench.main(['--help'])\n"
        "except SystemExit as done: print('code', done.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "code 0" in done.stdout, done.stderr


# -- tables ---------------------------------------------------------------------------------------


def test_what_the_readme_says_of_an_old_processor_is_what_was_measured():
    result = json.loads((ROOT / "benchmarks/results/tiny-2-threads-zen1.json").read_text())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    facts = result["race"]["contestants"][names.CHUNKED]
    static, continuous = (
        facts["speedup"][name]["median"] for name in (names.HF_STATIC, names.HF_CONTINUOUS)
    )
    assert f"{static:.2f}x as fast as transformers' static batches" in readme
    assert f"{continuous:.2f}x as fast as its continuous batching" in readme
    assert f"at {facts['share_of_ideal']:.0%} of that machine's ideal" in readme


def test_the_readme_table_has_a_row_per_contestant_and_a_ratio(result):
    table = readme_table.make_table([result])
    rows = [line for line in table.splitlines() if line.startswith("| t")]
    assert len(rows) == len(result["race"]["contestants"])
    chunked = next(row for row in rows if row.startswith(f"| {names.CHUNKED} "))
    ratio = result["race"]["contestants"][names.CHUNKED]["speedup"][names.HF_STATIC]["median"]
    assert f"**{ratio:.2f}x**" in chunked
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_the_table_replaces_the_old_one_and_nothing_else():
    text = f"before\n{readme_table.BEGIN}\nold\n{readme_table.END}\nafter\n"
    once = readme_table.put_into(text, "| new |")
    assert once == f"before\n{readme_table.BEGIN}\n| new |\n{readme_table.END}\nafter\n"
    assert readme_table.put_into(once, "| new |") == once
    with pytest.raises(ValueError, match="no lines"):
        readme_table.put_into("no marks", "| new |")


@pytest.mark.parametrize(
    "value, higher, word",
    [
        (2.0, True, "missed"),
        (2.5, True, "must"),
        (3.3, True, "aim"),
        (2.0, False, "aim"),
        (3.0, False, "missed"),
    ],
)
def test_a_verdict_names_the_best_bar_that_was_reached(value, higher, word):
    must, aim = (2.5, 3.3) if higher else (2.5, 2.2)
    assert Verdict(Target("t", (), must, aim, higher), value).word == word


# -- single measurements --------------------------------------------------------------------------


def test_the_cpu_clock_does_not_sleep_and_does_not_go_back():
    clock = BenchClock(cpu=True)
    clock.wait_until(3600.0)
    assert clock.now() >= 3600.0
    clock.wait_until(1.0)
    assert clock.now() >= 3600.0


def test_parts_of_the_host_work_add_up(micro_bench):
    for alone in (False, True):
        work = host_work(micro_bench, 8, 12, alone=alone)
        assert work.num_running == 8 and 0 < work.recording_share < 1
        # Medians of the parts, so their sum is near the median of the sum, not equal to it.
        assert work.plan + work.tensors + work.recording == pytest.approx(work.total, rel=0.5)


def test_the_scheduler_is_timed_at_any_size():
    assert scheduler_time(8, 20) > 0 and scheduler_time(3, 20, num_waiting=50) > 0


def test_the_ideal_halves_on_a_machine_of_twice_the_rates(micro_bench, work):
    once = ideal_seconds(micro_bench, work, MachineLimits(1e9, 1e9))
    twice = ideal_seconds(micro_bench, work, MachineLimits(2e9, 2e9))
    assert twice == pytest.approx(once / 2)


def test_a_batch_larger_than_the_rest_of_the_bench_runs(micro_bench):
    assert batch_throughput(micro_bench, 128, cpu=True, num_steps=4) > 0


def test_the_simulated_mix_serves_everybody_and_prices_the_marks():
    facts = simulate_mix(400, (50, 200), window=50)
    assert set(facts["us_per_running_request"]) == {"50", "200"}
    assert facts["num_steps"] > 0


def test_a_trace_is_simulated_without_torch_and_its_memory_reported():
    code = "import sys; sys.modules['torch'] = None; from toyserve.bench.simulation import main; "
    done = subprocess.run(
        [sys.executable, "-c", code + "main(['100'])"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["num_requests"] == 100 and facts["peak_memory_mb"]["at the end"] > 1
