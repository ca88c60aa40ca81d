"""The part of docs/onnx.md that lists what `onnx.reference` is asked for.

    python -m tests.onnx.reference_page

writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from glnn.onnx.reference_table import REFERENCE, CheckedNode

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
START = "| operator | operator sets | types | attributes |\n|---|---|---|---|\n"


def _row(domain: str, op: str, row: CheckedNode) -> str:
    name = f"{domain} {op}".strip()
    types = "; ".join(f"{constraint}: {', '.join(of)}" for constraint, of in row.types.items())
    attributes = "; ".join(
        f"{attribute}: {' or '.join(map(_said, of))}" for attribute, of in row.attributes.items()
    )
    versions = ", ".join(map(str, row.versions))
    return f"| {name} | {versions} | {types or 'all'} | {attributes or 'all'} |\n"


def _said(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def table() -> str:
    """Return the table as the page has it."""
    rows = (_row(*key, row) for key in sorted(REFERENCE) for row in REFERENCE[key])
    return START + "".join(rows)


def page(text: str) -> str:
    """Return the page with the table in the place of the one that it has."""
    before, after = text.split(START)
    lines = after.splitlines(keepends=True)
    end = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + table() + "".join(lines[end:])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
