"""Write the networks of the zoo as .onnx files, with seeded random weights.

They need PyTorch and `onnx`, most of them torchvision or transformers; --check needs ONNX Runtime.
Opset 17, any batch. Beside each file is one of its weights for PyTorch, which ends in .pt; all of
them take 4 GB. The same seed gives the same weights. Several are written at once, a process each.

    python -m benchmarks.export_networks --out networks
    python -m benchmarks.export_networks --out networks --only resnet18,lstm --check
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import zoo
from benchmarks.command import run
from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.validation.comparison import relative_error

WRONG = 1e-4
"""A relative error above it is no rounding."""
FLAT = 1e-2
"""A standard deviation of the output over its root mean square below it tells of faded signals."""
CHECKED = 2  # samples


@dataclass(frozen=True)
class Exported:
    """A network that was written."""

    name: str
    path: Path
    """The .onnx file."""
    spread: float
    """See `spread`."""
    error: float | None
    """ONNX Runtime's, if it was checked."""


def export_all(
    networks: list[zoo.Network], folder: Path, seed: int = 0, checked: bool = False
) -> Iterator[Exported]:
    """Write `networks` to `folder`, and give each as it is done.

    checked: whether ONNX Runtime runs each, too. Raises GlnnError without PyTorch, or where a
    network cannot be made or its output is not as it should be.
    """
    if find_spec("torch") is None:
        raise GlnnError("the networks are exported by PyTorch, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    workers = min(len(networks), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(_exported, network, folder, seed, checked) for network in networks]
        try:
            for run in as_completed(runs):
                yield run.result()
        finally:
            for run in runs:
                run.cancel()


def _exported(network: zoo.Network, folder: Path, seed: int, checked: bool) -> Exported:
    """Write one network, in a process of its own. The file has its name when it is complete."""
    import torch

    from benchmarks import torch_zoo

    torch.set_num_threads(1)
    path = folder / f"{network.name}.onnx"
    begun = path.with_suffix(".part")
    net = torch_zoo.built(network, seed)
    expected = torch_zoo.result(net, network.input(CHECKED))
    torch_zoo.export(net, network, begun)
    error = check(begun, network, expected) if checked else None
    begun.replace(path)
    return Exported(network.name, path, spread(expected), error)


def check(path: Path, network: zoo.Network, expected: NDArray[Any]) -> float:
    """The relative error of ONNX Runtime on the CPU with the file `path` against `expected`.

    Raises GlnnError where it is too great, or where the output is as good as constant.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise GlnnError(f"--check needs ONNX Runtime: {error}") from None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {zoo.INPUT: network.input(CHECKED)})
    off = relative_error(found, expected.astype(np.float64))
    if not off <= WRONG:
        raise GlnnError(f"{path}: ONNX Runtime differs from PyTorch by {off:.1e}")
    return off


def spread(found: NDArray[Any]) -> float:
    """The standard deviation of one sample's output over its root mean square.

    Raises GlnnError where it is not finite, or near none.
    """
    sample = found[0].astype(np.float64)
    value = float(sample.std() / np.sqrt((sample**2).mean()))
    if not (value > FLAT and np.isfinite(found).all()):
        raise GlnnError(f"expected finite outputs that vary, got a relative spread of {value:.1e}")
    return value


@click.command(help=__doc__)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder to write to.",
)
@click.option("--only", help="Names of networks, by commas.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights.")
@click.option("--check", "checked", is_flag=True, help="Run each file by ONNX Runtime as well.")
def main(out: Path, only: str | None, seed: int, checked: bool) -> None:
    networks = zoo.chosen(only)
    shown = table("network", ">MB", ">spread", ">ONNX Runtime's error")
    with progress() as bar:
        task = bar.add_task("exporting", total=len(networks))
        for done in export_all(networks, out, seed, checked):
            bar.update(task, advance=1, description=done.name)
            shown.add(
                done.name,
                number(done.path.stat().st_size / 1e6),
                number(done.spread),
                "-" if done.error is None else f"{done.error:.1e}",
            )
    Screen().show(shown, str(out))


if __name__ == "__main__":
    run(main)
