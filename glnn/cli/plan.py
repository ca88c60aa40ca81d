"""`glnn plan`: the steps of a model's layers and their memory, before any is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import prod
from typing import Any

import rich_click as click

from glnn.backends import Backend, open_backend
from glnn.cli.feeds import advise_shapes, match_files, read_sized
from glnn.cli.language_models import plan_language_model, refuse_options
from glnn.cli.model_options import ModelName
from glnn.cli.options import (
    FileName,
    backend_option,
    batch_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
    shape_option,
)
from glnn.cli.screen import Column, Screen, Table, figures, number, size
from glnn.compiler.memory_budget import Outline, Reason, reasons
from glnn.compiler.partitioned_graph import single_plan_graph
from glnn.compiler.shape_advice import missing_numbers
from glnn.compiler.step import Step
from glnn.core.settings import Settings
from glnn.core.types import MOST, Array, DType, Shape
from glnn.errors import ShapeError
from glnn.generation.language_model import MOST_SEQUENCES
from glnn.generation.model_file import is_language_model
from glnn.graph.passes import Pass
from glnn.model import Model, load

MOST_SHOWN = 6  # tensors of a block
OF_NETWORKS = ("inputs", "batch", "shapes", "kernels", "fused", "precision")
"""Parameters that do nothing for a language model."""


@click.command()
@click.argument("model", type=ModelName(".gguf"))
@click.argument("inputs", nargs=-1, type=FileName())
@backend_option
@batch_option
@shape_option
@kernel_option
@fuse_option
@precision_option
@click.option(
    "--context", type=click.IntRange(1, MOST), help="Of a language model: tokens of a sequence."
)
@click.option(
    "--sequences",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=1,
    show_default=True,
    help="Of a language model: texts that are continued together.",
)
@device_options
def plan(
    model: str,
    inputs: tuple[str, ...],
    backend: str,
    batch: int | None,
    shapes: dict[str, Shape],
    kernels: dict[str, str],
    fused: bool,
    precision: str,
    context: int | None,
    sequences: int,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Show the steps in which MODEL would run, and the memory that it would take.

    No memory is taken for tensors, so a model that is too large can be looked at. A reorder moves
    a tensor to the layout that the next kernel wants. `via` is the kernel that a step is a stage
    of. `reads` says how a kernel gets at each operand: as an attribute or a samplerBuffer it reads
    the buffer itself, as a sampler2D or sampler2DArray a copy in a texture. Where kernels differ in
    what their weights take, each choice says why; where memory is short, what was given up. Tensors
    that are never needed at the same time share a block of memory. Steps of the body of a branch or
    a loop are called `loop/body/step`; the memory of all bodies is there at once. INPUTS are files,
    NAME=FILE or .npz, of inputs whose numbers decide about sizes or branches; others need none.

    Of a language model, a GGUF file or a folder of Hugging Face, the memory of its weights, of the
    caches of its sequences, and of each kind of run is shown; once it was run, each keeps its own.

    \b
    Examples:
      glnn plan lenet
      glnn plan vgg16 --precision float16
      glnn plan lenet --batch 10000 --kernel matmul=morton_4_2
      glnn plan net.onnx --shape x=1,3,64,96
      glnn plan bert.onnx --batch 8 --shape sequence=128
      glnn plan vad.onnx rate=rate.npy
      glnn plan lenet --no-fuse
      glnn plan net.json --backend feedback --limits es31-minimum --json
      glnn plan model.gguf --context 4096 --sequences 8
    """
    if is_language_model(model):
        refuse_options(OF_NETWORKS, "language models")
        plan_language_model(model, backend, gpu, limits, context, sequences, as_json, wide)
        return
    refuse_options(("context", "sequences"), "networks")
    opened = open_backend(backend, gpu=gpu, limits=limits, gl_kernels=bool(kernels))
    report = plan_report(
        load(model), model, inputs, opened, batch, shapes, kernels, fused, precision
    )
    if as_json:
        print_json(report)
    else:
        _show(report, Screen(wide))


def plan_report(
    model: Model,
    model_name: str,
    inputs: Sequence[str],
    backend: Backend,
    batch: int | None,
    requested: Mapping[str, Shape],
    kernels: Mapping[str, str],
    fused: bool,
    precision: str,
) -> dict[str, Any]:
    """Plan `model` for `backend`, allocating nothing, and describe it as JSON has it.

    The arguments are those of the command, where the model is called `model_name`. requested:
    shapes of inputs, or sizes in tuples.
    """
    read, shapes = read_sized(
        model, model_name, match_files(model, model_name, inputs), batch, requested
    )
    with advise_shapes(model, inputs, requested):
        return _plan_report(model, backend, read, shapes, kernels, fused, precision)


