"""The base of image filters: checked arguments, and a plan for each image type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glnn.backends import Backend, opened
from glnn.compiler import Plan
from glnn.core.process import process_lock
from glnn.core.types import Array, DType, Shape, TensorType, as_one_of
from glnn.errors import LimitError, ShapeError, shown
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.graph import Graph, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Pointwise
from glnn.kernels.library import revision

PLANS_KEPT = 16
ROUNDED = call("round", Arg(0))
"""Round to the nearest integer, halves to even."""
HALF_UP = call("floor", call("add", Arg(0), 0.5))
"""Round to the nearest integer, halves up."""


class Sketch:
    """Builder of a filter's graph."""

    def __init__(self, name: str) -> None:
        self._builder, self._count = Builder(name), 0

    def image(self, type: TensorType) -> Value:
        """Return the image to filter."""
        return self._builder.input("image", type)

    def add(self, operator: Operator, *inputs: Value) -> Value:
        """Add `operator` on `inputs`, and return its result."""
        self._count += 1
        (value,) = self._builder.add(operator, *inputs, name=f"{operator.name}{self._count}")
        return value

    def floats(self, x: Value) -> Value:
        """Return x as float32."""
        if x.type.dtype is DType.float32:
            return x
        return self.add(Pointwise(call("cast_float32", Arg(0))), x)

    def convert_like(self, x: Value, y: Value, rounding: Expr = ROUNDED) -> Value:
        """Convert y, float32, to the type of x: to uint8 by `rounding` and saturation."""
        if x.type.dtype is DType.float32:
            return y
        return self.add(Pointwise(call("cast_uint8", call("clip", rounding, 0.0, 255.0))), y)

    def graph(self, outputs: tuple[Value, ...]) -> Graph:
        """Return the graph with these outputs."""
        return self._builder.graph(outputs)


@dataclass(frozen=True)
class Filter(ABC):
    """A filter with its parameters. Equal filters share plans."""

    name: ClassVar[str]

    @property
    def kernels(self) -> Mapping[str, str]:
        """The kernels to use, by the operators' names; for other operators they are selected."""
        return {}

    @abstractmethod
    def express(self, sketch: Sketch, x: Value) -> tuple[Value, ...]:
        """Add the filter's operators on the image x to `sketch`, and return their results.

        Raises ShapeError for an image that the filter does not take.
        """

    def __call__(self, image: Array, backend: str | Backend) -> tuple[Array, ...]:
        """Filter `image`, and return new arrays. Plans are cached.

        Images too large for the device are filtered in parts along `split_axis`. Raises ShapeError
        for an image that the filter does not take, DeviceError where the backend does not open,
        LimitError where the device has too little memory.
        """
        return self._results(as_image(self.name, image), opened(backend))

    def _results(self, image: Array, backend: Backend) -> tuple[Array, ...]:
        axis = self.split_axis(image.shape)
        try:
            plan = self.plan(TensorType.from_array(image), backend)
        except LimitError:
            if axis is None:
                raise
            parts = np.array_split(image, 2, axis)
            pairs = zip(*(self._results(part, backend) for part in parts), strict=True)
            return tuple(np.concatenate(pair, axis) for pair in pairs)
        result = plan.run({"image": image})
        return tuple(result[name] for name in plan.outputs)

    def split_axis(self, shape: Shape) -> int | None:
        """Return the axis along which an image of `shape` can be filtered in parts: that of images
        or channels; None where its size is 1.
        """
        if len(shape) == 4 and shape[0] > 1:
            return 0
        last = len(shape) - 1
        return last if last > 1 and shape[last] > 1 else None

    def plan(self, type: TensorType, backend: str | Backend) -> Plan:
        """Return the plan for images of `type`, made on first use.

        Raises what `__call__` does.
        """
        device = opened(backend)
        return device.perform(lambda: _plans.plan(self, type, device))


