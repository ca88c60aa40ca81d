"""The speech engine: runs whisper's graphs for one window of a recording at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glnn.backends import Backend, open_backend
from glnn.compiler import Executor
from glnn.compiler.states import States
from glnn.core.types import Array
from glnn.errors import LimitError
from glnn.generation.speech.whisper import Encoder, SpeechDecoder, reordering
from glnn.gl import Device


class SpeechEngine:
    """Executors of encoder and decoder, with the encoder's results and the caches on a device.

    `encode` begins a window. The caches have `context` rows for each of `beams` texts: `logits`
    adds tokens to texts, `order` copies texts.
    """

    def __init__(
        self,
        encoder: Encoder,
        decoder: SpeechDecoder,
        beams: int,
        backend: str,
        device: Device | None,
        gpu: int | str | None,
        weights: int = 0,
    ) -> None:
        """decoder: built for `beams` texts. weights: the bytes of all weights.

        Raises LimitError, before anything is uploaded, where weights and states need more memory
        than is free.
        """
        self._encoder, self._decoder, self.beams = encoder, decoder, beams
        self._backend_options = backend, device, gpu
        shape = next(iter(decoder.caches.values()))
        self.context = shape[0] // beams
        """The most tokens of a text."""
        self.backend: Backend = open_backend(backend, device, gpu=gpu)
        self._check_memory(weights)
        self._open()

    def _check_memory(self, weights: int) -> None:
        free = self.backend.perform(self.backend.available)
        caches = 2 * sum(4 * rows * width for rows, width in self._decoder.caches.values())
        states = sum(4 * rows * width for rows, width in self._encoder.states.values())
        if free is not None and weights + caches + states > free:
            raise LimitError(
                f"weights take {weights} bytes, the encoder's results {states} and caches for "
                f"{self.beams} texts {caches}, {free} are free"
            )

    def _open(self) -> None:
        """Allocate the states and create the executors."""
        encoder, decoder, backend = self._encoder, self._decoder, self.backend
        states = States(backend)
        for name, shape in {**encoder.states, **decoder.caches}.items():
            states.add(name, np.zeros(shape, np.float32))
        order, updates = reordering(decoder.caches)
        self._encode = Executor(encoder.graph, backend, states=states, updates=encoder.updates)
        self._decode = Executor(decoder.graph, backend, states=states, updates=decoder.updates)
        self._order = Executor(order, backend, states=states, updates=updates)
        self._states, self._align = states, dict[tuple[int, ...], Executor]()

    @property
    def lost(self) -> bool:
        """True where the device was lost, with its memory."""
        return self.backend.device is not None and bool(self.backend.device.lost)

    def reopen(self) -> None:
        """Open a lost device again."""
        backend, device, gpu = self._backend_options
        device = None if device is None or device.lost else device
        self.backend = open_backend(backend, device, gpu=gpu)
        self._open()

    def encode(self, features: Array) -> None:
        """Compute the encoder's results for `features`, (bins, 2 frames) float32."""
        self._encode.run({"features": features}, ())

    def logits(self, tokens: Sequence[int], places: Sequence[int], rows: Sequence[int]) -> Array:
        """Add tokens to texts; return the logits after some of them, (rows, vocabulary) float32.

        places: the row of the caches of each token, text * context + position. rows: the indices in
        `tokens` of those whose logits are returned.
        """
        return self._decode.run(_feeds(tokens, places, rows), ("logits",))["logits"]

    def align(
        self, tokens: Sequence[int], rows: Sequence[int], layers: Sequence[int]
    ) -> tuple[Array, dict[int, Array], dict[int, Array]]:
        """Compute `tokens` as text 0; return logits, queries and keys.

        Logits are those after the tokens `rows`. Queries, (tokens, width), and keys, (frames,
        width), are those of the cross-attention of each of `layers`, by layer.
        """
        key = tuple(layers)
        if key not in self._align:
            graph, decoder = self._decoder.aligning(key), self._decode
            self._align[key] = self.backend.perform(
                lambda: decoder.with_states(graph, self._states, self._decoder.updates)
            )
        names = {layer: self._decoder.queries[layer].name for layer in layers}
        feeds = _feeds(tokens, range(len(tokens)), rows)
        outputs = self._align[key].run(feeds, ("logits", *names.values()))
        states = self._states.read(f"cross.{layer}" for layer in layers)
        width = outputs[names[key[0]]].shape[1]
        return (
            outputs["logits"],
            {layer: outputs[name] for layer, name in names.items()},
            {layer: states[f"cross.{layer}"][:, :width] for layer in layers},
        )

    def order(self, parents: Sequence[int]) -> None:
        """Replace each text i by what text `parents[i]` was."""
        if list(parents) == list(range(self.beams)):
            return
        rows = np.array(parents, np.int32)[:, None] * self.context + np.arange(self.context)
        self._order.run({"rows": rows.ravel().astype(np.int32)}, ())


def _feeds(tokens: Sequence[int], places: Sequence[int], rows: Sequence[int]) -> dict[str, Array]:
    """Return the inputs of the decoder's graph."""
    feeds = {"tokens": tokens, "places": places, "logit_rows": rows}
    return {name: np.array(numbers, np.int32) for name, numbers in feeds.items()}
