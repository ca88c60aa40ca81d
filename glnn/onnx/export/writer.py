"""Writers of an ONNX graph, and of a layer's nodes in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from glnn.core.types import Array, Dim, TensorType
from glnn.errors import UnsupportedOpError
from glnn.layers import Layer


@dataclass
class Writer:
    """The nodes and the weights of a graph."""

    onnx: Any
    """The `onnx` package."""
    names: set[str]
    """Names of tensors that are in use."""
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def fresh(self, base: str) -> str:
        """Return a name that is not in use: `base`, or `base` with a number appended."""
        name, number = base, 2
        while name in self.names:
            name, number = f"{base}_{number}", number + 1
        self.names.add(name)
        return name

    def weight(self, base: str, array: Array) -> str:
        """Add an initialiser with a name that begins with `base`; return the name."""
        name = self.fresh(base)
        self.weights.append(self.onnx.numpy_helper.from_array(array, name))
        return name


@dataclass(frozen=True)
class LayerWriter:
    """Writer of one layer's nodes.

    A call with an operator's name, names of operands and attributes adds a node, and returns the
    name of its result. Each result of the layer must come from a node of the layer.
    """

    writer: Writer
    layer: Layer
    name: str
    """The layer's name."""
    output: str
    """The name of its result."""
    types: tuple[TensorType, ...]
    """The types of the layer's inputs."""
    result: TensorType
    """The type of its result."""

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self.all(1, op_type, *inputs, **attributes)[0]

    def all(self, count: int, op_type: str, *inputs: str, **attributes: Any) -> list[str]:
        """Add a node with `count` results, and return their names."""
        helper, writer = self.writer.onnx.helper, self.writer
        results = [writer.fresh(f"{self.output}: {op_type}") for _ in range(count)]
        writer.nodes.append(helper.make_node(op_type, inputs, results, results[0], **attributes))
        return results

    def finish(self, *results: str) -> None:
        """Rename `results`, which no node reads, to the names of the layer's results."""
        names = (self.output, *(f"{self.output}.{name}" for name in self.layer.more))
        for result, name in zip(results, names, strict=True):
            producer = next(node for node in reversed(self.writer.nodes) if result in node.output)
            producer.output[list(producer.output).index(result)] = name
            if name == self.output:
                producer.name, producer.doc_string = self.name, repr(self.layer)

    def constant(self, values: ArrayLike, dtype: DTypeLike = np.float32) -> str:
        """Add a constant, and return its name."""
        return self.writer.weight(f"{self.output}: constant", np.asarray(values, dtype))

    def integers(self, *values: int) -> str:
        """Add a vector of int64, and return its name."""
        return self.constant(values, np.int64)

    def parameter(self, name: str) -> str:
        """Add the layer's parameter `name`, and return the tensor's name."""
        return self.writer.weight(f"{self.name}.{name}", self.layer.parameters[name])

    def transposed(self, name: str) -> str:
        """Add the layer's parameter `name`, a matrix, transposed, and return the tensor's name."""
        array = np.ascontiguousarray(self.layer.parameters[name].T)
        return self.writer.weight(f"{self.name}.{name}.T", array)

    def channels(self, name: str) -> str:
        """Add a parameter (channels,), in a shape that broadcasts along axis 1 of x."""
        array = self.layer.parameters[name]
        rank = len(self.types[0].dims)
        reshaped = array.reshape(-1, *(1,) * (rank - 2))
        return self.writer.weight(f"{self.name}.{name}", reshaped)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the layer's only input."""
        (x,) = self.types
        return x.dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """The spatial sizes of the only input. Raises UnsupportedOpError where one is unknown."""
        result = tuple(dim for dim in self.dims[2:] if isinstance(dim, int))
        if len(result) < len(self.dims) - 2:
            raise UnsupportedOpError(f"its input must have a known size, got {self.dims}")
        return result

    def reshape(self, x: str, before: Sequence[Dim], after: Sequence[Dim]) -> str:
        """Reshape x from dimensions `before` to `after`.

        Raises UnsupportedOpError where unknown sizes cannot be expressed in ONNX.
        """
        sizes = [
            dim if isinstance(dim, int) else 0 if tuple(before[i : i + 1]) == (dim,) else -1
            for i, dim in enumerate(after)
        ]
        if sizes.count(-1) > 1:
            raise UnsupportedOpError(f"ONNX cannot reshape {tuple(before)} to {tuple(after)}")
        return self("Reshape", x, self.integers(*sizes))
