"""What may be asked, and what is answered to the rest: one sentence in OpenAI's shape."""

from __future__ import annotations

import math

import httpx
import pytest
from raw import get, post, send

from toyserve import LLM
from toyserve.server import Server

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []]])
def test_an_empty_prompt_is_refused_and_the_engine_lives(echo: Server, prompt) -> None:
    assert error_of(post(echo, {"prompt": prompt}), 400)["param"] == "prompt"
    assert post(echo, {"prompt": " \n"}).json()["choices"][0]["text"] == " \n"


@pytest.mark.parametrize("number", [0, -1, 1.5, "5", True, 10**30])
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_an_impossible_max_tokens_is_refused(echo: Server, path: str, number) -> None:
    body = {"max_tokens": number, "prompt": "a", "messages": HI}
    assert error_of(post(echo, body, path), 400)["param"] == "max_tokens"


def test_one_token_is_one_token(echo: Server) -> None:
    answer = post(echo, {"prompt": "one two", "max_tokens": 1}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_an_end_token_at_once_is_an_empty_answer_of_one_token(echo: Server) -> None:
    eos = echo.llm.config.eos_token_id
    ids = [eos, 5]
    answer = post(echo, {"prompt": ids, "max_tokens": 9, "stop_token_ids": [eos]}).json()
    assert answer["choices"][0] == {
        "index": 0, "text": "", "logprobs": None, "finish_reason": "stop"
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] == 1


def test_without_max_tokens_a_completion_has_sixteen(echo: Server) -> None:
    answer = post(echo, {"prompt": [7] * 40}).json()
    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("n", 0),
        ("n", 129), ("top_k", -2), ("seed", 1.5), ("stop", 5), ("stop", [""]), ("logprobs", 21),
        ("logprobs", -1), ("best_of", 2), ("min_tokens", -1), ("min_tokens", 99), ("user", 5),
        ("priority", "high"), ("prompt", None), ("prompt", {}), ("prompt", [1, "a"]),
        ("prompt", [-1]), ("prompt", [10**9]), ("prompt", [1.5]), ("stream", "yes"),
        ("frequency_penalty", 0.5), ("logit_bias", {"5": 1}), ("suffix", "x"), ("stop", ["a"] * 99),
        ("tools", [{}]), ("response_format", {"type": "json_object"}),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_by_name(echo: Server, field: str, value) -> None:
    error = error_of(post(echo, {"prompt": "a"} | {field: value}), 400)
    assert error["param"] == field and field.split("_")[0] in error["message"]


@pytest.mark.parametrize(
    "extra",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "suffix": None},
        {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "something_new": [1]},
        {"best_of": 1, "n": 1, "user": "", "min_p": 0, "repetition_penalty": 1.0, "model": None},
    ],
)
def test_neutral_and_unknown_fields_are_accepted(echo: Server, extra) -> None:
    assert post(echo, {"prompt": "a"} | extra).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ([{"role": "king", "content": "x"}], "messages"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages"),
        ([{"role": "user", "content": 5}], "messages"),
        (["hello"], "messages"),
    ],
)
def test_messages_that_are_none_are_refused(echo: Server, messages, param: str) -> None:
    assert error_of(post(echo, {"messages": messages}, CHAT), 400)["param"] == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"\xff", b'{"prompt":' + b"[" * 5000])
def test_a_body_that_is_no_json_object_is_refused(echo: Server, body: bytes) -> None:
    error_of(send(echo, body), 400)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_beyond_json_are_refused(echo: Server, number: str) -> None:
    for field in ("temperature", "top_p", "max_tokens", "seed"):
        body = f'{{"prompt": "a", "{field}": {number}}}'
        error_of(send(echo, body), 400)


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(echo: Server) -> None:
    bad = "\\ud800"
    for body in (
        f'{{"prompt": "{bad}"}}',
        f'{{"prompt": "a", "user": "{bad}"}}',
        f'{{"prompt": "a", "model": "{bad}"}}',
        f'{{"messages": [{{"role": "user", "content": "{bad}"}}]}}',
        f'{{"prompt": "a", "stop": "{bad}"}}',
        f'{{"prompt": "a", "suffix": "{bad}"}}',
    ):
        error_of(send(echo, body), 400)


