"""Conversion of a captured graph to an ONNX model, by PyTorch's exporter.

Operators that the exporter lacks are decomposed into others.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn import functional

from glnn.core.process import process_lock
from glnn.errors import extra, first_line
from glnn.torch.captured_graph import CapturedGraph, FrozenGraph, RefusedError, number, weight_name

EXPORTING = process_lock()
"""The lock of PyTorch's exporter, which is not thread-safe."""
MOST_BYTES = 2**31 - 2**24  # of weights: an ONNX model without external data has at most 2 GiB
NO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)', overload='(\w+)'")
FOREIGN = (torch.bfloat16, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2)
NOISY = ("torch.onnx._internal.exporter", "torch._subclasses.fake_tensor")
"""Loggers that `quiet` turns off."""


@dataclass(frozen=True)
class ExportedGraph:
    """A captured graph as an ONNX model, without the data of its weights."""

    content: bytes
    """The ONNX model, whose weights have no data."""
    shapes: tuple[tuple[int | None, ...], ...]
    """The shapes of the tensors that it takes, in order; None is any size."""
    numbers: tuple[int | float, ...]
    """The values of `CapturedGraph.numbers` that it was exported for."""

    def takes(self, shapes: Sequence[Sequence[int]], numbers: tuple[int | float, ...]) -> bool:
        """Return True where it is for tensors of these shapes, and for these numbers."""
        return numbers == self.numbers and all(
            all(size in (None, n) for size, n in zip(exported, shape, strict=True))
            for exported, shape in zip(self.shapes, shapes, strict=True)
        )

    def model(self, weights: dict[int, Any]) -> bytes:
        """Return the ONNX model with the data of `weights`, tensors by input position."""
        from onnx import ModelProto

        proto = ModelProto.FromString(self.content)
        arrays = {weight_name(i): tensor for i, tensor in weights.items()}
        for initializer in proto.graph.initializer:
            if initializer.name in arrays:
                array = arrays[initializer.name].detach().resolve_neg().numpy()
                initializer.raw_data = array.tobytes()
        return bytes(proto.SerializeToString())


def export(captured: CapturedGraph, inputs: Sequence[Any]) -> ExportedGraph:
    """Export `captured` for the shapes of `inputs`; sizes along `captured.free` may stay open.

    Raises RefusedError where PyTorch cannot export it; it names the operator that is missing.
    """
    nbytes = sum(inputs[i].nbytes for i in captured.weights)
    if nbytes > MOST_BYTES:
        raise RefusedError(f"its weights are {nbytes} bytes, and an ONNX model holds {MOST_BYTES}")
    with EXPORTING, torch.no_grad(), quiet():
        program = attempt(lambda: _program(captured, inputs))
        names = {weight_name(i): captured.name(i) for i in captured.weights}
        names |= {f"tensors_{n}": captured.name(i) for n, i in enumerate(captured.tensors)}
        check(program, lambda target: names.get(target, target))
        input_names = [input_name(i) for i in captured.tensors]
        proto = attempt(
            lambda: (
                torch.onnx.export(
                    program,
                    (),
                    dynamo=True,
                    optimize=False,  # leaves the weights unchanged, so that they can be replaced
                    verbose=False,
                    input_names=input_names,
                    output_names=[output_name(i) for i in captured.computed],
                ).model_proto
            )
        )
    name_sizes(proto)
    weight_names = {weight_name(i) for i in captured.weights}
    for initializer in proto.graph.initializer:
        if initializer.name in weight_names:
            initializer.raw_data = b""
    sizes = {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in value.type.tensor_type.shape.dim
        )
        for value in proto.graph.input
    }
    # An input that the model lacks, as it is unused, has its shape in this call.
    shapes = tuple(sizes.get(input_name(i), tuple(inputs[i].shape)) for i in captured.tensors)
    numbers = tuple(number(inputs[i]) for i in captured.numbers)
    return ExportedGraph(proto.SerializeToString(), shapes, numbers)


def name_sizes(proto: Any, names: Mapping[str, str] | None = None) -> None:
    """Turn symbols such as "2", the exporter's for a size that proved fixed, into numbers.

    names: new names of other symbols, by the exporter's names.
    """
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param.isdigit():
                dim.dim_value = int(dim.dim_param)
            elif names and dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def input_name(position: int) -> str:
    """Return the name in the ONNX model of the input at `position`."""
    return f"input_{position}"


def output_name(position: int) -> str:
    """Return the name in the ONNX model of the output at `position`."""
    return f"output_{position}"


def _program(captured: CapturedGraph, inputs: Sequence[Any]) -> Any:
    """Return the exported program: functional ATen operators."""
    auto = torch.export.Dim.AUTO
    free = [dict.fromkeys(captured.free.get(i, ()), auto) for i in captured.tensors]
    tensors = tuple(inputs[i].detach() for i in captured.tensors)
    program = torch.export.export(
        FrozenGraph(captured, inputs), tensors, dynamic_shapes=(tuple(free),), strict=False
    )
    return program.run_decompositions(decompositions())


