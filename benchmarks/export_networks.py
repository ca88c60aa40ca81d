"""Write the fourteen networks as .onnx files, with seeded random weights.

They need PyTorch, `onnx`, and torchvision for all but minilm_like and lstm; --check needs ONNX
Runtime. Opset 17, any batch; all of them take 0.9 GB. The same seed gives the same weights.

    python -m benchmarks.export_networks --out networks
    python -m benchmarks.export_networks --out networks --only resnet18,lstm --check
"""

from __future__ import annotations

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
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise GlnnError(
            f"the networks are exported by PyTorch, which is missing: {error}"
        ) from None
    from benchmarks import torch_zoo

    out.mkdir(parents=True, exist_ok=True)
    shown = table("network", ">MB", ">spread", ">ONNX Runtime's error")
    with progress() as bar:
        task = bar.add_task("exporting", total=len(networks))
        for network in networks:
            bar.update(task, description=network.name)
            path = out / f"{network.name}.onnx"
            net = torch_zoo.built(network, seed)
            expected = torch_zoo.result(net, network.input(CHECKED))
            torch_zoo.export(net, network, path)
            shown.add(
                network.name,
                number(path.stat().st_size / 1e6),
                number(spread(expected)),
                f"{check(path, network, expected):.1e}" if checked else "-",
            )
            bar.advance(task)
    Screen().show(shown, str(out))


if __name__ == "__main__":
    run(main)
