"""ONNX's schemas: operator sets, versions, and the operands and attributes of operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from glnn.errors import ModelError, shown, suggestion
from glnn.onnx.operators import find, names
from glnn.onnx.operators.call import MICROSOFT, Signature

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", MICROSOFT)
"""The operator sets whose operators are known."""
BLOCKED = "com.microsoft.nchwc"
"""The operator set of models whose layout ONNX Runtime chose for one kind of processor."""
Opsets = Mapping[str, int]
"""The versions of operator sets, by their names."""


def domain_of(name: str) -> str:
    """Return an operator set's name, "" for ONNX's own."""
    return "" if name == "ai.onnx" else name


def opsets_of(onnx: Any, where: str, imports: Iterable[Any]) -> dict[str, int]:
    """Return the versions in `imports`. Raises ModelError for a version that is not known."""
    known = {**onnx.defs.C.schema_version_map(), MICROSOFT: (1, 1)}
    result: dict[str, int] = {}
    for opset in imports:
        domain = domain_of(opset.domain)
        newest = known[domain][1] if domain in known else opset.version
        if not 1 <= opset.version <= newest:
            raise ModelError(
                f"{where}: version {opset.version} of the operator set {domain or 'ai.onnx'} is "
                f"not known, onnx {onnx.__version__} has 1 to {newest}"
            )
        result[domain] = opset.version
    return result


def schema_of(onnx: Any, what: str, node: Any, opsets: Opsets) -> Any:
    """Return ONNX's schema of a node's operator; None where only glnn's table has the operator.

    what: the node's name in errors. Raises ModelError for an unknown operator, for a wrong number
    of operands or results, and for wrong attributes.
    """
    domain, defs = domain_of(node.domain), onnx.defs
    if domain not in DOMAINS:
        advice = f"; known are ai.onnx and {', '.join(DOMAINS[1:])}"
        if domain == BLOCKED:
            advice = (
                ": ONNX Runtime wrote the file for one kind of processor; with "
                "graph_optimization_level = ORT_ENABLE_EXTENDED it writes one for all"
            )
        raise ModelError(
            f"{what} is {node.op_type} of the operator set {node.domain!r}, which is not known"
            f"{advice}"
        )
    version = opsets.get(domain, 1)
    converter = find(domain, node.op_type, version)
    if converter is not None and converter.signature is not None:
        _check_signature(onnx, what, node, converter.signature)
        return None
    if domain == MICROSOFT:
        raise ModelError(
            f"{what} is {node.op_type} of the operator set {domain}, of which "
            f"{_list_operators(domain)} are known{suggestion(node.op_type, names(domain))}"
        )
    try:
        schema = defs.get_schema(node.op_type, version, domain)
    except defs.SchemaError:
        if converter is not None:
            return None
        operators = {one.name for one in defs.get_all_schemas() if one.domain == domain}
        operators.discard(node.op_type)  # of a later version
        raise ModelError(
            f"{what} is {node.op_type}, which version {version} of the operator set "
            f"{domain or 'ai.onnx'} has not{suggestion(node.op_type, operators)}"
        ) from None
    _check_counts(
        what,
        node,
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
    )
    by_name = _attributes_by_name(what, node)
    for name, attribute in schema.attributes.items():
        _check_attribute(onnx, what, node, name, attribute.type.name, attribute.required)
    for name in AXES.intersection(by_name):
        for axis in (by_name[name].i, *by_name[name].ints):
            if not -MOST_AXES <= axis <= MOST_AXES:
                raise ModelError(f"{what}: {name!r} must be an axis, got {axis}")
    if "num_outputs" in by_name and by_name["num_outputs"].i != len(node.output):
        count = by_name["num_outputs"].i  # the package's inference would loop over all of them
        raise ModelError(f"{what}: num_outputs is {count} for {len(node.output)} outputs")
    if node.op_type == "Einsum" and "equation" in by_name:
        _check_equation(what, by_name["equation"].s)
    return schema


MOST_LISTED = 8  # operators in an error


def _list_operators(domain: str) -> str:
    """Return the first names of a domain's operators, and how many more there are."""
    known = names(domain)
    more = len(known) - MOST_LISTED
    return ", ".join(known[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _check_signature(onnx: Any, what: str, node: Any, signature: Signature) -> None:
    """Raise ModelError where operands, results or attributes of `node` do not fit `signature`.

    Unknown attributes are refused: they may change what the operator computes.
    """
    _check_counts(what, node, signature.operands, signature.results)
    for name in _attributes_by_name(what, node):
        if name not in signature.attributes:
            raise ModelError(f"{what}: {node.op_type} has no attribute {name!r}")
    for name in signature.attributes:
        attribute = signature.attribute(name)
        _check_attribute(onnx, what, node, name, attribute.kind, attribute.required)


def _check_counts(
    what: str, node: Any, operands: tuple[int, int], results: tuple[int, int]
) -> None:
    """Raise ModelError for a wrong number of operands or results. Both are (least, most)."""
    for count, (least, most), kind in (
        (len(node.input), operands, "operands"),
        (len(node.output), results, "results"),
    ):
        if not least <= count <= most:
            raise ModelError(f"{what}: {node.op_type} has {least} to {most} {kind}, got {count}")


def _attributes_by_name(what: str, node: Any) -> dict[str, Any]:
    """Return the AttributeProtos of a node. Raises ModelError where two have one name."""
    by_name = {one.name: one for one in node.attribute}
    if len(by_name) < len(node.attribute):
        raise ModelError(f"{what} has an attribute twice")
    return by_name


def _check_attribute(onnx: Any, what: str, node: Any, name: str, kind: str, required: bool) -> None:
    """Raise ModelError where `node` lacks a required attribute, or it is not of type `kind`."""
    kinds = onnx.AttributeProto.AttributeType
    attribute = next((one for one in node.attribute if one.name == name), None)
    if attribute is None and required:
        raise ModelError(f"{what}: {node.op_type} lacks the attribute {name!r}")
    if attribute is not None and attribute.type not in (0, kinds.Value(kind)):
        got = kinds.Name(attribute.type)
        raise ModelError(f"{what}: {name!r} must be of type {kind}, got {got}")


AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "perm"})
"""Attributes that are axes. The package's inference reads out of bounds for huge ones."""
MOST_AXES = 1 << 16  # of any tensor


def _check_equation(what: str, equation: bytes) -> None:
    """Raise ModelError for dots that are no ellipsis: the package's inference would not return."""
    for term in re.split(b",|->", equation.replace(b" ", b"")):
        if b"." in term.replace(b"...", b"", 1):
            raise ModelError(f"{what}: the dots of {shown(term)} are not one ellipsis")


def defaults(schema: Any) -> list[Any]:
    """Return an AttributeProto for each attribute that has a default."""
    result = (one.default_value for one in schema.attributes.values())
    return [one for one in result if one.type]


def function_of(onnx: Any, schema: Any, opsets: Opsets) -> Any:
    """Return the FunctionProto by which `schema` defines its operator."""
    versions = [one for one in schema.function_opset_versions if one <= opsets.get("", 1)]
    content = schema.get_function_with_opset_version(max(versions)) if versions else b""
    return onnx.FunctionProto.FromString(content) if content else schema.function_body
