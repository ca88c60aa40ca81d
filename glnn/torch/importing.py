"""Conversion of a PyTorch module to a model, by PyTorch's exporter to ONNX."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import nn

from glnn.core.tensor_info import BATCH
from glnn.errors import GlnnError, ModelError, shown
from glnn.gl.device_selection import load_triton
from glnn.model.onnx_format import GraphModel, model_from_proto
from glnn.torch.captured_graph import RefusedError
from glnn.torch.exporting import (
    EXPORTING,
    MOST_BYTES,
    attempt,
    check,
    decompositions,
    name_sizes,
    quiet,
)

Tensors = tuple[Any, ...]


def from_torch(module: Any, example: Any, dynamic: bool, name: str | None) -> GraphModel:
    """Convert `module` to a model: see `Model.from_torch`."""
    module = getattr(module, "_orig_mod", module)  # unwraps the result of torch.compile
    kind = type(module).__name__
    if not isinstance(module, nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ModelError(f"from_torch takes a torch.nn.Module, got {shown(module)}")
    if type(dynamic) is not bool:
        raise ModelError(f"dynamic must be a bool, got {shown(dynamic)}")
    if name is not None and not isinstance(name, str):
        raise ModelError(f"a model's name must be a text, got {shown(name)}")
    examples = _examples(example)
    load_triton()  # before PyTorch loads it, which may be too late
    try:
        with _inference(module) as inference_module:
            proto = _export(inference_module, examples, dynamic)
    except RefusedError as error:
        raise ModelError(f"{kind}: {error}") from None
    proto.graph.name = name or kind
    unused = set(module.state_dict()) - {one.name for one in proto.graph.initializer}
    try:
        return replace(model_from_proto(proto, name or kind), passed=frozenset(unused))
    except GlnnError as error:
        raise ModelError(f"{kind} was exported to ONNX, but {error}") from None


def _examples(example: Any) -> Tensors:
    """Return the examples, one for each input, as `_plain` tensors. Raises ModelError."""
    arguments = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    for one in arguments:
        if not isinstance(one, torch.Tensor):
            raise ModelError(
                "from_torch takes an example of each input, a tensor or a tuple of tensors, "
                f"got {shown(one) if not isinstance(one, nn.Module) else type(one).__name__}"
            )
    if not arguments:
        raise ModelError("from_torch takes an example of each input, got none")
    return tuple(_plain(one.detach()) for one in arguments)


def _plain(tensor: Any) -> Any:
    """Return `tensor` on the CPU, and in float32 if its dtype is a float."""
    on_cpu = tensor.cpu()
    return on_cpu.float() if on_cpu.is_floating_point() else on_cpu


@contextmanager
def _inference(module: Any) -> Iterator[Any]:
    """Set `module` to inference, and restore the mode of each submodule afterwards.

    A module that is not on the CPU, or not float32, is copied.
    """
    tensors = [*module.parameters(), *module.buffers()]
    nbytes = sum(one.nbytes for one in tensors)
    if nbytes > MOST_BYTES:
        raise RefusedError(f"its weights are {nbytes} bytes, and an ONNX model holds {MOST_BYTES}")
    other_floats = {one.dtype for one in tensors if one.is_floating_point()} - {torch.float32}
    if other_floats or any(one.device.type != "cpu" for one in tensors):
        original = module
        module = attempt(lambda: copy.deepcopy(original).cpu().float())
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        yield module
    finally:
        for submodule, training in modes:
            submodule.training = training


def _export(module: Any, examples: Tensors, dynamic: bool) -> Any:
    """Return the ModelProto. Raises RefusedError."""
    with EXPORTING, torch.no_grad(), quiet():
        program = None
        if dynamic:
            with suppress(RefusedError):  # falls back to the batch size of the examples
                program = attempt(lambda: _program(module, _double_single_samples(examples), True))
        if program is None:
            program = attempt(lambda: _program(module, examples, False))
        check(program)
        outputs = _output_names(program)
        proto = attempt(
            lambda: (
                torch.onnx.export(
                    program,
                    (),
                    dynamo=True,
                    optimize=False,  # keeps the parameters' names
                    verbose=False,
                    output_names=outputs,
                ).model_proto
            )
        )
    name_sizes(proto, _batch(proto))
    return proto


def _program(module: Any, examples: Tensors, dynamic: bool) -> Any:
    """Return the exported program. dynamic: whether the first size of each input is open.

    Raises RefusedError where open sizes decide branches of the program.
    """
    dynamic_shapes = _first_sizes(module, examples) if dynamic else None
    program = torch.export.export(module, examples, dynamic_shapes=dynamic_shapes, strict=False)
    if dynamic:
        _check_guards(program)
    return program.run_decompositions(decompositions())


def _check_guards(program: Any) -> None:
    """Raise RefusedError for guards on open sizes, other than that two sizes are equal.

    With such a guard only the branch that the examples take was exported.
    """
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    shape_envs = {id(v.fake_mode): v.fake_mode.shape_env for v in values if hasattr(v, "fake_mode")}
    for shape_env in shape_envs.values():
        for guard in shape_env.guards if shape_env is not None else ():
            condition = guard.expr
            are_symbols = all(side.is_Symbol for side in condition.args)
            if getattr(condition, "rel_op", "") != "==" or not are_symbols:
                raise RefusedError(f"it goes by whether {condition}")


def _first_sizes(module: Any, examples: Tensors) -> dict[str, Any]:
    """Return dynamic shapes, by arguments of `forward`, with the first size of each input open."""

    def dims(value: Any) -> Any:
        if isinstance(value, tuple):  # of *arguments
            return tuple(map(dims, value))
        return {0: torch.export.Dim.AUTO} if value.ndim else {}

    arguments = signature(module.forward).bind(*examples).arguments
    return {name: dims(value) for name, value in arguments.items()}


def _double_single_samples(examples: Tensors) -> Tensors:
    """Return examples with two samples instead of one: PyTorch specializes for a size of 1."""
    return tuple(
        torch.cat([one, one]) if one.ndim and one.shape[0] == 1 else one for one in examples
    )


def _output_names(program: Any) -> list[str]:
    """Return names of the outputs, from their keys and positions in the result of `forward`.

    An output that is an input has the input's name; None is not exported.
    """
    signature = program.graph_signature
    specs = [one.arg for one in signature.output_specs if one.kind.name == "USER_OUTPUT"]
    inputs = {one.arg.name for one in signature.input_specs if one.kind.name == "USER_INPUT"}
    tree = program.call_spec.out_spec
    names = ["_".join(path) or "output" for path in _names(tree.unflatten(range(len(specs))), ())]
    return [
        spec.name if spec.name in inputs else name
        for name, spec in zip(names, specs, strict=True)
        if not (hasattr(spec, "value") and spec.value is None)
    ]


def _names(structure: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path to each leaf of `structure`."""
    if isinstance(structure, Mapping):
        for key, one in structure.items():
            yield from _names(one, (*path, str(key)))
    elif isinstance(structure, (tuple, list)):
        for i, one in enumerate(structure):
            yield from _names(one, (*(path or ("output",)), str(i)))
    else:
        yield path


def _batch(proto: Any) -> dict[str, str]:
    """Return a renaming of the first input's open first size to BATCH, as in models of layers."""
    shapes = [one.type.tensor_type.shape.dim for one in proto.graph.input]
    first = [dims[0].dim_param for dims in shapes if dims and not dims[0].dim_param.isdigit()]
    return {name: BATCH for name in first[:1] if name}
