"""The ways to run an op: `compute`, `feedback` and `cpu`, behind one contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends.backend import Backend, Choice, Performer, Store
from glnn.ops.op import Op

if TYPE_CHECKING:
    from glnn.device import Device

NAMES = ("compute", "feedback", "cpu")
"""In the order in which `auto` tries them."""

__all__ = [
    "NAMES",
    "Backend",
    "Choice",
    "Performer",
    "Store",
    "evaluate",
    "open_backend",
    "prepare",
]


def open_backend(
    name: str = "auto",
    device: Device | None = None,
    *,
    gpu: int | str | None = None,
    limits: str | None = None,
) -> Backend:
    """The backend called `name`, or with `auto` the first of NAMES that opens.

    device: the device to run on; None shares one per thread, `gpu` and `limits`.
    Raises GlnnError for an unknown name, DeviceError where the backend cannot run here.
    """
    from glnn.backends.opening import open_one  # no GL is imported before it is needed

    return open_one(name, device, gpu, limits)


def evaluate(
    op: Op,
    operands: Mapping[str, NDArray[Any]],
    backend: str | Backend = "auto",
    kernel: str | None = None,
) -> NDArray[Any]:
    """The result of `op` on `operands`, float32 in and out, by one kernel of a backend.

    Raises ShapeError where the operands do not fit, UnsupportedOpError or LimitError where the
    backend cannot compute it.
    """
    shapes = {name: array.shape for name, array in operands.items()}
    op.check_operands(shapes)
    shape = op.infer(shapes)
    if 0 in shape:
        return np.empty(shape, np.float32)
    if op.view:
        return np.array(op.reference(operands))
    chosen = backend if isinstance(backend, Backend) else open_backend(backend)
    perform, out = prepare(op, operands, chosen, kernel)
    perform()
    return out.pull()


def prepare(
    op: Op, operands: Mapping[str, NDArray[Any]], backend: Backend, kernel: str | None = None
) -> tuple[Performer, Store]:
    """`op` made ready to run on `operands`, which are uploaded, and the store of its result.

    Raises what `evaluate` raises.
    """
    shapes = {name: array.shape for name, array in operands.items()}
    backend.activate()
    choice = backend.choose(op, shapes, {}, kernel)
    layouts = backend.layouts(choice, op, shapes, {})
    stores = {name: backend.allocate(shapes[name], layouts[name]) for name in operands}
    for name, store in stores.items():
        store.set(operands[name])
        backend.upload(store)
    out = backend.allocate(op.infer(shapes), layouts["out"])
    return backend.prepare(op, choice, stores, shapes, out), out
