"""calibrate(): fitted to some steps, judged by others."""

from __future__ import annotations

import pytest
from models_for_tests import random_gpt2

from toyserve import calibrate as module
from toyserve.calibrate import Machine, calibrate, calibrate_machine
from toyserve.clock import VirtualClock
from toyserve.llm import LLM
from toyserve.request import SamplingParams
from toyserve.runners import SimulatedRunner, TimedRunner
from toyserve.stepshape import StepShape


class Priced:
    """A machine whose steps cost what this says."""

    def __init__(self, per_step=1e-3, per_position=1e-5, per_decode_kv=1e-7, jump=0.0):
        self.per_step, self.per_position = per_step, per_position
        self.per_decode_kv, self.jump = per_decode_kv, jump

    def step_time(self, plan):
        shape = StepShape.of_plan(plan)
        seconds = self.per_step + self.per_position * shape.num_tokens
        seconds += self.per_decode_kv * shape.decode_context
        return seconds * (1 + self.jump * (shape.phase == "prefill" and shape.prefill_rows == 1))


def priced_machine(clock, **prices) -> Machine:
    runner = TimedRunner(SimulatedRunner(), Priced(**prices), clock)
    return Machine(runner, num_blocks=256, block_size=16, max_model_len=512, vocab_size=100)


def test_prices_that_the_model_can_express_are_found_exactly():
    clock = VirtualClock()
    calibration = calibrate_machine(priced_machine(clock), clock=clock)
    assert {"prefill", "decode"} <= set(calibration.errors)
    for error in calibration.errors.values():
        assert error.p95 < 1e-6


def test_each_phase_has_its_own_error_and_a_good_one_hides_no_bad_one():
    clock = VirtualClock()
    calibration = calibrate_machine(priced_machine(clock, jump=1.0), clock=clock)
    assert calibration.errors["decode"].median < 0.05
    assert calibration.errors["prefill"].median > 0.1


def test_no_step_is_used_both_for_the_fit_and_for_the_errors(monkeypatch):
    seen = {}

    def spy(name, original):
        def call(*args, **kwargs):
            seen.setdefault(name, []).append(args)
            return original(*args, **kwargs)

        return call

    for name in ("fit_cost_model", "phase_errors"):
        monkeypatch.setattr(module, name, spy(name, getattr(module, name)))
    clock = VirtualClock()
    calibrate_machine(priced_machine(clock), clock=clock)
    fitted = {id(sample) for sample in seen["fit_cost_model"][0][0]}
    (_, tests), *_ = seen["phase_errors"]
    assert tests and not fitted & {id(sample) for sample in tests}
    assert {"prefill", "decode"} <= {sample.phase for sample in tests}


def test_a_real_model_is_calibrated_and_serves_on(tmp_path):
    llm = LLM(random_gpt2(tmp_path), num_blocks=64, block_size=4)
    greedy = SamplingParams(temperature=0, max_tokens=8)
    before = llm.generate([[1, 2, 3]], greedy)[0].token_ids
    calibration = calibrate(llm)
    text = calibration.explain()
    assert "prefill steps: off by" in text and "decode steps: off by" in text
    assert calibration.model.time_of(StepShape.of_rows([(10, 1)])) > 0
    assert llm.generate([[1, 2, 3]], greedy)[0].token_ids == before


def test_an_llm_at_work_is_refused(tmp_path):
    llm = LLM(random_gpt2(tmp_path), num_blocks=64, block_size=4)
    stream = llm.stream([[1, 2, 3]])
    next(stream)
    with pytest.raises(ValueError, match="1 requests are unfinished"):
        calibrate(llm)
