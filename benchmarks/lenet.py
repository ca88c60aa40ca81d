"""LeNet, transfers included: glnn's backends beside PyTorch and ONNX Runtime in the same run.

The setting is that of Rovder 2019, figure 3 and table 2: one batch of 100 images. Peers are
measured where they are installed. Absolute times mean something on a GPU only; elsewhere read the
ratios.

    python -m benchmarks.lenet
    python -m benchmarks.lenet --batch 100 --repeat 500 --json
    python -m benchmarks.lenet --onnx lenet.onnx --plot lenet.png
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks.record import machine, milliseconds
from glnn.backends import NAMES
from glnn.cli.screen import console, progress, table
from glnn.data import digits
from glnn.errors import DeviceError, GlnnError

Array = NDArray[np.float32]
Run = Callable[[], Array]
Contender = tuple[str, Run]


def ours(model: glnn.Model, x: Array) -> Iterator[Contender]:
    """Each backend that opens, from host array to host array."""
    for name in NAMES:
        try:
            session = glnn.InferenceSession(model, name)
        except DeviceError:
            continue
        yield f"glnn {name}", lambda session=session: session.run(None, {"input": x})[0]  # type: ignore[misc]


def torch_peers(model: glnn.Model, x: Array) -> Iterator[Contender]:
    """PyTorch eagerly and as a CUDA graph, FP32 without TF32; on the CPU where there is no CUDA."""
    try:
        import torch
    except ImportError:
        return
    nn = torch.nn
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Sigmoid(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.Sigmoid(), nn.Linear(120, 84), nn.Sigmoid(),
        nn.Linear(84, 10), nn.Softmax(1),
    )  # fmt: skip
    parameters = model.parameters()
    for index, name in {0: "c1", 3: "c3", 7: "c5", 9: "f6", 11: "out"}.items():
        net[index].weight.data = torch.from_numpy(parameters[f"{name}.weight"].copy())
        net[index].bias.data = torch.from_numpy(parameters[f"{name}.bias"].copy())
    where = "cuda" if torch.cuda.is_available() else "cpu"
    net = net.eval().to(where).requires_grad_(False)
    host = torch.from_numpy(x)

    def eager() -> Array:
        result: Array = net(host.to(where)).cpu().numpy()
        return result

    yield f"PyTorch {torch.__version__} {where}", eager
    if where != "cuda":
        return
    static = host.cuda()
    for _ in range(3):
        net(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = net(static)

    def replay() -> Array:
        static.copy_(host)
        graph.replay()
        result: Array = output.cpu().numpy()
        return result

    yield f"PyTorch {torch.__version__} CUDA graph", replay


def onnx_peers(path: Path | None, x: Array) -> Iterator[Contender]:
    """ONNX Runtime by each provider it has, on the network in `path`."""
    if path is None:
        return
    try:
        import onnxruntime
    except ImportError:
        return
    for provider in onnxruntime.get_available_providers():
        session = onnxruntime.InferenceSession(str(path), providers=[provider])
        name = session.get_inputs()[0].name
        short = provider.removesuffix("ExecutionProvider")
        yield (
            f"ONNX Runtime {onnxruntime.__version__} {short}",
            lambda session=session, name=name: session.run(None, {name: x})[0],  # type: ignore[misc]
        )


@click.command()
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=200, show_default=True)
@click.option("--onnx", type=click.Path(exists=True, path_type=Path), help="LeNet as .onnx.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the times to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(batch: int, repeat: int, onnx: Path | None, plot: Path | None, as_json: bool) -> None:
    """Time LeNet from host array to host array, and compare with what else is installed."""
    model = glnn.load("lenet")
    images, _ = digits()
    x = np.resize(images[:, None].astype(np.float32) / np.float32(255), (batch, 1, 28, 28))
    exact = model(x, backend="cpu")
    contenders = [*ours(model, x), *torch_peers(model, x), *onnx_peers(onnx, x)]
    rows: list[dict[str, Any]] = []
    with progress(not as_json) as bar:
        for name, run in bar.track(contenders, description="timing"):
            error = float(np.linalg.norm(run() - exact) / np.linalg.norm(exact))
            rows.append({"name": name, "error": error, **milliseconds(run, repeat)})
    device = next((s.device for s in [glnn.InferenceSession(model).backend] if s.device), None)
    result = {**machine(device), "batch": batch, "repeat": repeat, "rows": rows}
    if plot is not None:
        draw(rows, plot)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = console()
    out.print(", ".join(f"{k} {v}" for k, v in result.items() if k != "rows"))
    best = min(row["median_ms"] for row in rows)
    shown = table(None, "", ">median ms", ">least ms", ">times the best", ">error")
    for row in rows:
        ratio = f"{row['median_ms'] / best:.2f}"
        shown.add_row(
            row["name"], f"{row['median_ms']:.3f}", f"{row['least_ms']:.3f}", ratio,
            f"{row['error']:.1e}",
        )  # fmt: skip
    out.print(shown)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A bar chart of the medians."""
    try:
        from matplotlib import pyplot
    except ImportError:
        raise GlnnError("--plot needs matplotlib: install glnn[bench]") from None
    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.5 * len(rows)))
    axes.barh([row["name"] for row in rows], [row["median_ms"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds, transfers included")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
