"""From logits to token ids. A request's draws depend on its seed, never on its batch-mates."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from toyserve.request import Request, TokenLogprobs


class Sampler:
    """Keeps one random generator per request, so that its n-th token takes its n-th draw.

    Preemption, batch-mates and chunk sizes cannot change a draw: one is made per emitted token.
    seed: for requests that bring none; each of those gets a seed of its own.
    """

    def __init__(self, seed: int, eos_token_id: int | None) -> None:
        self.eos_token_id = eos_token_id
        self._seeds = random.Random(seed)
        self._generators: dict[Request, random.Random] = {}

    def forget(self, request: Request) -> None:
        self._generators.pop(request, None)

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[int]:
        """One token id per row of ``logits`` [num_requests, vocab_size]."""
        logits = self._hide_early_ends(logits, requests)
        token_ids = argmax(logits)
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if drawn:
            chosen = self._draw(logits[drawn], [requests[row] for row in drawn])
            for row, token_id in zip(drawn, chosen, strict=True):
                token_ids[row] = token_id
        return token_ids

    def ended(self, token_ids: Mapping[Request, int]) -> set[Request]:
        """The requests whose answer ends with this token, by the model's or the user's word."""
        eos = self.eos_token_id
        return {
            request
            for request, token_id in token_ids.items()
            if token_id in request.params.stop_token_ids
            or (token_id == eos and not request.params.ignore_eos)
        }

    def _hide_early_ends(self, logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """Before min_tokens no answer may end: a copy without those tokens, if there are any."""
        unchanged = logits
        for row, request in enumerate(requests):
            min_tokens = request.params.min_tokens
            if min_tokens and request.num_output_tokens < min_tokens:
                ends = [i for i in self._end_ids(request) if i < logits.shape[1]]
                if len(ends) == logits.shape[1]:
                    continue  # every token would end it: there is nothing else to say
                logits = logits.clone() if logits is unchanged else logits
                logits[row, ends] = float("-inf")
        return logits

    def _end_ids(self, request: Request) -> set[int]:
        ids = set(request.params.stop_token_ids)
        if self.eos_token_id is not None:
            ids.add(self.eos_token_id)
        return ids

    def _draw(self, logits: Tensor, requests: Sequence[Request]) -> list[int]:
        """Inverse transform over the tokens sorted by probability, in float64."""
        params = [r.params for r in requests]
        # float64 from the start: in float32 a tiny top_p is 0 and a huge temperature infinite.
        # Where the logits are, since sorting 50,000 tokens a row takes a CPU longer than a GPU
        # takes for the model; except that not every device has float64.
        device = logits.device if logits.device.type == "cuda" else torch.device("cpu")

        def column(numbers: list[float]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.float64, device=device)[:, None]

        temperature = column([p.temperature for p in params])
        top_p = column([p.top_p for p in params])
        top_k = torch.tensor([min(p.top_k, logits.shape[1]) for p in params], device=device)
        values, order = logits.to(device).double().sort(dim=-1, descending=True, stable=True)
        # Shifting by the maximum first keeps a small temperature from overflowing.
        probs = ((values - values[:, :1]) / temperature).softmax(-1)
        rank = torch.arange(probs.shape[1], device=device)[None]
        probs[(top_k[:, None] > 0) & (rank >= top_k[:, None])] = 0.0
        # Top-p keeps the tokens before which less than p (of what top-k left) has accumulated.
        mass = probs.cumsum(-1)
        beyond = (mass - probs) >= top_p * mass[:, -1:]
        beyond[:, 0] = False  # the most likely token is always kept
        probs[beyond] = 0.0
        mass = probs.cumsum(-1)
        draws = column([self._generator(r).random() for r in requests])
        place = torch.searchsorted(mass, draws * mass[:, -1:], right=True)
        last = (probs > 0).sum(-1, keepdim=True) - 1  # a draw just below 1 may round past the end
        return order.gather(1, torch.minimum(place, last)).squeeze(1).tolist()

    def _generator(self, request: Request) -> random.Random:
        generator = self._generators.get(request)
        if generator is None:
            seed = request.params.seed
            generator = random.Random(self._seeds.getrandbits(64) if seed is None else seed)
            self._generators[request] = generator
        return generator


def argmax(logits: Tensor) -> list[int]:
    """The likeliest token of each row. On a CPU numpy finds it ten times as fast as torch."""
    likeliest = logits.numpy() if logits.device.type == "cpu" else logits
    ids: list[int] = likeliest.argmax(-1).tolist()
    return ids


def token_logprobs(
    logits: Tensor, requests: Sequence[Request], token_ids: Sequence[int]
) -> dict[Request, TokenLogprobs]:
    """For the requests that ask for them. logits [num_requests, vocab_size], unmasked."""
    rows = [row for row, request in enumerate(requests) if request.params.logprobs is not None]
    if not rows:
        return {}
    logprobs = logits[rows].log_softmax(-1)
    most = max(requests[row].params.logprobs or 0 for row in rows)
    values, ids = (t.tolist() for t in logprobs.topk(min(most, logprobs.shape[1]), dim=-1))
    chosen = torch.tensor([token_ids[row] for row in rows], device=logprobs.device)
    own = logprobs.gather(1, chosen[:, None])[:, 0].tolist()
    result = {}
    for i, row in enumerate(rows):
        count = requests[row].params.logprobs or 0
        top = dict(zip(ids[i][:count], values[i][:count], strict=True))
        result[requests[row]] = TokenLogprobs(token_ids[row], own[i], top)
    return result