def test_wrong_paths_and_methods(echo: Server) -> None:
    error_of(get(echo, "/v1/nothing"), 404)
    error_of(get(echo, "/v1/completions"), 405)
    error = error_of(post(echo, {"prompt": "a", "model": "gpt-4"}), 404)
    assert error["code"] == "model_not_found"


def test_a_body_beyond_the_limit_is_413(serve) -> None:
    server = serve(max_body_bytes=2_000)
    assert post(server, {"prompt": "a"}).status_code == 200
    for num_bytes in (2_001, 30_000, 300_000):
        error_of(post(server, {"prompt": "a" * num_bytes}), 413)

    def in_pieces():
        for _ in range(5):
            yield b" " * 1_000

    error_of(send(server, in_pieces()), 413)
    assert post(server, {"prompt": "a"}).status_code == 200


def test_a_prompt_beyond_the_context_names_both_numbers(echo: Server) -> None:
    error = error_of(post(echo, {"prompt": [5] * 1024}), 400)
    assert "1024" in error["message"] and "1023" in error["message"]
    assert post(echo, {"prompt": [5] * 1023, "max_tokens": 50}).json()["usage"][
        "completion_tokens"
    ] == 1  # fmt: skip


def test_what_does_not_fit_the_memory_is_refused_with_all_its_companions(serve) -> None:
    from echo import make_llm

    server = serve(make_llm(num_blocks=4, max_running=4))
    error_of(post(server, {"prompt": ["a", "b", [5] * 3], "max_tokens": 5}), 400)
    error_of(post(server, {"prompt": ["a", "long " * 80], "max_tokens": 5}), 400)
    assert server.health()["num_unfinished"] == 0
    assert post(server, {"prompt": "a", "max_tokens": 5}).status_code == 200


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-6, 1e-4, 100, 1e300])
def test_extreme_temperatures_work_beside_others(temperature: float) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Server(_real()) as server, ThreadPoolExecutor() as pool:

        def ask(heat: float) -> str:
            body = {"prompt": "KING:\n", "temperature": heat, "max_tokens": 5, "seed": 1}
            return post(server, body).json()["choices"][0]["text"]

        greedy = ask(0)
        texts = list(pool.map(ask, [0, temperature, 0]))
    assert texts[0] == texts[2] == greedy
    if temperature < 1e-3:
        assert texts[1] == greedy
    assert math.isfinite(temperature)


_LLMS: list[LLM] = []


def _real() -> LLM:
    if not _LLMS:
        _LLMS.append(LLM("toy", max_running=4))
    return _LLMS[0]


def test_logprobs_are_the_same_in_every_batch_and_with_a_cache_hit() -> None:
    llm = LLM("toy", max_running=8, prefix_caching=True, token_budget=24)
    body = {"prompt": "ROMEO:\nBut soft, what light through yonder window breaks? It is",
            "temperature": 0, "logprobs": 3, "max_tokens": 6}  # fmt: skip
    with Server(llm) as server:
        alone = post(server, body).json()
        again = post(server, body).json()
        crowd = post(server, body | {"n": 5}).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    first = alone["choices"][0]["logprobs"]
    for choice in (*again["choices"], *crowd["choices"]):
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == first["tokens"] and len(first["tokens"]) == 6
        assert logprobs["text_offset"] == first["text_offset"]
        for ours, theirs in zip(logprobs["token_logprobs"], first["token_logprobs"], strict=True):
            assert abs(ours - theirs) < 1e-4
    for top, chosen in zip(first["top_logprobs"], first["token_logprobs"], strict=True):
        assert len(top) == 3 and max(top.values()) == chosen  # greedy takes the likeliest
        assert sum(math.exp(v) for v in top.values()) <= 1 + 1e-6


def test_text_and_token_ids_and_back(echo: Server) -> None:
    ids = post(echo, {"prompt": "Zde 😀!"}, "/tokenize").json()
    assert ids["tokens"] == echo.llm.tokenizer.encode("Zde 😀!")
    assert ids["count"] == len(ids["tokens"]) and ids["max_model_len"] == 1024
    back = post(echo, {"tokens": ids["tokens"]}, "/detokenize").json()
    assert back == {"prompt": "Zde 😀!"}
    error_of(post(echo, {"tokens": [10**9]}, "/detokenize"), 400)
    error_of(post(echo, {"tokens": ["a"]}, "/detokenize"), 400)
