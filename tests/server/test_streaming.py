"""The streaming contract: texts, ends, usage, errors in the middle, one [DONE]."""

from __future__ import annotations

import itertools

import pytest
from echo import make_llm
from raw import events, post, text_of

from toyserve.server import Server

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("options", "last_only", "every"),
    [
        (None, False, False),
        ({}, False, False),
        ({"include_usage": False}, False, False),
        ({"include_usage": True}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, False, True),
    ],
)
def test_usage_comes_only_when_asked_for(echo: Server, options, last_only, every) -> None:
    body = {"prompt": "one two three", "max_tokens": 50}
    if options is not None:
        body["stream_options"] = options
    *chunks, done = events(echo, body)
    assert done == "[DONE]"
    num_tokens = len(echo.llm.tokenizer.encode("one two three"))
    with_choices = [c for c in chunks if c["choices"]]
    if last_only:
        assert chunks[-1]["choices"] == []
        usage = chunks[-1]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_tokens, num_tokens + 1)
        assert usage["total_tokens"] == 2 * num_tokens + 1
    else:
        assert len(with_choices) == len(chunks)
    if every:
        counts = [c["usage"]["completion_tokens"] for c in with_choices]
        assert counts == list(range(1, num_tokens + 2))
    else:
        assert all(c.get("usage") is None for c in with_choices)
        assert last_only or not any("usage" in c for c in chunks)


def test_stream_options_without_a_stream_is_refused(echo: Server) -> None:
    answer = post(echo, {"prompt": "a", "stream_options": {"include_usage": True}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_a_model_that_breaks_ends_a_stream_with_one_error_and_one_done(serve, path: str) -> None:
    server = serve()
    server.llm.engine.runner.fail_at = {5}
    body = {"messages": [{"role": "user", "content": "a b c d e f g"}]}
    if path != CHAT:
        body = {"prompt": "a b c d e f g", "max_tokens": 50}
    got = events(server, body, path)
    assert [e == "[DONE]" for e in got] == [False] * (len(got) - 1) + [True]
    errors = [e["error"] for e in got[:-1] if "error" in e]
    assert got[-2] == {"error": errors[0]} and len(errors) == 1
    assert "the model broke" in errors[0]["message"] and errors[0]["type"] == "server_error"
    assert server.health()["status"] == "failing"
    # The engine goes on, and so does its health.
    assert text_of(events(server, {"prompt": "still here", "max_tokens": 9})) == "still here"
    assert server.health()["status"] == "ok"
    from toyserve.viz import timeline

    timeline(server.recording)  # and what was recorded can still be replayed


def test_a_model_that_breaks_gives_a_whole_answer_500(serve) -> None:
    server = serve()
    server.llm.engine.runner.fail_at = {2}
    answer = post(server, {"prompt": "a b c d e", "max_tokens": 50})
    assert answer.status_code == 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_only_those_who_had_begun_are_harmed_by_a_broken_step(serve) -> None:
    server = serve(make_llm(max_running=1))
    runner = server.llm.engine.runner
    runner.fail_at = {3}
    runner.gate.clear()
    from concurrent.futures import ThreadPoolExecutor

    from raw import eventually

    with ThreadPoolExecutor() as pool:
        first = pool.submit(events, server, {"prompt": "a b c d e f", "max_tokens": 9})
        eventually(lambda: server.gauges()["num_requests_running"] == 1)
        second = pool.submit(events, server, {"prompt": "u v w", "max_tokens": 9})
        eventually(lambda: server.health()["num_unfinished"] == 2)
        runner.gate.set()
        assert "error" in first.result()[-2]
        assert text_of(second.result()) == "u v w"


# -- stop strings ---------------------------------------------------------------------------------


def pieces(server: Server, text: str) -> list[str]:
    tokenizer = server.llm.tokenizer
    return [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text)]


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_a_stop_string_across_tokens_is_never_sent_not_even_its_beginning(
    echo: Server, path: str, as_list: bool
) -> None:
    text = "Alas, poor Yorick! I knew him, Horatio: a fellow of infinite jest"
    stop = "Yorick! I knew"
    assert not any(stop in piece for piece in pieces(echo, text))
    body = {"stop": ["never there", stop] if as_list else stop, "max_tokens": 90}
    body |= {"prompt": text} if path != CHAT else {"messages": [{"role": "user", "content": text}]}
    *chunks, _ = events(echo, body, path)
    choices = [c["choices"][0] for c in chunks]
    parts = [c["text"] if path != CHAT else c["delta"].get("content") or "" for c in choices]
    prefix = "" if path != CHAT else "USER:\n"
    assert "".join(parts) == prefix + text[: text.index(stop)]
    assert choices[-1]["finish_reason"] == "stop"


def test_a_stop_string_inside_one_token_cuts_it(echo: Server) -> None:
    text = "I know him well"
    piece = max(pieces(echo, text), key=len)
    stop = piece[1:-1]
    answer = post(echo, {"prompt": text, "stop": stop, "max_tokens": 50}).json()["choices"][0]
    assert answer["text"] == text[: text.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_unrelated_text_is_not_held_back(echo: Server) -> None:
    text = "one two three four five"
    chunks = events(echo, {"prompt": text, "stop": "zebra", "max_tokens": 50})[:-1]
    parts = [c["choices"][0]["text"] for c in chunks]
    assert parts[:-1] == pieces(echo, text)


def test_a_false_beginning_of_a_stop_string_is_sent_after_all(echo: Server) -> None:
    text = "Yorick! I know"
    chunks = events(echo, {"prompt": text, "stop": "Yorick! I knew", "max_tokens": 50})
    assert text_of(chunks) == text


# -- characters split over tokens ----------------------------------------------------------------

HARD = "Příliš žluťoučký kůň 🐴 úpěl 日本語 😀"


def test_characters_split_over_tokens_arrive_whole_in_interleaved_streams(echo: Server) -> None:
    assert any("\ufffd" in echo.llm.tokenizer.decode([i]) for i in echo.llm.tokenizer.encode(HARD))
    prompts = [HARD, HARD[::-1]]
    *chunks, _ = events(echo, {"prompt": prompts, "max_tokens": 200})
    for index, text in enumerate(prompts):
        assert text_of(chunks, index) == text
    assert "\ufffd" not in "".join(c["text"] for chunk in chunks for c in chunk["choices"])
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert len(list(itertools.groupby(order))) > 2, "the two were not interleaved"


def test_a_character_cut_by_max_tokens_is_shown_as_cut_and_only_then(echo: Server) -> None:
    tokenizer = echo.llm.tokenizer
    ids = tokenizer.encode("ab 😀 cd")
    for length in range(1, len(ids) + 1):
        chunks = events(echo, {"prompt": ids, "max_tokens": length})
        assert text_of(chunks) == tokenizer.decode(ids[:length])
        whole = post(echo, {"prompt": ids, "max_tokens": length}).json()["choices"][0]
        assert whole["text"] == text_of(chunks)
