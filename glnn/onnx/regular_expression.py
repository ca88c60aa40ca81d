"""Regular expressions of RE2, as far as they are read here, matched in linear time.

Read are characters, `.`, escaped punctuation, \\t \\n \\v \\f \\r, \\d \\w \\s and \\D \\W \\S of
ASCII, classes of these and of ranges, groups `(...)` and `(?:...)`, `|`, `* + ? {m} {m,} {m,n}`,
and `^` and `$` where an alternative of the whole pattern begins and ends. All else is refused:
Python's own `re` reads some of it in another way, and takes exponential time for some patterns.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from glnn.errors import UnsupportedOpError, shown

END = 0x10FFFF
DIGITS = ((ord("0"), ord("9")),)
WORDS = (*DIGITS, (ord("A"), ord("Z")), (ord("_"), ord("_")), (ord("a"), ord("z")))
SPACES = ((ord("\t"), ord("\n")), (ord("\f"), ord("\r")), (ord(" "), ord(" ")))
CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
MOST_COPIES = 1000  # of what is repeated, as RE2 has it
MOST_POSITIONS = 4096  # of a pattern, once each copy is written out
DEEPEST = 50  # groups within one another

Ranges = tuple[tuple[int, int], ...]
"""Numbers of characters, first and last, ascending and apart."""


def _complement(ranges: Ranges) -> Ranges:
    edges = [-1, *(edge for pair in ranges for edge in pair), END + 1]
    between = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in between if low + 1 < high)


CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES}
CLASSES |= {name.upper(): _complement(ranges) for name, ranges in CLASSES.items()}


@dataclass(frozen=True)
class Characters:
    """One character of a set."""

    ranges: Ranges

    size: ClassVar[int] = 1

    def __contains__(self, character: str) -> bool:
        return any(low <= ord(character) <= high for low, high in self.ranges)


@dataclass(frozen=True)
class Concatenation:
    """Parts one behind the other."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """How many parts there are, each copy written out."""
        return 1 + sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Alternation:
    """One of several parts."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """How many parts there are, each copy written out."""
        return 1 + sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Repetition:
    """A part several times."""

    part: Part
    least: int
    most: int | None
    """None for any number."""
    size: int
    """How many parts there are, each copy written out."""


Part = Characters | Concatenation | Alternation | Repetition


class _Parser:
    """Reads a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parse(self) -> Part:
        """Return the whole pattern. Raises UnsupportedOpError for what is not read."""
        found = self._alternation(0)
        if self._next:
            raise self._refused("a ')' without '('")
        return found

    @property
    def _next(self) -> str:
        """The next character; empty at the end."""
        return self._pattern[self._at : self._at + 1]

    def _taken(self, text: str) -> bool:
        """Go behind `text` where that is next, and return whether it is."""
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _refused(self, what: str) -> UnsupportedOpError:
        where = f"at {self._at} of the pattern {shown(self._pattern)}"
        return UnsupportedOpError(f"RegexFullMatch: {what} {where} is not read")

    def _alternation(self, depth: int) -> Part:
        if depth > DEEPEST:
            raise self._refused(f"a group within {DEEPEST} others")
        parts = [self._concatenation(depth)]
        while self._taken("|"):
            parts.append(self._concatenation(depth))
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _concatenation(self, depth: int) -> Part:
        parts: list[Part] = []
        if depth == 0:
            self._taken("^")  # a full match begins there
        while self._next and self._next not in "|)":
            if depth == 0 and self._next == "$" and self._pattern[self._at + 1 :][:1] in ("", "|"):
                self._taken("$")
                break
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self, depth: int) -> Part:
        if self._taken("("):
            if not self._taken("?:") and self._next == "?":
                raise self._refused("a group with flags or a name")
            found = self._alternation(depth + 1)
            if not self._taken(")"):
                raise self._refused("the end within a group")
            return found
        if self._taken("["):
            return self._class()
        if self._taken("."):
            return Characters(_complement(((ord("\n"), ord("\n")),)))
        if self._next in "^$*+?{":
            raise self._refused(f"{self._next!r}")
        return Characters(self._character())

    def _character(self) -> Ranges:
        """Return a character, or those that an escape stands for."""
        character = self._next
        self._at += 1
        if character != "\\":
            return ((ord(character), ord(character)),)
        escaped = self._next
        if not escaped or escaped not in {*CLASSES, *CONTROLS, *string.punctuation}:
            raise self._refused(f"the escape \\{escaped}")
        self._at += 1
        one = ord(CONTROLS.get(escaped, escaped))
        return CLASSES.get(escaped, ((one, one),))

    def _class(self) -> Part:
        negated = self._taken("^")
        found: list[tuple[int, int]] = []
        first = True
        while first or not self._taken("]"):
            # RE2 has a meaning for some of these; others are errors.
            dash = self._pattern.startswith("-", self._at)
            if dash and not first and self._pattern[self._at + 1 :][:1] != "]":
                raise self._refused("'-' between others")
            if self._next in ("", "[") or (first and self._next == "]"):
                raise self._refused(f"{self._next!r} in a class")
            first = False
            ranges = self._character()
            if self._next == "-" and self._pattern[self._at + 1 :][:1] not in ("", "]"):
                self._taken("-")
                if self._next == "[":
                    raise self._refused("'[' in a class")
                low, high = self._one(ranges), self._one(self._character())
                if low > high:
                    raise self._refused("the end of a range that falls")
                ranges = ((low, high),)
            found += ranges
        union = _union(found)
        return Characters(_complement(union) if negated else union)

    def _one(self, ranges: Ranges) -> int:
        """Return the only character that there is in an end of a range."""
        if len(ranges) > 1 or ranges[0][0] != ranges[0][1]:
            raise self._refused("the end of a range of several characters")
        return ranges[0][0]

    def _repeated(self, part: Part) -> Part:
        if self._taken("*"):
            least, most = 0, None
        elif self._taken("+"):
            least, most = 1, None
        elif self._taken("?"):
            least, most = 0, 1
        elif self._taken("{"):
            least, most = self._counts()
        else:
            return part
        self._taken("?")  # the fewest: a full match is one all the same
        if self._next and self._next in "*+?{":
            raise self._refused(f"{self._next!r} behind a repetition")
        size = 1 + part.size * (max(least, 1) if most is None else most)
        if size > MOST_POSITIONS:
            raise self._refused(f"more than {MOST_POSITIONS} parts before the character")
        return Repetition(part, least, most, size)

    def _counts(self) -> tuple[int, int | None]:
        """Return what is between braces."""
        inside, brace, _ = self._pattern[self._at :].partition("}")
        low, comma, high = inside.partition(",")
        digits = {*low, *high} <= {*string.digits}
        if not brace or not low or not digits or max(len(low), len(high)) > 4:
            raise self._refused("a '{' that no number and '}' follow")
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > MOST_COPIES or (most is not None and least > most):
            raise self._refused(f"a count beyond {MOST_COPIES}, or that falls,")
        self._at += len(inside) + 1
        return least, most


