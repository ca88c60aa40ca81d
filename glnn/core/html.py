"""Tables as HTML for notebooks, styled only by alignment, to fit light and dark themes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from glnn.errors import printable

LONG = 100  # rows above which a table scrolls


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str = "",
    numbers: Iterable[int] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return a table as HTML, all texts escaped.

    Args:
        heads: The columns' heads.
        rows: The cells of each row; None is an empty cell, an int gets thousands separators.
        caption: The text above the table.
        numbers: Indices of columns of numbers, which are aligned to the right.
        notes: Lines below the table.
    """
    right = set(numbers)

    def cell(tag: str, column: int, value: object) -> str:
        side = "right" if column in right else "left"
        return f'<{tag} style="text-align:{side}">{text(value)}</{tag.split()[0]}>'

    body = [
        "<tr>" + "".join(cell("td", i, value) for i, value in enumerate(row)) + "</tr>"
        for row in rows
    ]
    head = "".join(cell('th scope="col"', i, name) for i, name in enumerate(heads))
    top = f"<caption>{text(caption)}</caption>" if caption else ""
    result = f"<table>{top}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    if len(body) > LONG:
        result = f'<div style="max-height:40em;overflow:auto">{result}</div>'
    return result + "".join(f"<p>{text(note)}</p>" for note in notes)


def text(value: object) -> str:
    """Return `value` as HTML text: escaped, with control characters as in a literal."""
    if value is None:
        return ""
    return escape(printable(f"{value:,}" if isinstance(value, int) else str(value)))
