"""The suite's language model: a decoder of SmolLM2-135M's width, with random weights of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glnn.core.types import Array
from glnn.generation.architectures import Config, Packed, Rope
from glnn.graph.quantization import GGML_FORMATS, JoinedBlocks
from glnn.suite.networks import SEED

FORMAT = GGML_FORMATS["q8_0"]
SCALE = 1 / 4096
"""The scale of each block: 127 of them are 0.03, as weights of a trained model may be."""
HIDDEN = 1536
"""Numbers between the two products of a feed-forward network."""
CONFIG = Config(
    architecture="llama",
    layers=12,
    width=576,
    heads=9,
    kv_heads=3,
    head_width=64,
    vocabulary=16384,
    context=2048,
    eps=1e-5,
    rope=Rope(base=100_000.0),
    tied=True,
)


@dataclass(frozen=True)
class RandomWeights:
    """Weights in memory, by GGUF's names, the same in each process."""

    config: Config = CONFIG

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape. Raises KeyError where there is none."""
        config = self.config
        width, kv = config.width, config.kv_heads * config.head_width
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd": (config.vocabulary, width),
            "attn_q": (config.heads * config.head_width, width),
            "attn_k": (kv, width),
            "attn_v": (kv, width),
            "attn_output": (width, config.heads * config.head_width),
            "ffn_gate": (HIDDEN, width),
            "ffn_up": (HIDDEN, width),
            "ffn_down": (width, HIDDEN),
            "attn_norm": (width,),
            "ffn_norm": (width,),
            "output_norm": (width,),
        }
        return shapes[name.removesuffix(".weight").rpartition(".")[2]]

    def __contains__(self, name: str) -> bool:
        try:
            return bool(self.shape(name))
        except KeyError:
            return False

    def packed(self, *names: str) -> Packed:
        """Return matrices one below the other, as one packed weight."""
        n, k = sum(self.shape(name)[0] for name in names), self.shape(names[0])[1]
        return FORMAT, FORMAT.pack(JoinedBlocks([self._blocks(name) for name in names]), n, k)

    def array(self, name: str) -> Array:
        """Return the numbers of a normalisation's weight, which are 1."""
        return np.ones(self.shape(name), np.float32)

    def have_same_format(self, *names: str) -> bool:
        """Return True: all matrices are of one format."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices together."""
        layered = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        numbers = self.config.layers * sum(self._count(f"{name}.weight") for name in layered)
        numbers += self._count("token_embd.weight")
        return numbers // FORMAT.block * FORMAT.block_bytes

    def _count(self, name: str) -> int:
        n, k = self.shape(name)
        return n * k

    def _blocks(self, name: str) -> NDArray[np.uint8]:
        """Return the blocks of a matrix, (count, bytes): a scale in float16, and 32 numbers."""
        generator = np.random.default_rng([SEED, *name.encode()])
        blocks = np.empty((self._count(name) // FORMAT.block, FORMAT.block_bytes), np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(SCALE).tobytes(), np.uint8)
        numbers = generator.integers(-127, 128, (len(blocks), FORMAT.block), np.int8)
        blocks[:, 2:] = numbers.view(np.uint8)
        return blocks
