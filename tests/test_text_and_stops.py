"""Stop strings across token borders, split characters, and streams that take nothing back."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BPE

from toyserve import LLM, SamplingParams
from toyserve.models.detokenizer import IncrementalText
from toyserve.models.tokenizer import Tokenizer
from toyserve.models.weights import TOY_FOLDER

GREEDY = SamplingParams(temperature=0, max_tokens=60)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("toy", max_running=8)


def pieces(text: IncrementalText, chunks: list[bytes]) -> list[str]:
    return [text.push(c, final=i == len(chunks) - 1) for i, c in enumerate(chunks)]


@pytest.mark.parametrize("chunks", [["DEF", "G", "HI", "J"], ["DEFGHIJ"], ["xDEF", "GHIJy"]])
def test_a_stop_string_is_never_emitted_not_even_its_beginning(chunks: list[str]) -> None:
    text = IncrementalText(["DEFGHIJ"])
    out = pieces(text, [b"abc ", *(c.encode() for c in chunks), b" tail"])
    assert "".join(out) == "abc " + ("x" if chunks[0].startswith("x") else "")
    assert text.stopped


def test_text_is_held_back_no_longer_than_it_may_begin_a_stop_string() -> None:
    text = IncrementalText(["DEFG", "xyz"])
    assert text.push(b"abcDE") == "abc"
    assert text.push(b"Q") == "DEQ"
    assert text.push(b"D") == ""
    assert text.push(b"x") == "D", "x may begin the other stop string, D no longer begins one"
    assert text.push(b"", final=True) == "x"
    assert text.text == "abcDEQDx" and not text.stopped


def test_the_earliest_of_several_stop_strings_wins() -> None:
    text = IncrementalText(["world", "o w"])
    assert text.push(b"hello world") == "hell"


@given(
    st.text(alphabet="abAB€é🙂 ", max_size=30), st.lists(st.text("abA€", min_size=1), max_size=3)
)
def test_deltas_join_to_the_text_before_the_first_stop_string(body: str, stops: list[str]) -> None:
    text = IncrementalText(stops)
    chunks = [bytes([b]) for b in body.encode()] or [b""]
    joined = "".join(pieces(text, chunks))
    cuts = [at for at in (body.find(s) for s in stops) if at >= 0]
    # Byte by byte, the stop string that is complete first ends the text.
    ends = [(body.find(s) + len(s), body.find(s)) for s in stops if s in body]
    assert joined == text.text
    if not cuts:
        assert joined == body
    else:
        first_end = min(e for e, _ in ends)
        assert joined == body[: min(at for e, at in ends if e == first_end)]


def test_split_characters_stay_whole_and_a_cut_one_shows_as_replacement() -> None:
    one, two = IncrementalText(), IncrementalText()
    euro, smile = "€".encode(), "🙂".encode()
    out_one, out_two = [], []
    for a, b in itertools.zip_longest(
        euro, smile
    ):  # two answers interleaved: state is each one's own
        if a is not None:
            out_one.append(one.push(bytes([a])))
        out_two.append(two.push(bytes([b])))
    assert out_one == ["", "", "€"]
    assert out_two == ["", "", "", "🙂"]
    cut = IncrementalText()
    assert cut.push(smile[:3]) == ""
    assert cut.push(b"", final=True) == "\ufffd"


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer_token_by_token(text: str) -> None:
    tokenizer = Tokenizer.load(TOY_FOLDER)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    stream = IncrementalText()
    joined = "".join(stream.push(tokenizer.token_bytes(i)) for i in ids)
    assert joined + stream.push(b"", final=True) == text
    assert BPE.from_file(str(TOY_FOLDER / "tokenizer.json")).encode(text).ids == ids


def test_generation_ends_before_a_stop_string_and_says_so(llm: LLM) -> None:
    plain = llm.generate("ROMEO:\n", GREEDY)[0]
    assert len(plain.text) > 12
    stop = plain.text[5:9]
    for given_as in (stop, [stop], ("never-there", stop)):
        out = llm.generate("ROMEO:\n", SamplingParams(temperature=0, max_tokens=60, stop=given_as))[
            0
        ]
        assert out.text == plain.text[: plain.text.find(stop)]
        assert out.finish_reason == "stop"
        assert out.token_ids == plain.token_ids[: len(out.token_ids)], "ids are a prefix"
    assert llm.kv.num_free_blocks == llm.kv.num_blocks


def test_stop_string_in_the_very_last_token_is_a_stop_in_output_and_recording(llm: LLM) -> None:
    plain = llm.generate("ROMEO:\n", SamplingParams(temperature=0, max_tokens=4))[0]
    last = llm.tokenizer.decode(plain.token_ids[-1:])
    params = SamplingParams(temperature=0, max_tokens=4, stop=last)
    if plain.text.find(last) == len(plain.text) - len(last):
        out = llm.generate("ROMEO:\n", params)[0]
        assert out.finish_reason == "stop"
        assert llm.recording.requests[out.request_id].finish_reason == "stop"


def test_stop_token_ids_end_the_answer_and_are_not_text(llm: LLM) -> None:
    plain = llm.generate("ROMEO:\n", GREEDY)[0]
    stop_id = plain.token_ids[3]
    first = plain.token_ids.index(stop_id)
    params = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[stop_id])
    out = llm.generate("ROMEO:\n", params)[0]
    assert out.token_ids == plain.token_ids[: first + 1]
    assert out.text == llm.tokenizer.decode(plain.token_ids[:first])
    assert out.finish_reason == "stop"


def test_streams_of_many_requests_neither_mix_nor_repeat(llm: LLM) -> None:
    prompts = ["ROMEO:\n", "JULIET:\n", "HAMLET:\n", "MACBETH:\nIs this", "FIRST WITCH:\n"]
    whole = llm.generate(prompts, GREEDY)
    texts, ids = [""] * 5, [[] for _ in range(5)]
    reasons: list[object] = [None] * 5
    for delta in llm.stream(prompts, GREEDY):
        assert reasons[delta.index] is None, "nothing comes after the end"
        texts[delta.index] += delta.text
        ids[delta.index] += delta.token_ids
        reasons[delta.index] = delta.finish_reason
    assert texts == [o.text for o in whole]
    assert ids == [o.token_ids for o in whole]
    assert reasons == [o.finish_reason for o in whole]


def test_closing_a_stream_early_aborts_what_is_left_and_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream(["ROMEO:\n", "JULIET:\n"], SamplingParams(ignore_eos=True, max_tokens=500))
    next(stream)
    assert llm.kv.num_free_blocks < llm.kv.num_blocks
    stream.close()
    assert llm.kv.num_free_blocks == llm.kv.num_blocks
    assert not llm.engine.has_unfinished
    reasons = {r.finish_reason for r in llm.recording.requests.values()}
    assert reasons == {"abort"}


def test_end_token_is_not_text_and_ignore_eos_runs_on(llm: LLM) -> None:
    ended = llm.generate("ROMEO:\n", SamplingParams(temperature=0, max_tokens=400))[0]
    assert ended.finish_reason == "stop"
    assert ended.token_ids[-1] == llm.config.eos_token_id
    assert "<|endoftext|>" not in ended.text
    n = len(ended.token_ids) + 5
    params = SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    on = llm.generate("ROMEO:\n", params)[0]
    assert len(on.token_ids) == n and on.finish_reason == "length"


def test_min_tokens_keeps_the_end_token_away(llm: LLM) -> None:
    n = len(llm.generate("ROMEO:\n", GREEDY)[0].token_ids)
    params = SamplingParams(temperature=0, max_tokens=n + 20, min_tokens=n + 5, logprobs=2)
    out = llm.generate("ROMEO:\n", params)[0]
    assert len(out.token_ids) >= n + 5
    assert llm.config.eos_token_id not in out.token_ids[: n + 4]


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_model_folder_path_may_hold_spaces_and_accents(tmp_path: Path, locale: str) -> None:
    folder = tmp_path / "un modèle à moi"
    shutil.copytree(TOY_FOLDER, folder)
    program = (
        "import os, sys; from pathlib import Path; from toyserve import LLM, SamplingParams\n"
        "folder = next(Path(sys.argv[1]).iterdir())\n"
        "llm = LLM(folder)\n"
        "print(len(llm.generate('ROMEO:\\n', SamplingParams(max_tokens=3))[0].token_ids))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LC_")}
    environment |= {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 1 <= int(done.stdout) <= 3
