"""The server of a language model, asked by OpenAI's client and by plain HTTP."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("openai")

import openai

from glnn.generation.language_model import LanguageModel
from glnn.generation.server import app
from glnn.generation.server.app import MOST_BODY, Server, bind
from tests.generation.gguf_files import WORDS, small_model

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}a"
CONTEXT = 2048
HI = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "model": "m"}


@contextmanager
def serving(lm: LanguageModel, **options: Any) -> Iterator[Server]:
    with Server(lm, bind("127.0.0.1", 0), **options) as server:
        yield server


def client(server: Server, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def post(server: Server, path: str, body: object, method: str = "POST") -> tuple[int, Any]:
    """The status and the JSON of an answer. body: bytes, or what becomes JSON."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something holds within ten seconds."""
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def health(server: Server) -> tuple[int, int]:
    found = post(server, "/health", b"", "GET")[1]
    return found["running"], found["waiting"]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    more = {"tokenizer.chat_template": TEMPLATE, "llama.context_length": CONTEXT}
    # No token ends a text: a long one is long.
    small_model(path, "llama", seed=4, **more, **{"tokenizer.ggml.eos_token_id": len(WORDS)})
    return path


def slow_model(path: Path, sequences: int = 1) -> LanguageModel:
    """A model that takes ten seconds for a long text."""
    lm = LanguageModel(path, backend="cpu", sequences=sequences)
    step = lm.step

    def slow_step() -> None:
        time.sleep(0.005)
        step()

    lm.step = slow_step  # type: ignore[method-assign]
    return lm


@pytest.fixture(scope="module")
def lm(path: Path) -> LanguageModel:
    """Of the server: four sequences."""
    return LanguageModel(path, backend="cpu", sequences=4)


@pytest.fixture(scope="module")
def alone(path: Path) -> LanguageModel:
    """To compare with."""
    return LanguageModel(path, backend="cpu")


@pytest.fixture(scope="module")
def server(lm: LanguageModel) -> Iterator[Server]:
    with serving(lm) as server:
        yield server


def test_a_chat_is_answered_as_by_the_model(server, alone) -> None:
    found = client(server).chat.completions.create(messages=HI, max_tokens=9, **GREEDY)
    (choice,) = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == alone.chat(HI, max_tokens=9)
    assert choice.finish_reason == "length" and found.model == "m"
    assert found.usage.model_dump(include={"prompt_tokens", "completion_tokens"}) == {
        "prompt_tokens": len(alone.tokenize_chat(HI)),
        "completion_tokens": 9,
    }
    assert found.usage.total_tokens == found.usage.prompt_tokens + 9


def test_a_chat_comes_piece_by_piece(server, alone) -> None:
    options = {"messages": HI, "max_completion_tokens": 9, **GREEDY}
    chunks = list(client(server).chat.completions.create(stream=True, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == alone.chat(HI, max_tokens=9) and len(pieces) > 5
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].usage is None
    counted = {"stream_options": {"include_usage": True}, "stream": True}
    *chunks, last = client(server).chat.completions.create(**options, **counted)
    assert not last.choices and last.usage.completion_tokens == 9
    assert all(chunk.usage is None for chunk in chunks)


def test_events_end_as_openai_has_it(server) -> None:
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    body = {"prompt": "ab", "max_tokens": 3, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.read().split(b"\n\n")
    assert all(one.startswith(b"data: ") for one in events[:-1])
    assert events[-2:] == [b"data: [DONE]", b""]


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [0, 2, 3, 4], [[0, 2, 3, 4]]])
def test_a_text_is_continued(server, alone, prompt) -> None:
    found = client(server).completions.create(prompt=prompt, **GREEDY)
    expected = alone.generate("abc", max_tokens=16)
    assert found.choices[0].text == expected and found.usage.completion_tokens == 16
    pieces = client(server).completions.create(prompt=prompt, stream=True, **GREEDY)
    assert "".join(one.choices[0].text for one in pieces) == expected