def _plan_report(
    model: Model,
    backend: Backend,
    read: Mapping[str, Array],
    shapes: Mapping[str, Shape],
    kernels: Mapping[str, str],
    fused: bool,
    precision: str,
) -> dict[str, Any]:
    """Plan `model` for inputs of `shapes`. read: the arrays of inputs that were read from files."""
    types = model.graph.input_types(shapes)
    shape_inputs = model.graph.shape_input_arrays(read)
    try:
        graph = single_plan_graph(model.graph, types, shape_inputs)
    except ShapeError as error:
        advice = missing_numbers(model.graph, types, shape_inputs)
        raise ShapeError(f"{error}{advice}") from None
    available = backend.available()

    def report() -> dict[str, Any]:
        outline = Outline.create(
            graph,
            backend,
            shapes,
            kernels,
            precision=DType(precision),
            available=available,
            without=Pass.left_out((), fused),
        )
        return _report(model, shapes, backend, outline, available)

    return {"precision": precision, "fused": fused, **backend.perform(report)}


def _report(
    model: Model,
    shapes: Mapping[str, Shape],
    backend: Backend,
    outline: Outline,
    available: int | None,
) -> dict[str, Any]:
    device = backend.device
    blocks: list[dict[str, Any]] = []
    steps = _steps(outline, blocks)
    sources = _Sources(outline)
    for step in outline.steps:
        sources.add(step.output)
    return {
        "model": model.name,
        "backend": backend.name,
        "device": device.capabilities.renderer if device else "CPU (NumPy)",
        "inputs": {info.name: shapes[info.name] for info in model.inputs},
        "outputs": {
            value.name: sources.find(outline.outputs.get(value.name, value.name))
            for value in outline.graph.outputs
        },
        "steps": steps,
        "choices": [
            {**asdict(reason), "why": _explain(reason)} for reason in reasons(outline, available)
        ],
        "blocks": blocks,
        "tensor_bytes": outline.tensors,
        "parameter_bytes": outline.parameters,
        "saved_bytes": outline.saved,
        "texture_bytes": outline.copies,
        "passing_bytes": outline.peak - outline.nbytes,
        "peak_bytes": outline.peak,
        "available_bytes": available,
        "fits": None if available is None else outline.peak <= available,
        "largest_adjacent": _adjacent(outline),
    }


def _explain(reason: Reason) -> str:
    """Explain in a sentence why a kernel was chosen."""
    extra = {"weights": reason.weights, "workspace": reason.workspace}
    more = " and ".join(f"{size(n)} of {what}" for what, n in extra.items() if n > 0)
    less = " and ".join(f"{size(-n)} of {what}" for what, n in extra.items() if n < 0)
    result = (
        f"{reason.kernel}: {number(reason.times)} times as fast as {reason.other} by prediction"
    )
    result += f", {more} more" if more else ""
    result += f", {less} less" if less else ""
    if reason.given_up is not None:
        amount = (
            f"{size(reason.lacking)} more than" if reason.lacking > 0 else "with the others what"
        )
        result += f"; {reason.given_up} would need {amount} {_memory_source()[0]}"
    return result


def _memory_source() -> tuple[str, str]:
    """Return the source of the memory limit as a subject and verb, and as a label of a table."""
    if Settings.from_environment().memory is not None:
        return "GLNN_MEMORY allows", "allowed by GLNN_MEMORY"
    return "is free", "free on the device"


def _steps(
    outline: Outline, blocks: list[dict[str, Any]], prefix: str = ""
) -> list[dict[str, Any]]:
    """Describe the steps, and append the blocks of memory to `blocks`.

    The steps of a body follow the step that runs it. prefix: of the names in a body.
    """
    first = len(blocks)
    for index, nbytes in enumerate(outline.blocks):
        tensors = [prefix + name for name in _tensors(outline, index)]
        blocks.append({"bytes": nbytes, "tensors": tensors})
    result, sources = [], _Sources(outline)
    for step in outline.steps:
        producers = [sources.find(name) for name in step.inputs]
        sources.add(step.output)
        entry = _step(step, prefix, first)
        entry["dtype"] = outline.schedule.tensors[step.output].type.dtype.value
        entry["sources"] = [prefix + name for name in dict.fromkeys(chain(*producers))]
        result.append(entry)
        for body in outline.bodies.get(step.output, ()):
            result += _steps(body, blocks, f"{prefix}{step.name}/{body.graph.name}/")
    return result


class _Sources:
    """The tensors computed so far, the inputs first, by their memory."""

    def __init__(self, outline: Outline) -> None:
        self._tensors = outline.schedule.tensors
        self._computed: set[str] = set()
        self._by_memory: dict[str, list[str]] = {}
        for value in outline.graph.inputs:
            self.add(value.name)

    def add(self, name: str) -> None:
        """Add an input, or the result of a step."""
        self._computed.add(name)
        if name in self._tensors:
            self._by_memory.setdefault(self._tensors[name].memory, []).append(name)

    def find(self, name: str) -> list[str]:
        """Return the computed tensors that `name` consists of: itself, or the tensors in its memory
        where it is a view of one, or several concatenated in place.
        """
        if name in self._computed:
            return [name]
        if name not in self._tensors:
            return []
        return list(self._by_memory.get(self._tensors[name].memory, ()))


