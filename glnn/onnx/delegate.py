"""Nodes that the host computes by the `onnx` package's reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.process import out_of_memory
from glnn.core.types import ANYTHING, Array, TensorType
from glnn.errors import GlnnError, ShapeError, UnsupportedOpError, first_line
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.onnx.host_node import HostNode, host_graph
from glnn.onnx.numpy_nodes import NODES
from glnn.onnx.operators.call import Signature
from glnn.onnx.operators.dtypes import array_of, type_of, type_proto, type_text
from glnn.onnx.reference_table import OLDEST, describe, is_allowed, is_checked
from glnn.onnx.schemas import defaults, domain_of
from glnn.onnx.training_nodes import RANDOM

SAME_COUNT = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")
"""Operators whose result has as many numbers as the operand, which the package does not check."""
SCALARS: Mapping[str, tuple[int, ...]] = {
    "DFT": (1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "STFT": (1, 3),
}
"""The operands that ONNX says are scalars, by operator. ONNX Runtime takes them of shape (1,), too,
which the package's inference and reference do not."""


@dataclass(frozen=True, eq=False)
class Delegate:
    """A node of a model, and what is needed to compute it by itself."""

    node: Any
    """A NodeProto whose operands are called x0, x1, ... and results y0, y1, ..."""
    opsets: Mapping[str, int]
    """The model's operator sets and their versions."""
    ir_version: int
    """The IR version of the model's format."""

    signature: Signature | None = None
    """Of an operator that the package has no schema of."""

    @cached_property
    def _evaluator(self) -> Any:
        try:
            from onnx import helper
            from onnx.reference import ReferenceEvaluator
        except ImportError as error:
            raise UnsupportedOpError(f"{self.node.op_type}: {error}") from None
        inputs, outputs = (
            [helper.make_empty_tensor_value_info(name) for name in names if name]
            for names in (self.node.input, self.node.output)
        )
        graph = helper.make_graph([self.node], self.node.op_type, inputs, outputs)
        imports = [helper.make_opsetid(domain, number) for domain, number in self.opsets.items()]
        model = helper.make_model(graph, opset_imports=imports, ir_version=self.ir_version)
        try:
            return ReferenceEvaluator(model)
        except NotImplementedError:
            why = "neither glnn nor the onnx package's reference computes it"
            raise UnsupportedOpError(f"{self.node.op_type}: {why}") from None
        except MemoryError as error:
            raise out_of_memory(error) from None
        except Exception as error:  # it raises many kinds
            why = f"onnx.reference does not take its attributes: {first_line(error)}"
            raise UnsupportedOpError(f"{self.node.op_type}: {why}") from error

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        """The results that have names. Raises ShapeError where nothing can compute them."""
        with np.errstate(all="ignore"):
            try:
                function = self._numpy_function
                return (
                    self._package(arrays) if function is None else self._run_numpy(function, arrays)
                )
            except GlnnError:
                raise
            except Exception as error:  # NumPy and the package raise many kinds
                raise self._refusal(arrays, _first_cause(error)) from error

    def _refusal(self, arrays: Sequence[Array | None], cause: BaseException) -> GlnnError:
        """Return an error that names the operands, which cannot be computed, and the cause."""
        if isinstance(cause, MemoryError):
            return out_of_memory(cause)
        types = ", ".join("none" if x is None else str(TensorType.from_array(x)) for x in arrays)
        name = f" of the node {self.node.name!r}" if self.node.name else ""
        return ShapeError(
            f"{self.node.op_type}{name}: operands {types} do not fit its attributes or each other: "
            f"{first_line(cause)}"
        )

    def _package(self, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        """Return the results by the package's reference."""
        pairs = zip(self.node.input, arrays, strict=False)
        feeds = {name: _unboxed(array) for name, array in pairs if name and array is not None}
        if not self.node.domain:
            names = [
                self.node.input[i] for i in SCALARS.get(self.node.op_type, ()) if i < len(arrays)
            ]
            feeds |= {n: feeds[n].reshape(()) for n in names if n in feeds and feeds[n].size == 1}
        return tuple(map(array_of, self._evaluator.run(None, feeds)))

    def _run_numpy(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return the results by the NumPy function here, much faster than the package's
        reference.
        """
        from onnx import helper

        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        result = function(attributes, self.opsets.get(domain_of(self.node.domain), 1), *arrays)
        return tuple(array for array, name in zip(result, self.node.output) if name)

    def infer_types(self, operands: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """Return the results' types as far as the package infers them.

        Of operators that it has no schema of only dtypes are known. Raises ShapeError where
        operands do not fit, or sizes are such as no tensor has.
        """
        if self.signature is not None:
            operand_types = [None if value is None else value.type for value in operands]
            all_types = self.signature.result_types(operand_types, len(self.node.output))
            return tuple(t for t, name in zip(all_types, self.node.output, strict=True) if name)
        result = self._infer_protos(operands)
        types = tuple(
            type_of(result[name]) if name in result else ANYTHING
            for name in self.node.output
            if name
        )
        x = operands[0] if operands else None
        if self.node.op_type in SAME_COUNT and x is not None and types:
            dims = x.type.dims, types[0].dims
            if not x.type.symbols and not types[0].symbols and prod(dims[0]) != prod(dims[1]):
                raise ShapeError(f"{self.node.op_type}: {x.type} has other numbers than {dims[1]}")
        return types

    def _infer_protos(self, operands: Sequence[Value | None]) -> Mapping[str, Any]:
        """Return the TypeProtos that the package infers, by the results' names."""
        from onnx import defs, numpy_helper, shape_inference

        here = dict(zip(self.node.input, map(self._scalar, count(), operands)))
        types = {n: type_proto(v.type) for n, v in here.items() if n and v}
        known = {
            n: numpy_helper.from_array(v.data)
            for n, v in here.items()
            if n and v and v.kind is Kind.CONSTANT and not v.data.dtype.hasobject
        }
        from onnx import helper

        imports = [helper.make_opsetid(domain, number) for domain, number in self.opsets.items()]
        domain = self.node.domain
        try:
            schema = defs.get_schema(self.node.op_type, self.opsets.get(domain, 1), domain)
            node = type(self.node)()
            node.CopyFrom(self.node)
            names = {one.name for one in node.attribute}
            # The package's inference takes 0 for defaults, as for STFT's `onesided`, which is 1.
            node.attribute.extend(one for one in defaults(schema) if one.name not in names)
            result: Mapping[str, Any] = shape_inference.infer_node_outputs(
                schema, node, types, known, opset_imports=imports, ir_version=self.ir_version
            )
        except MemoryError as error:
            raise out_of_memory(error) from None
        except Exception as error:  # it raises many kinds
            raise ShapeError(f"{self.node.op_type}: {first_line(error)}") from None
        return result

    def _scalar(self, number: int, value: Value | None) -> Value | None:
        """Return an operand as the package's inference takes it: without the dimension of one
        number, where ONNX wants none and ONNX Runtime takes both.
        """
        listed = () if self.node.domain else SCALARS.get(self.node.op_type, ())
        if value is None or number not in listed or value.type.dims != (1,):
            return value
        data = value.data.reshape(()) if isinstance(value.data, np.ndarray) else value.data
        return replace(value, type=TensorType((), value.type.dtype), data=data)

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """The results' types where operands may not be ranked, or do not fit by the sizes that
        stand for open ones: the dtypes, with as many dimensions as the package knows.
        """
        unsized = [None if type is None else type.unknown for type in types]
        unranked = [None if type is None else type.unranked for type in types]
        for some in (types, unsized, unranked):
            operands = [None if t is None else Value("operand", t, Kind.INPUT) for t in some]
            try:
                return self.infer_types(operands)
            except (ShapeError, UnsupportedOpError):
                continue
        return (ANYTHING,) * sum(map(bool, self.node.output))

    @property
    def random(self) -> bool:
        """True where the node draws other numbers in each run."""
        return domain_of(self.node.domain) == "" and self.node.op_type in RANDOM

    @property
    def _numpy_function(self) -> Callable[..., Sequence[Array]] | None:
        """The NumPy function that computes the node; None where only the package's reference
        does.
        """
        return NODES.get((domain_of(self.node.domain), self.node.op_type))

    def _check(self, operands: Sequence[Value | None], why: str) -> None:
        """Raise UnsupportedOpError unless the package's reference was checked for such a node.

        why: the reason why nothing else computes it, for the error.
        """
        import onnx
        from onnx import defs, helper

        op, domain = self.node.op_type, domain_of(self.node.domain)
        if self.signature is not None:
            raise UnsupportedOpError(f"{op}: {why}, and nothing else here computes it")
        if not is_checked(onnx.__version__):
            raise UnsupportedOpError(
                f"{op}: {why}, and onnx.reference is relied on for it from onnx {OLDEST} on, "
                f"{onnx.__version__} is installed"
            )
        schema = defs.get_schema(op, self.opsets.get(domain, 1), domain)
        types = self._named_types(schema, operands)
        attributes = {
            one.name: helper.get_attribute_value(one)
            for one in (*defaults(schema), *self.node.attribute)
        }
        version = schema.since_version
        if is_allowed(domain, op, version, types, attributes):
            return
        named = ", ".join(dict.fromkeys(chain.from_iterable(types.values())))
        only = f", only for {reliable}" if (reliable := describe(domain, op)) else ""
        raise UnsupportedOpError(
            f"{op} (operator set {version}{f' of {domain}' if domain else ''}) of {named}: {why}, "
            f"and onnx.reference is not relied on for it{only}"
        )

    def _named_types(
        self, schema: Any, operands: Sequence[Value | None]
    ) -> Mapping[str, Sequence[str]]:
        """Return the types of operands and results by ONNX's type constraints."""
        operand_types = [None if value is None else value.type for value in operands]
        try:
            inferred = iter(self.infer_types(operands))
        except ShapeError:  # constants may be sequences, whose types nobody says
            if not operands or any(v and v.kind is not Kind.CONSTANT for v in operands):
                raise
            inferred = iter(())
        results = [next(inferred, None) if name else None for name in self.node.output]
        result: dict[str, list[str]] = {}
        for formal, types in ((schema.inputs, operand_types), (schema.outputs, results)):
            last = [formal[-1]] * (len(types) - len(formal)) if formal else []  # may be several
            for parameter, type in zip((*formal, *last), types, strict=False):
                if type is not None and type != ANYTHING:
                    name = type.holds or type_text(type).removeprefix("tensor(").removesuffix(")")
                    result.setdefault(parameter.type_str, []).append(name)
        return result

    def graph(self, operands: Sequence[Value | None], why: str) -> Graph:
        """Return a graph of one operator that the host computes. why: the reason why no GPU does.

        Raises UnsupportedOpError for what the package's reference is not known to compute right.
        """
        if self._numpy_function is None:
            self._check(operands, why)
        types = self._types(operands)
        present = tuple(value is not None for value in operands)
        operator = ReferenceNode(self.node.op_type, types, why, self, present)
        return host_graph(self.node.op_type, operator, operands, types)

    def _types(self, operands: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """Return the results' types.

        Where the package cannot say them of operands that are all constants, these are anything:
        the results say them. Raises ShapeError for sizes that no tensor has.
        """
        kinds = {value.kind for value in operands if value is not None}
        if kinds == {Kind.CONSTANT} and self.signature is None:
            try:
                self._infer_protos(operands)
            except (ShapeError, UnsupportedOpError):
                return (ANYTHING,) * sum(map(bool, self.node.output))
        return self.infer_types(operands)


@dataclass(frozen=True, eq=False)
class ReferenceNode(HostNode):
    """A node that the host computes by the `onnx` package, of operands with known sizes."""

    delegate: Delegate
    present: tuple[bool, ...]
    """Flags, one for each of the node's operands: False where the operand is left out."""

    name: ClassVar[str] = "delegated"

    @property
    def random(self) -> bool:
        return self.delegate.random

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        remaining = iter(arrays)
        result = self.delegate.reference(
            *(next(remaining) if present else None for present in self.present)
        )
        for array, type in zip(result, self.types, strict=True):
            if not type.symbols and array.shape != type.shape:
                what = f"the result is {array.shape}, expected {type}"
                raise ShapeError(f"{self.display_name}: {what}; {self.why}")
        return result


def _first_cause(error: BaseException) -> BaseException:
    """Return what an error was raised from: the package writes its own over NumPy's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _unboxed(array: Array) -> Any:
    """Return `array` as the package's reference takes it: a sequence or an optional value
    unboxed.
    """
    if array.dtype == object and array.ndim == 0 and not isinstance(array.item(), str):
        return array.item()
    return array