def test_texts_of_stop_end_a_text(server, alone) -> None:
    whole = alone.generate("abc", max_tokens=16)
    stop = whole[4:6]
    options = {"prompt": "abc", "stop": [stop, "never seen"], **GREEDY}
    found = client(server).completions.create(**options)
    assert found.choices[0].text == whole[: whole.find(stop)]
    assert found.choices[0].finish_reason == "stop"
    chunks = list(client(server).completions.create(stream=True, **options))
    assert "".join(one.choices[0].text for one in chunks) == found.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_parts_of_messages_and_roles(server, alone) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    messages: Any = [{"role": "developer", "content": "h"}, {"role": "user", "content": parts}]
    found = client(server).chat.completions.create(messages=messages, max_tokens=5, **GREEDY)
    expected = [{"role": "system", "content": "h"}, *HI]
    assert found.choices[0].message.content == alone.chat(expected, max_tokens=5)


def test_samples_are_those_of_the_seed(server, alone) -> None:
    def text(seed: int, **more: Any) -> str:
        found = client(server).completions.create(
            model="m", prompt="abc", seed=seed, temperature=1.5, max_tokens=12, **more
        )
        return found.choices[0].text

    assert text(5) == alone.generate("abc", seed=5, temperature=1.5, max_tokens=12)
    assert text(-1) == text(-1) and len({text(seed) for seed in range(4)}) > 1
    greedy = alone.generate("abc", max_tokens=12)
    assert text(1, extra_body={"top_k": 1}) == text(2, extra_body={"min_p": 1}) == greedy
    assert text(3, top_p=0.0) == greedy
    penalty = alone.generate("abc", max_tokens=12, repetition_penalty=3.0)
    found = client(server).completions.create(
        prompt="abc", max_tokens=12, extra_body={"repetition_penalty": 3}, **GREEDY
    )
    assert found.choices[0].text == penalty != greedy


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_embeddings(server, alone, form) -> None:
    more = {} if form is None else {"encoding_format": form}
    found = client(server).embeddings.create(model="m", input=["abc", "de"], **more)
    vectors = [one.embedding for one in found.data]
    if form == "base64":
        vectors = [np.frombuffer(base64.b64decode(one), "<f4") for one in vectors]
    for vector, text in zip(vectors, ("abc", "de"), strict=True):
        assert np.allclose(vector, alone.embed(text), atol=1e-6)
    assert [one.index for one in found.data] == [0, 1]
    assert found.usage.prompt_tokens == len(alone.tokenize("abc")) + len(alone.tokenize("de"))
    (single,) = client(server).embeddings.create(model="m", input=[0, 2, 3]).data
    assert np.allclose(single.embedding, alone.embed([0, 2, 3]), atol=1e-6)


def test_models_and_health(server) -> None:
    (one,) = client(server).models.list().data
    assert one.id == "m" == client(server).models.retrieve("m").id and one.created > 0
    with pytest.raises(openai.NotFoundError, match="there is no model 'x': 'm' is here"):
        client(server).models.retrieve("x")
    assert post(server, "/health", b"", "GET")[1]["status"] == "ok"


def test_fields_that_nobody_knows_or_that_are_null_are_ignored(server, alone) -> None:
    fields = ("max_tokens", "top_p", "stop", "seed", "stream", "n", "tools", "stream_options")
    body = {"prompt": "abc", "temperature": 0, "user": "me", "store": True, "thing": [1]}
    status, found = post(server, "/v1/completions", {**dict.fromkeys(fields), **body})
    assert status == 200 and found["choices"][0]["text"] == alone.generate("abc", max_tokens=16)


CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}]


