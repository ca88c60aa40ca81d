"""Numbers with the noun that they count, in the singular or the plural."""

from __future__ import annotations

import re


def count_of(number: int, what: str) -> str:
    """Return `number` with a noun, as `1 kernel` or `2 kernels in parts`.

    what: the noun in the singular, and any words that follow it.
    """
    noun, *others = what.split(" ")
    if number != 1:
        is_sibilant = re.search(r"(s|x|z|ch|sh)$", noun)
        noun = f"{noun}es" if is_sibilant else re.sub(r"(?<=[^aeiou])y$", "ie", noun) + "s"
    return " ".join([str(number), noun, *others])
