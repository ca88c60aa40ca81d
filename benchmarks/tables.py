"""Tables of the benchmarks on the terminal, and in Markdown."""

from __future__ import annotations

from glnn.cli.screen import Column, Table, figures


def table(*heads: str) -> Table:
    """A table with these heads; `>` before one stands for a column of numbers."""
    columns = (figures(head[1:]) if head.startswith(">") else Column(head) for head in heads)
    return Table(tuple(columns), split=True)


def markdown(heads: list[str], rows: list[list[object]]) -> str:
    """Return a table in Markdown."""
    lines: list[list[object]] = [[*heads], ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def four_digits(value: float | None) -> str:
    """Return what was measured with four digits; a dash where it was not."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
