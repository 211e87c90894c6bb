"""``LLM``: a model and an engine around it, behind one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import torch

from toyserve.clock import Clock, VirtualClock, WallClock
from toyserve.engine import Engine
from toyserve.kv import KVManager
from toyserve.llm_arguments import (
    Prompt,
    as_prompts,
    check_max_model_len,
    check_memory,
    check_seed,
    host_blocks,
    one_each,
    pick_device,
    pick_dtype,
)
from toyserve.models.attention import AttentionBackend
from toyserve.models.gpt2 import GPT2
from toyserve.models.kv_pool import KVPool
from toyserve.models.sampler import Sampler
from toyserve.models.tokenizer import Tokenizer
from toyserve.models.triton_attention import AttentionName, TritonAttention, make_attention
from toyserve.models.weights import load_checkpoint
from toyserve.parts import (
    make_cost_model,
    make_kv,
    make_policy,
    make_scheduler,
)
from toyserve.policies import Policy
from toyserve.recording import Recording
from toyserve.request import Request, RequestMetrics, RequestOutput, SamplingParams
from toyserve.runners import Runner, TimedRunner
from toyserve.runners.decode_graphs import CudaCapture, DecodeGraphs
from toyserve.runners.simulated import ScriptedLengths
from toyserve.runners.torch_runner import TorchRunner
from toyserve.schedulers import Scheduler
from toyserve.streaming import Answers, StreamDelta

if TYPE_CHECKING:
    from toyserve.workload import Workload


class LLM:
    """A GPT-2 being served.

    model: "toy" (bundled), a folder, or a hub name. scheduler, kv, policy: a name or an object.
    num_blocks x block_size: the KV pool, in token slots. max_running: requests in a step at most.
    token_budget: tokens in a step at most (chunked only; 256 when not given).
    preemption: "recompute", or "swap" to a pool of num_host_blocks in the host's memory.
    prefix_caching: reuse the KV of earlier requests that began with the same tokens (paged only).
    clock: "wall", or a GPU's name ("h100"): then steps take what a cost model says for that GPU and
    ``clock_model`` (by default this model), while the tokens are still this model's.
    device, dtype: CUDA with fp16 where there is one, else CPU with fp32.
    attention: "triton" (the kernels), "torch", or "auto": Triton on a CUDA GPU, torch elsewhere.
    cuda_graphs: replay decode steps as CUDA graphs; by default wherever the kernels are compiled
    (elsewhere True runs the same padded steps without graphs).
    max_model_len: longest prompt + answer, at most the model's own context.
    """

    def __init__(
        self,
        model: str | Path = "toy",
        *,
        scheduler: str | Scheduler = "chunked",
        kv: str | KVManager = "paged",
        num_blocks: int = 256,
        block_size: int = 16,
        max_running: int = 16,
        token_budget: int | None = None,
        max_chunk: int | None = None,
        max_wait: float | None = None,
        watermark: float = 0.0,
        policy: str | Policy = "fcfs",
        preemption: str = "recompute",
        num_host_blocks: int = 0,
        prefix_caching: bool = False,
        clock: str | Clock = "wall",
        clock_model: Any = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        attention: AttentionName = "auto",
        cuda_graphs: bool | None = None,
        seed: int = 0,
        max_model_len: int | None = None,
        check: bool | None = None,
    ) -> None:
        self.scheduler = make_scheduler(
            scheduler,
            max_running=max_running,
            token_budget=token_budget,
            max_chunk=max_chunk,
            max_wait=max_wait,
            watermark=watermark,
            preemption=preemption,
            num_host_blocks=num_host_blocks,
        )
        self.policy = make_policy(policy)
        check_seed(seed)
        self.device, self.dtype = pick_device(device), None
        self.dtype = pick_dtype(dtype, self.device)
        config, weights, self.source = load_checkpoint(model)  # a folder, or a hub name
        self.config = config
        self.max_model_len = check_max_model_len(max_model_len, config.n_positions)
        self.kv = make_kv(
            kv,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=self.max_model_len,
            prefix_caching=prefix_caching,
        )
        self.tokenizer = Tokenizer.load(self.source)
        self.model = GPT2(config, weights, self.device, self.dtype)
        check_memory(self.scheduler, self.kv, config, self.dtype, self.device)
        pool = KVPool(
            config.n_layer,
            config.n_head,
            config.head_dim,
            self.kv.num_blocks,
            self.kv.block_size,
            self.device,
            self.dtype,
            host_blocks(self.scheduler),
        )
        backend = make_attention(attention, pool)
        self.attention = "triton" if isinstance(backend, TritonAttention) else "torch"
        graphs = self._make_graphs(backend, cuda_graphs)
        sampler = Sampler(seed, config.eos_token_id)
        self._torch_runner = TorchRunner(self.model, backend, sampler, graphs)
        self.clock, self._cost = self._make_clock(clock, clock_model)
        self.engine = Engine(
            scheduler=self.scheduler,
            kv=self.kv,
            runner=self._timed(self._torch_runner),
            policy=self.policy,
            clock=self.clock,
            max_model_len=self.max_model_len,
            recording=Recording({"model": str(model), "clock": str(clock)}),
            check=check,
        )
        self._num_requests = 0

    # -- serving --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        arrival_times: Sequence[float] | None = None,
        users: str | Sequence[str] = "default",
        priorities: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Serve all prompts and return their outputs in input order.

        prompts: texts or lists of token ids. params: one for all, or one each. arrival_times: in
        seconds from now, 0 by default. users and priorities (lower is more urgent) matter to the
        policies that look at them. A prompt that can never run comes back with finish_reason
        "refused" and its ``error``, with a warning; the others are served.
        """
        return self._finish(self._start(prompts, params, arrival_times, users, priorities))

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamDelta]:
        """Like ``generate``, but yields each request's new text as soon as it is certain.

        Closing the iterator early aborts what is unfinished.
        """
        yield from self._start(prompts, params).stream()

    def replay(
        self, workload: Workload, params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """Serve a workload at its arrival times, each answer exactly as long as it says.

        params: how to sample (greedy by default). Its ``max_tokens`` is the workload's; its stops
        count only for requests whose answer length the workload leaves open.
        """
        params = params or SamplingParams(temperature=0.0)
        requests = workload.requests_for_engine(
            vocab_size=self.config.vocab_size, tokenize=self.token_ids
        )
        for request in requests:
            self.token_ids(request.token_ids)  # raises on ids that the model has not
        lens = workload.output_lens
        for request in requests:
            known = request.request_id in lens
            length = {"max_tokens": request.params.max_tokens, "min_tokens": 0}
            stops = {"ignore_eos": True, "stop": (), "stop_token_ids": ()} if known else {}
            request.params = replace(params, **length, **stops)  # type: ignore[arg-type]
        self._restart()
        runner = self.engine.runner
        self.engine.runner = self._timed(ScriptedLengths(self._torch_runner, lens))
        try:
            return self._finish(self._submit(requests))
        finally:
            self.engine.runner = runner

    @property
    def recording(self) -> Recording:
        """The last ``generate``, ``stream`` or ``replay``."""
        return self.engine.recording

    # -- inside ---------------------------------------------------------------------------------

    def _make_clock(self, clock: str | Clock, clock_model: Any) -> tuple[Clock, Any]:
        if isinstance(clock, type) or not (isinstance(clock, str) or hasattr(clock, "wait_until")):
            raise ValueError(f"clock is {clock!r}: it must be 'wall', a GPU's name or a Clock")
        if clock == "wall":
            if clock_model is not None:
                raise ValueError("clock_model would do nothing: the wall clock needs no cost model")
            return WallClock(), None
        if isinstance(clock, str):
            from toyserve.costs import ModelSpec

            spec = clock_model or ModelSpec.from_gpt2_config(self.config.__dict__)
            return VirtualClock(), make_cost_model(clock, spec)
        return clock, None

    def _make_graphs(
        self, backend: AttentionBackend, cuda_graphs: bool | None
    ) -> DecodeGraphs | None:
        if cuda_graphs not in (None, True, False):
            raise ValueError(f"cuda_graphs is {cuda_graphs!r}: it must be True, False or None")
        if not isinstance(backend, TritonAttention):
            if cuda_graphs:
                raise ValueError("cuda_graphs needs attention='triton', and this is 'torch'")
            return None
        if cuda_graphs is None:
            cuda_graphs = backend.compiled
        if not cuda_graphs:
            return None
        capture = CudaCapture(self.device) if backend.compiled else None
        return DecodeGraphs(self.model, backend, self.max_model_len, capture)

    def _timed(self, runner: Runner) -> Runner:
        if self._cost is None:
            return runner
        assert isinstance(self.clock, VirtualClock)
        return TimedRunner(runner, self._cost, self.clock)

    def _restart(self) -> None:
        """A new recording from time 0; only an idle engine can."""
        self.engine.restart()

    def _start(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        arrival_times: Sequence[float] | None = None,
        users: str | Sequence[str] = "default",
        priorities: int | Sequence[int] = 0,
    ) -> Answers:
        prompt_list = as_prompts(prompts)
        default = SamplingParams()
        params_list = one_each("params", default if params is None else params, len(prompt_list))
        times = one_each(
            "arrival_times", 0.0 if arrival_times is None else arrival_times, len(prompt_list)
        )
        names = one_each("users", users, len(prompt_list))
        classes = one_each("priorities", priorities, len(prompt_list))
        self._restart()
        requests = []
        for prompt, param, time, user, priority in zip(
            prompt_list, params_list, times, names, classes, strict=True
        ):
            request_id = f"r{self._num_requests}"
            token_ids = self.token_ids(prompt)
            requests.append(
                Request(request_id, token_ids, param, time, user=user, priority=priority)
            )
            self._num_requests += 1
        return self._submit(requests)

    def token_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model reads it; raises ValueError on ids that the model has not."""
        vocab_size = self.config.vocab_size
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt)  # a tokenizer may know more than its model
        for token_id in prompt:
            is_int = isinstance(token_id, Integral) and not isinstance(token_id, bool)
            if not is_int or not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"the prompt holds {token_id!r}: token ids are whole numbers from 0 to "
                    f"{vocab_size - 1}"
                )
        return [int(token_id) for token_id in prompt]

    def _submit(self, requests: Sequence[Request]) -> Answers:
        try:
            for request in requests:
                if not self.engine.add_request(request):
                    warn(f"request {request.request_id} was refused: {request.error}", stacklevel=4)
        except BaseException:  # a warning turned into an error, Ctrl-C: none of them is served
            for request in requests:
                self.engine.abort(request.request_id)
            raise
        return Answers(self.engine, self.tokenizer, requests)

    def _finish(self, answers: Answers) -> list[RequestOutput]:
        for _ in answers.stream():
            pass
        return [self._output(r, answers.text_of(r)) for r in answers.requests]

    def _output(self, request: Request, text: str) -> RequestOutput:
        prompt_ids = request.token_ids[: request.num_prompt_tokens]
        return RequestOutput(
            request_id=request.request_id,
            prompt=self.tokenizer.decode(prompt_ids),
            prompt_token_ids=prompt_ids,
            text=text,
            token_ids=request.output_token_ids,
            finish_reason=request.finish_reason,
            metrics=RequestMetrics.of(request),
            error=request.error,
            logprobs=request.logprobs if request.params.logprobs is not None else None,
        )
