"""Requests in the format of OpenAI's API, checked field by field, and its error objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glnn.errors import ModelError, printable, shown
from glnn.generation.language_model import LanguageModel
from glnn.generation.sampling import Sampling

COMPLETION_TOKENS = 16  # default of OpenAI's completions
MOST_STOPS, MOST_STOP = 16, 256  # texts of `stop`, and characters of one: all searched each token
MOST_INPUTS = 2048  # texts of one request for embeddings, as OpenAI has it
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
"""Unsupported fields that would change an answer, with the values that change nothing."""


class ApiError(Exception):
    """An error that is sent to the client, as OpenAI's error object.

    status: of HTTP. param: the wrong field. code: identifies the error to programs. kind: OpenAI's
    type. headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.kind = status, param, code, kind
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        fields = {"type": self.kind, "param": self.param, "code": self.code}
        return {"error": {"message": printable(str(self)), **fields}}


@dataclass(frozen=True)
class TextRequest:
    """A request for a text. options: those of `LanguageModel.start`."""

    tokens: list[int]
    options: Mapping[str, Any]
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class EmbeddingRequest:
    """A request for embeddings of several texts. base64: True to send numbers in base64."""

    inputs: list[list[int]]
    base64: bool


def chat_request(lm: LanguageModel, raw: bytes) -> TextRequest:
    """Read the body of /v1/chat/completions. Raises ApiError."""
    body = _object(raw)
    messages = _messages(body.get("messages"))
    options = _options(body, default=lm.context)
    tokens = _for_field("messages", lambda: lm.tokenize_chat(messages))
    return _text_request(lm, body, tokens, "messages", options)


def completion_request(lm: LanguageModel, raw: bytes) -> TextRequest:
    """Read the body of /v1/completions. Raises ApiError."""
    body = _object(raw)
    options = _options(body, default=COMPLETION_TOKENS)
    prompts = _inputs(lm, body, "prompt")
    if len(prompts) != 1:
        raise _wrong("prompt", "one text or one list of tokens", body["prompt"])
    return _text_request(lm, body, prompts[0], "prompt", options)


def embedding_request(lm: LanguageModel, raw: bytes) -> EmbeddingRequest:
    """Read the body of /v1/embeddings. Raises ApiError."""
    body = _object(raw)
    _get(body, "model", str, "text", "")
    form = _get(body, "encoding_format", str, "'float' or 'base64'", "float")
    if form not in ("float", "base64"):
        raise _wrong("encoding_format", "'float' or 'base64'", form)
    width = lm.config.width
    if _get(body, "dimensions", int, "an integer", width) != width:
        raise _wrong("dimensions", f"{width}, as the model has them", body["dimensions"])
    inputs = _inputs(lm, body, "input")
    for tokens in inputs:
        _check_length(lm, tokens, "input")
    return EmbeddingRequest(inputs, form == "base64")


def _object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in `raw`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body must be JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, got {shown(body)}")
    return body


def _wrong(name: str, expected: str, got: object, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"{name} must be {expected}, got {shown(got)}", name, code)


