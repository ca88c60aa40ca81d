"""Layers that networks have, each a network of its own, and what board compilers make of them.

`benchmarks.board_plan --layers` plans them where a board's own driver opens; an offline compiler
counts its shaders (see `benchmarks.board_compilers`). FOLDER has the lines of both for each board,
BOARD.steps and BOARD.lines; the table in Markdown tells of each layer, and where registers spill.

    for board in mali-t760 mali-t860 mali-g31 mali-g52 mali-g610 v3d-4.2 v3d-7.1 adreno-630; do
        … run $board python -m benchmarks.board_plan --layers --sources sources/$board \\
            >sources/$board.steps
        … stats $board sources/$board/* >sources/$board.lines
    done
    python -m benchmarks.board_layers sources >benchmarks/board_layers.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from benchmarks.board_compilers import cell, spills, statistics
from benchmarks.command import run
from benchmarks.operator_cases import Convolution
from benchmarks.record import json_lines
from glnn import layers
from glnn.core.types import Shape
from glnn.errors import GlnnError
from glnn.graph.expression import PRODUCT
from glnn.graph.graph import Value
from glnn.graph.operators import Pointwise
from glnn.layers.layer import Layer, Scope
from glnn.model import Model, Node, TensorInfo

HEAD = """\
# Layers of networks on board GPUs

