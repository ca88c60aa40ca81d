"""Tables as HTML for notebooks: no styles but alignment, so that light and dark themes hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from glnn.errors import printable

LONG = 100  # rows from which a table has a height and scrolls


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
        rows: The cells of each row; None is an empty cell, an int gets commas.
        caption: What stands above it.
        numbers: Columns of numbers, which are aligned to the right.
        notes: Lines below it.
    """
    right = set(numbers)

    def cell(tag: str, place: int, value: object) -> str:
        side = "right" if place in right else "left"
        return f'<{tag} style="text-align:{side}">{text(value)}</{tag.split()[0]}>'

    body = [
        "<tr>" + "".join(cell("td", i, value) for i, value in enumerate(row)) + "</tr>"
        for row in rows
    ]
    head = "".join(cell('th scope="col"', i, name) for i, name in enumerate(heads))
    above = f"<caption>{text(caption)}</caption>" if caption else ""
    drawn = f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    if len(body) > LONG:
        drawn = f'<div style="max-height:40em;overflow:auto">{drawn}</div>'
    return drawn + "".join(f"<p>{text(note)}</p>" for note in notes)


def text(value: object) -> str:
    """Return `value` as text of HTML: escaped, control characters as in a literal."""
    if value is None:
        return ""
    return escape(printable(f"{value:,}" if isinstance(value, int) else str(value)))
