"""Options of a session beside its model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from glnn.errors import GlnnError, shown
from glnn.gl import Device
from glnn.settings import BACKENDS

NAMES = BACKENDS
"""The backends, in the order in which `auto` tries them."""
PRECISIONS = ("float32", "float16", "int8")
"""The number types that weights may be stored as."""
PREFERENCES = ("fastest", "gpu")
"""The values of `prefer`."""


@dataclass(frozen=True, eq=False)
class Options:
    """The arguments of an InferenceSession. Raises GlnnError for those that are of no use.

    Of a backend, a device or a pass that there is none of, those tell who look for it.
    """

    backend: str = "auto"
    """`auto`, or the name of one."""
    device: Device | None = None
    """The device to run on; None opens or shares one."""
    gpu: int | str | None = None
    """The GPU to open; None is the environment's."""
    limits: str | None = None
    """The limits of the device; None are the environment's."""
    kernels: Mapping[str, str] | None = None
    """Kernels to take, by the name of the op."""
    precision: str = "float32"
    """As what weights are stored, and what steps give each other: one of PRECISIONS."""
    max_batch: int = 1
    """The most samples that requests are batched to."""
    without: Iterable[Any] = ()
    """Passes that are left out."""
    fused: bool = True
    """True where work may be fused into the step before."""
    prefer: str = "fastest"
    """The backend that `auto` prefers, one of PREFERENCES."""

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str):
            raise GlnnError(f"a backend must be a name, got {shown(self.backend)}")
        if self.kernels is not None and not _names(self.kernels):
            raise GlnnError(f"kernels must map ops to kernels' names, got {shown(self.kernels)}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS[:-1])
            known = f"{known} or {PRECISIONS[-1]}"
            raise GlnnError(f"precision must be {known}, got {shown(self.precision)}")
        if not isinstance(self.prefer, str) or self.prefer not in PREFERENCES:
            known = " or ".join(PREFERENCES)
            raise GlnnError(f"prefer must be {known}, got {shown(self.prefer)}")
        if type(self.max_batch) is not int or self.max_batch < 1:
            raise GlnnError(f"max_batch must be a positive int, got {shown(self.max_batch)}")
        if isinstance(self.without, Iterable) and not isinstance(self.without, str):
            object.__setattr__(self, "without", tuple(self.without))  # it may be gone through once


def _names(kernels: object) -> bool:
    texts = [*kernels, *kernels.values()] if isinstance(kernels, Mapping) else [None]
    return all(isinstance(text, str) for text in texts)
