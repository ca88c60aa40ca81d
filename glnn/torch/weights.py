"""Tensors that are taken for constants, until somebody changes them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from glnn.session import InferenceSession
from glnn.torch.exporting import Exported

Mark = tuple[int, int, bytes]
SAMPLES = 64  # numbers of a weight that are looked at in each call


class Held:
    """The weights of one module, as they are on the device in the sessions of its graphs."""

    def __init__(self, weights: Mapping[int, Any], renewed: bool = False) -> None:
        """weights: tensors by their positions among a graph's inputs. They are not kept alive.

        renewed: whether they were others before.
        """
        self._tensors = {i: weakref.ref(tensor) for i, tensor in weights.items()}
        self._marks = {i: mark(tensor) for i, tensor in weights.items()}
        self.sessions: dict[Exported, InferenceSession] = {}
        self.checked: set[object] = set()  # models and sizes whose results were PyTorch's
        self.renewed = renewed
        self.runs = 0  # since the weights were taken

    def is_of(self, weights: Mapping[int, Any]) -> bool:
        """Whether these are its tensors, whatever is in them."""
        return all(self._tensors[i]() is tensor for i, tensor in weights.items())

    @property
    def alive(self) -> bool:
        """Whether anybody else still has the tensors."""
        return all(tensor() is not None for tensor in self._tensors.values())

    def changed(self, weights: Mapping[int, Any]) -> tuple[int, ...]:
        """The positions of the tensors that were changed since they were taken."""
        return tuple(i for i, tensor in weights.items() if mark(tensor) != self._marks[i])


def mark(tensor: Any) -> Mark:
    """What changes with the numbers of `tensor`: where they lie, how often they were changed.

    And, as changes by way of `.data` or NumPy are not counted, some of the numbers.
    """
    version = 0 if tensor.is_inference() else tensor._version
    sample = b""
    if tensor.is_contiguous():
        flat = tensor.detach().resolve_neg().numpy().reshape(-1)
        sample = np.ascontiguousarray(flat[:: max(1, flat.size // SAMPLES)]).tobytes()
    return tensor.data_ptr(), version, sample
