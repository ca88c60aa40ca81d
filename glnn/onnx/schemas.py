"""ONNX's schemas: operator sets, versions, and the operands and attributes of operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from glnn.errors import ModelError, shown
from glnn.onnx.operators import find

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")
"""The operator sets whose operators are known."""
Opsets = Mapping[str, int]
"""The versions of operator sets, by their names."""


def domain_of(name: str) -> str:
    """An operator set's name, "" for ONNX's own."""
    return "" if name == "ai.onnx" else name


def opsets_of(onnx: Any, where: str, imports: Iterable[Any]) -> dict[str, int]:
    """The operator sets of `imports`. Raises ModelError for versions that are not known."""
    known = onnx.defs.C.schema_version_map()
    result: dict[str, int] = {}
    for one in imports:
        domain = domain_of(one.domain)
        newest = known[domain][1] if domain in known else one.version
        if not 1 <= one.version <= newest:
            raise ModelError(
                f"{where}: version {one.version} of the operator set {domain or 'ai.onnx'} is not "
                f"known, onnx {onnx.__version__} has 1 to {newest}"
            )
        result[domain] = one.version
    return result


def schema_of(onnx: Any, what: str, node: Any, opsets: Opsets) -> Any:
    """Return ONNX's schema of a node's operator, None where only the table has the operator.

    what: the node, for errors. Raises ModelError for an unknown operator, and for operands, results
    or attributes that it does not take.
    """
    domain, defs = domain_of(node.domain), onnx.defs
    if domain not in DOMAINS:
        raise ModelError(
            f"{what} is {node.op_type} of the operator set {node.domain!r}, which is not "
            f"known; known are ai.onnx and {', '.join(DOMAINS[1:])}"
        )
    version = opsets.get(domain, 1)
    try:
        schema = defs.get_schema(node.op_type, version, domain)
    except defs.SchemaError:
        if find(domain, node.op_type, version) is not None:
            return None
        raise ModelError(
            f"{what} is {node.op_type}, which version {version} of the operator set "
            f"{domain or 'ai.onnx'} has not"
        ) from None
    for count, least, most, of in (
        (len(node.input), schema.min_input, schema.max_input, "operands"),
        (len(node.output), schema.min_output, schema.max_output, "results"),
    ):
        if not least <= count <= most:
            raise ModelError(f"{what}: {node.op_type} has {least} to {most} {of}, got {count}")
    _check_attributes(onnx, what, node, schema)
    return schema


def _check_attributes(onnx: Any, what: str, node: Any, schema: Any) -> None:
    """Raise ModelError where `node` lacks an attribute, or one is of another type."""
    by_name = {one.name: one for one in node.attribute}
    if len(by_name) < len(node.attribute):
        raise ModelError(f"{what} has an attribute twice")
    for name, one in schema.attributes.items():
        if name not in by_name and one.required:
            raise ModelError(f"{what}: {node.op_type} lacks the attribute {name!r}")
        if name in by_name and by_name[name].type not in (0, one.type.value):
            kinds = onnx.AttributeProto.AttributeType
            got = kinds.Name(by_name[name].type)
            raise ModelError(f"{what}: {name!r} must be of type {one.type.name}, got {got}")
    for name in AXES.intersection(by_name):
        for axis in (by_name[name].i, *by_name[name].ints):
            if not -MOST_AXES <= axis <= MOST_AXES:
                raise ModelError(f"{what}: {name!r} must be an axis, got {axis}")
    if "num_outputs" in by_name and by_name["num_outputs"].i != len(node.output):
        count = by_name["num_outputs"].i  # through which the package's inference would count
        raise ModelError(f"{what}: num_outputs is {count} for {len(node.output)} outputs")
    if node.op_type == "Einsum" and "equation" in by_name:
        _check_equation(what, by_name["equation"].s)


AXES = frozenset({"axis", "axes", "batch_axis", "time_axis", "perm"})
"""Attributes that are axes: the package's inference reads memory that is no one's for huge ones."""
MOST_AXES = 1 << 16  # of any tensor


def _check_equation(what: str, equation: bytes) -> None:
    """Raise ModelError where dots are no ellipsis: the package's inference does not end then."""
    for term in re.split(b",|->", equation.replace(b" ", b"")):
        if b"." in term.replace(b"...", b"", 1):
            raise ModelError(f"{what}: the dots of {shown(term)} are not one ellipsis")


def defaults(schema: Any) -> list[Any]:
    """An AttributeProto for each attribute that may be left out and is something then."""
    result = (one.default_value for one in schema.attributes.values())
    return [one for one in result if one.type]


def function_of(onnx: Any, schema: Any, opsets: Opsets) -> Any:
    """The FunctionProto that `schema` says its operator is."""
    versions = [one for one in schema.function_opset_versions if one <= opsets.get("", 1)]
    content = schema.get_function_with_opset_version(max(versions)) if versions else b""
    return onnx.FunctionProto.FromString(content) if content else schema.function_body
