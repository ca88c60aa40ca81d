"""Nodes that the host computes by NumPy functions or by the `onnx` package's reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.cached_property import cached_property
from glnn.core.process import out_of_memory
from glnn.core.types import ANYTHING, Array, TensorType, unboxed
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
"""Operators whose result has as many elements as the operand. The package does not check that."""
SCALARS: Mapping[str, tuple[int, ...]] = {
    "DFT": (1, 2),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "STFT": (1, 3),
}
"""By operator, the operands that ONNX defines as scalars. ONNX Runtime takes the shape (1,), too,
the package's inference and reference do not.
"""


@dataclass(frozen=True, eq=False)
class Delegate:
    """A single node of a model, which can be inferred and computed without the model."""

    node: Any
    """A NodeProto whose operands are called x0, x1, ... and results y0, y1, ..."""
    opsets: Mapping[str, int]
    """The model's operator sets and their versions."""
    ir_version: int
    """The IR version of the model's format."""
    signature: Signature | None = None
    """The operator's signature where the package has no schema of it."""

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
        except Exception as error:  # of many kinds
            why = f"onnx.reference does not take its attributes: {first_line(error)}"
            raise UnsupportedOpError(f"{self.node.op_type}: {why}") from error

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        """Return the named results. Raises ShapeError where nothing can compute them."""
        with np.errstate(all="ignore"):
            try:
                function = self._numpy_function
                return (
                    self._run_package(arrays)
                    if function is None
                    else self._run_numpy(function, arrays)
                )
            except GlnnError:
                raise
            except Exception as error:  # of many kinds, from NumPy or the package
                raise self._refusal(arrays, _first_cause(error)) from error

    def _refusal(self, arrays: Sequence[Array | None], cause: BaseException) -> GlnnError:
        """Return the error for operands that cannot be computed, with their types and the cause."""
        if isinstance(cause, MemoryError):
            return out_of_memory(cause)
        types = ", ".join("none" if x is None else str(TensorType.from_array(x)) for x in arrays)
        name = f" of the node {self.node.name!r}" if self.node.name else ""
        return ShapeError(
            f"{self.node.op_type}{name}: operands {types} do not fit its attributes or each other: "
            f"{first_line(cause)}"
        )

    def _run_package(self, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        """Return the results by the package's reference."""
        pairs = zip(self.node.input, arrays, strict=False)
        feeds = {name: unboxed(array) for name, array in pairs if name and array is not None}
        if not self.node.domain:
            names = [
                self.node.input[i] for i in SCALARS.get(self.node.op_type, ()) if i < len(arrays)
            ]
            feeds |= {n: feeds[n].reshape(()) for n in names if n in feeds and feeds[n].size == 1}
        return tuple(map(array_of, self._evaluator.run(None, feeds)))

    def _run_numpy(
        self, function: Callable[..., Sequence[Array]], arrays: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Return the results by glnn's NumPy function, much faster than the package's reference."""
        from onnx import helper

        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        result = function(attributes, self.opsets.get(domain_of(self.node.domain), 1), *arrays)
        return tuple(array for array, name in zip(result, self.node.output) if name)

    def infer_types(self, operands: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """Return the results' types as far as the package infers them.

        For operators that it has no schema of, only dtypes are known. Raises ShapeError where
        operands do not fit, or no tensor has the result's sizes.
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

        values = dict(zip(self.node.input, map(self._scalar, count(), operands)))
        types = {n: type_proto(v.type) for n, v in values.items() if n and v}
        constants = {
            n: numpy_helper.from_array(v.data)
            for n, v in values.items()
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
            # The package's inference takes missing attributes for 0; STFT's `onesided` is 1.
            node.attribute.extend(one for one in defaults(schema) if one.name not in names)
            result: Mapping[str, Any] = shape_inference.infer_node_outputs(
                schema, node, types, constants, opset_imports=imports, ir_version=self.ir_version
            )
        except MemoryError as error:
            raise out_of_memory(error) from None
        except Exception as error:  # of many kinds
            raise ShapeError(f"{self.node.op_type}: {first_line(error)}") from None
        return result

    def _scalar(self, number: int, value: Value | None) -> Value | None:
        """Return an operand as the package's inference takes it: a scalar in place of (1,) where
        ONNX defines a scalar.
        """
        scalars = () if self.node.domain else SCALARS.get(self.node.op_type, ())
        if value is None or number not in scalars or value.type.dims != (1,):
            return value
        data = value.data.reshape(()) if isinstance(value.data, np.ndarray) else value.data
        return replace(value, type=TensorType((), value.type.dtype), data=data)

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        """Return the results' dtypes, with as many dimensions as the package infers.

        For operands that may be unranked, or whose open sizes do not fit each other.
        """
        unsized = [None if type is None else type.unknown for type in types]
        unranked = [None if type is None else type.unranked for type in types]
        for candidates in (types, unsized, unranked):
            operands = [None if t is None else Value("operand", t, Kind.INPUT) for t in candidates]
            try:
                return self.infer_types(operands)
            except (ShapeError, UnsupportedOpError):
                continue
        return (ANYTHING,) * sum(map(bool, self.node.output))

    @property
    def random(self) -> bool:
        """True where the node draws new random numbers in each run."""
        return domain_of(self.node.domain) == "" and self.node.op_type in RANDOM

    @property
    def _numpy_function(self) -> Callable[..., Sequence[Array]] | None:
        """The NumPy function that computes the node; None where there is none."""
        return NODES.get((domain_of(self.node.domain), self.node.op_type))

    def _check(self, operands: Sequence[Value | None], why: str) -> None:
        """Raise UnsupportedOpError unless the package's reference is verified for such a node.

        why: for the error, the reason why nothing else computes it.
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
        """Return the names of the types of operands and results, by type constraint of ONNX."""
        operand_types = [None if value is None else value.type for value in operands]
        try:
            inferred = iter(self.infer_types(operands))
        except ShapeError:  # constants may be sequences of unknown types
            if not operands or any(v and v.kind is not Kind.CONSTANT for v in operands):
                raise
            inferred = iter(())
        results = [next(inferred, None) if name else None for name in self.node.output]
        result: dict[str, list[str]] = {}
        for formal, types in ((schema.inputs, operand_types), (schema.outputs, results)):
            variadic = [formal[-1]] * (len(types) - len(formal)) if formal else []
            for parameter, type in zip((*formal, *variadic), types, strict=False):
                if type is not None and type != ANYTHING:
                    name = type.holds or type_text(type).removeprefix("tensor(").removesuffix(")")
                    result.setdefault(parameter.type_str, []).append(name)
        return result

    def graph(self, operands: Sequence[Value | None], why: str) -> Graph:
        """Return a graph of one operator that the host computes. why: the reason why no GPU does.

        Raises UnsupportedOpError where only the package's reference computes the node, and it is
        not verified for it.
        """
        if self._numpy_function is None:
            self._check(operands, why)
        types = self._types(operands)
        present = tuple(value is not None for value in operands)
        operator = ReferenceNode(self.node.op_type, types, why, self, present)
        return host_graph(self.node.op_type, operator, operands, types)

    def _types(self, operands: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """Return the results' types.

        They are ANYTHING where all operands are constants and the package cannot infer: the node is
        folded, and its results have types. Raises ShapeError as `infer_types`.
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
    """A node that the host computes by its `Delegate`, for operands of known sizes."""

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
    """Return the innermost cause: the package raises its own error from NumPy's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
