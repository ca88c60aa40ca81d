"""Random ONNX graphs in which the host computes each third node, held against ONNX Runtime.

    python -m tests.onnx.host_graphs --count 20000 --seed 1 --keep build/host-graphs

Views stand anywhere between what the GPU computes and what the host does, and any value may be an
output. All numbers are small whole ones, which every order of a sum adds up alike, so that results
must be equal. All tensors have `SIZE` numbers, so that few programs serve all graphs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import glnn
from glnn.compiler import lower
from tests.onnx.runtime import IR_VERSION

SIZE = 96
SHAPES = ((8, 12), (12, 8), (96,), (1, 8, 12), (2, 4, 12), (1, 2, 6, 8))
BACKENDS = ("compute", "feedback")
Shape = tuple[int, ...]


class Graph:
    """A graph of ONNX nodes being written. All values are float32 of known shapes."""

    def __init__(self, shape: Shape = SHAPES[0]) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, Shape] = {"x": shape}

    def constant(self, array: Any) -> str:
        """Name an initialiser, the same for the same numbers."""
        array = np.asarray(array)
        for name, known in self.constants.items():
            if known.dtype == array.dtype and np.array_equal(known, array):
                return name
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, operator: str, *reads: str, results: int = 1, **attributes: Any) -> str:
        """Append a node and return the name of its first result."""
        names = [f"n{len(self.nodes)}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(operator, reads, names, **attributes))
        return names[0]

    def made(self, name: str, shape: Shape) -> str:
        """Note the shape of a value, and return its name."""
        self.shapes[name] = shape
        return name

    def proto(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model with these outputs."""
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shapes["x"])],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name])
                for name in outputs
            ],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        imports = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


Maker = Callable[[Graph, random.Random, str], str]


def _ordered(graph: Graph, draw: random.Random, x: str) -> str:
    """The numbers along an axis in order, in float64, and their places, the next result."""
    shape = graph.shapes[x]
    axis = draw.randrange(len(shape))
    k = graph.constant(np.array([shape[axis]]))
    wide = graph.add("Cast", x, to=TensorProto.DOUBLE)
    return graph.add("TopK", wide, k, results=2, axis=axis)


def _top(graph: Graph, draw: random.Random, x: str) -> str:
    values = _ordered(graph, draw, x)
    return graph.made(graph.add("Cast", values, to=TensorProto.FLOAT), graph.shapes[x])


def _places(graph: Graph, draw: random.Random, x: str) -> str:
    indices = _ordered(graph, draw, x)[:-1] + "1"
    return graph.made(graph.add("Cast", indices, to=TensorProto.FLOAT), graph.shapes[x])


def _doubled(graph: Graph, draw: random.Random, x: str) -> str:
    """Something in float64, seen in another shape on the way or not."""
    wide = graph.add("Cast", x, to=TensorProto.DOUBLE)
    if draw.random() < 0.5:
        wide = graph.add("Neg", wide)
    shape = graph.shapes[x]
    if draw.random() < 0.3:
        shape = draw.choice(SHAPES)
        wide = graph.add("Reshape", wide, graph.constant(np.array(shape)))
    return graph.made(graph.add("Cast", wide, to=TensorProto.FLOAT), shape)


def _pooled(graph: Graph, draw: random.Random, x: str) -> str:
    """RoiAlign's greatest numbers of regions that are one pixel each."""
    if graph.shapes[x] != (1, 2, 6, 8):
        x = graph.made(
            graph.add("Reshape", x, graph.constant(np.array((1, 2, 6, 8)))), (1, 2, 6, 8)
        )
    regions = np.array([[j, i, j + 1, i + 1] for i in range(6) for j in range(8)], np.float32)
    name = graph.add(
        "RoiAlign",
        x,
        graph.constant(regions),
        graph.constant(np.zeros(48, np.int64)),
        mode="max",
        output_height=1,
        output_width=1,
        sampling_ratio=1,
        coordinate_transformation_mode="half_pixel",
    )
    name = graph.add("Flatten", name, axis=0)
    return graph.made(name, (1, SIZE))


def _reshaped(graph: Graph, draw: random.Random, x: str) -> str:
    shape = draw.choice(SHAPES)
    return graph.made(graph.add("Reshape", x, graph.constant(np.array(shape))), shape)


def _unsqueezed(graph: Graph, draw: random.Random, x: str) -> str:
    shape = graph.shapes[x]
    if len(shape) > 4:
        return _reshaped(graph, draw, x)
    axis = draw.randrange(len(shape) + 1)
    name = graph.add("Unsqueeze", x, graph.constant(np.array([axis])))
    return graph.made(name, (*shape[:axis], 1, *shape[axis:]))


def _squeezed(graph: Graph, draw: random.Random, x: str) -> str:
    shape = graph.shapes[x]
    axes = [i for i, size in enumerate(shape) if size == 1]
    if not axes:
        return _unsqueezed(graph, draw, x)
    axis = draw.choice(axes)
    name = graph.add("Squeeze", x, graph.constant(np.array([axis])))
    return graph.made(name, (*shape[:axis], *shape[axis + 1 :]))


def _flattened(graph: Graph, draw: random.Random, x: str) -> str:
    shape = graph.shapes[x]
    axis = draw.randrange(len(shape) + 1)
    sizes = int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))
    return graph.made(graph.add("Flatten", x, axis=axis), sizes)


def _same(graph: Graph, draw: random.Random, x: str) -> str:
    return graph.made(graph.add("Identity", x), graph.shapes[x])


def _alike(graph: Graph, draw: random.Random, shape: Shape) -> str:
    """A value of `shape`: one that is there, or one reshaped."""
    names = list(graph.shapes)
    fitting = [name for name in names if graph.shapes[name] == shape]
    if fitting and draw.random() < 0.7:
        return draw.choice(fitting)
    other = draw.choice(names)
    return graph.made(graph.add("Reshape", other, graph.constant(np.array(shape))), shape)