class _Plans:
    """Cache of the most recently used plans, for all threads."""

    def __init__(self) -> None:
        self.lock = process_lock()
        self.kept: OrderedDict[tuple[Filter, TensorType, Backend | None, int], Plan]
        self.kept = OrderedDict()

    def plan(self, filter: Filter, type: TensorType, backend: Backend) -> Plan:
        """Return the plan of `filter` for images of `type`, made on first use.

        Call it inside `Backend.perform`, as a thread that is inside may wait for the lock.
        """
        # CPU backends share plans; a new revision of the kernels needs new plans.
        key = filter, type, backend if backend.device else None, revision()
        with self.lock:
            plan = self.kept.pop(key, None)
            if plan is None:
                self._make_room(backend)
                sketch = Sketch(filter.name)
                graph = sketch.graph(filter.express(sketch, sketch.image(type)))
                plan = Plan(graph, backend, {"image": type.shape}, filter.kernels)
            self.kept[key] = plan
            if len(self.kept) > PLANS_KEPT:
                self.kept.popitem(last=False)
            return plan

    def _make_room(self, backend: Backend) -> None:
        """Drop the oldest plans while those on `backend` take more memory than it has free."""
        while self.kept and (free := backend.available()) is not None:
            of_backend = (plan for plan in self.kept.values() if plan.backend is backend)
            if sum(plan.nbytes for plan in of_backend) <= free:
                return
            self.kept.popitem(last=False)


_plans = _Plans()


BORDERS = ("reflect", "replicate", "constant")
"""The values of pixels beyond an image: mirrored at the last pixel, that pixel repeated, or 0."""
DTYPES = (DType.uint8, DType.float32)
RANKS = (2, 3, 4)
MAX_KERNEL_SIDE = 1 << 15
"""The greatest width and height of a kernel, in pixels."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)
Pair = tuple[int, int]
"""A number for the width and one for the height."""


def as_image(name: str, image: object) -> Array:
    """Return `image` if it is uint8 or float32, H x W, H x W x C or N x H x W x C, and not empty.

    name: the filter's name in errors. Raises ShapeError.
    """
    array = as_one_of(f"{name}: image", image, DTYPES)
    if array.ndim not in RANKS or 0 in array.shape:
        raise ShapeError(
            f"{name}: image must be H x W, H x W x C or N x H x W x C, none of them 0, "
            f"got shape {array.shape}"
        )
    return array


def axes(shape: Shape) -> Pair:
    """Return the axes of columns and of rows in an image of `shape`."""
    has_batch = len(shape) == 4
    return 1 + has_batch, 0 + has_batch


def check_border(name: str, border: object) -> str:
    """Return `border` if it is one of BORDERS. Raises ShapeError."""
    if not isinstance(border, str) or border not in BORDERS:
        raise ShapeError(f"{name}: border must be one of {BORDERS}, got {shown(border)}")
    return border


def check_sizes(
    name: str, argument: str, value: object, *, most: int = MAX_KERNEL_SIDE, odd: bool = False
) -> Pair:
    """Return `value` as (width, height): one integer from 1 to `most`, or two.

    Raises ShapeError.
    """
    what = "odd numbers" if odd else "numbers"
    result = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    are_integers = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in result)
    fits = len(result) == 2 and are_integers and all(1 <= n <= most for n in result)
    if not fits or (odd and not all(n % 2 for n in result)):
        raise ShapeError(
            f"{name}: {argument} must be one or two whole {what} from 1 to {most}, width first, "
            f"got {shown(value)}"
        )
    return int(result[0]), int(result[1])


def check_numbers(name: str, argument: str, values: object) -> tuple[float, ...]:
    """Return `values`, at least one, as floats that are finite in float32. Raises ShapeError."""
    sequence: Any = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(sequence, (list, tuple)) and sequence and all(is_number(n) for n in sequence):
        return tuple(map(float, sequence))
    raise ShapeError(f"{name}: {argument} must be a row of finite numbers, got {shown(values)}")


def is_number(value: object) -> bool:
    """Return True where `value` is a real number that is finite in float32."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return real and abs(value) <= MAX_FLOAT32  # type: ignore[arg-type]
