"""The table of docs/onnx-operators.md.

    python -m tests.onnx.operators_page

writes it anew.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from glnn.onnx.operator_table import markdown, operator_rows

PAGE = Path(__file__).parents[2] / "docs" / "onnx-operators.md"
TEXT = """\
# ONNX operators

The operators of which models may be, as `python -m glnn.onnx` lists them (`--json`,
`--domain com.microsoft`), with onnx {version}.
Versions are those of the operator set that brought or changed an operator. What computes it, of
the types that a GPU has:

- **GPU**: kernels. Some settings and types are the host's all the same;
  [`session.hosted`](onnx.md#where-a-node-runs) says which, and why.
- **host**: NumPy, between two transfers.
- **GPU and host**: operators whose attributes are graphs.
- **other operators**: ONNX defines it by these.
- **nothing**: a model with it is refused.

"""


def page() -> str:
    """Return the page for the onnx package that is installed."""
    return TEXT.format(version=onnx.__version__) + markdown(operator_rows(onnx))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
