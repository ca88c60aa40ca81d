"""The table of ONNX operators: their versions, and what computes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from glnn.onnx.numpy_nodes import NODES
from glnn.onnx.operators import ENTRIES
from glnn.onnx.operators.call import MICROSOFT
from glnn.onnx.reference_table import REFERENCE
from glnn.onnx.schemas import DOMAINS

CONTROL = ("If", "Loop", "Scan")
"""Operators with graphs as attributes."""
HEADER = "| operator | domain | versions | computed by |\n|---|---|---|---|\n"


@dataclass(frozen=True)
class OperatorRow:
    """Name, versions and support of an operator."""

    name: str
    """ONNX's name."""
    domain: str
    """The operator set; ai.onnx is ONNX's own."""
    versions: tuple[int, ...]
    """The versions of the operator set that introduced or changed the operator."""
    computed_by: str
    """"GPU", "host", "GPU and host" for control flow, "other operators" for functions of ONNX, and
    "nothing" where models with it are refused.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def operator_rows(onnx: Any) -> list[OperatorRow]:
    """Return a row for each operator of the operator sets that are known, in order.

    onnx: the package, which has the schemas.
    """
    versions: dict[tuple[str, str], set[int]] = {}
    functions = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in DOMAINS:
            key = schema.domain, schema.name
            versions.setdefault(key, set()).add(schema.since_version)
            if schema.has_function or schema.has_context_dependent_function:
                functions.add(key)
    for key, entries in ENTRIES.items():
        if any(one.signature is not None for one in entries):
            versions.setdefault(key, set()).update(
                one.since for one in entries if one.signature is not None
            )
    return [
        OperatorRow(name, domain or "ai.onnx", tuple(sorted(numbers)), _computed_by(key, functions))
        for key, numbers in sorted(versions.items())
        for domain, name in (key,)
    ]


def _computed_by(key: tuple[str, str], functions: Iterable[tuple[str, str]]) -> str:
    """Return what computes an operator (domain, name) for types that GPUs have.

    functions: the operators that ONNX defines as functions of others.
    """
    domain, name = key
    if domain == "" and name in CONTROL:
        return "GPU and host"
    entries = ENTRIES.get(key, ())
    if entries:
        return "host" if all(one.hosted or one.objects for one in entries) else "GPU"
    if key in NODES or key in REFERENCE or (domain == "" and name == "Constant"):
        return "host"
    return "other operators" if key in functions else "nothing"


def markdown(rows: Iterable[OperatorRow]) -> str:
    """Return rows as a table in Markdown, those of ONNX Runtime's operator set first."""
    ordered = sorted(rows, key=lambda one: (one.domain != MICROSOFT, one.domain, one.name))
    return HEADER + "".join(
        f"| {one.name} | {one.domain} | {', '.join(map(str, one.versions))} | {one.computed_by} |\n"
        for one in ordered
    )
