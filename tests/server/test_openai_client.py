"""The real ``openai`` client against the server, sync and async."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
from models_for_tests import generate
from server_for_tests import client_of

from toyserve import LLM, SamplingParams
from toyserve.server import Server

TEXT = "To be, or not to be: that is the question."


def test_a_completion_is_the_models_own_greedy_text() -> None:
    llm = LLM("toy", max_running=4)
    prompts = ["ROMEO:\n", "JULIET:\nO "]
    expected = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12))
    with Server(llm) as server, client_of(server) as client:
        answer = client.completions.create(
            model="toy", prompt=prompts, temperature=0, max_tokens=12
        )
        with pytest.raises(ValueError, match="works for the server at http"):
            llm.generate("A")
    assert [c.text for c in answer.choices] == [o.text for o in expected]
    assert [c.finish_reason for c in answer.choices] == [o.finish_reason for o in expected]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(o.token_ids) for o in expected)


def test_token_ids_in_are_transformers_token_ids_out(tiny_gpt2: Path) -> None:
    prompt = [5, 9, 2, 33, 7]
    with Server(LLM(tiny_gpt2)) as server, client_of(server) as client:
        model = server.model_name
        answer = client.completions.create(
            model=model, prompt=prompt, temperature=0, max_tokens=9, logprobs=0,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        names = [server.llm.tokenizer.bpe.id_to_token(i) for i in range(64)]
        ids = [names.index(text.replace(" ", "Ġ").replace("\n", "Ċ")) for text in logprobs.tokens]
    assert ids == generate(tiny_gpt2, prompt, 9, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        (TEXT, [TEXT]),
        ([TEXT, "No."], [TEXT, "No."]),
    ],
)
def test_prompts_as_text_or_texts(client: openai.OpenAI, prompt, texts) -> None:
    answer = client.completions.create(model="toy", prompt=prompt, max_tokens=50)
    assert [c.text for c in answer.choices] == texts
    assert [c.index for c in answer.choices] == list(range(len(texts)))
    assert {c.finish_reason for c in answer.choices} == {"stop"}


def test_prompts_as_token_ids_or_lists_of_them(client: openai.OpenAI, echo: Server) -> None:
    ids = echo.llm.tokenizer.encode(TEXT)
    one = client.completions.create(model="toy", prompt=ids, max_tokens=50)
    two = client.completions.create(model="toy", prompt=[ids, ids[:3]], max_tokens=50)
    assert one.choices[0].text == two.choices[0].text == TEXT
    assert two.choices[1].text == echo.llm.tokenizer.decode(ids[:3])
    assert two.usage is not None and two.usage.prompt_tokens == len(ids) + 3


def test_a_chat_is_a_play_in_which_the_assistant_speaks_next(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "is there?"}]
    answer = client.chat.completions.create(
        model="toy",
        messages=[
            {"role": "system", "content": "Speak."},
            {"role": "user", "name": "Bernardo", "content": parts},
        ],
        max_completion_tokens=100,
    )
    expected = "SYSTEM:\nSpeak.\n\nBERNARDO:\nWho is there?\n\nASSISTANT:\n"
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion"


def test_a_chat_without_a_limit_ends_at_the_models_context(serve) -> None:
    from echo import make_llm

    with client_of(serve(make_llm(max_model_len=40))) as client:
        answer = client.chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "Go on"}],
            extra_body={"ignore_eos": True},
        )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.total_tokens == 40


@pytest.mark.parametrize("chat", [False, True])
def test_streamed_deltas_join_to_the_whole_answer(client: openai.OpenAI, chat: bool) -> None:
    if chat:
        messages = [{"role": "user", "content": TEXT}]
        stream = client.chat.completions.create(model="toy", messages=messages, stream=True)
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert text == f"USER:\n{TEXT}\n\nASSISTANT:\n"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert {c.object for c in chunks} == {"chat.completion.chunk"}
    else:
        chunks = list(
            client.completions.create(model="toy", prompt=TEXT, max_tokens=50, stream=True)
        )
        assert "".join(c.choices[0].text for c in chunks) == TEXT
    reasons = [c.choices[0].finish_reason for c in chunks]
    assert reasons[-1] == "stop" and not any(reasons[:-1])
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)


def test_n_answers_have_seeds_of_their_own_and_repeat(client: openai.OpenAI) -> None:
    llm = LLM("toy", max_running=4)
    with Server(llm) as server, client_of(server) as real:

        def texts(n: int) -> list[str]:
            answer = real.completions.create(
                model="toy", prompt="KING:\n", max_tokens=8, n=n, seed=7,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            assert [c.index for c in answer.choices] == list(range(n))
            return [c.text for c in answer.choices]

        three = texts(3)
        assert len(set(three)) == 3
        assert texts(3) == three and texts(1) == three[:1]


def test_echo_puts_the_prompt_before_the_answer(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="toy", prompt=TEXT, echo=True, max_tokens=50)
    chunks = client.completions.create(
        model="toy", prompt=TEXT, echo=True, max_tokens=50, stream=True
    )
    assert whole.choices[0].text == "".join(c.choices[0].text for c in chunks) == TEXT + TEXT


def test_async_clients_each_get_their_own_text(echo: Server) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        text = f"I am number {number}. " * (1 + number % 4)
        stream = await client.completions.create(
            model="toy", prompt=text, max_tokens=200, stream=True
        )
        got = "".join([chunk.choices[0].text async for chunk in stream])
        assert got == text
        return got

    async def all_of_them() -> list[str]:
        url = echo.url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            first = await asyncio.gather(*(one(client, i) for i in range(8)))
            second = await asyncio.gather(*(one(client, i) for i in range(8, 16)))
        return [*first, *second]

    assert len(set(asyncio.run(all_of_them()))) == 16


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_priority_and_user_reach_the_scheduler(serve) -> None:
    server = serve()
    with client_of(server) as client:
        client.completions.create(
            model="toy", prompt="A", user="ann", extra_body={"priority": 3}, max_tokens=2
        )
    (record,) = server.recording.requests.values()
    assert (record.user, record.priority, record.max_tokens) == ("ann", 3, 2)


def test_chat_logprobs_have_one_entry_per_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=[{"role": "user", "content": "Hi"}],
        logprobs=True,
        top_logprobs=2,
        max_tokens=5,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert len(logprobs.content) == 5
    assert "".join(e.token for e in logprobs.content) == answer.choices[0].message.content
    assert [len(e.top_logprobs) for e in logprobs.content] == [2] * 5
    assert bytes(logprobs.content[0].bytes or []).decode() == logprobs.content[0].token


def test_a_wrong_key_is_an_authentication_error(serve) -> None:
    server = serve(api_key="säsame")
    right = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        right.models.list()
    import httpx

    headers = {"Authorization": "Bearer säsame".encode()}
    assert httpx.get(server.url + "/v1/models", headers=headers).status_code == 200
    assert httpx.get(server.url + "/metrics").status_code == 401
    assert httpx.get(server.url + "/health").status_code == 200
