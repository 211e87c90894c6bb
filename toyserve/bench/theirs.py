"""transformers' contestants on the same weights: one by one, static batches, its own continuous
batching; all with attention by sdpa."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from toyserve.bench import names
from toyserve.bench.ours import BLOCK_SIZE, MAX_RUNNING, NUM_BLOCKS, STATIC_BATCH
from toyserve.bench.shapes import Weights
from toyserve.bench.work import BenchClock, Contestant, Job, Served, Work

# Measured on the standard mix: pages of 16 to 256 and budgets of 256 to 512 are within 3 % of each
# other (64 tokens a page the fastest, by 2 %), a budget of 1024 is 6 % slower.
_PAGE = 32  # tokens
_MAX_BATCH_TOKENS = 512


def their_contestants(weights: Weights) -> list[Contestant]:
    """Raises ModuleNotFoundError where transformers is not installed."""
    one_by_one = load_transformers(weights)
    contestants = [
        _static(names.HF_ONE_BY_ONE, one_by_one, 1, slow=True),
        _static(names.HF_STATIC, one_by_one, STATIC_BATCH),
    ]
    if _has_continuous_batching():
        # It changes the model's attention, so it gets a model of its own on the same tensors.
        contestants.append(_continuous(load_transformers(weights)))
    return contestants


def load_transformers(weights: Weights) -> Any:
    """A GPT2LMHeadModel that shares the tensors."""
    from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging as their_logging

    their_logging.set_verbosity_error()
    c = weights.config
    config = GPT2Config(
        vocab_size=c.vocab_size,
        n_positions=c.n_positions,
        n_embd=c.n_embd,
        n_layer=c.n_layer,
        n_head=c.n_head,
        n_inner=c.n_inner,
        layer_norm_epsilon=c.layer_norm_epsilon,
        tie_word_embeddings=c.tie_word_embeddings,
        bos_token_id=c.eos_token_id,
        eos_token_id=c.eos_token_id,
    )
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    names = {
        n if n.startswith("lm_head") else f"transformer.{n}": t for n, t in weights.tensors.items()
    }
    problems = model.load_state_dict(names, strict=False, assign=True)
    assert set(problems.missing_keys) <= {"lm_head.weight"} and not problems.unexpected_keys
    model.tie_weights()
    model.generation_config = GenerationConfig(
        do_sample=False, pad_token_id=0, eos_token_id=None, use_cache=True
    )
    return model.eval()


# -- generate() -----------------------------------------------------------------------------------


def _static(name: str, model: Any, batch_size: int, slow: bool = False) -> Contestant:
    @torch.inference_mode()
    def serve(work: Work, clock: BenchClock) -> Served:
        token_ids: dict[str, list[int]] = {}
        finish_times: dict[str, float] = {}
        jobs = list(work.jobs)
        clock.restart()
        while jobs:
            clock.wait_until(jobs[0].arrival_time)
            now = clock.now()
            batch = [job for job in jobs[:batch_size] if job.arrival_time <= now]
            del jobs[: len(batch)]
            token_ids |= _generate(model, batch)
            finish_times |= dict.fromkeys((job.request_id for job in batch), clock.now())
        return Served(token_ids, finish_times, clock.now())

    return Contestant(name, serve, slow)


def _generate(model: Any, batch: list[Job]) -> dict[str, list[int]]:
    """One static batch, padded on the left, as long as its longest answer."""
    width = max(len(job.prompt) for job in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, job in enumerate(batch):
        ids[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
        mask[row, width - len(job.prompt) :] = 1
    longest = max(job.output_len for job in batch)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=longest)
    return {
        job.request_id: out[row, width : width + job.output_len].tolist()
        for row, job in enumerate(batch)
    }


# -- continuous batching --------------------------------------------------------------------------


def _has_continuous_batching() -> bool:
    try:
        from transformers import ContinuousBatchingConfig  # noqa: F401
    except ImportError:
        return False
    return True


def _continuous(model: Any) -> Contestant:
    def serve(work: Work, clock: BenchClock) -> Served:
        with _manager(model) as manager:
            manager.add_request([1, 2, 3], request_id="warm-up", max_new_tokens=2)
            while manager.get_result(timeout=5) is None:
                pass
            return _drive(manager, work, clock)

    return Contestant(names.HF_CONTINUOUS, serve)


@contextmanager
def _manager(model: Any) -> Iterator[Any]:
    """A running manager: its thread steps the model until the context ends."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation = GenerationConfig(
        do_sample=False, pad_token_id=0, eos_token_id=-1, max_new_tokens=256, use_cache=True
    )
    config = ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=NUM_BLOCKS * BLOCK_SIZE // _PAGE,
        max_batch_tokens=_MAX_BATCH_TOKENS,
        max_requests_per_batch=MAX_RUNNING,
        allow_block_sharing=False,
        use_cuda_graph=False,
        use_async_batching=False,
    )
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        with model.continuous_batching_context_manager(
            generation_config=generation,
            continuous_batching_config=config,
            block=True,
            timeout=5,
            warmup=False,
        ) as manager:
            yield manager


def _drive(manager: Any, work: Work, clock: BenchClock) -> Served:
    """Hand in every job at its arrival and collect the answers."""
    token_ids: dict[str, list[int]] = {}
    finish_times: dict[str, float] = {}
    jobs = list(work.jobs)
    num_added = 0
    clock.restart()
    while len(token_ids) < len(jobs):
        if num_added == len(token_ids):  # nothing is under way
            clock.wait_until(jobs[num_added].arrival_time)
        while num_added < len(jobs) and jobs[num_added].arrival_time <= clock.now():
            job = jobs[num_added]
            manager.add_request(
                job.prompt, request_id=job.request_id, max_new_tokens=job.output_len
            )
            num_added += 1
        result = manager.get_result(timeout=1.0 if num_added == len(jobs) else 0.005)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("transformers' continuous batching has stopped")
        elif result.error:
            raise RuntimeError(f"transformers' continuous batching: {result.error}")
        elif result.is_finished():
            token_ids[result.request_id] = list(result.generated_tokens)
            finish_times[result.request_id] = clock.now()
    return Served(token_ids, finish_times, clock.now())
