"""Responses in the format of OpenAI's API."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

import numpy as np

from glnn.core.types import Array
from glnn.generation.generation import Generation

Json = dict[str, Any]


def usage(prompt: int, completion: int) -> Json:
    """Return the numbers of tokens of a request."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**counts, "total_tokens": prompt + completion}


def event(document: Mapping[str, Any] | str) -> bytes:
    """Return a server-sent event."""
    text = document if isinstance(document, str) else json.dumps(document, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


@dataclass(frozen=True)
class TextAnswer:
    """The JSON objects of one answer: a single one, or the chunks of a stream.

    model: its name. chat: True for /v1/chat/completions, False for /v1/completions.
    include_usage: True for a last chunk with the numbers of tokens.
    """

    model: str
    chat: bool
    include_usage: bool = False
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time()))

    def complete(self, generation: Generation) -> Json:
        """Return the answer as one object."""
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": generation.finish_reason}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": generation.text, "refusal": None}
        else:
            choice["text"] = generation.text
        counts = usage(generation.prompt_tokens, len(generation.tokens))
        return {**self._head(stream=False), "choices": [choice], "usage": counts}

    def first_chunks(self) -> list[Json]:
        """Return the chunks of a stream before those of text."""
        return [self._chunk({"role": "assistant", "content": ""})] if self.chat else []

    def text_chunk(self, text: str) -> Json:
        """Return a chunk of text."""
        return self._chunk({"content": text}, text)

    def last_chunks(self, generation: Generation) -> list[Json]:
        """Return the chunks of a stream after those of text."""
        chunks = [self._chunk({}, "", generation.finish_reason)]
        if self.include_usage:
            counts = usage(generation.prompt_tokens, len(generation.tokens))
            chunks.append({**self._head(stream=True), "choices": [], "usage": counts})
        return chunks

    def _head(self, stream: bool) -> Json:
        kind, prefix = "text_completion", "cmpl"
        if self.chat:
            kind, prefix = f"chat.completion{'.chunk' if stream else ''}", "chatcmpl"
        return {
            "id": f"{prefix}-{self.id}", "object": kind, "created": self.created,
            "model": self.model,
        }  # fmt: skip

    def _chunk(self, delta: Json, text: str = "", finish_reason: str | None = None) -> Json:
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        choice |= {"delta": delta} if self.chat else {"text": text}
        chunk = {**self._head(stream=True), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk


def embeddings(
    model: str, vectors: Sequence[Array], inputs: Sequence[Sequence[int]], as_base64: bool
) -> Json:
    """Return the embeddings of several texts. as_base64: as little-endian float32 in base64."""

    def numbers(vector: Array) -> Any:
        if as_base64:
            return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
        return vector.tolist()

    data = [
        {"object": "embedding", "index": i, "embedding": numbers(vector)}
        for i, vector in enumerate(vectors)
    ]
    counts = usage(sum(map(len, inputs)), 0)
    del counts["completion_tokens"]  # OpenAI's embeddings have none
    return {"object": "list", "data": data, "model": model, "usage": counts}


def models(name: str, created: int) -> Json:
    """Return the list of models, which is one."""
    return {"object": "list", "data": [model(name, created)]}


def model(name: str, created: int) -> Json:
    """Return the description of a model. created: seconds since 1970."""
    return {"id": name, "object": "model", "created": created, "owned_by": "glnn"}
