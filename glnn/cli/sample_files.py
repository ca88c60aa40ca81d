"""Samples in .npy and .npz files: their headers are looked at first, their numbers read later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError, ModelError, ShapeError, first_line
from glnn.model.npz import MOST_HEADER, Npz, open_npz, parse_header, read_array
from glnn.model.samples import check_samples
from glnn.reading import check_file, regular
from glnn.tensor_info import TensorInfo
from glnn.types import Shape

LABELS = ("label", "labels")
ENDINGS = (".npy", ".npz")


@dataclass(frozen=True)
class SampleFile:
    """A .npy or .npz file whose samples fit an input."""

    path: Path
    """Where it is."""
    info: TensorInfo
    """The input."""
    count: int
    """How many samples its header speaks of."""

    @classmethod
    def of(cls, path: Path, info: TensorInfo) -> SampleFile:
        """The file `path` for the input `info`. Raises ModelError or ShapeError where it does not
        hold such samples, as far as its header says.
        """
        if path.suffix == ".npy":
            return cls(path, info, read_npy(path, info, whole=False).shape[0])
        with open_npz(path) as archive:
            samples, _ = _chosen(archive, path, info)
            return cls(path, info, archive.header(samples).shape[0])

    def read(self) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """The samples, and their labels where it has them. Raises as `of`."""
        if self.path.suffix == ".npy":
            return read_npy(self.path, self.info), None
        with open_npz(self.path) as archive:
            samples, labels = _chosen(archive, self.path, self.info)
            return archive.read(samples), None if labels is None else archive.read(labels)


def _chosen(archive: Npz, path: Path, info: TensorInfo) -> tuple[str, str | None]:
    """The names of the samples in an .npz file, and of their labels where it has them."""
    labels = next((name for name in LABELS if name in archive.names), None)
    others = [name for name in archive.names if name != labels]
    if info.name not in others and len(others) != 1:
        found = ", ".join(others) or "none"
        raise ModelError(f"{path}: expected an array {info.name!r}, or only one; it has {found}")
    samples = info.name if info.name in others else others[0]
    header = archive.header(samples)
    check_samples(header.shape, header.dtype, info, str(path))
    if labels is not None:
        known = archive.header(labels)
        _check_labels(path, known.shape, known.dtype, header.shape[0])
    return samples, labels


def read_npy(path: Path, info: TensorInfo | None = None, whole: bool = True) -> NDArray[Any]:
    """The array in a .npy file; where it is not to be read whole, one of its shape, of nothing.

    info: the input whose samples it must be, by its header. Raises ModelError where it cannot be
    read, ShapeError where it does not fit.
    """
    check_file(path)
    try:
        with open(path, "rb", opener=regular) as file:
            begun = file.read(MOST_HEADER)
            header = parse_header(begun)
            if header.dtype.hasobject:
                raise ValueError("Object arrays cannot be loaded")
            if info is not None:
                check_samples(header.shape, header.dtype, info, str(path))
            missing = header.start + header.nbytes - path.stat().st_size
            if missing > 0:
                raise ValueError(f"it is {missing} bytes too short")
            if not whole:
                return np.broadcast_to(np.zeros((), header.dtype), header.shape)
            return read_array(header, begun[header.start :], file)
    except GlnnError:
        raise
    except Exception as error:  # a damaged header can raise nearly anything
        raise ModelError(f"{path}: cannot be read as .npy: {first_line(error)}") from None


def _check_labels(path: Path, shape: Shape, dtype: np.dtype[Any], samples: int) -> None:
    if shape != (samples,):
        raise ShapeError(f"{path}: {samples} samples need as many labels, got shape {shape}")
    if dtype.kind not in "iuf":
        raise ShapeError(f"{path}: labels must be the numbers of classes, got {dtype}")
