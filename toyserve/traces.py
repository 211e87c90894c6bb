"""Recorded workloads: the Azure LLM inference trace of 2023, and a generated one of its shape.

The trace holds an hour of two services, conversation (19,366 requests) and code (8,819), each
request with its time, its prompt's length and its answer's. The files are on GitHub in
Azure/AzurePublicDataset (data/AzureLLMInferenceTrace_conv.csv and _code.csv, CC-BY 4.0):
Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from toyserve.workload_types import Workload, WorkloadRequest

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
WHERE = (
    "the files AzureLLMInferenceTrace_conv.csv and _code.csv are in the GitHub repository "
    "Azure/AzurePublicDataset, folder data"
)


def read_azure_trace(
    path: str | Path,
    limit: int | None = None,
    rate_scale: float = 1.0,
    max_model_len: int | None = None,
    max_tokens: int | None = None,
) -> Workload:
    """A trace as a workload; the first request arrives at 0.

    limit: only so many requests, from the start. rate_scale: arrivals so many times as fast.
    max_model_len: cut prompt, then answer, to what such a model takes. max_tokens: what users
    declare, which the trace does not say; None: the longest answer in it. Raises ValueError with
    file, line and what is expected.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: it must be at least 1 request")
    if max_model_len is not None and max_model_len < 2:
        raise ValueError(
            f"max_model_len is {max_model_len}: a prompt and an answer need at least 2"
        )
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: it must be at least 1")
    rows = _read_rows(Path(path), limit)
    rows.sort(key=lambda row: row[0])
    start = rows[0][0]
    arrivals = [(when - start).total_seconds() for when, _, _ in rows]
    lengths = [(prompt, answer) for _, prompt, answer in rows]
    name = Path(path).stem
    return _workload(name, arrivals, lengths, max_model_len, max_tokens).scaled(rate_scale)


def _read_rows(path: Path, limit: int | None) -> list[tuple[datetime, int, int]]:
    rows: list[tuple[datetime, int, int]] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            if header is None:
                raise ValueError(f"{path} is empty: expected the columns {', '.join(COLUMNS)}")
            if [name.strip() for name in header] != list(COLUMNS):
                raise ValueError(
                    f"{path}, line 1 has the columns {','.join(header)[:80]!r}: expected "
                    f"{', '.join(COLUMNS)}"
                )
            for row in reader:
                if row:
                    rows.append(_read_row(path, reader.line_num, row))
                if len(rows) == limit:
                    break
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a trace ({error}); {WHERE}") from None
    if not rows:
        raise ValueError(f"{path} holds no requests: expected one a line after the header")
    return rows


def _read_row(path: Path, line: int, row: list[str]) -> tuple[datetime, int, int]:
    try:
        when, prompt, answer = row
        time = datetime.fromisoformat(when.strip())
        result = time if time.tzinfo else time.replace(tzinfo=UTC), int(prompt), int(answer)
    except ValueError:
        raise ValueError(
            f"{path}, line {line} is {','.join(row)[:80]!r}: expected a time such as "
            f"2023-11-16 18:15:46.6805900 and two whole numbers of tokens"
        ) from None
    if result[1] < 1 or result[2] < 1:
        raise ValueError(
            f"{path}, line {line} has {result[1]} prompt and {result[2]} answer tokens: each must "
            f"be at least 1"
        )
    return result


def _workload(
    name: str,
    arrivals: Sequence[float],
    lengths: Sequence[tuple[int, int]],
    max_model_len: int | None,
    max_tokens: int | None,
) -> Workload:
    if max_tokens is None:
        max_tokens = max(answer for _, answer in lengths)
    requests = []
    for i, (arrival, (prompt, answer)) in enumerate(zip(arrivals, lengths, strict=True)):
        declared = max_tokens
        if max_model_len is not None:
            prompt = min(prompt, max_model_len - 1)
            declared = min(declared, max_model_len - prompt)
        answer = min(answer, declared)
        requests.append(WorkloadRequest(f"r{i}", arrival, prompt, answer, declared))
    return Workload(name, tuple(requests))


# Lengths at these shares of the sorted requests of the conversation trace (the public figures).
_SHARES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_PROMPTS = (2, 181, 207, 396, 1020, 1189, 2735, 4083, 4142, 6179)
_ANSWERS = (7, 41, 54, 85, 129, 395, 424, 451, 601, 954)
_RATE = 5.53  # requests per second


def azure_like(
    n: int = 1000,
    seed: int = 0,
    rate: float = _RATE,
    max_model_len: int | None = None,
    max_tokens: int | None = None,
) -> Workload:
    """``n`` requests of the conversation trace's shape, where the file itself is not at hand.

    Prompt and answer lengths follow the trace's percentiles, each drawn by itself; arrivals are
    Poisson, as the trace's nearly are. Parameters otherwise as for ``read_azure_trace``.
    """
    if n < 1:
        raise ValueError(f"n is {n}: it must be at least 1 request")
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate is {rate!r}: it must be above 0 requests per second")
    rng = np.random.default_rng(seed)
    lengths = np.stack([_from_shares(rng, n, _PROMPTS), _from_shares(rng, n, _ANSWERS)], axis=1)
    arrivals = np.cumsum(rng.exponential(1.0, n))
    arrivals = (arrivals - arrivals[0]) / rate
    pairs = [(int(prompt), int(answer)) for prompt, answer in lengths]
    return _workload("azure_like", arrivals.tolist(), pairs, max_model_len, max_tokens)


def _from_shares(rng: np.random.Generator, n: int, lengths: Sequence[int]) -> np.ndarray:
    """n lengths whose percentiles are the given ones, on a log scale in between: [n]."""
    drawn = rng.uniform(0.0, 1.0, n)
    return np.rint(np.exp(np.interp(drawn, _SHARES, np.log(lengths)))).astype(int)