def _step(step: Step, prefix: str, first: int) -> dict[str, Any]:
    """Describe a step. prefix: of names in its body. first: number of the body's first block."""
    result, parameters, copies = step.nbytes
    return {
        "name": prefix + step.name,
        "layer": step.layer,
        "op": step.op.label if step.why else step.op.name,
        "kernel": step.kernel,
        "via": step.via,
        "why_host": step.why or None,
        "inputs": [prefix + name for name in step.inputs],
        "output": prefix + step.output,
        "shape": step.shape,
        "layouts": dict(step.layouts),
        "halves": step.fp16,
        "int8": step.int8,
        "reads": dict(step.reads),
        "block": None if step.memory is None else first + step.memory,
        "bytes": result,
        "parameter_bytes": parameters,
        "saved_bytes": step.saved,
        "texture_bytes": copies,
    }


def _reads(reads: dict[str, str]) -> str:
    """Group the operands by how the kernel reads them."""
    ways = dict.fromkeys(reads.values())
    return ", ".join(f"{way}: {' '.join(k for k in reads if reads[k] == way)}" for way in ways)


def _tensors(outline: Outline, block: int) -> list[str]:
    """Return the tensors in the block of this number, in the order in which they are computed."""
    arena, tensors = outline.arena, outline.schedule.tensors
    return [name for name, tensor in tensors.items() if arena.block.get(tensor.memory) == block]


def _adjacent(outline: Outline) -> dict[str, Any]:
    """Return the input and the result of one layer that are largest together, as dense float32."""
    tensors = outline.schedule.tensors
    computed = {step.output for step in outline.steps}
    pairs = [
        (4 * (prod(tensors[name].shape) + prod(tensors[result].shape)), name, result)
        for node in outline.graph.nodes
        for name, result in ((value.name, node.outputs[0].name) for value in node.reads)
        if result in computed and name in tensors
    ]
    nbytes, *names = max(pairs, key=lambda pair: pair[0], default=(0,))
    return {"bytes": nbytes, "tensors": names}


def _show(report: dict[str, Any], out: Screen) -> None:
    inputs = ", ".join(f"{name} {shape}" for name, shape in report["inputs"].items())
    title = f"{report['model']} on {report['backend']}, {report['device']}: {inputs}"
    heads = [Column("step"), Column("op", 6), Column("kernel"), Column("via", 7)]
    heads += [Column("layouts", 4), Column("shape", 1, None)]
    heads += [figures("block", 8), figures("result", 1), figures("parameters", 2)]
    textures = [figures("textures", 3)] if report["texture_bytes"] else []
    ways = {way for step in report["steps"] for way in step["reads"].values()}
    reads = [Column("reads", 5)] if ways - {"buffer"} else []
    rows = Table((*heads, *textures, *reads))
    for step in report["steps"]:
        rows.add(
            step["name"],
            step["op"],
            step["kernel"],
            step["via"] or "",
            " ".join(f"{k}={v.replace(' ', '_')}" for k, v in step["layouts"].items()),
            " x ".join(map(str, step["shape"])),
            "host" if step["block"] is None else str(step["block"]),
            size(step["bytes"]),
            size(step["parameter_bytes"]) if step["parameter_bytes"] else "",
            *([size(step["texture_bytes"])] if textures else []),
            *([_reads(step["reads"])] if reads else []),
        )
    out.show(rows, title)
    hosted: dict[str, None] = dict.fromkeys(
        f"{step['layer']}: the host computes {step['op']}: {step['why_host']}"
        for step in report["steps"]
        if step["why_host"]
    )
    for line in hosted:
        out.say(line)
    if report["choices"]:
        choices = Table((Column("choice"), Column("op", 1), Column("why")))
        for choice in report["choices"]:
            choices.add(choice["name"], choice["op"], choice["why"])
        out.show(choices)
    blocks = Table((figures("block"), figures("size"), Column("tensors that use it")))
    for index, block in enumerate(report["blocks"]):
        names = block["tensors"]
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        blocks.add(str(index), size(block["bytes"]), ", ".join(names[:MOST_SHOWN]) + more)
    out.show(blocks)
    totals = Table((Column("memory", least=24), figures("size"), Column("")))
    totals.add("blocks of tensors", size(report["tensor_bytes"]))
    saved = f"{size(report['saved_bytes'])} less by float16" if report["saved_bytes"] else ""
    totals.add("parameters", size(report["parameter_bytes"]), saved)
    totals.add("textures", size(report["texture_bytes"]))
    verdict = "more than is free" if report["fits"] is False else ""
    if report["passing_bytes"]:
        totals.add("until parameters are in textures", size(report["passing_bytes"]))
    totals.add("predicted peak", size(report["peak_bytes"]), verdict)
    totals.add(_memory_source()[1], size(report["available_bytes"]))
    adjacent = report["largest_adjacent"]
    totals.add(
        "largest adjacent activations", size(adjacent["bytes"]), ", ".join(adjacent["tensors"])
    )
    out.show(totals)
