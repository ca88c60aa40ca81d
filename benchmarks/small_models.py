"""CPU time of a run of small models, in multiples of ONNX Runtime's.

A recurrent network over a few frames, a voice activity detector and a classifier of 8 x 8 pixels
compute so little that what a run costs besides decides how long it takes. Each model is run by
glnn's backends and by ONNX Runtime in turn in one process, one thread each, and what is reported is
the least CPU time of a run in any round. Seeded weights, but for the files that are named:

    lstm  two bidirectional LSTMs of 64 units, 16 frames of 96 numbers, as openwakeword trains one
    gru   a GRU of 64 units, 32 frames of 40 numbers, whose reset gate follows the product
    gru_before  the same, whose reset gate comes before the product
    cnn   two convolutions and pools on 8 x 8 pixels

Further arguments are .onnx files; open sizes of their inputs are 1 unless `--size` says otherwise.

    python -m benchmarks.small_models
    python -m benchmarks.small_models silero_vad.onnx --size input=1,576 --size state=2,1,128 \\
        --number sr=16000 --backends cpu,compute --json
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import NAMES, open_backend
from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.errors import GlnnError
from glnn.session import InferenceSession
from glnn.validation.comparison import relative_error

Array = NDArray[Any]
RUNTIME = "onnxruntime"
SLICE = 0.02
"""Seconds of runs between two looks at the clock."""
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(double)": np.float64}


def lstm() -> Any:
    """Two bidirectional LSTMs, a product and a sigmoid of what the last frame gives."""
    from onnx import helper

    units, frames, size = 64, 16, 96
    weights: dict[str, Array] = {}
    x, rng = "frames", np.random.default_rng(1)
    nodes = [helper.make_node("Transpose", ["x"], [x], perm=[1, 0, 2])]
    for layer in range(2):
        shapes = {"W": (4 * units, size), "R": (4 * units, units), "B": (8 * units,)}
        names = [f"{name}{layer}" for name in shapes]
        weights |= {f"{name}{layer}": _seeded(rng, 2, *shape) for name, shape in shapes.items()}
        y, turned, size = f"y{layer}", f"turned{layer}", 2 * units
        nodes += [
            helper.make_node(
                "LSTM", [x, *names], [y], hidden_size=units, direction="bidirectional"
            ),
            helper.make_node("Transpose", [y], [turned], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [turned, "together"], [x := f"x{layer}"]),
        ]
    weights |= {"together": np.array([0, 0, -1]), "end": np.array(-1)}
    weights |= {"weight": _seeded(rng, 1, size), "bias": _seeded(rng, 1)}
    nodes += [
        helper.make_node("Gather", [x, "end"], ["last"], axis=0),
        helper.make_node("Gemm", ["last", "weight", "bias"], ["sum"], transB=1),
        helper.make_node("Sigmoid", ["sum"], ["probability"]),
    ]
    return _model("lstm", nodes, (1, frames, 96), "probability", (1, 1), weights)


def gru(after: bool = True) -> Any:
    """A GRU, and a product of its last state. after: whether the reset gate follows the product."""
    from onnx import helper

    units, frames, size, rng = 64, 32, 40, np.random.default_rng(2)
    shapes = {"W": (1, 3 * units, size), "R": (1, 3 * units, units), "B": (1, 6 * units)}
    shapes |= {"weight": (12, units), "bias": (12,)}
    weights = {name: _seeded(rng, *shape) for name, shape in shapes.items()}
    weights["direction"] = np.array([0])
    options: dict[str, Any] = {"hidden_size": units, "linear_before_reset": int(after)}
    nodes = [
        helper.make_node("GRU", ["x", "W", "R", "B"], ["", "last"], **options),
        helper.make_node("Squeeze", ["last", "direction"], ["state"]),
        helper.make_node("Gemm", ["state", "weight", "bias"], ["scores"], transB=1),
    ]
    return _model("gru", nodes, (frames, 1, size), "scores", (1, 12), weights)


def cnn() -> Any:
    """Two convolutions with pools behind them, and a product."""
    from onnx import helper

    rng, nodes, x = np.random.default_rng(3), [], "x"
    shapes: dict[str, tuple[int, ...]] = {"weight": (10, 128), "bias": (10,)}
    for i, (given, made) in enumerate(((1, 16), (16, 32))):
        shapes |= {f"w{i}": (made, given, 3, 3), f"b{i}": (made,)}
        nodes += [
            helper.make_node("Conv", [x, f"w{i}", f"b{i}"], [f"conv{i}"], pads=[1] * 4),
            helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"]),
            helper.make_node(
                "MaxPool", [f"relu{i}"], [x := f"pool{i}"], kernel_shape=[2, 2], strides=[2, 2]
            ),
        ]
    nodes += [
        helper.make_node("Flatten", [x], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight", "bias"], ["scores"], transB=1),
    ]
    weights = {name: _seeded(rng, *shape) for name, shape in shapes.items()}
    return _model("cnn", nodes, (1, 1, 8, 8), "scores", (1, 10), weights)


MODELS: dict[str, Callable[[], Any]] = {
    "lstm": lstm,
    "gru": gru,
    "gru_before": partial(gru, False),
    "cnn": cnn,
}
"""What makes each model, by its name."""


def _seeded(rng: np.random.Generator, *shape: int) -> Array:
    numbers = rng.standard_normal(shape, np.float32)
    return np.asarray(numbers / np.float32(shape[-1] ** 0.5))


def _model(
    name: str,
    nodes: list[Any],
    shape: tuple[int, ...],
    output: str,
    result: tuple[int, ...],
    weights: Mapping[str, Array],
) -> Any:
    """The model of `nodes` from an input `x` of `shape` to `output`."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, result)],
        [numpy_helper.from_array(array, key) for key, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random_feeds(
    session: Any, sizes: Mapping[str, tuple[int, ...]], numbers: Mapping[str, float]
) -> dict[str, Array]:
    """An array for each input of ONNX Runtime's `session`."""
    rng, found = np.random.default_rng(4), dict[str, Array]()
    for one in session.get_inputs():
        shape = sizes.get(one.name, tuple(n if isinstance(n, int) else 1 for n in one.shape))
        dtype = TYPES.get(one.type)
        if dtype is None:
            raise GlnnError(f"input {one.name!r}: expected {', '.join(TYPES)}, got {one.type}")
        if one.name in numbers:
            found[one.name] = np.full(shape, numbers[one.name], dtype)
        else:
            found[one.name] = rng.standard_normal(shape).astype(dtype)
    return found


def measured(
    path: Path, backends: tuple[str, ...], rounds: int, feed: Callable[[Any], dict[str, Array]]
) -> dict[str, Any]:
    """Microseconds of a run of the model in `path` by ONNX Runtime and by each of `backends`, the
    ratios to the first, and the largest relative error of a backend against it.

    feed: gives an array for each input of ONNX Runtime's session.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = feed(theirs)
    expected = theirs.run(None, feeds)
    works: dict[str, Callable[[], Any]] = {RUNTIME: lambda: theirs.run(None, feeds)}
    errors = {}
    for name in backends:
        own = InferenceSession(path, name)
        found = own.run(None, feeds)
        errors[name] = max(
            relative_error(a, b) for a, b in zip(found, expected, strict=True) if a.size
        )
        works[name] = lambda own=own: own.run(None, feeds)  # type: ignore[misc]
    counts = {name: _count(work) for name, work in works.items()}
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = process_time()
            for _ in range(counts[name]):
                work()
            least[name] = min(least[name], (process_time() - start) / counts[name])
    return {
        "model": path.stem,
        "us": {name: 1e6 * seconds for name, seconds in least.items()},
        "ratio": {name: least[name] / least[RUNTIME] for name in backends},
        "error": errors,
    }


def _count(work: Callable[[], Any]) -> int:
    """How many calls of `work` take about SLICE."""
    count = 1
    while True:
        start = process_time()
        for _ in range(count):
            work()
        if (taken := process_time() - start) > SLICE / 4:
            return max(1, round(count * SLICE / taken))
        count *= 2


def _named(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """What each `name=value` says. Raises GlnnError for any other text."""
    for text in texts:
        if "=" not in text:
            raise GlnnError(f"{option}: expected name=value, got {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def sizes_of(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    try:
        return {
            name: tuple(int(n) for n in value.split(",") if n)
            for name, value in _named("--size", texts).items()
        }
    except ValueError as error:
        raise GlnnError(f"--size: expected integers with commas between, {error}") from None


def numbers_of(texts: tuple[str, ...]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in _named("--number", texts).items()}
    except ValueError as error:
        raise GlnnError(f"--number: expected a number, {error}") from None


def _chosen(backends: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in backends.split(","))
    for name in names:
        if name not in NAMES:
            raise GlnnError(f"--backends: expected some of {', '.join(NAMES)}, got {name!r}")
    return names


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--backends", default="cpu", show_default=True, help="Some, with commas between.")
@click.option("--only", help=f"Some of {', '.join(MODELS)}, or none, with commas between.")
@click.option("--size", "sizes", multiple=True, help="Of an input: name=1,576. May be repeated.")
@click.option("--number", "numbers", multiple=True, help="That fills an input: sr=16000.")
@click.option("--rounds", type=click.IntRange(1), default=25, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    files: tuple[Path, ...],
    backends: str,
    only: str | None,
    sizes: tuple[str, ...],
    numbers: tuple[str, ...],
    rounds: int,
    as_json: bool,
) -> None:
    names = _chosen(backends)
    wanted = list(MODELS) if only is None else [one for one in only.split(",") if one != "none"]
    for one in wanted:
        if one not in MODELS:
            raise GlnnError(f"--only: expected some of {', '.join(MODELS)}, or none, got {one!r}")
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise GlnnError("small models need the packages onnx and onnxruntime") from None
    feed = partial(random_feeds, sizes=sizes_of(sizes), numbers=numbers_of(numbers))
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for one in wanted:
            paths.append(Path(folder, f"{one}.onnx"))
            onnx.save(MODELS[one](), paths[-1])
        rows = [measured(path, names, rounds, feed) for path in (*paths, *files)]
    about = {**machine(open_backend(names[-1]).device), RUNTIME: onnxruntime.__version__}
    if as_json:
        print(json.dumps({**about, "rounds": rounds, "rows": rows}, indent=2))
        return
    heads = [figures(f"{name} us") for name in (RUNTIME, *names)]
    heads += [figures(f"{name} ratio") for name in names]
    shown = Table((Column("model"), *heads, figures("error")))
    for row in rows:
        times = map(number, (*row["us"].values(), *row["ratio"].values()))
        shown.add(row["model"], *times, f"{max(row['error'].values()):.1e}")
    Screen().show(shown, ", ".join(f"{k} {v}" for k, v in about.items()))


def one_thread(module: str) -> None:
    """Start the program `module` again where NumPy's BLAS may take several threads."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        again = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, again)


if __name__ == "__main__":
    one_thread("benchmarks.small_models")
    run(main)
