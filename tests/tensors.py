"""What looks like PyTorch's tensors to those who do not import it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Tensor:
    """Numbers that are only to be had as PyTorch gives them: without gradients, on the host."""

    numbers: np.ndarray
    """float32 for a `kind` that NumPy has not."""
    kind: str = "torch.float32"
    device: str = "cuda:0"
    requires_grad: bool = True
    broken: str = ""
    """What `numpy` raises."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def dtype(self) -> str:
        return self.kind

    def detach(self) -> Any:
        return replace(self, requires_grad=False)

    def cpu(self) -> Any:
        return replace(self, device="cpu")

    def resolve_conj(self) -> Any:
        return self

    def resolve_neg(self) -> Any:
        return self

    def float(self) -> Any:
        return replace(self, kind="torch.float32")

    def numpy(self) -> np.ndarray:
        if self.broken:
            raise NotImplementedError(self.broken)
        if self.requires_grad or self.device != "cpu" or "bfloat" in self.kind:
            raise TypeError(f"can't convert a tensor of {self.kind} on {self.device}")
        return self.numbers