def _sum(graph: Graph, draw: random.Random, x: str) -> str:
    other = _alike(graph, draw, graph.shapes[x])
    operator = draw.choice(("Add", "Sub", "Max"))
    return graph.made(graph.add(operator, x, other), graph.shapes[x])


def _bounded(graph: Graph, draw: random.Random, x: str) -> str:
    least, most = (graph.constant(np.float32(bound)) for bound in (-9, 9))
    return graph.made(graph.add("Clip", x, least, most), graph.shapes[x])


def _rectified(graph: Graph, draw: random.Random, x: str) -> str:
    return graph.made(graph.add(draw.choice(("Relu", "Neg", "Abs")), x), graph.shapes[x])


def _product(graph: Graph, draw: random.Random, x: str) -> str:
    """A product with a constant matrix, of numbers that were bounded."""
    if len(graph.shapes[x]) < 2:
        x = graph.made(graph.add("Reshape", x, graph.constant(np.array((8, 12)))), (8, 12))
    x = _bounded(graph, draw, x)
    k = graph.shapes[x][-1]
    if k > 16:
        return _rectified(graph, draw, x)
    matrix = np.random.default_rng(k).integers(-1, 2, (k, k)).astype(np.float32)
    return graph.made(graph.add("MatMul", x, graph.constant(matrix)), graph.shapes[x])


def _transposed(graph: Graph, draw: random.Random, x: str) -> str:
    shape = graph.shapes[x]
    order = list(range(len(shape)))
    draw.shuffle(order)
    return graph.made(graph.add("Transpose", x, perm=order), tuple(shape[axis] for axis in order))


def _turned(graph: Graph, draw: random.Random, x: str) -> str:
    """The two halves of an axis, the second first."""
    shape = graph.shapes[x]
    axes = [i for i, size in enumerate(shape) if size % 2 == 0]
    axis = draw.choice(axes)
    half = graph.constant(np.array([shape[axis] // 2] * 2))
    first = graph.add("Split", x, half, results=2, axis=axis)
    return graph.made(graph.add("Concat", first[:-1] + "1", first, axis=axis), shape)


HOST: tuple[Maker, ...] = (_top, _top, _places, _doubled, _doubled, _pooled)
VIEWS: tuple[Maker, ...] = (_reshaped, _unsqueezed, _squeezed, _flattened, _same)
GPU: tuple[Maker, ...] = (_sum, _bounded, _rectified, _product, _transposed, _turned)


def random_graph(seed: int) -> onnx.ModelProto:
    """Return a model of some ten nodes, of which the host computes each third."""
    draw = random.Random(seed)
    graph = Graph(draw.choice(SHAPES))
    for i in range(draw.randrange(3, 11)):
        kinds = HOST if i % 3 == seed % 3 else draw.choice((VIEWS, VIEWS, GPU))
        # The last values more often than others, which makes chains.
        names = list(graph.shapes)
        name = names[-1] if draw.random() < 0.5 else draw.choice(names)
        draw.choice(kinds)(graph, draw, name)
    read = {name for node in graph.nodes for name in node.input}
    names = [name for name in graph.shapes if name != "x"]
    outputs = [name for name in names if name not in read or draw.random() < 0.25]
    return graph.proto(outputs)


def given(proto: onnx.ModelProto, seed: int) -> np.ndarray:
    """Return whole numbers for the input of `proto`."""
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    shape = [dim.dim_value for dim in dims]
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def runtime(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Return ONNX Runtime's results, by the nodes as they are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {"x": x}))


def wrong(proto: onnx.ModelProto, x: np.ndarray, backends: Sequence[str] = BACKENDS) -> list[str]:
    """Return what differs from ONNX Runtime's results, in two runs of each backend."""
    found = []
    names = [one.name for one in proto.graph.output]
    for backend in backends:
        session = glnn.InferenceSession(proto.SerializeToString(), backend)
        for turn, given in enumerate((x, x[::-1].copy())):
            got = session.run(None, {"x": given})
            for name, one, right in zip(names, got, runtime(proto, given), strict=True):
                if one.shape != right.shape or not np.array_equal(one, right):
                    numbers = f"{one.ravel()[:6]}, not {right.ravel()[:6]}"
                    found.append(f"{backend}, run {turn}: {name} is {numbers}")
    return found


def never_left(*_: Any) -> frozenset[str]:
    """Leave no work of the GPU's to the host: stands in for `lower.left_to_host`."""
    return frozenset()


def main() -> int:
    """Try graphs; print and keep those that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/host-graphs"))
    options = parser.parse_args()
    faults = 0
    original = lower.left_to_host
    for seed in range(options.seed, options.seed + options.count):
        # Small work between host steps would be the host's, too; half of the graphs keep it apart.
        lower.left_to_host = original if seed % 2 else never_left
        proto = random_graph(seed)
        try:
            found = wrong(proto, given(proto, seed))
        except Exception as error:  # whatever it is, the seed and the file are kept
            found = [f"{type(error).__name__}: {error}"]
        if found:
            faults += 1
            options.keep.mkdir(parents=True, exist_ok=True)
            onnx.save(proto, options.keep / f"{seed}.onnx")
            print(f"seed {seed}: {found[0]}", flush=True)
        if seed % 1000 == 999:
            print(f"{seed + 1 - options.seed} graphs, {faults} wrong", flush=True)
    print(f"{options.count} graphs, {faults} wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    os.environ.setdefault("GLNN_TRUST", "1")
    os.environ.setdefault("GLNN_CACHE", tempfile.mkdtemp())
    sys.exit(main())
