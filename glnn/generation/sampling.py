"""Sampling: the choice of the next token from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from glnn.core.types import Array
from glnn.errors import ModelError, shown
from glnn.graph.operators.sample import candidates, draw


@dataclass(frozen=True)
class Sampling:
    """Rule by which the next token is chosen.

    temperature: 0 takes the likeliest token; a greater one makes probabilities more even. top_k:
    draws only among so many likeliest tokens; 0 for all. top_p: only among the fewest likeliest
    whose probabilities add up to this. min_p: only among tokens at least so likely, relative to the
    likeliest. repetition_penalty: divides the logits of tokens that the text has, and multiplies
    negative ones, once for each token however often it occurs. seed: of the random numbers; None
    for another each time.

    They are applied in llama.cpp's order: repetition_penalty; top_k; top_p and min_p, both by the
    probabilities among the tokens that top_k leaves; temperature. So the temperature changes how
    often a token is drawn, never which tokens can be.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, 1e6),
            "top_k": (0, 1 << 31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (1e-6, 1e6),
        }
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            kind = Integral if name == "top_k" else Real
            if isinstance(value, bool) or not isinstance(value, kind):
                wanted = "an integer" if name == "top_k" else "a number"
                raise ModelError(f"{name} must be {wanted}, got {shown(value)}")
            if not least <= value <= most:  # type: ignore[operator]
                raise ModelError(f"{name} must be from {least} to {most}, got {value}")
        if self.seed is not None and (
            isinstance(self.seed, bool) or not isinstance(self.seed, Integral)
        ):
            raise ModelError(f"seed must be an integer or None, got {shown(self.seed)}")
        if self.seed is not None and self.seed < 0:
            raise ModelError(f"seed must be 0 or more, got {self.seed}")

    @property
    def greedy(self) -> bool:
        """Return True where the likeliest token is always taken."""
        return self.temperature == 0 and self.repetition_penalty == 1

    @property
    def rules(self) -> tuple[float, ...] | None:
        """Return the row of rules of `Sample`; None where only the host can choose."""
        if self.repetition_penalty != 1:
            return None
        return self.temperature, self.top_k, self.top_p, self.min_p

    def generator(self) -> np.random.Generator:
        """Return a new generator of random numbers."""
        return np.random.default_rng(self.seed)

    def choose(self, logits: Array, tokens: Sequence[int], generator: np.random.Generator) -> int:
        """Return the next token. logits: (vocabulary,). tokens: those that the text has.

        Raises ModelError where the greatest of `logits` is not finite.
        """
        scores = logits.astype(np.float64)
        if not np.isfinite(scores.max()):
            raise logits_are_no_numbers()
        if self.repetition_penalty != 1 and tokens:
            repeated = np.unique(np.asarray(tokens))
            s = scores[repeated]
            scores[repeated] = np.where(
                s > 0, s / self.repetition_penalty, s * self.repetition_penalty
            )
        if self.temperature == 0:
            return int(scores.argmax())
        allowed = candidates(scores, self.top_k, self.top_p, self.min_p)
        return draw(scores, allowed, self.temperature, generator.random())


def logits_are_no_numbers() -> ModelError:
    """Return the error for logits of which the greatest is not finite."""
    return ModelError(
        "the model's logits are no numbers: its weights are damaged, or too large for float32"
    )
