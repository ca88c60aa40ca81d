"""ONNX operators of texts and sequences by NumPy, and an engine for regular expressions.

The engine reads this subset of RE2: characters, `.`, escaped punctuation, \\t \\n \\v \\f \\r, \\d
\\w \\s and \\D \\W \\S of ASCII, classes of these and of ranges, groups `(...)` and `(?:...)`, `|`,
`* + ? {m} {m,} {m,n}`, `^`, `$`, \\b and \\B. Matching takes linear time. Other patterns are
refused. Python's `re` is no substitute: it reads some of these patterns in another way, and takes
exponential time for others.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import Array, boxed
from glnn.errors import ShapeError, UnsupportedOpError, shown

END = 0x10FFFF
DIGITS = ((ord("0"), ord("9")),)
WORDS = (*DIGITS, (ord("A"), ord("Z")), (ord("_"), ord("_")), (ord("a"), ord("z")))
SPACES = ((ord("\t"), ord("\n")), (ord("\f"), ord("\r")), (ord(" "), ord(" ")))
CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
MOST_COPIES = 1000  # of a repeated part, as in RE2
MOST_PARTS = 4096  # of a pattern, once repetitions are expanded
LONGEST = 1 << 15  # characters of a pattern
DEEPEST = 50  # nested groups

Ranges = tuple[tuple[int, int], ...]
"""Ranges of code points, first and last, ascending and disjoint."""


def _complement(ranges: Ranges) -> Ranges:
    """Return the ranges of all other code points."""
    edges = [-1, *(edge for pair in ranges for edge in pair), END + 1]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in gaps if low + 1 < high)


CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES}
CLASSES |= {name.upper(): _complement(ranges) for name, ranges in CLASSES.items()}


@dataclass(frozen=True)
class Characters:
    """Matches one character of a set."""

    ranges: Ranges

    size: ClassVar[int] = 1

    def __contains__(self, character: str) -> bool:
        return any(low <= ord(character) <= high for low, high in self.ranges)


WORD = Characters(WORDS)


@dataclass(frozen=True)
class Assertion:
    """Matches no character, but a position between two."""

    kind: str
    """^ for the start of the text, $ for its end, b for a word boundary, B for no such boundary."""

    size: ClassVar[int] = 1

    def holds(self, before: str, after: str) -> bool:
        """Return True where it holds between two characters, empty at an end of the text."""
        if self.kind in "^$":
            return not (before if self.kind == "^" else after)
        in_word = [bool(character) and character in WORD for character in (before, after)]
        return (in_word[0] != in_word[1]) == (self.kind == "b")


@dataclass(frozen=True)
class Concatenation:
    """Matches parts in sequence."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The number of parts once repetitions are expanded."""
        return 1 + sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Alternation:
    """Matches one of several parts."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """The number of parts once repetitions are expanded."""
        return 1 + sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Repetition:
    """Matches a part several times."""

    part: Part
    least: int
    most: int | None
    """The most copies; None for any number."""
    size: int
    """The number of parts once repetitions are expanded."""


Part = Characters | Assertion | Concatenation | Alternation | Repetition


class _Parser:
    """Reads a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0

    def parse(self) -> Part:
        """Return the parsed pattern. Raises UnsupportedOpError for syntax outside the subset."""
        result = self._alternation(0)
        if self._next:
            raise self._error("a ')' without '('")
        return result

    @property
    def _next(self) -> str:
        """The next character; empty at the end."""
        return self._pattern[self._position : self._position + 1]

    def _skip(self, text: str) -> bool:
        """Skip `text` if it is next, and return whether it was."""
        result = self._pattern.startswith(text, self._position)
        self._position += len(text) if result else 0
        return result

    def _error(self, what: str) -> UnsupportedOpError:
        where = f"at {self._position} of the pattern {shown(self._pattern)}"
        return UnsupportedOpError(f"RegexFullMatch: {what} {where} is not read")

    def _alternation(self, depth: int) -> Part:
        if depth > DEEPEST:
            raise self._error(f"a group within {DEEPEST} others")
        parts = [self._concatenation(depth)]
        while self._skip("|"):
            parts.append(self._concatenation(depth))
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _concatenation(self, depth: int) -> Part:
        parts: list[Part] = []
        while self._next and self._next not in "|)":
            parts.append(self._assertion() or self._repetition(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _assertion(self) -> Part | None:
        """Return an assertion if one is next."""
        for text in ("^", "$", "\\b", "\\B"):
            if self._skip(text):
                return Assertion(text[-1])
        return None

    def _atom(self, depth: int) -> Part:
        if self._skip("("):
            if not self._skip("?:") and self._next == "?":
                raise self._error("a group with flags or a name")
            result = self._alternation(depth + 1)
            if not self._skip(")"):
                raise self._error("the end within a group")
            return result
        if self._skip("["):
            return self._class()
        if self._skip("."):
            return Characters(_complement(((ord("\n"), ord("\n")),)))
        if self._next in "*+?{":
            raise self._error(f"{self._next!r}")
        return Characters(self._character())

    def _character(self) -> Ranges:
        """Return the ranges of a character or an escape."""
        character = self._next
        self._position += 1
        if character != "\\":
            return ((ord(character), ord(character)),)
        escaped = self._next
        if not escaped or escaped not in {*CLASSES, *CONTROLS, *string.punctuation}:
            raise self._error(f"the escape \\{escaped}")
        self._position += 1
        code = ord(CONTROLS.get(escaped, escaped))
        return CLASSES.get(escaped, ((code, code),))

    def _class(self) -> Part:
        negated = self._skip("^")
        result: list[tuple[int, int]] = []
        first = True
        while first or not self._skip("]"):
            # RE2 reads some of the following, and refuses others.
            dash = self._pattern.startswith("-", self._position)
            if dash and not first and self._pattern[self._position + 1 :][:1] != "]":
                raise self._error("'-' between others")
            if self._next in ("", "[") or (first and self._next == "]"):
                raise self._error(f"{self._next!r} in a class")
            first = False
            ranges = self._character()
            if self._next == "-" and self._pattern[self._position + 1 :][:1] not in ("", "]"):
                self._skip("-")
                if self._next == "[":
                    raise self._error("'[' in a class")
                low, high = self._single(ranges), self._single(self._character())
                if low > high:
                    raise self._error("the end of a range that falls")
                ranges = ((low, high),)
            result += ranges
        union = _union(result)
        return Characters(_complement(union) if negated else union)

    def _single(self, ranges: Ranges) -> int:
        """Return the code point of a range's end, which must be one character."""
        if len(ranges) > 1 or ranges[0][0] != ranges[0][1]:
            raise self._error("the end of a range of several characters")
        return ranges[0][0]

    def _repetition(self, part: Part) -> Part:
        if self._skip("*"):
            least, most = 0, None
        elif self._skip("+"):
            least, most = 1, None
        elif self._skip("?"):
            least, most = 0, 1
        elif self._skip("{"):
            least, most = self._counts()
        else:
            return part
        self._skip("?")  # lazy: makes no difference to a full match
        if self._next and self._next in "*+?{":
            raise self._error(f"{self._next!r} behind a repetition")
        size = 1 + part.size * (max(least, 1) if most is None else most)
        if size > MOST_PARTS:
            raise self._error(f"more than {MOST_PARTS} parts before the character")
        return Repetition(part, least, most, size)

    def _counts(self) -> tuple[int, int | None]:
        """Return the least and greatest count of `{m,n}`."""
        inside, brace, _ = self._pattern[self._position :].partition("}")
        low, comma, high = inside.partition(",")
        digits = {*low, *high} <= {*string.digits}
        if not brace or not low or not digits or max(len(low), len(high)) > 4:
            raise self._error("a '{' that no number and '}' follow")
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > MOST_COPIES or (most is not None and least > most):
            raise self._error(f"a count beyond {MOST_COPIES}, or that falls,")
        self._position += len(inside) + 1
        return least, most


def _union(ranges: list[tuple[int, int]]) -> Ranges:
    """Return ranges sorted and merged."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


class Automaton:
    """Thompson's automaton, which matches a whole text by following all states at once.

    Matching takes time proportional to the length of the text times the number of states.
    """

    def __init__(self, pattern: str) -> None:
        """Raises UnsupportedOpError for syntax outside the subset, and for too many states."""
        if len(pattern) > LONGEST:
            what = f"of more than {LONGEST} characters"
            raise UnsupportedOpError(f"RegexFullMatch: a pattern {what}: {shown(pattern)}")
        part = _Parser(pattern).parse()
        if part.size > MOST_PARTS:
            what = f"of more than {MOST_PARTS} parts"
            raise UnsupportedOpError(f"RegexFullMatch: a pattern {what}: {shown(pattern)}")
        self._tests: list[Characters | Assertion | None] = []
        self._following: list[tuple[int, ...]] = []
        self._end = self._state(None, ())
        self._start = self._add_part(part, self._end)

    def matches(self, text: str) -> bool:
        """Return True where the pattern matches the whole text."""
        states, before = {self._start}, ""
        for after in text:
            reached = self._closure(states, before, after)
            states = {
                following
                for state, test in reached
                if isinstance(test, Characters) and after in test
                for following in self._following[state]
            }
            before = after
        return any(state == self._end for state, _ in self._closure(states, before, ""))

    def _closure(
        self, states: set[int], before: str, after: str
    ) -> Iterator[tuple[int, Characters | Assertion | None]]:
        """Yield the states reachable between two characters, with their tests."""
        stack, result = list(states), set(states)
        while stack:
            state = stack.pop()
            test = self._tests[state]
            yield state, test
            if isinstance(test, Characters) or (test and not test.holds(before, after)):
                continue
            new = [one for one in self._following[state] if one not in result]
            result.update(new)
            stack += new

    def _state(self, test: Characters | Assertion | None, following: tuple[int, ...]) -> int:
        """Add a state, and return its number. test: None for one that always passes."""
        self._tests.append(test)
        self._following.append(following)
        return len(self._tests) - 1

    def _add_part(self, part: Part, following: int) -> int:
        """Add the states of a part, which continues at the state `following`; return the first."""
        if isinstance(part, Characters | Assertion):
            return self._state(part, (following,))
        if isinstance(part, Alternation):
            firsts = [self._add_part(one, following) for one in part.parts]
            return self._state(None, tuple(firsts))
        if isinstance(part, Concatenation):
            for one in reversed(part.parts):
                following = self._add_part(one, following)
            return following
        first = following
        if part.most is None:
            first = self._state(None, ())
            self._following[first] = (self._add_part(part.part, first), following)
        else:
            for _ in range(part.most - part.least):
                first = self._state(None, (self._add_part(part.part, first), following))
        for _ in range(part.least):
            first = self._add_part(part.part, first)
        return first


Attributes = Mapping[str, Any]


def _texts(attributes: Attributes, name: str) -> list[str]:
    return [one.decode() for one in attributes.get(name, ())]


def _map_texts(function: Callable[[str], Any], x: Array, dtype: Any) -> Array:
    """Return the result of `function` for each text of x."""
    result = np.empty(x.size, dtype)
    for i, text in enumerate(x.reshape(-1).tolist()):
        result[i] = function(text)
    return result.reshape(x.shape)


def regex_full_match(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return for each text whether the RE2 pattern matches all of it."""
    try:
        pattern = attributes["pattern"].decode()
    except UnicodeDecodeError:
        raise ShapeError("RegexFullMatch: the pattern must be UTF-8") from None
    return [_map_texts(Automaton(pattern).matches, x, np.bool_)]


def string_normalizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the texts without stop words, in lower or upper case if `case_change_action` says so.

    x: (n) or (1, n). The result is one empty text where none remains.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and len(x) != 1):
        raise ShapeError(f"StringNormalizer: texts must be (n) or (1, n), got {x.shape}")
    change = attributes.get("case_change_action", b"NONE").decode()
    cases: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    if change not in cases:
        raise ShapeError(
            f"StringNormalizer: case_change_action must be LOWER, UPPER or NONE, got {change!r}"
        )
    key = str if attributes.get("is_case_sensitive", 0) else str.lower
    stops = set(map(key, _texts(attributes, "stopwords")))
    texts = [cases[change](text) for text in x.reshape(-1).tolist() if key(text) not in stops]
    result = np.array(texts or [""], object)
    return [result[None] if x.ndim == 2 else result]


def string_split(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the parts of each text along a new last dimension, and their counts, int64."""
    delimiter = attributes.get("delimiter", b"").decode() or None
    most = attributes.get("maxsplit", -1)
    # Without a delimiter, whitespace at both ends is no part of the text.
    texts = [one if delimiter else one.strip() for one in x.reshape(-1).tolist()]
    split = [one.split(delimiter, most) for one in texts]
    counts = np.array([len(one) for one in split], np.int64)
    result = np.full((x.size, counts.max(initial=0)), "", object)
    for row, parts in zip(result, split, strict=True):
        row[: len(parts)] = parts
    return [result.reshape(*x.shape, result.shape[1]), counts.reshape(x.shape)]


def tf_idf_vectorizer(attributes: Attributes, version: int, x: Array) -> list[Array]:
    """Return the counts, or weights, of the n-grams of a pool in x: (n) or (rows, n).

    x: (n) or (rows, n) of integers or texts. The items of an n-gram may be apart by any one step
    up to `max_skip_count` + 1.
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"TfIdfVectorizer: x must have one or two dimensions, got {x.shape}")
    columns = attributes["ngram_indexes"]
    grams = {
        gram: column
        for gram, column in zip(_pool(attributes), columns, strict=True)
        if gram is not None
    }
    counts = np.zeros((len(x) if x.ndim == 2 else 1, max(columns) + 1), np.float32)
    lengths = range(attributes["min_gram_length"], attributes["max_gram_length"] + 1)
    for row, items in zip(counts, x.reshape(len(counts), -1).tolist(), strict=True):
        for length in lengths:
            # The step makes no difference for single items.
            for step in range(1, attributes["max_skip_count"] + 2 if length > 1 else 2):
                for start in range(len(items) - (length - 1) * step):
                    gram = tuple(items[start : start + (length - 1) * step + 1 : step])
                    if gram in grams:
                        row[grams[gram]] += 1
    mode = attributes["mode"]
    if mode == b"IDF":
        counts = (counts > 0).astype(np.float32)
    if mode != b"TF" and "weights" in attributes:
        weights = np.ones(counts.shape[1], np.float32)
        # `weights` is in the order of the pool.
        weights[np.array(columns)] = attributes["weights"]
        counts = counts * weights
    return [counts if x.ndim == 2 else counts[0]]


def _pool(attributes: Attributes) -> Iterator[tuple[Any, ...] | None]:
    """Yield the n-grams of a pool in order; None for lengths outside the node's range."""
    pool = _texts(attributes, "pool_strings") or list(attributes.get("pool_int64s", ()))
    starts = [*attributes["ngram_counts"], len(pool)]
    lengths = range(attributes["min_gram_length"], attributes["max_gram_length"] + 1)
    for length, (start, end) in enumerate(pairwise(starts), 1):
        for first in range(start, end, length):
            yield tuple(pool[first : first + length]) if length in lengths else None


def sequence_insert(
    attributes: Attributes, version: int, items: Array, item: Array, position: Array | None = None
) -> list[Array]:
    """Return a sequence with `item` inserted at `position`, by default at the end."""
    result = list(items.item())
    index = len(result) if position is None else int(position.item())
    if not -len(result) <= index <= len(result):
        raise ShapeError(f"SequenceInsert: a sequence of {len(result)} has no place {index}")
    result.insert(index, item)
    return [boxed(result)]


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "RegexFullMatch"): regex_full_match,
    ("", "SequenceInsert"): sequence_insert,
    ("", "StringNormalizer"): string_normalizer,
    ("", "StringSplit"): string_split,
    ("", "TfIdfVectorizer"): tf_idf_vectorizer,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
