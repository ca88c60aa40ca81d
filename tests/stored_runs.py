"""Models in files that are run before and after their plans were stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import glnn
from glnn.stored.plan_cache import PlanWriter

Array = NDArray[Any]


@dataclass(frozen=True)
class Twice:
    """What a model in a file gives before and after its plan was stored."""

    path: Path
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        why = self.options["device"].capabilities.why_no_compute()
        if why and self.options["backend"] == "compute":
            pytest.skip(why)

    def session(self) -> glnn.InferenceSession:
        return glnn.InferenceSession(self.path, **self.options)

    def cold(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The results of a session that makes a plan, once that is stored."""
        session = self.session()
        found = session.run(None, feeds)
        assert not session.restored
        written(session)
        return found

    def warm(self, feeds: Mapping[str, Array]) -> list[Array]:
        """Those of a session that runs what was stored."""
        session = self.session()
        found = session.run(None, feeds)
        assert session.restored
        return found


def written(session: glnn.InferenceSession) -> None:
    """Wait until all plans of a session are stored."""
    loaded = session._lazy.loaded
    assert loaded is not None and loaded.executor.saving is not None
    writer = loaded.executor.saving._writer
    assert isinstance(writer, PlanWriter)
    writer.wait()


def same(one: list[Array], other: list[Array]) -> None:
    """Raise AssertionError unless these are the same arrays, bit for bit."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()


def numbers(seed: int, shape: tuple[int, ...]) -> Array:
    """Random numbers."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