Compiled by Mesa 25.0.7's own board drivers without the boards: static statistics, no speed and no
results. Each layer is planned as a network of its own: convolutions with a bias and a ReLU, a
hardswish, a residual or a factor for each channel. A cell is of the step with the most to do, of a
convolution with a ReLU: the kernel, instructions and registers (`r`) or threads (`t`, `w`); it says
where any of the layer's shaders spills registers to memory. `python -m benchmarks.board_layers`
writes this page.
"""


class Scaled(Layer):
    """x (n, c, h, w) times a number for each channel of each image, (n, c, 1, 1)."""

    def __init__(self) -> None:
        super().__init__(Pointwise(PRODUCT))

    @property
    def inputs(self) -> int:
        return 2

    def express(self, scope: Scope, *inputs: Value) -> Value:
        return scope.result(self.op, *inputs)

    def config(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Window(Convolution):
    """A convolution, or a transposed one."""

    transposed: bool = False

    def layer(self) -> Layer:
        """With as much padding as keeps the size, but for the stride; none where windows tile."""
        if self.transposed:
            return layers.ConvTranspose2d(self.c, self.o, self.kernel, self.stride)
        tiles = self.kernel == (self.stride, self.stride)
        around = tuple(0 if tiles else self.dilation * (k - 1) // 2 for k in self.kernel)
        shape = self.kernel, self.stride, around, self.dilation, self.groups
        return layers.Conv2d(self.c, self.o, *shape)


def depthwise(size: int, c: int, side: int, stride: int = 1, dilation: int = 1) -> Window:
    """Every channel by itself."""
    more = f" stride {stride}" * (stride > 1) + f" dilation {dilation}" * (dilation > 1)
    name = f"depthwise {size}x{size}{more}, {c} of {side}"
    return Window(name, c, c, side, (size, size), stride, dilation, c)


WINDOWS = (
    *(depthwise(size, 96, 28) for size in (3, 5, 7)),
    *(depthwise(size, 96, 28, stride=2) for size in (3, 5, 7)),
    *(depthwise(size, 96, 28, dilation=2) for size in (3, 5, 7)),
    *(depthwise(size, 672, 14, stride) for size in (3, 5) for stride in (1, 2)),
    depthwise(5, 960, 20, dilation=2),
    Window("1x1 96 > 192, 28", 96, 192, 28),
    Window("1x1 96 > 24, 56", 96, 24, 56),
    Window("1x1 960 > 160, 7", 960, 160, 7),
    Window("1x1 stride 2 256 > 512, 28", 256, 512, 28, stride=2),
    Window("2x2 stride 2 96 > 192, 56", 96, 192, 56, (2, 2), 2),
    Window("2x2 stride 2 384 > 768, 14", 384, 768, 14, (2, 2), 2),
    *(Window(f"3x3 64 > 64, {side}", 64, 64, side, (3, 3)) for side in (56, 14)),
    Window("3x3 stride 2 64 > 128, 56", 64, 128, 56, (3, 3), 2),
    Window("3x3 stride 2 256 > 512, 14", 256, 512, 14, (3, 3), 2),
    Window("3x3 dilation 2 64 > 64, 28", 64, 64, 28, (3, 3), dilation=2),
    Window("3x3 groups 32 128 > 128, 56", 128, 128, 56, (3, 3), groups=32),
    Window("3x3 groups 4 128 > 128, 28", 128, 128, 28, (3, 3), groups=4),
    Window("3x3 stride 2 groups 32 256 > 256, 28", 256, 256, 28, (3, 3), 2, groups=32),
    Window("5x5 48 > 64, 35", 48, 64, 35, (5, 5)),
    Window("5x5 stride 2 48 > 64, 28", 48, 64, 28, (5, 5), 2),
    Window("1x7 128 > 128, 17", 128, 128, 17, (1, 7)),
    Window("7x1 128 > 128, 17", 128, 128, 17, (7, 1)),
    Window("stem 3x3 stride 2 3 > 32, 224", 3, 32, 224, (3, 3), 2),
    Window("stem 3x3 3 > 64, 224", 3, 64, 224, (3, 3)),
    Window("stem 4x4 stride 4 3 > 96, 224", 3, 96, 224, (4, 4), 4),
    Window("stem 7x7 stride 2 3 > 64, 224", 3, 64, 224, (7, 7), 2),
    Window("stem 16x16 stride 16 3 > 768, 224", 3, 768, 224, (16, 16), 16),
    Window("transposed 2x2 stride 2 64 > 32, 28", 64, 32, 28, (2, 2), 2, transposed=True),
    Window("transposed 3x3 64 > 64, 28", 64, 64, 28, (3, 3), transposed=True),
    Window("transposed 3x3 stride 2 64 > 64, 28", 64, 64, 28, (3, 3), 2, transposed=True),
)
WITH = " + "  # between a layer's name and what is behind it
BEHIND = ("relu", "hardswish", "added", "scaled")
OTHERS: dict[str, tuple[Callable[[], Layer], Shape]] = {
    "linear 128 rows, 384 > 1536": (lambda: layers.Linear(384, 1536), (128, 384)),
    "linear 1 row, 1280 > 1000": (lambda: layers.Linear(1280, 1000), (1, 1280)),
    "attention 128 by 384": (lambda: layers.MultiheadAttention(384, 6), (1, 128, 384)),
    "attention 197 by 768": (lambda: layers.MultiheadAttention(768, 12), (1, 197, 768)),
    "layer norm 384": (lambda: layers.LayerNorm(384), (1, 128, 384)),
    "group norm 64": (lambda: layers.GroupNorm(8, 64), (1, 64, 28, 28)),
    "softmax 197": (lambda: layers.Softmax(-1), (12, 197, 197)),
    "softmax 21 channels": (lambda: layers.Softmax(1), (1, 21, 80, 80)),
    "gelu": (layers.GELU, (1, 128, 1536)),
    "max pool 3x3 stride 2": (lambda: layers.MaxPool2d(3, 2, 1), (1, 64, 112, 112)),
    "max pool 2x2 stride 2": (lambda: layers.MaxPool2d(2, 2), (1, 64, 112, 112)),
    "average pool 3x3": (lambda: layers.AvgPool2d(3, 1, 1), (1, 192, 35, 35)),
    "average of all pixels": (lambda: layers.AdaptiveAvgPool2d(1), (1, 960, 7, 7)),
    "upsample": (lambda: layers.Upsample(scale_factor=2, mode="bilinear"), (1, 21, 40, 40)),
    "lstm 128 > 256": (lambda: layers.LSTM(128, 256, batch_first=True), (1, 64, 128)),
}


def _one(name: str, layer: Layer, shape: Shape) -> Model:
    """The network of `layer`, of so many times the same input as it takes."""
    node = Node("it", layer, ("x",) * layer.inputs, "y")
    return Model((node,), (TensorInfo("x", shape),), ("y",), name)


def _convolution(window: Window, behind: str) -> Model:
    """A convolution with what is `behind` it: of BEHIND, where `scaled` is in front of it."""
    given: dict[str, Shape] = {"x": (1, window.c, window.side, window.side)}
    nodes = []
    if behind == "scaled":
        given["s"] = (1, window.c, 1, 1)
        nodes.append(Node("scaled", Scaled(), ("x", "s"), "xs"))
    source = nodes[-1].output if nodes else "x"
    nodes.append(Node("convolved", window.layer(), (source,), "v"))
    if behind == "added":
        given["r"] = window.layer().infer(given["x"])
        nodes.append(Node("added", layers.Add(), ("v", "r"), "sum"))
    end = layers.Hardswish() if behind == "hardswish" else layers.ReLU()
    nodes.append(Node("end", end, (nodes[-1].output,), "y"))
    inputs = tuple(TensorInfo(name, shape) for name, shape in given.items())
    return Model(tuple(nodes), inputs, ("y",), window.name + WITH + behind)


def models() -> Iterator[Model]:
    """All of them."""
    for window in WINDOWS:
        for behind in BEHIND:
            yield _convolution(window, behind)
    for name, (make, shape) in OTHERS.items():
        yield _one(name, make(), shape)


def of_board(steps: Path) -> tuple[dict[str, str], list[bool]]:
    """A cell for each layer, and whether each shader spills. steps: the board's lines.

    A cell is of the step with the most to do, with a ReLU behind it where there are several.
    """
    said = {Path(e["file"]).name: e for e in json_lines(steps.with_suffix(".lines"))}
    layers: dict[str, list[dict[str, Any]]] = {}
    for step in json_lines(steps):
        if step["source"] not in said:
            raise GlnnError(f"{steps.with_suffix('.lines')} has nothing of {step['source']}")
        layers.setdefault(step["model"].partition(WITH)[0], []).append(step)
    spilled = {name for name, entry in said.items() if spills(statistics(entry))}
    cells: dict[str, str] = {}
    for layer, found in layers.items():
        own = [step for step in found if step["model"] == found[0]["model"]]
        most = max(own, key=lambda step: (step["multiply_adds"], step["bytes"]))
        cells[layer] = f"`{most['kernel']}` {cell(said[most['source']])}"
        if spilled & {step["source"] for step in found}:
            cells[layer] += " (**spills**)"
    return cells, [name in spilled for name in said]


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """See above."""
    boards = {path.stem: of_board(path) for path in sorted(folder.glob("*.steps"))}
    if not boards:
        raise GlnnError(f"{folder} has no lines of a board, BOARD.steps")
    spilled = [each for _, found in boards.values() for each in found]
    click.echo(f"{HEAD}\n{len(spilled)} shaders, {sum(spilled)} with spills.\n")
    click.echo(f"| layer | {' | '.join(boards)} |\n" + "|---" * (len(boards) + 1) + "|")
    for layer in dict.fromkeys(layer for cells, *_ in boards.values() for layer in cells):
        row = (cells.get(layer, "") for cells, *_ in boards.values())
        click.echo(f"| {layer} | {' | '.join(row)} |")


if __name__ == "__main__":
    run(main)