def check(program: Any, called: Callable[[str], str] = str) -> None:
    """Raise RefusedError for a program that changes its inputs, draws random numbers, or computes
    in an unsupported dtype.

    called: function from the program's name of an input or weight to its name in errors.
    """
    for output in program.graph_signature.output_specs:
        if "MUTATION" in output.kind.name:
            raise RefusedError(f"it changes {called(output.target)} in place")
    for node in program.graph.nodes:
        kind = getattr(node.meta.get("val"), "dtype", None)
        if kind in FOREIGN:
            raise RefusedError(
                f"{node.target} computes in {kind}, which neither a GPU nor NumPy has"
            )
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags and not _is_deterministic(node):
            raise RefusedError(f"{node.target} draws random numbers, which are PyTorch's")


def _is_deterministic(node: Any) -> bool:
    """Return True where the arguments of a random operator make it deterministic, as a dropout's at
    inference.
    """
    arguments = {a.name: a for a in node.target._schema.arguments}
    values = dict(zip(arguments, node.args)) | node.kwargs
    if "train" in arguments:
        return values.get("train") is False
    if "dropout_p" in arguments:
        return values.get("dropout_p", arguments["dropout_p"].default_value) in (0, 0.0)
    if "training" in arguments:
        return values.get("training", arguments["training"].default_value) is False
    return False


def attempt(work: Callable[[], Any]) -> Any:
    """Return the result of `work`. Raises RefusedError with the innermost cause of its error."""
    try:
        return work()
    except ImportError as error:
        reason = f"PyTorch's ONNX exporter needs {error.name}: {extra('torch')}"
        raise RefusedError(reason) from None
    except Exception as error:  # the exporter raises any
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        missing = NO_OPERATOR.search(str(cause))
        if missing:
            name = f"{missing[1]}.{missing[2]}"
            raise RefusedError(f"PyTorch's ONNX exporter does not have {name}") from None
        reason = f"{type(cause).__name__}: {first_line(Exception(str(cause).strip()))}"
        raise RefusedError(f"PyTorch does not export it to ONNX: {reason}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the exporter's warnings and log messages."""
    noisy = [name for name in list(logging.root.manager.loggerDict) if name.startswith(NOISY)]
    loggers = [logging.getLogger(name) for name in {*NOISY, f"{NOISY[0]}._registration", *noisy}]
    were_disabled = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, were_disabled, strict=True):
            logger.disabled = disabled


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of operators for `run_decompositions`."""
    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: attention,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten.split.Tensor: split,
        aten.split_with_sizes.default: split_with_sizes,
    }


def split(x: Any, split_size: int, dim: int = 0) -> Any:
    """Split `x` into equal parts, without ONNX sequences, which glnn runs on the host."""
    size = x.shape[dim]
    if type(size) is not int or type(split_size) is not int or not split_size:
        return NotImplemented
    count, last = divmod(size, split_size)
    return split_with_sizes(x, [split_size] * count + [last] * (last > 0) or [0], dim)


def split_with_sizes(x: Any, split_sizes: list[int], dim: int = 0) -> Any:
    """Split `x` into parts of these sizes."""
    starts = accumulate(split_sizes, initial=0)
    return [x.narrow(dim, start, size) for start, size in zip(starts, split_sizes, strict=False)]


def attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """Compute nn.MultiheadAttention of (batch, length, embed_dim); return the result and the
    weights.

    mask: True, or not 0, for positions to ignore; (length, length) where mask_type is 0, (batch,
    length) where it is 1, all four dimensions where it is 2.
    """
    batch, size = query.shape[0], embed_dim // num_head
    projected = [
        functional.linear(x, weight, bias).reshape(batch, -1, num_head, size).transpose(1, 2)
        for x, weight, bias in zip(
            (query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True
        )
    ]
    scores = projected[0] @ projected[1].transpose(2, 3) * size**-0.5
    if mask is not None:
        ignored = mask.to(torch.bool)
        ignored = ignored[:, None, None] if mask_type == 1 else ignored
        scores = scores.masked_fill(ignored, float("-inf"))
    weights = scores.softmax(-1)
    attended = (weights @ projected[2]).transpose(1, 2).reshape(batch, -1, embed_dim)
    result = functional.linear(attended, proj_weight, proj_bias)
    return result, weights.mean(1) if average_attn_weights else weights


def encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Compute nn.TransformerEncoderLayer at inference."""

    def norm_1(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    tokens = norm_1(src) if norm_first else src
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    attended, _ = attention(
        *(tokens, tokens, tokens, embed_dim, num_heads, *weights, mask), mask_type=mask_type
    )
    x = src + attended if norm_first else norm_1(src + attended)
    hidden = functional.linear(norm_2(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
    result = x + functional.linear(hidden, ffn_weight_2, ffn_bias_2)
    return result if norm_first else norm_2(result)
