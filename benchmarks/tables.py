"""Tables of the benchmarks on the terminal."""

from __future__ import annotations

from glnn.cli.screen import Column, Table, figures


def table(*heads: str) -> Table:
    """A table with these heads; `>` before one stands for a column of numbers."""
    columns = (figures(head[1:]) if head.startswith(">") else Column(head) for head in heads)
    return Table(tuple(columns), split=True)