def _get(body: Mapping[str, Any], name: str, kind: type, expected: str, default: Any) -> Any:
    """Return a field of one type; `default` where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(name, expected, value, "invalid_type")
    return value


def _text(name: str, value: object) -> str:
    """Return `value`, which must be a text of whole characters."""
    if not isinstance(value, str):
        raise _wrong(name, "text", value, "invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        reason = f"{name} must be whole characters, got half of a pair at {error.start}"
        raise ApiError(400, reason, name, "invalid_value") from None
    return value


def _for_field(name: str, compute: Callable[[], Any]) -> Any:
    """Return the result of `compute`; its ModelError becomes an ApiError of the field `name`."""
    try:
        return compute()
    except ModelError as error:
        raise ApiError(400, str(error), name, "invalid_value") from None


def _options(body: Mapping[str, Any], default: int) -> dict[str, Any]:
    """Return the options of `LanguageModel.start`. default: of max_tokens."""
    _get(body, "model", str, "text", "")
    for name, values in SUPPORTED_VALUES.items():
        value = body.get(name)
        is_supported = any(type(value) is type(v) and value == v for v in values)
        if value is not None and not is_supported:
            raise _wrong(name, f"{json.dumps(values[0])} here", value, "unsupported_value")
    options: dict[str, Any] = {"temperature": 1.0}
    for name in SAMPLING:
        if body.get(name) is not None:
            options[name] = body[name]
            _for_field(name, lambda name=name: Sampling(**{name: options[name]}))  # type: ignore[misc]
    for name in ("max_tokens", "max_completion_tokens"):
        limit = _get(body, name, int, "an integer", None)
        if limit is not None:
            if limit < 1:
                raise _wrong(name, "1 or more", limit)
            options["max_tokens"] = min(limit, 1 << 31)
    options.setdefault("max_tokens", default)
    seed = _get(body, "seed", int, "an integer", None)
    if seed is not None:
        if not -(1 << 63) <= seed < 1 << 64:
            raise _wrong("seed", "an integer of 64 bits", seed)
        options["seed"] = seed % (1 << 64)
    options["stop"] = _stops(body.get("stop"))
    return options


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    if len(stops) > MOST_STOPS:
        raise _wrong("stop", f"at most {MOST_STOPS} texts", value)
    for stop in stops:
        if not 0 < len(_text("stop", stop)) <= MOST_STOP:
            raise _wrong("stop", f"texts of 1 to {MOST_STOP} characters", stop)
    return tuple(stops)


def _text_request(
    lm: LanguageModel,
    body: Mapping[str, Any],
    tokens: list[int],
    name: str,
    options: Mapping[str, Any],
) -> TextRequest:
    """Return the request of `body` for a text. name: the field of the prompt `tokens`."""
    _check_length(lm, tokens, name)
    stream = _get(body, "stream", bool, "true or false", False)
    stream_options = _get(body, "stream_options", dict, "an object", {})
    usage = _get(stream_options, "include_usage", bool, "true or false", False)
    return TextRequest(tokens, options, stream, usage)


def _check_length(lm: LanguageModel, tokens: Sequence[int], name: str) -> None:
    """Raise ApiError unless `tokens` are a prompt that fits."""
    if not tokens:
        raise ApiError(400, f"{name} must have a token, got none", name, "invalid_value")
    if len(tokens) > lm.context:
        reason = f"the context has {lm.context} tokens, {name} {len(tokens)}"
        raise ApiError(400, reason, name, "context_length_exceeded")


def _inputs(lm: LanguageModel, body: Mapping[str, Any], name: str) -> list[list[int]]:
    """Return the tokens of each text in a field: one or several, as text or as tokens."""
    value = body.get(name)
    single = isinstance(value, str) or (
        isinstance(value, list) and value and all(type(item) is int for item in value)
    )
    inputs = [value] if single else value
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MOST_INPUTS:
        raise _wrong(name, f"text, tokens, or 1 to {MOST_INPUTS} of these", value, "invalid_type")
    token_lists = []
    for item in inputs:
        if isinstance(item, str):
            token_lists.append(lm.tokenize(_text(name, item)))
            continue
        if not isinstance(item, list) or not all(type(token) is int for token in item):
            raise _wrong(name, "text or a list of tokens", item, "invalid_type")
        vocabulary = lm.config.vocabulary
        if unknown := [token for token in item if not 0 <= token < vocabulary]:
            raise _wrong(name, f"tokens from 0 to {vocabulary - 1}", unknown[0])
        token_lists.append(item)
    return token_lists


def _messages(value: object) -> list[dict[str, str]]:
    """Return the messages of a chat, each with a role and a text."""
    if not isinstance(value, list) or not value:
        raise _wrong("messages", "a list of messages", value, "invalid_type")
    messages = []
    for i, message in enumerate(value):
        name = f"messages[{i}]"
        if not isinstance(message, dict):
            raise _wrong(name, "an object with role and content", message, "invalid_type")
        role = _text(f"{name}.role", message.get("role"))
        # OpenAI's newer name of the role, which templates do not know.
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": _content(name, message.get("content"))})
    return messages


def _content(name: str, value: object) -> str:
    """Return a message's text, which may be a list of parts."""
    name = f"{name}.content"
    if not isinstance(value, list):
        return _text(name, value)
    texts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            raise _wrong(f"{name}[{i}]", "a part of type text", part, "invalid_type")
        texts.append(_text(f"{name}[{i}].text", part.get("text")))
    return "".join(texts)
