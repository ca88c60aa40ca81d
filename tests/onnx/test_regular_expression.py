"""RegexFullMatch, held against ONNX Runtime, which has RE2."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

import glnn
from glnn.errors import GlnnError, UnsupportedOpError
from glnn.onnx.text_nodes import Automaton
from tests.onnx.runtime import node_model, runtime

CHARACTERS = "aabbc01_- \n\t\v\r\f.é+K\u212a"
"""Of texts; the last is the sign for kelvin, which is a k without case."""
ATOMS = r"a b c é _ . \. \d \w \s \D \W \S \n \v - ^ $ \b \B"
READ = r"""
a| |a () ^$ ^a|b$ (a*)* (a|b)*? ] } a{0} (a?){20} [-] [^-] [a-] [&&|~] (a{2}){3} a{2,} [+--] [$^]
a$|^b ((a|b)c?){2,4} a^b a$b ($)a (a$) (^|a)*b ^^a$$ (\W|^)[\w.\-]{0,25}@(a|b)\.c(\W|$)
a\b,\bb \Ba a\B a(\b|b)c \b \B (a\b)+
"""
REFUSED = r"""
[[:alpha:]]+ (?i)é a++ a** a{2}{3} ^* $+ \b* (?P<n>a) (?=a) a\Z \p{L} \x41 \1 \é
a{ a{,2} a{1001} a{2,1} (a a) []a] [] [ [a [z-a] [\d-z] [a-\d] [a-c-e] [[] [a-[] * \ a\
((a{1000}){1000}){1000} ((){1000}){1000}
"""


def random_class(rng: random.Random) -> str:
    items = [
        "a",
        "b",
        "a-c",
        "0-9",
        "\\d",
        "\\w",
        "\\s",
        "\\W",
        "é",
        "a-é",
        "\\n",
        "\\]",
        ".",
        "$",
        "+",
    ]
    body = "".join(rng.choices(items, k=rng.randint(1, 3)))
    ends = rng.choice(["", "", "-"]), rng.choice(["", "", "-"])
    return f"[{rng.choice(['', '^'])}{ends[0]}{body}{ends[1]}]"


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    """A pattern of what is read; deeper ones are groups and repetitions of others."""
    if depth == 0 or rng.random() < 0.2:
        return random_class(rng) if rng.random() < 0.25 else rng.choice(ATOMS.split())
    parts = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind = rng.random()
    if kind < 0.4:
        return "".join(parts)
    group = f"({rng.choice(['', '?:'])}{'|'.join(parts) if kind < 0.7 else ''.join(parts)})"
    counts = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "*?", "+?", "??", "{2}?", ""]
    return group + rng.choice(counts)


def random_texts(rng: random.Random) -> list[str]:
    return ["", *("".join(rng.choices(CHARACTERS, k=rng.randint(1, 6))) for _ in range(60))]


def check(pattern: str, texts: list[str]) -> int:
    """Return how many texts match, the same as by ONNX Runtime."""
    x = np.array(texts, object)
    model = node_model("RegexFullMatch", [x], opset=20, kinds=[bool], pattern=pattern)
    (right,) = runtime(model, [x])
    automaton = Automaton(pattern)
    found = [automaton.matches(one) for one in texts]
    wrong = [text for text, a, b in zip(texts, found, right, strict=True) if a != b]
    assert not wrong, (pattern, wrong)
    return sum(found)


def test_random_patterns() -> None:
    rng = random.Random(5)
    matches = 0
    for _ in range(600):
        pattern = random_pattern(rng)
        if rng.random() < 0.3:
            pattern = f"^{pattern}$"
        matches += check(pattern, random_texts(rng))
    assert matches > 1000


@pytest.mark.parametrize("pattern", ["", *READ.split()])
def test_patterns(pattern: str) -> None:
    check(pattern, ["", *"ab]}-&^$+,", "aa", "aaaa", "aaaaaa", "bb", "acbc", "a\n", "\n", "a" * 20])


@pytest.mark.parametrize(
    "pattern", [*REFUSED.split(), "(" * 60 + ")" * 60, "a{1}" * 10**5, "ab" * 3000]
)
def test_others_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedOpError, match=r"^RegexFullMatch: .*pattern"):
        Automaton(pattern)


def test_a_model_says_what_is_not_read() -> None:
    x = np.array(["é"], object)
    model = node_model("RegexFullMatch", [x], opset=20, kinds=[bool], pattern="(?i)é")
    with pytest.raises(GlnnError, match=r"a group with flags or a name at 1 of the pattern '\(\?i"):
        glnn.InferenceSession(model.SerializeToString(), "cpu").run(None, {"x0": x})


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(a|aa)+b", "a*a*a*a*b"])
def test_no_text_takes_exponential_time(pattern: str) -> None:
    start = time.perf_counter()
    assert not Automaton(pattern).matches("a" * 5000)
    assert Automaton(pattern).matches("a" * 5000 + "b")
    assert time.perf_counter() - start < 5
