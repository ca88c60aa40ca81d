"""The steps of a language model's next token as a device would run them, for offline compilers.

They are those of the plan that the engine has for one sequence (`Decoder.following`), with seeded
weights of a shape of `benchmarks.generation`. Run it where the device's own driver opens, if only
its compiler: nothing is computed. Shaders and lines of JSON are those of `benchmarks.board_plan`,
"model" is the shape, the format and the tokens that the cache has; `benchmarks.board_times` makes
tokens a second of them, which are a model's and no measurement.

    for board in v3d-7.1 mali-g610; do
        … run $board python -m benchmarks.board_decoders smollm2 qwen3_0_6b --sources $board >steps
        … stats $board $board/* >lines
        python -m benchmarks.board_times $board --steps steps --statistics lines --totals \\
            --bandwidth 17
    done
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import rich_click as click

from benchmarks.board_plan import Sources, Work
from benchmarks.command import run
from benchmarks.generation import HIDDEN, SHAPES, SeededWeights
from glnn.backends import open_backend
from glnn.backends.compute import Compute
from glnn.compiler.memory_budget import Outline
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.compiler.state_binding import StateSpecs
from glnn.core.types import DType, TensorType
from glnn.errors import GlnnError
from glnn.generation.architectures import decoder
from glnn.generation.engine import SHORT
from glnn.graph.operators import CachedAttention, CacheUpdate, QuantizedMatmul, QuantizedRows
from glnn.graph.quantization import GGML_FORMATS
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

CONTEXT = 2048


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def halvings(count: int) -> int:
    """Return how often a power of two is halved until it is 1."""
    return count.bit_length() - 1


def loops_of(kernel: Kernel, spec: OpSpec, seen: int) -> tuple[int, ...]:
    """Return how often each loop of a kernel is walked, where its text is known here; else ().

    seen: the tokens that attention sees. Loops of few turns that all compilers unroll are left out.
    """
    numbers = kernel.defaults
    if isinstance(spec.op, QuantizedMatmul) and kernel.path.stem == "gemv":
        lanes, groups = numbers["LANES"], numbers["ROW_GROUPS"]
        steps = ceil_div(spec.op.packing.units(1, spec.op.k), lanes)
        squares = (halvings(lanes * groups),) if "norm" in spec.shapes else ()
        turns = numbers["STEPS"]
        around = ceil_div(steps, turns), ceil_div(8 * turns, groups), turns
        return *around, *squares, halvings(lanes)
    if isinstance(spec.op, CachedAttention) and kernel.path.stem == "chunked":
        lanes, fetches, quads = numbers["LANES"], numbers["FETCHES"], spec.op.width // 4
        seen -= spec.op.has_own_keys
        across, count, split = lanes // quads, min(seen, numbers["CHUNK"]), numbers["SPLIT"]
        own = (ceil_div(quads, lanes), quads) if spec.op.has_own_keys else ()
        return (
            ceil_div(quads, lanes), *own, ceil_div(seen, numbers["CHUNK"]),
            ceil_div(count * split, lanes), ceil_div(quads, fetches * split), halvings(lanes),
            ceil_div(count, lanes), ceil_div(count, fetches * across), across - 1,
        )  # fmt: skip
    return ()


def multiply_adds(kernel: Kernel, spec: OpSpec, invocations: int) -> int:
    """Return the multiply-adds of a product by tiles, whose rows are mostly none here; else 0."""
    numbers = kernel.defaults
    if not isinstance(spec.op, QuantizedMatmul) or "TM" not in numbers:
        return 0
    tile = numbers["TM"] * numbers["TN"] * (4 if kernel.path.stem == "gemm_blocked" else 1)
    return invocations // numbers.get("SLICES", 1) * tile * spec.op.k


def moved_bytes(spec: OpSpec, seen: int) -> int:
    """Return the bytes that are read and written at the least, where only the run tells which.

    Of a cache those of the tokens that are seen or written, of a table those of one row.
    """
    op, small = spec.op, sum(one.nbytes for one in spec.results)
    if isinstance(op, QuantizedRows):
        return small + 4 * op.packing.words(1, op.k)
    if isinstance(op, CachedAttention):
        return small + 4 * (op.heads + 2 * seen * op.kv_heads) * op.width
    if isinstance(op, CacheUpdate):
        return 4 * 2 * 2 * op.heads * op.width  # read from x, written into the cache
    return spec.cost.bytes


def entries(shape: str, form: str, backend: Compute) -> list[ScheduledOp]:
    """Return the steps of the next token of one sequence of up to SHORT tokens."""
    weights = SeededWeights(SHAPES[shape], HIDDEN[shape], GGML_FORMATS[form])
    made = decoder(weights.config, weights, CONTEXT, 1)
    types = {name: TensorType(one) for name, one in made.caches.items()}
    types["tokens"] = TensorType((1,), DType.int32)
    updates = {**made.updates, "tokens": "next"}
    specs = StateSpecs(types, (), updates, readable=("tokens",))
    graph = made.following(1, SHORT, sampled=False, backend=backend)
    shapes = {"places": (1,), **specs.shapes(graph)}
    return list(Outline.create(graph, backend, shapes, states=specs).schedule.entries)


def works(
    shape: str, form: str, positions: Sequence[int], backend: Compute, sources: Sources
) -> Iterator[Work]:
    """Yield the launches of a token at each of `positions`, one after the other."""
    steps = entries(shape, form, backend)
    for position in positions:
        model = f"{shape} {form} at {position}"
        for entry in steps:
            if isinstance(entry.choice, Kernel):
                spec, seen = entry.spec, position + 1
                loops = loops_of(entry.choice, spec, seen)
                work = sources.work(model, entry.lowered.name, entry.choice, spec, loops)
                done = multiply_adds(entry.choice, spec, work.invocations)
                yield replace(work, bytes=moved_bytes(spec, seen), multiply_adds=done)


@click.command(help=__doc__)
@click.argument("shapes", nargs=-1, required=True, type=click.Choice(list(SHAPES)))
@click.option("--sources", "folder", required=True, type=click.Path(path_type=Path))
@click.option(
    "--format", "form", default="q4_0", show_default=True, type=click.Choice(list(GGML_FORMATS))
)
@click.option("--positions", default="100,1000", show_default=True, help="Numbers, by commas.")
def main(shapes: tuple[str, ...], folder: Path, form: str, positions: str) -> None:
    places = [int(text) for text in positions.split(",")]
    if not all(0 <= place < SHORT for place in places):
        raise GlnnError(f"--positions: expected numbers from 0 to {SHORT - 1}, got {positions}")
    backend = open_backend("compute")
    if not isinstance(backend, Compute):
        raise GlnnError(f"expected compute shaders, got the backend {backend.name}")
    sources = Sources(backend, folder)
    for shape in shapes:
        for work in works(shape, form, places, backend, sources):
            click.echo(json.dumps(asdict(work)))


if __name__ == "__main__":
    run(main)