def _union(ranges: list[tuple[int, int]]) -> Ranges:
    """Return ranges ascending, and apart."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


class Automaton:
    """What matches a whole text: Glushkov's automaton, a state for each character of a pattern.

    Sets of states are the bits of integers. It takes time proportional to the length of the text
    times the states.
    """

    def __init__(self, pattern: str) -> None:
        """Raises UnsupportedOpError for a pattern that is not read, or has too many states."""
        part = _Parser(pattern).parse()
        if part.size > MOST_POSITIONS:
            what = f"of more than {MOST_POSITIONS} parts"
            raise UnsupportedOpError(f"RegexFullMatch: a pattern {what}: {shown(pattern)}")
        self._characters: list[Characters] = []
        self._following: list[int] = []
        self._empty, self._first, self._last = self._put(part)
        self._accepting: dict[str, int] = {}

    def matches(self, text: str) -> bool:
        """Return whether the text as a whole matches."""
        if not text:
            return self._empty
        states = self._first
        for i, character in enumerate(text):
            if i:
                states = self._after(states)
            states &= self._accepted_by(character)
        return bool(states & self._last)

    def _accepted_by(self, character: str) -> int:
        """Return the states that take the character."""
        found = self._accepting.get(character)
        if found is None:
            found = sum(1 << i for i, one in enumerate(self._characters) if character in one)
            self._accepting[character] = found
        return found

    def _after(self, states: int) -> int:
        found = 0
        for state in _bits(states):
            found |= self._following[state]
        return found

    def _put(self, part: Part) -> tuple[bool, int, int]:
        """Add the states of a part. Return whether it matches an empty text, and the states in
        which it begins and ends.
        """
        if isinstance(part, Characters):
            bit = 1 << len(self._characters)
            self._characters.append(part)
            self._following.append(0)
            return False, bit, bit
        if isinstance(part, Alternation):
            empty, first, last = False, 0, 0
            for one in part.parts:
                own_empty, own_first, own_last = self._put(one)
                empty, first, last = empty or own_empty, first | own_first, last | own_last
            return empty, first, last
        return self._put_concatenation(part)

    def _put_concatenation(self, part: Concatenation | Repetition) -> tuple[bool, int, int]:
        empty, first, last = True, 0, 0
        for one, optional, looped in _copies(part):
            own_empty, own_first, own_last = self._put(one)
            own_empty = own_empty or optional
            self._join(last, own_first)
            if looped:
                self._join(own_last, own_first)
            first |= own_first if empty else 0
            last = own_last | (last if own_empty else 0)
            empty = empty and own_empty
        return empty, first, last

    def _join(self, ends: int, begins: int) -> None:
        """Let the states `begins` follow those that `ends` are."""
        for state in _bits(ends):
            self._following[state] |= begins


def _copies(part: Concatenation | Repetition) -> Iterator[tuple[Part, bool, bool]]:
    """Yield what stands one behind the other: whether it may be missing, and be there again."""
    if isinstance(part, Concatenation):
        yield from ((one, False, False) for one in part.parts)
        return
    count = max(part.least, 1) if part.most is None else part.most
    for i in range(count):
        yield part.part, i >= part.least, part.most is None and i == count - 1


def _bits(states: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while states:
        lowest = states & -states
        yield lowest.bit_length() - 1
        states ^= lowest
