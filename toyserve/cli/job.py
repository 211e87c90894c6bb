"""From the options of ``toyserve run`` to an engine with its work, with a real model or without."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toyserve.engine import Engine
from toyserve.request import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from toyserve.workload import Workload

# Simulated pools end here: a million token slots are more than any trace holds at once.
MOST_SIMULATED_BLOCKS = 65_536

_ENGINE_OPTIONS = (
    "max_running",
    "token_budget",
    "max_chunk",
    "max_wait",
    "num_blocks",
    "block_size",
    "preemption",
    "num_host_blocks",
    "watermark",
)
_USED_BY = {
    "token_budget": ("chunked",),
    "max_chunk": ("chunked",),
    "max_wait": ("static",),
}


@dataclass
class Job:
    """An engine and what it is to serve. ``serve()`` returns the outputs if the user gave prompts,
    None for a workload, whose texts mean nothing."""

    engine: Engine
    title: str
    num_requests: int
    serve: Callable[[], list[RequestOutput] | None]


def make_job(options: argparse.Namespace) -> Job:
    """Everything is checked here, before the first step. Raises ValueError in one sentence."""
    params = SamplingParams(
        temperature=options.temperature,
        max_tokens=64 if options.max_tokens is None else options.max_tokens,
    )
    workload = None
    if not options.prompt:
        from toyserve.workload import make_workload

        workload = make_workload(options.workload or "burst")
    if _is_simulated(options):
        if workload is None:
            raise ValueError("a simulation answers no --prompt: it has no weights, only times")
        return _simulated_job(options, workload)
    return _real_job(options, workload, params)


def engine_options(options: argparse.Namespace, workload: Workload | None) -> dict[str, Any]:
    """What the user said; where they said nothing, what a scripted scenario is made for."""
    scheduler = options.scheduler or "chunked"
    given = {name: getattr(options, name) for name in _ENGINE_OPTIONS}
    for name, value in (workload.settings if workload else {}).items():
        fits = scheduler in _USED_BY.get(name, (scheduler,))
        if given.get(name) is None and fits:
            given[name] = value
    return {"scheduler": scheduler} | {k: v for k, v in given.items() if v is not None}


def _is_simulated(options: argparse.Namespace) -> bool:
    from toyserve.modelspecs import MODELS

    shape_only = options.model in MODELS and options.model != "toy"
    if options.clock == "wall":
        if options.simulate:
            raise ValueError(
                "--simulate has no wall clock to go by: name a GPU, such as --clock h100"
            )
        if shape_only and not options.model.startswith("gpt2"):
            raise ValueError(
                f"model {options.model!r} is a shape without weights here: it runs only on a GPU's "
                f"cost model, such as --clock h100"
            )
        return False
    return bool(options.simulate or shape_only)


# -- a real model -------------------------------------------------------------------------------


def _real_job(
    options: argparse.Namespace, workload: Workload | None, params: SamplingParams
) -> Job:
    if options.num_gpus != 1:
        raise ValueError(f"num_gpus is {options.num_gpus}: only a simulation has more than 1")
    _check_names(options)
    _say_if_hub(options.model)
    from toyserve.llm import LLM

    llm = LLM(
        options.model,
        kv=options.kv,
        policy=options.policy,
        prefix_caching=options.prefix_caching,
        clock=options.clock,
        device=options.device,
        seed=options.seed,
        max_model_len=options.max_model_len,
        **engine_options(options, workload),
    )

    def serve() -> list[RequestOutput] | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # refusals are reported at the end
            if workload is None:
                return llm.generate([_prompt(text) for text in options.prompt], params)
            llm.replay(workload, params)
            return None

    num_requests = len(options.prompt) if workload is None else len(workload)
    what = f"{num_requests} prompts" if workload is None else workload.describe()
    clock = "this machine's clock" if options.clock == "wall" else f"the clock of a {options.clock}"
    title = f"{options.model}, {type(llm.scheduler).__name__}, {options.kv} KV, on {clock}; {what}"
    return Job(llm.engine, title, num_requests, serve)


def _prompt(argument: str) -> str:
    """A text from the command line: \\n is a new line, bytes are UTF-8 whatever the locale says."""
    return os.fsencode(argument).decode("utf-8", errors="replace").replace("\\n", "\n")


def _check_names(options: argparse.Namespace) -> None:
    """A wrong name is answered at once, not after torch has loaded."""
    from toyserve.parts import PREEMPTIONS, make_policy, make_scheduler, unknown

    make_scheduler(options.scheduler or "chunked")
    if options.preemption not in (None, *PREEMPTIONS):
        raise unknown("preemption", options.preemption, PREEMPTIONS)
    make_policy(options.policy)
    if options.clock != "wall":
        from toyserve.hardware import get_hardware

        get_hardware(options.clock)


def _say_if_hub(model: str) -> None:
    """A name that is no folder goes to a hub, which can take a while and is chatty when offline."""
    if model == "toy" or Path(model).exists() or model.startswith(("/", ".", "~")):
        return
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    print(f"toyserve: looking for the model {model!r} on the hub ...", file=sys.stderr)


# -- no tensors ---------------------------------------------------------------------------------


def _simulated_job(options: argparse.Namespace, workload: Workload) -> Job:
    from toyserve.clock import VirtualClock
    from toyserve.costs import RooflineCostModel
    from toyserve.hardware import get_hardware
    from toyserve.modelspecs import get_model
    from toyserve.parts import make_kv, make_policy, make_scheduler
    from toyserve.recording import Recording
    from toyserve.runners import SimulatedRunner, TimedRunner

    if options.device is not None:
        raise ValueError("--device would do nothing: a simulation runs no tensors")
    hardware, spec = get_hardware(options.clock), get_model(options.model)
    if not hardware.has_16_bit:
        spec = spec.with_dtypes(weight="fp32", kv="fp32")
    cost = RooflineCostModel(hardware, spec, num_gpus=options.num_gpus)
    parts = engine_options(options, workload)
    block_size = parts.pop("block_size", 16)
    num_blocks = parts.pop("num_blocks", None)
    if num_blocks is None:
        num_blocks = _blocks_that_fit(spec, hardware, options.num_gpus, block_size)
    max_model_len = _model_len(options.max_model_len, spec.max_model_len)
    clock = VirtualClock()
    engine = Engine(
        scheduler=make_scheduler(**parts),
        kv=make_kv(
            options.kv,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            prefix_caching=options.prefix_caching,
        ),
        runner=TimedRunner(SimulatedRunner(workload.output_lens), cost, clock),
        policy=make_policy(options.policy),
        clock=clock,
        max_model_len=max_model_len,
        recording=Recording({"model": spec.name, "clock": options.clock, "simulated": True}),
    )

    def serve() -> None:
        engine.run(workload.requests_for_engine(vocab_size=spec.vocab, seed=options.seed))

    gpus = f"{options.num_gpus} x {hardware.name}" if options.num_gpus > 1 else hardware.name
    title = (
        f"{spec.name} simulated on {gpus}, {type(engine.scheduler).__name__}, {options.kv} KV "
        f"({num_blocks:,} blocks); {workload.describe()}"
    )
    return Job(engine, title, len(workload), serve)


def _model_len(wanted: int | None, longest: int) -> int:
    if wanted is not None and not 2 <= wanted <= longest:
        raise ValueError(
            f"max_model_len is {wanted}: it must lie between 2 (a token of prompt and one of "
            f"answer) and {longest}, which is the model's own limit"
        )
    return longest if wanted is None else wanted


def _blocks_that_fit(spec: Any, hardware: Any, num_gpus: int, block_size: int) -> int:
    from toyserve.capacity import plan

    fits = plan(spec, hardware, 1, num_gpus=num_gpus, block_size=block_size)
    if not fits.num_blocks:
        raise ValueError(fits.explain().replace("\n", "; "))
    return min(fits.num_blocks, MOST_SIMULATED_BLOCKS)
