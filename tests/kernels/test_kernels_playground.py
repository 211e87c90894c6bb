"""What lesson 08 looks at, from a process that has Triton to compile or not at all."""

import pytest
import torch
from toyserve_kernels import backend
from toyserve_kernels.playground import online_softmax_steps, run_program_by_program, tiny_problem
from toyserve_kernels.ragged_attention import ragged_attention_reference

REASON = backend.why_no_interpreter()
needs_interpreter = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@needs_interpreter
def test_the_record_says_which_blocks_each_program_read() -> None:
    problem = tiny_problem()
    run = run_program_by_program(problem)
    expected = ragged_attention_reference(*problem.ragged_args)
    assert torch.allclose(run.out.double(), expected, atol=1e-5)
    worked = [p for p in run.programs if p.sequence is not None]
    assert sorted(t for p in worked for t in p.new_tokens) == list(range(6))
    for program in worked:
        table = problem.block_table[program.sequence].tolist()
        assert program.blocks == table[: len(program.blocks)]
        last = max(program.new_tokens) - int(problem.query_start_loc[program.sequence])
        num_new = problem.query_lens[program.sequence]
        assert program.num_keys == int(problem.seq_lens[program.sequence]) - num_new + last + 1
    assert run.grid == (6, 1, 1)
    assert len(run.programs) == 6


@needs_interpreter
def test_the_splits_of_a_decode_share_a_context_out() -> None:
    problem = tiny_problem((7, 3), (1, 1))
    run = run_program_by_program(problem, kernel="decode", num_splits=2)
    first, second = (p for p in run.programs if p.program[0] == 0)
    assert first.blocks + second.blocks == problem.block_table[0, :4].tolist()
    assert first.num_keys + second.num_keys == 7


def test_the_online_softmax_by_hand_ends_at_the_answer_for_any_tile() -> None:
    problem = tiny_problem()
    expected = ragged_attention_reference(*problem.ragged_args)
    for tile in (1, 2, 3, 4, 100):
        steps = online_softmax_steps(problem, sequence=2, new_token=1, head=1, tile=tile)
        assert torch.allclose(steps[-1].out, expected[5, 1])
        assert sum(len(step.scores) for step in steps) == 5
        used = [block for step in steps for block in step.blocks]
        assert set(used) == set(problem.block_table[2, :3].tolist())
    assert steps[-1].l == pytest.approx(float((steps[-1].scores - steps[-1].m_new).exp().sum()))


def test_what_cannot_be_shown_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tiny_problem()
    with pytest.raises(ValueError, match="'ragged' or 'decode', not 'prefill'"):
        run_program_by_program(problem, kernel="prefill")
    with pytest.raises(ValueError, match="new_token is 1, sequence 0 has 1"):
        online_softmax_steps(problem, sequence=0, new_token=1, head=0, tile=4)
    monkeypatch.setattr(backend, "why_no_interpreter", lambda: backend.NOT_INSTALLED)
    with pytest.raises(RuntimeError, match="program by program here: Triton is not installed"):
        run_program_by_program(problem)
