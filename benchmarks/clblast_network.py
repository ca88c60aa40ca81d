"""A sequential model run on CLBlast, as Rovder 2019 ran it: im2col and GEMM, image by image.

CLBlast has no pooling, no activations and no softmax: those kernels are in `clblast_network.cl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import glnn
from benchmarks.clblast import Clblast
from glnn.backends import open_backend
from glnn.compiler.memory_budget import Outline
from glnn.compiler.schedule import Schedule
from glnn.compiler.scheduled_op import LoweredOp
from glnn.core.types import Shape
from glnn.errors import GlnnError
from glnn.graph.epilogue import BIASED
from glnn.graph.expression import Arg, Call, Expr
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Pool2d, Softmax


def joined(model: glnn.Model, shape: Shape) -> Outline:
    """The outline of `model`, which has one input, of this shape, on the cpu backend.

    A kernel of its own for each step, no reorders, and views are no steps.
    """
    (given,) = model.inputs
    return Outline.create(model.graph, open_backend("cpu"), {given.name: shape})


Array = NDArray[np.float32]
SOURCE = Path(__file__).with_suffix(".cl")
WARM_UP = 3
CODES = {"sigmoid": 1, "relu": 2, "tanh": 3}  # what `apply` of the source calls them


@dataclass(frozen=True)
class NetworkTime:
    """Median seconds of a run, input and output included, and of each layer, each waited for."""

    seconds: float
    layers: dict[str, float]
    result: Array


class ClblastNetwork:
    """`model` on the device of `blast`, its weights uploaded, for inputs of one shape.

    Layers are joined as glnn's plans join them. Raises GlnnError where the model is no chain, or
    has a layer that is not supported here.
    """

    def __init__(self, blast: Clblast, model: glnn.Model, shape: Shape) -> None:
        self._blast, self._cl = blast, blast.cl
        (given,) = model.inputs
        schedule = joined(model, shape).schedule
        with self._errors():
            self._program = self._cl.Program(blast.context, SOURCE.read_text("utf-8")).build()
            self._columns = self._room(_most_columns(schedule))
            self._input = at = self._room(prod(shape))
            self.layers: dict[str, Callable[[], None]] = {}
            self._kept: list[Any] = []
            name, self._shape = given.name, shape
            for entry in schedule.entries:
                lowered, spec = entry.lowered, entry.spec
                read = [schedule.tensors[tensor].memory for tensor in lowered.operands.values()]
                if read != [name]:
                    raise GlnnError(f"CLBlast: {model.name} is no chain at {lowered.name}")
                name, self._shape = lowered.output, spec.result_shape
                source, at = at, self._room(prod(spec.result_shape))
                seen = spec.shapes[next(iter(lowered.operands))]
                self.layers[lowered.name] = self._layer(
                    lowered, source, seen, at, spec.result_shape
                )
            self._output = at

    def run(self, x: Array) -> Array:
        """The model's result for `x`, from host array to host array."""
        with self._errors():
            self._cl.enqueue_copy(self._blast.queue, self._input, x, is_blocking=False)
            for perform in self.layers.values():
                perform()
            result = np.empty(self._shape, np.float32)
            self._cl.enqueue_copy(self._blast.queue, result, self._output)
            return result

    def perform(self) -> None:
        """Run on the input that is there, and wait."""
        with self._errors():
            for perform in self.layers.values():
                perform()
            self._blast.queue.finish()

    def layer_seconds(self, repeat: int) -> dict[str, float]:
        """Median seconds of each layer, each waited for."""
        return {name: self._layer_seconds(name, repeat) for name in self.layers}

    def time(self, x: Array, repeat: int) -> NetworkTime:
        """Time `repeat` whole runs, and then each layer as often."""
        x = np.ascontiguousarray(x, np.float32)
        for _ in range(WARM_UP):
            result = self.run(x)
        whole = median(_seconds(lambda: self.run(x)) for _ in range(repeat))
        return NetworkTime(whole, self.layer_seconds(repeat), result)

    def _layer_seconds(self, name: str, repeat: int) -> float:
        perform, finish = self.layers[name], self._blast.queue.finish

        def once() -> None:
            perform()
            finish()

        with self._errors():
            once()
            return median(_seconds(once) for _ in range(repeat))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._cl.Error as error:
            raise GlnnError(f"OpenCL on {self._blast.device}: {error}") from None

    def _room(self, floats: int) -> Any:
        flags = self._cl.mem_flags.READ_WRITE
        return self._cl.Buffer(self._blast.context, flags, 4 * max(1, floats))

    def _layer(
        self, lowered: LoweredOp, source: Any, shape: Shape, out: Any, result: Shape
    ) -> Callable[[], None]:
        op = lowered.op
        weights = {name: self._blast.upload(w.read()) for name, w in lowered.parameters.items()}
        if isinstance(op, Conv2d) and op.groups == 1 and op.padding[:2] == op.padding[2:]:
            multiply = self._convolution(op, lowered, weights["weight"], source, shape, out, result)
        elif isinstance(op, Matmul):
            sizes = (*result, shape[1])
            multiply = self._product(source, weights["weight"], out, sizes)
        elif isinstance(op, Pointwise):
            code = np.int32(_code(lowered.name, op.expr, [Arg(0)]))
            return self._kernel("activate", prod(shape), source, out, code)
        elif isinstance(op, Softmax) and len(shape) == 2:
            return self._kernel("softmax", shape[0], source, out, np.int32(shape[1]))
        elif isinstance(op, Pool2d) and op == _plain(op):
            return self._pool(op, source, shape, out, result)
        else:
            raise GlnnError(f"CLBlast: {lowered.name} is not supported here: {op}")
        if lowered.epilogue is None:
            return multiply
        code = _code(lowered.name, lowered.epilogue.expr, [Arg(0), BIASED.expr])
        bias = weights.get("e1") or self._blast.upload(np.zeros(result[1], np.float32))
        numbers = (np.int32(result[1]), np.int32(prod(result[2:])), np.int32(code))
        added = self._kernel("add_bias", prod(result), out, bias, *numbers)

        def perform() -> None:
            multiply()
            added()

        return perform

    def _product(
        self, source: Any, weight: Any, out: Any, sizes: tuple[int, ...]
    ) -> Callable[[], None]:
        m, n, k = sizes
        return lambda: self._blast.gemm(source, weight, out, (m, n, k), transposed=True)

    def _convolution(
        self,
        op: Conv2d,
        lowered: LoweredOp,
        weight: Any,
        source: Any,
        shape: Shape,
        out: Any,
        result: Shape,
    ) -> Callable[[], None]:
        n, c, h, w = shape
        o, kernel = result[1], lowered.parameters["weight"].shape[2:]
        pixels, taps = prod(result[2:]), c * prod(kernel)
        padding = (op.padding[0], op.padding[1])
        windows = ((kernel[0], kernel[1]), padding, op.stride, op.dilation)

        def perform() -> None:
            for image in range(n):
                self._blast.im2col(source, image * c * h * w, self._columns, (c, h, w), windows)
                at = image * o * pixels
                self._blast.gemm(weight, self._columns, out, (o, pixels, taps), at=at)

        return perform

    def _pool(
        self, op: Pool2d, source: Any, shape: Shape, out: Any, result: Shape
    ) -> Callable[[], None]:
        kernel = op.kernel or (shape[2], shape[3])
        numbers = (*shape[2:], *result[2:], *kernel, *op.stride, int(op.mode == "average"))
        return self._kernel("pool", prod(result), source, out, *map(np.int32, numbers))

    def _kernel(self, name: str, items: int, *arguments: Any) -> Callable[[], None]:
        """A kernel of our own with its arguments set, to be queued as often as asked."""
        kernel = self._cl.Kernel(self._program, name)
        kernel.set_args(*arguments)
        self._kept += arguments  # OpenCL does not keep a kernel's buffers alive
        enqueue, queue = self._cl.enqueue_nd_range_kernel, self._blast.queue
        return lambda: enqueue(queue, kernel, (items,), None)


def _code(name: str, expr: Expr, allowed: Sequence[Expr]) -> int:
    """Of the function that ends `expr`, 0 for none; before it is one of `allowed`."""
    before, found = expr, 0
    if isinstance(expr, Call) and expr.function in CODES:
        before, found = expr.arguments[0], CODES[expr.function]
    if before not in allowed:
        raise GlnnError(f"CLBlast: {name} is not supported here: {expr.text()}")
    return found


def _most_columns(schedule: Schedule) -> int:
    """Floats of the longest im2col matrix of one image: all convolutions share its buffer."""
    return max(
        (
            prod(entry.shapes["weight"][1:]) * prod(entry.spec.result_shape[2:])
            for entry in schedule.entries
            if isinstance(entry.lowered.op, Conv2d)
        ),
        default=1,
    )


def _plain(op: Pool2d) -> Pool2d:
    """`op` without padding, dilation and windows that hang over the end."""
    return Pool2d(op.mode, op.kernel, op.stride)


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
