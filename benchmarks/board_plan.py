"""The steps of networks as a device would run them, and the shader of each, for offline compilers.

Run it where the device's own driver opens, if only its compiler: nothing is computed. Each shader
goes to --sources once; a line of JSON a step says which one it is, its invocations, multiply-adds
and bytes. `benchmarks.board_times` makes times of that and of what a compiler says of the shaders.

    … run v3d-7.1 python -m benchmarks.board_plan mobilenet_v2.onnx --sources shaders >steps
    python -m benchmarks.board_plan --products 128,512 --architecture NVIDIA \\
        --sources shaders >steps
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import prod
from pathlib import Path

import rich_click as click

import glnn
from benchmarks.board_layers import models
from benchmarks.command import run
from glnn.backends import open_backend
from glnn.backends.compute import Compute
from glnn.compiler.memory_budget import Outline
from glnn.core.types import Shape
from glnn.documents.cache_lines import Reads
from glnn.errors import GlnnError
from glnn.gl import Source
from glnn.graph.operators import Conv2d, Matmul
from glnn.kernels import library
from glnn.kernels.binding import bind
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not


@dataclass(frozen=True)
class Work:
    """What one launch is asked for."""

    model: str
    """The network that it is a step of, or `matmul n`."""
    step: str
    op: str
    kernel: str
    source: str
    """The file of its shader."""
    invocations: int
    multiply_adds: int
    """Of a product or a convolution, those that are needed, whatever is padded; 0 of all else."""
    bytes: int
    """What is read and written at the least."""
    launches: int
    taps: int = 1
    """Of a convolution's kernel, which the loops around the innermost walk along."""
    lines: float = 0.0
    """Cache lines that workgroups read, of a product by a kernel that shares no memory."""
    strided: bool = False
    """Whether its outermost loop is along the grid, where most walk it once."""
    loops: tuple[int, ...] = ()
    """How often an invocation walks each loop of the shader, as they stand in its text, each time
    that it comes to it; empty where that is estimated."""


class Sources:
    """Complete shaders in a folder, each once."""

    def __init__(self, backend: Compute, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._backend, self._folder = backend, folder

    def work(
        self, model: str, step: str, kernel: Kernel, spec: OpSpec, loops: tuple[int, ...] = ()
    ) -> Work:
        """What `kernel` is asked for by `spec`; its shader is written. loops: see `Work`."""
        groups = self._backend.launch_size(kernel, spec)
        local = kernel.launch.local_size(kernel.defaults)
        source = self._source(kernel, spec)
        name = f"{spec.op.name}-{kernel.name}-{sha256(source.text.encode()).hexdigest()[:12]}"
        path = self._folder / f"{name}.comp"
        if not path.exists():
            path.write_text(source.text, "utf-8")
        multiplies = isinstance(spec.op, Matmul | Conv2d)
        cost = spec.cost
        return Work(
            model,
            step,
            spec.op.name,
            kernel.name,
            path.name,
            prod(groups) * prod(local),
            cost.flops // 2 if multiplies else 0,
            cost.bytes,
            self._backend.launches(kernel, spec),
            prod(spec.shape("weight")[2:]) if isinstance(spec.op, Conv2d) else 1,
            _lines(kernel, spec) * prod(groups),
            kernel.launch.strided,
            loops,
        )

    def _source(self, kernel: Kernel, spec: OpSpec) -> Source:
        offers = self._backend.device.capabilities
        bound = bind(kernel, spec, offers, {})
        if kernel.textures:
            raise GlnnError(f"{kernel.name} reads textures: expected one that reads buffers")
        return self._backend.source(kernel, spec, spec.defines(kernel), {}, bound)


def _lines(kernel: Kernel, spec: OpSpec) -> float:
    """Cache lines that a workgroup reads of a product; 0 where nothing is known of that."""
    reads = Reads.from_kernel(kernel)
    if reads is None or spec.generated(kernel) is not None:
        return 0.0
    across, down, _ = kernel.launch.local_size(kernel.defaults)
    return reads.lines((across, down)) * spec.op_sizes["k"] / reads.period


def of_network(path: Path, backend: Compute, sources: Sources) -> Iterator[Work]:
    """The launches of the network of the file `path`, one sample."""
    yield from of_model(glnn.load(path), path.stem, backend, sources)


def of_model(model: glnn.Model, name: str, backend: Compute, sources: Sources) -> Iterator[Work]:
    """The launches of `model`, which is called `name`, one sample."""
    shapes: dict[str, Shape] = {}
    for info in model.inputs:
        shape = tuple(n if isinstance(n, int) else 1 for n in info.shape)
        shapes[info.name] = shape
    outline = Outline.create(model.graph, backend, shapes)
    for entry in outline.schedule.entries:
        if isinstance(entry.choice, Kernel):
            yield sources.work(name, entry.lowered.name, entry.choice, entry.spec)


def of_products(size: int, architecture: str, backend: Compute, sources: Sources) -> Iterator[Work]:
    """Square products of `size` by each kernel, with the parameters of `architecture`."""
    for declared in library():
        if declared.op != "matmul" or declared.backend != "compute" or declared.stages:
            continue
        kernel = declared.for_architecture(architecture)
        spec = OpSpec.create(Matmul(), {"x": (size, size), "weight": (size, size)}, {})
        if kernel.textures or why_not(kernel, spec, backend.device.capabilities):
            continue
        yield sources.work(f"matmul {size}", kernel.name, kernel, spec)


@click.command(help=__doc__)
@click.argument("networks", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--sources", "folder", required=True, type=click.Path(path_type=Path))
@click.option("--layers", is_flag=True, help="Layers by themselves: `benchmarks.board_layers`.")
@click.option("--products", default="", help="Sizes of square products, by commas.")
@click.option("--architecture", default="NVIDIA", help="Whose parameters products have.")
def main(
    networks: tuple[Path, ...], folder: Path, layers: bool, products: str, architecture: str
) -> None:
    """See above."""
    backend = open_backend("compute")
    if not isinstance(backend, Compute):
        raise GlnnError(f"expected compute shaders, got the backend {backend.name}")
    sources = Sources(backend, folder)
    for path in networks:
        for work in of_network(path, backend, sources):
            click.echo(json.dumps(asdict(work)))
    for model in models() if layers else ():
        for work in of_model(model, model.name, backend, sources):
            click.echo(json.dumps(asdict(work)))
    for size in (int(text) for text in products.split(",") if text):
        for work in of_products(size, architecture, backend, sources):
            click.echo(json.dumps(asdict(work)))


if __name__ == "__main__":
    run(main)