@pytest.mark.parametrize(
    ("where", "body", "param", "says"),
    [
        (CHAT, {}, "messages", "messages must be a list of messages, got None"),
        (CHAT, {"messages": []}, "messages", "got []"),
        (CHAT, {"messages": ["hi"]}, "messages[0]", "an object with role and content"),
        (CHAT, {"messages": [{"content": "a"}]}, "messages[0].role", "must be text, got None"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "must be text"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": IMAGE}]},
            "messages[0].content[0]",
            "a part of type text",
        ),
        (CHAT, {"messages": HI, "n": 2}, "n", "n must be 1 here, got 2"),
        (CHAT, {"messages": HI, "n": True}, "n", "n must be 1 here, got True"),
        (CHAT, {"messages": HI, "tools": [{"type": "function"}]}, "tools", "must be [] here"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format", ""),
        (CHAT, {"messages": HI, "logprobs": True}, "logprobs", "must be false here"),
        (CHAT, {"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens", "1 or more"),
        (CHAT, {"messages": HI, "max_tokens": 1.5}, "max_tokens", "an integer, got 1.5"),
        (CHAT, {"messages": HI, "model": 3}, "model", "model must be text, got 3"),
        (TEXT, {}, "prompt", "text, tokens, or 1 to 2048 of these, got None"),
        (TEXT, {"prompt": []}, "prompt", "got []"),
        (TEXT, {"prompt": 3}, "prompt", "got 3"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt", "one text or one list of tokens"),
        (TEXT, {"prompt": [1, "a"]}, "prompt", "text or a list of tokens, got 1"),
        (TEXT, {"prompt": [1, 999]}, "prompt", "tokens from 0 to 64, got 999"),
        (TEXT, {"prompt": [[1, True]]}, "prompt", "text or a list of tokens"),
        (TEXT, {"prompt": "\ud800"}, "prompt", "half of a pair"),
        (TEXT, {"prompt": "a", "temperature": "hot"}, "temperature", "a number, got 'hot'"),
        (TEXT, {"prompt": "a", "temperature": -1}, "temperature", "from 0.0 to"),
        (TEXT, {"prompt": "a", "temperature": float("nan")}, "temperature", "from 0.0 to"),
        (TEXT, {"prompt": "a", "top_p": 2}, "top_p", "from 0.0 to 1.0, got 2"),
        (TEXT, {"prompt": "a", "top_k": 1.5}, "top_k", "an integer, got 1.5"),
        (TEXT, {"prompt": "a", "seed": 1 << 64}, "seed", "an integer of 64 bits"),
        (TEXT, {"prompt": "a", "seed": "1"}, "seed", "an integer, got '1'"),
        (TEXT, {"prompt": "a", "stop": 3}, "stop", "must be text, got 3"),
        (TEXT, {"prompt": "a", "stop": [""]}, "stop", "texts of 1 to 256 characters"),
        (TEXT, {"prompt": "a", "stop": ["a"] * 17}, "stop", "at most 16 texts"),
        (TEXT, {"prompt": "a", "stream": "yes"}, "stream", "true or false, got 'yes'"),
        (TEXT, {"prompt": "a", "stream_options": []}, "stream_options", "an object"),
        (TEXT, {"prompt": "a", "echo": True}, "echo", "must be false here, got True"),
        (EMBED, {}, "input", "got None"),
        (EMBED, {"input": [["a"]]}, "input", "text or a list of tokens"),
        (EMBED, {"input": "a", "encoding_format": "x"}, "encoding_format", "'float' or 'base64'"),
        (EMBED, {"input": "a", "dimensions": 8}, "dimensions", "32, as the model has them, got 8"),
    ],
)
def test_what_is_wrong_is_named(server, where, body, param, says) -> None:
    status, found = post(server, where, body)
    error = found["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert says in error["message"] and error["code"]


@pytest.mark.parametrize("where", [CHAT, TEXT, EMBED])
def test_a_prompt_beyond_the_context(server, where) -> None:
    text = "a" * (CONTEXT + 1)
    name = {CHAT: "messages", TEXT: "prompt", EMBED: "input"}[where]
    body = {name: [{"role": "user", "content": text}] if where == CHAT else text}
    status, found = post(server, where, body)
    assert status == 400 and found["error"]["code"] == "context_length_exceeded"
    assert found["error"]["param"] == name and f"context has {CONTEXT}" in found["error"]["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"[]"])
def test_a_body_that_is_no_object(server, raw) -> None:
    status, found = post(server, CHAT, raw)
    assert status == 400 and found["error"]["message"].startswith("the body must be ")


def test_a_body_that_is_too_large(server) -> None:
    status, found = post(server, CHAT, b" " * (MOST_BODY + 1))
    assert status == 413 and found["error"]["code"] == "request_too_large"


def test_paths_and_methods_that_there_are_not(server) -> None:
    status, found = post(server, "/v1/images", {})
    assert (status, found["error"]["code"]) == (404, "unknown_url")
    status, found = post(server, CHAT, b"", "GET")
    assert (status, found["error"]["code"]) == (405, "method_not_allowed")
    assert "GET /v1/chat/completions" in found["error"]["message"]


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    with serving(LanguageModel(tmp_path / "m.gguf", backend="cpu")) as server:
        status, found = post(server, CHAT, {"messages": HI})
    assert status == 400 and "has no chat template" in found["error"]["message"]


def test_a_key_is_needed(lm) -> None:
    with serving(lm, api_key="secret", name="other") as server:
        for key in ("wrong", "secre", "secrets", "s"):
            with pytest.raises(openai.AuthenticationError, match="the API key is wrong") as failed:
                client(server, key).models.list()
            assert failed.value.code == "invalid_api_key"
        status, found = post(server, CHAT, {"messages": HI})
        assert status == 401 and "an API key is needed" in found["error"]["message"]
        assert health(server) == (0, 0)
        assert client(server, "secret").models.list().data[0].id == "other"


def test_a_key_of_any_letters(lm) -> None:
    with serving(lm, api_key="sécret") as server:
        for key, status in (("sécret", 200), ("secret", 401)):
            connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
            connection.putrequest("GET", "/v1/models")
            connection.putheader("Authorization", f"Bearer {key}".encode())
            connection.endheaders()
            assert connection.getresponse().status == status
            connection.close()


def long_stream(server: Server) -> HTTPConnection:
    """A connection with a text under way that takes a while."""
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    body = {"prompt": "abc", "max_tokens": CONTEXT, "temperature": 0, "stream": True}
    connection.request("POST", TEXT, json.dumps(body))
    connection.response = connection.getresponse()  # type: ignore[attr-defined]
    return connection


def test_a_client_that_goes_away_ends_its_text(path: Path) -> None:
    lm = slow_model(path)
    with serving(lm) as server:
        stream = long_stream(server)
        assert stream.response.readline().startswith(b"data: ")  # type: ignore[attr-defined]
        whole = HTTPConnection(server.url.removeprefix("http://"), timeout=60)
        whole.request("POST", TEXT, json.dumps({"prompt": "a", "max_tokens": CONTEXT}))
        assert eventually(lambda: health(server) == (1, 1))
        whole.close()  # while it waits
        assert eventually(lambda: health(server) == (1, 0))
        whole.request("POST", TEXT, json.dumps({"prompt": "a", "max_tokens": CONTEXT}))
        assert eventually(lambda: health(server) == (1, 1))
        stream.response.close()  # type: ignore[attr-defined]
        stream.close()  # while it is computed
        assert eventually(lambda: health(server) == (1, 0))
        whole.close()
        assert eventually(lambda: health(server) == (0, 0))
        lm.step()
        assert len(lm._engine._free_slots()) == 1


def test_a_full_queue_refuses_and_goes_on(path: Path) -> None:
    with serving(slow_model(path), most_waiting=1) as server:
        first, second = long_stream(server), None
        with ThreadPoolExecutor() as pool:
            second = pool.submit(client(server).completions.create, prompt="abc", **GREEDY)
            assert eventually(lambda: health(server) == (1, 1))
            with pytest.raises(openai.InternalServerError) as full:
                client(server).completions.create(prompt="abc", **GREEDY)
            assert full.value.status_code == 503 and full.value.code == "queue_full"
            assert full.value.response.headers["retry-after"] == "1"
            first.response.close()  # type: ignore[attr-defined]
            first.close()
            assert len(second.result().choices[0].text) > 0


@pytest.mark.parametrize("backend", ["compute", "cpu"])
def test_eight_clients_at_once_get_what_each_alone_gets(path: Path, backend) -> None:
    from glnn.errors import DeviceError

    try:
        lm = LanguageModel(path, backend=backend, sequences=3, context=64)
    except DeviceError as error:
        pytest.skip(str(error))
    prompts = [f"abc{chr(97 + i)}" * (1 + i % 3) for i in range(8)]
    expected = [lm.generate(one, max_tokens=20) for one in prompts]
    vectors = [lm.embed(one) for one in prompts]

    def ask(i: int) -> None:
        for turn in range(4):
            if (i + turn) % 4 == 3:
                (found,) = client(server).embeddings.create(model="m", input=prompts[i]).data
                assert np.allclose(found.embedding, vectors[i], atol=1e-5)
                continue
            options = {"prompt": prompts[i], "max_tokens": 20, **GREEDY}
            if (i + turn) % 2:
                pieces = client(server).completions.create(stream=True, **options)
                assert "".join(one.choices[0].text for one in pieces) == expected[i]
            else:
                found = client(server).completions.create(**options)
                assert found.choices[0].text == expected[i]

    with serving(lm) as server:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
        assert health(server) == (0, 0)


def test_nobody_waits_for_a_long_text_or_many_embeddings(path: Path) -> None:
    with serving(slow_model(path, sequences=3)) as server:
        stream = long_stream(server)
        many = {"input": ["a" * 200] * 100}
        begun = threading.Thread(target=post, args=(server, EMBED, many))
        begun.start()
        assert eventually(lambda: health(server)[0] == 2)
        client(server).completions.create(prompt="abc", **GREEDY)
        assert health(server)[0] == 2  # the others are still under way
        stream.response.close()  # type: ignore[attr-defined]
        stream.close()
        begun.join()


def test_a_step_that_fails_fails_its_texts_alone(path: Path, monkeypatch) -> None:
    lm = LanguageModel(path, backend="cpu")
    step, failing = lm.step, threading.Event()

    def fail() -> None:
        if failing.is_set():
            raise ValueError("no such thing")
        step()

    monkeypatch.setattr(lm, "step", fail)
    with serving(lm) as server:
        failing.set()
        with pytest.raises(openai.InternalServerError, match="ValueError: no such thing"):
            client(server).completions.create(prompt="abc", **GREEDY)
        with pytest.raises(openai.APIError, match="ValueError: no such thing"):
            list(client(server).completions.create(prompt="abc", stream=True, **GREEDY))
        failing.clear()
        assert client(server).completions.create(prompt="abc", **GREEDY).choices[0].text


def test_a_fault_of_the_servers_is_an_error_object(lm, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(app, "chat_request", fail)
    with serving(lm) as server:
        status, found = post(server, CHAT, {"messages": HI})
    assert status == 500 and found["error"]["message"] == "ValueError: no such thing"


def test_stopping_ends_what_is_under_way(path: Path) -> None:
    lm = slow_model(path)
    with serving(lm) as server:
        stream = long_stream(server)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(post, server, TEXT, {"prompt": "abc"})
            assert eventually(lambda: health(server) == (1, 1))
            start = time.monotonic()
            server.stop()
            assert time.monotonic() - start < 5
            status, found = waiting.result()
    assert status == 503 and found["error"]["code"] == "stopped"
    last = stream.response.read().split(b"\n\n")[-2]  # type: ignore[attr-defined]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stopped"
    lm.step()
    assert len(lm._engine._free_slots()) == 1 and lm.generate("abc", max_tokens=3)
