"""Numbers with the noun that they count, in the singular or the plural."""

from __future__ import annotations

import re


def count_of(number: int, what: str) -> str:
    """Return a number of things, as 1 kernel or 2 kernels in parts; the first word is the noun.

    what: in the singular.
    """
    noun, *more = what.split(" ")
    if number != 1:
        hissed = re.search(r"(s|x|z|ch|sh)$", noun)
        noun = f"{noun}es" if hissed else re.sub(r"(?<=[^aeiou])y$", "ie", noun) + "s"
    return " ".join([str(number), noun, *more])
