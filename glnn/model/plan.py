"""A model made ready for a backend and input shapes: performers in order, and their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glnn.backends import Backend, Performer, Store
from glnn.errors import ModelError, UnsupportedOpError
from glnn.layout import Layout, parse
from glnn.model.fuse import FusedNode, fuse
from glnn.ops.op import Cost, Op, Shape, Shapes
from glnn.ops.repack import Repack

if TYPE_CHECKING:
    from glnn.model.model import Model

Array = NDArray[Any]


@dataclass(frozen=True)
class Step:
    """One performer of a plan. Calling it performs it alone, without waiting for the device.

    layouts: of each operand and of `out`.
    """

    name: str
    op: Op
    kernel: str
    inputs: tuple[str, ...]
    output: str
    shapes: Shapes
    layouts: Mapping[str, str]
    cost: Cost
    performer: Performer

    def __call__(self) -> None:
        self.performer()


@dataclass(frozen=True)
class _Tensor:
    """A tensor's place: several tensors share one store where an op is only a view."""

    store: Store
    shape: Shape
    layout: Layout


class Plan:
    """A model on one backend for one set of input shapes.

    model: what to compute. backend: where. shapes: each input's shape.
    kernels: the kernel to take for an op, by the op's name; others are chosen.
    fused: whether biases and activations go into their producers' epilogues.

    Raises UnsupportedOpError or LimitError where the backend cannot compute a layer, ShapeError
    where the shapes do not fit. Belongs to the thread that its backend's device belongs to.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        shapes: Mapping[str, Shape],
        kernels: Mapping[str, str] | None = None,
        *,
        fused: bool = True,
    ) -> None:
        self.model, self.backend = model, backend
        self._kernels = dict(kernels or {})
        self._tensors: dict[str, _Tensor] = {}
        self._parameter_bytes = 0
        self._lock = Lock()  # the cpu backend may be used from several threads
        self._inputs: list[Store] = []
        steps: list[Step] = []
        backend.activate()
        self.nodes = nodes = fuse(model, enabled=fused)
        if unused := set(self._kernels) - {node.op.name for node in nodes}:
            name = sorted(unused)[0]
            raise UnsupportedOpError(f"kernel for {name}: {model.name} has no op of that name")
        plain = parse("R")
        for info in model.inputs:
            shape = tuple(shapes[info.name])
            self._inputs.append(backend.allocate(shape, plain))
            self._tensors[info.name] = _Tensor(self._inputs[-1], shape, plain)
        for node in nodes:
            self._add(node, steps)
        self.steps = tuple(steps)

    def _add(self, node: FusedNode, steps: list[Step]) -> None:
        """Append the step of `node`, and before it the repacks that it needs."""
        inputs = dict(zip(node.op.inputs, node.inputs, strict=False))
        shapes: dict[str, Shape] = {k: self._tensors[v].shape for k, v in inputs.items()}
        shapes |= {name: array.shape for name, array in node.parameters.items()}
        if node.op.view:
            source = self._in_layout(inputs["x"], parse("R"), steps)
            self._tensors[node.output] = _Tensor(source.store, node.op.infer(shapes), source.layout)
            return
        given = {k: self._tensors[v].layout.name for k, v in inputs.items()}
        choice = self.backend.choose(node.op, shapes, given, self._kernels.get(node.op.name))
        wanted = self.backend.layouts(choice, node.op, shapes, given)
        stores = {k: self._in_layout(v, wanted[k], steps).store for k, v in inputs.items()}
        for name, array in node.parameters.items():
            stores[name] = store = self.backend.allocate(array.shape, wanted[name])
            store.set(array)
            self.backend.upload(store)
            self._parameter_bytes += store.nbytes
        shape = node.op.infer(shapes)
        out = self.backend.allocate(shape, wanted["out"])
        performer = self.backend.prepare(node.op, choice, stores, shapes, out)
        self._tensors[node.output] = _Tensor(out, shape, wanted["out"])
        cost = node.op.cost(shapes)
        names = tuple(inputs.values())
        steps.append(
            Step(
                node.name,
                node.op,
                choice.name,
                names,
                node.output,
                shapes,
                {name: layout.name for name, layout in wanted.items()},
                cost,
                performer,
            )
        )

    def _in_layout(self, name: str, layout: Layout, steps: list[Step]) -> _Tensor:
        """The tensor called `name` in `layout`: itself, or a repacked copy made once."""
        tensor = self._tensors[name]
        if tensor.layout == layout:
            return tensor
        copy = f"{name} as {layout.name}"
        if copy not in self._tensors:
            op = Repack(tensor.layout.name, layout.name)
            repack = FusedNode(f"{name} to {layout.name}", op, {}, (name,), copy)
            self._add(repack, steps)
        return self._tensors[copy]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors and packed parameters."""
        stores = {id(t.store): t.store.nbytes for t in self._tensors.values()}
        return self._parameter_bytes + sum(stores.values())

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs, float32 arrays of the plan's shapes, to the device."""
        for info, store in zip(self.model.inputs, self._inputs, strict=True):
            store.set(feeds[info.name])
            self.backend.upload(store)

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        # Drivers collect commands until somebody waits. Sending off the first step, then two, then
        # four has the device at work while the rest is still being asked for.
        batch = left = 1
        for step in self.steps:
            step.performer()
            left -= 1
            if not left:
                self.backend.flush()
                left = batch = 2 * batch

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return {name: self.value(name) for name in self.model.outputs}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its float32 array of the plan's shape.
        """
        with self._lock:
            self.backend.activate()
            self.upload(feeds)
            self.perform()
            return self.download()

    def value(self, name: str) -> Array:
        """The tensor called `name` as the last run left it, a new float32 array.

        Raises ModelError where the plan has no such tensor: it may have been fused away.
        """
        if name not in self._tensors:
            raise ModelError(f"the plan of {self.model.name} keeps no tensor {name!r}")
        tensor = self._tensors[name]
        # Copied: stores keep what they pulled, and a view of an input is the caller's own array.
        return np.array(tensor.store.pull().reshape(tensor.shape))
