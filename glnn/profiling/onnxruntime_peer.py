"""ONNX Runtime on this machine's CPU, as a peer: its times, and how far results are from its."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.process import processors
from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, raised
from glnn.profiling.profile import processor_ms, wall_ms
from glnn.validation.comparison import relative_error

PEER = "onnxruntime"
PROVIDER = "CPUExecutionProvider"
ERRORS_ONLY = 3
"""ONNX Runtime's log level: below, it warns of each weight that it leaves out."""

Outputs = Mapping[str, Any]
"""Results by name: arrays, or lists of arrays for sequences."""


def import_peer() -> Any:
    """Import ONNX Runtime's own package. Raises GlnnError where glnn has its place, or nothing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise GlnnError(
            f"expected the package {PEER}, got {raised(error)}: "
            f"{sys.executable} -m pip install {PEER}"
        ) from None
    if onnxruntime.__name__ != PEER:
        raise GlnnError(
            f"expected ONNX Runtime's package {PEER}, got {onnxruntime.__name__}, which stands in "
            f"for it: set GLNN_ONNXRUNTIME=0"
        )
    return onnxruntime


@dataclass(frozen=True)
class PeerTime:
    """Times of a model in ONNX Runtime, and the distance of glnn's results from its."""

    version: str
    """ONNX Runtime's."""
    provider: str
    """The execution provider."""
    threads: int
    """The number of threads that a run may use."""
    total_ms: float
    """Milliseconds of a run by the clock, from arrays to arrays: the median."""
    cpu_ms: float
    """Milliseconds of processor time that a run takes in all threads."""
    difference: Mapping[str, float]
    """By backend: the largest |glnn - ONNX Runtime| / |ONNX Runtime| of an output, inf where
    shapes, NaNs or infinities differ."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain dicts and numbers."""
        return asdict(self)


class OnnxRuntime:
    """A session of ONNX Runtime on the CPU, with as many threads as this process has processors.

    path: an .onnx file. Raises GlnnError where the package is not there, ModelError where it
    refuses the model.
    """

    def __init__(self, path: Path) -> None:
        module = import_peer()
        self.version, self.threads = str(module.__version__), processors()
        options = module.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = ERRORS_ONLY
        try:
            self._session = module.InferenceSession(str(path), options, providers=[PROVIDER])
        except Exception as error:  # its classes have no other base in common
            raise ModelError(f"{PEER} {self.version} refuses {path}: {raised(error)}") from None
        self._names = [one.name for one in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return all outputs by name. Raises ModelError where ONNX Runtime raises an exception."""
        try:
            found = self._session.run(None, feeds)
        except Exception as error:
            raise ModelError(f"{PEER} {self.version} fails: {raised(error)}") from None
        return dict(zip(self._names, found, strict=True))

    def measure(
        self, feeds: Mapping[str, Array], repeat: int, results: Mapping[str, Outputs]
    ) -> PeerTime:
        """Time `repeat` runs, and compare glnn's `results`, by backend, with their outputs."""
        expected = self.run(feeds)
        differences = {name: difference(found, expected) for name, found in results.items()}
        total = wall_ms(lambda: self.run(feeds), repeat)
        cpu = processor_ms(lambda: self.run(feeds), repeat)
        return PeerTime(self.version, PROVIDER, self.threads, total, cpu, differences)


def difference(results: Outputs, expected: Outputs) -> float:
    """Return the largest relative error of an output; inf where one is of another shape.

    Texts are equal, or off by inf.
    """
    return max((_difference(results[name], one) for name, one in expected.items()), default=0.0)


def _difference(results: Any, expected: Any) -> float:
    if isinstance(expected, list):
        if len(results) != len(expected):
            return float("inf")
        return max(map(_difference, results, expected), default=0.0)
    results, expected = np.asarray(results), np.asarray(expected)
    if results.shape != expected.shape:
        return float("inf")
    if expected.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(results, expected) else float("inf")
    return relative_error(results.astype(np.float64), expected.astype(np.float64))
