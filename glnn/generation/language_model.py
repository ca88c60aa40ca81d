"""A language model that generates text, loaded from a file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.types import Array
from glnn.errors import ModelError, shown
from glnn.generation.architectures import decoder
from glnn.generation.engine import Engine, GenerationRequest
from glnn.generation.generation import Generation
from glnn.generation.model_file import open_model
from glnn.generation.sampling import Sampling
from glnn.generation.settings import whole_number
from glnn.generation.tokenizer import Tokenizer
from glnn.gl import Device

MOST_SEQUENCES = 256


class LanguageModel:
    """A language model that continues texts.

    path: a GGUF file, or a folder of Hugging Face (config.json, safetensors, tokenizer.json).
    backend, device, gpu: as in `InferenceSession`. context: the most tokens of a sequence, those of
    the prompt and those generated; by default the model's own, at most 4096. sequences: how many
    are continued together; others wait. Any thread may use it.

    Raises ModelError for a file that is no such model or is damaged, and for an architecture,
    tokenizer or format of weights that does not run here; LimitError where the memory does not
    suffice; DeviceError where the backend does not open. All before anything is uploaded.

        >>> lm = glnn.LanguageModel("model.gguf")  # doctest: +SKIP
        >>> lm.generate("The capital of France is", max_tokens=8)  # doctest: +SKIP
        ' Paris.'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str = "auto",
        context: int | None = None,
        sequences: int = 1,
        device: Device | None = None,
        gpu: int | str | None = None,
    ) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ModelError(
                f"a language model lies in a file, expected its path, got {shown(path)}"
            )
        self.path = Path(path)
        self.sequences = sequences = whole_number("sequences", sequences, MOST_SEQUENCES)
        with open_model(self.path) as file:
            self.config = file.config
            self.context = file.context(context)
            self.tokenizer: Tokenizer = file.tokenizer()
            graph = decoder(file.config, file.weights, self.context, sequences)
            nbytes = file.weights.nbytes
        self._engine = Engine(graph, self.context, sequences, backend, device, gpu, nbytes)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a LanguageModel cannot be pickled or copied: its weights and caches are on a device; "
            f"load {str(self.path)!r} where it is needed"
        )

    def __repr__(self) -> str:
        """Show the file, the architecture and the backend."""
        name = self._engine.backend.name
        return f"LanguageModel({str(self.path)!r}, {self.config.architecture}, {name})"

    @property
    def backend(self) -> str:
        """Name of the backend that runs it."""
        return self._engine.backend.name

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of `text`, after the one that begins texts where the model wants it."""
        return self.tokenizer.encode(text)

    def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of `messages`, as in `chat`, up to where the answer begins."""
        return self.tokenizer.encode(self.tokenizer.chat(messages), begin=False)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`, without control tokens. Raises ModelError for numbers that
        are no tokens.
        """
        if not isinstance(tokens, Iterable):
            raise ModelError(f"tokens must be integers, got {shown(tokens)}")
        return self.tokenizer.decode([_token(t, self.config.vocabulary) for t in tokens])

    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Any
    ) -> str | Generation:
        """Return the text that continues `prompt`; with `stream` an iterator of its pieces.

        prompt, options: those of `start`. Closing the iterator ends the generation.
        """
        generation = self.start(prompt, **options)
        return generation if stream else "".join(generation)

    def start(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
    ) -> Generation:
        """Begin a text that continues `prompt`; iterate over the result to generate it.

        prompt: text, or tokens. max_tokens: of the continuation, which ends sooner at a token that
        ends texts, before one of the texts `stop`, or where the context is full. temperature,
        top_k, top_p, min_p, repetition_penalty, seed: see `Sampling`; temperature 0 takes the
        likeliest token. Raises ModelError for a prompt that does not fit, or options out of their
        ranges.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
        tokens = self._tokens(prompt)
        stops = _stops(stop)
        limit = whole_number("max_tokens", max_tokens)
        request = GenerationRequest(tokens, limit, self.tokenizer.ends, sampling)
        return Generation(self._engine, request, self.tokenizer.pieces(request.tokens), stops)

    def step(self) -> None:
        """Compute the next token of every unfinished text; `Generation.read` returns them.

        For a thread that drives several texts by itself. Iterating over a `Generation` makes the
        steps that it needs.
        """
        self._engine.step()

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> str | Generation:
        """Return the answer to `messages`, each with "role" and "content", by the model's template.

        options: those of `generate`.
        """
        return self.generate(self.tokenize_chat(messages), **options)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return the logits of the token after each of `tokens`, (tokens, vocabulary) float32."""
        return self._engine.all_outputs(self._tokens(tokens), "logits")

    def embed(self, text: str | Sequence[int]) -> Array:
        """Return the mean of a text's last hidden states, scaled to norm 1: (width,) float32."""
        hidden = self._engine.all_outputs(self._tokens(text), "output_norm")
        mean = hidden.astype(np.float64).mean(axis=0)
        return np.asarray(mean / max(np.linalg.norm(mean), 1e-30), np.float32)

    def _tokens(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Iterable):
            tokens = [_token(t, self.config.vocabulary) for t in prompt]
        else:
            raise ModelError(f"prompt must be text or tokens, got {shown(prompt)}")
        self._engine.check(tokens)
        return tokens


def _stops(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the texts that end a generation. Raises ModelError unless they are texts."""
    stops = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if isinstance(stops, Iterable):
        texts = tuple(stops)
        if all(isinstance(text, str) and text for text in texts):
            return texts
    raise ModelError(f"stop must be texts that are not empty, got {shown(stop)}")


def _token(value: object, vocabulary: int) -> int:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not 0 <= value < vocabulary:  # type: ignore[operator]
        raise ModelError(f"a token must be from 0 to {vocabulary - 1}, got {shown(value)}")
    return int(value)  # type: ignore[call-overload,no-any-return]
