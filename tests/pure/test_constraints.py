"""Constraints of a declaration: which values of a kernel's parameters go together."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from glnn.errors import ShaderError
from glnn.graph.operators.attention import Attention, StridedView
from glnn.kernels import kernels_for, library
from glnn.kernels.capability_check import fitted_rows, why_not_device
from glnn.kernels.kernel import Kernel
from glnn.kernels.manifest import Constraint, DeclarationError
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.kernels.tuned import TunedChoice
from tests.pure.test_selector import DEVICE

SHADERS = Path(__file__).parents[2] / "shaders"
ERROR = "#error"
(FLASH,) = (k for k in kernels_for("attention", "compute") if k.name == "flash")
VIEWS = tuple(StridedView(0, 640, 320, 64) for _ in "qkv")
SPEC = OpSpec.create(Attention(1, 2, 5, 5, 64, 64, VIEWS), dict.fromkeys("qkv", (1, 2, 5, 64)), {})
EXHAUSTIVE = bool(os.environ.get("GLNN_EXHAUSTIVE"))
UNFIT = {"WG_X": 16, "WG_Y": 2, "SLICES": 4}
"""Parameters that the shader refuses: each invocation would load sixteen keys at once."""


def source(path: Path, seen: set[Path]) -> Iterator[str]:
    """The lines of a shader up to its last #error and the #endif after it, includes among them."""
    for line in path.read_text("utf-8").splitlines():
        included = re.match(r'#include "(.*)"', line)
        if included is None:
            yield line
        elif (file := SHADERS / included[1]) not in seen:
            seen.add(file)
            yield from source(file, seen)


def directives(path: Path) -> list[tuple[str, str]]:
    """The preprocessor's lines of a shader, without comments; empty where none is an #error."""
    text = "\n".join(source(path, {path}))
    text = re.sub(r"//.*", "", text[: text.rfind(ERROR) + len(ERROR)]).replace("\\\n", " ")
    found = re.findall(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*)$", text, re.MULTILINE)
    return found if ERROR in text else []


def holds(condition: str, macros: Mapping[str, str]) -> bool:
    """The value of an #if, by Python's arithmetic; what is not defined is 0, as in GLSL."""
    condition = re.sub(
        r"defined\s*\(?(\w+)\)?", lambda word: str(int(word[1] in macros)), condition
    )
    before = ""
    while before != condition:
        before = condition
        condition = re.sub(
            r"[A-Za-z_]\w*", lambda word: f"({macros.get(word[0], word[0])})", condition
        )
        condition = re.sub(r"\((\w+)\)", r"\1", condition)
    for c, python in (("&&", " and "), ("||", " or "), ("/", "//")):
        condition = condition.replace(c, python)
    condition = re.sub(r"!(?!=)", " not ", condition)
    condition = re.sub(r"\b(?!and\b|or\b|not\b)[A-Za-z_]\w*", "0", condition)
    return bool(eval(condition))


def refuses(lines: list[tuple[str, str]], given: Mapping[str, int]) -> bool:
    """Whether a shader reaches an #error with these macros."""
    macros = {name: str(value) for name, value in given.items()}
    branches: list[tuple[bool, bool]] = []  # of each #if: whether this one, and any so far, is on
    for directive, rest in lines:
        on = all(here for here, _ in branches)
        if directive in ("if", "ifdef", "ifndef"):
            known = (rest.strip() in macros) is (directive == "ifdef")
            here = holds(rest, macros) if directive == "if" and on else known
            branches.append((on and here, on and here))
        elif directive in ("elif", "else"):
            _, any_so_far = branches.pop()
            outer = all(here for here, _ in branches)
            here = outer and not any_so_far and (directive == "else" or holds(rest, macros))
            branches.append((here, any_so_far or here))
        elif directive == "endif":
            branches.pop()
        elif on and directive == "error":
            return True
        elif on and directive == "define" and (found := re.match(r"(\w+)\s+(.*)$", rest)):
            macros[found[1]] = found[2]
    return False


REFUSING = [k for k in library() if not k.stages and directives(k.path)]


def test_shaders_that_refuse_parameters_are_found() -> None:
    """Else the next test would have no cases."""
    assert ("attention", "flash") in {(k.op, k.name) for k in REFUSING}


@pytest.mark.parametrize("kernel", REFUSING, ids=[f"{k.op}-{k.name}" for k in REFUSING])
def test_a_declaration_refuses_what_its_shader_does(kernel: Kernel) -> None:
    """By a sample of all combinations of parameters, or by all with GLNN_EXHAUSTIVE=1."""
    lines, values = directives(kernel.path), list(product(*kernel.tune.values()))
    count = len(values) if EXHAUSTIVE else min(len(values), 100)
    for one in random.Random(kernel.name).sample(values, count):
        parameters = dict(zip(kernel.tune, one, strict=True))
        refused = any(
            refuses(lines, {**kernel.requires.least, **parameters, "EPILOGUE_LONG": long})
            for long in (0, 1)
        )
        assert (kernel.why_not_parameters(parameters) is not None) is refused, parameters


def test_the_reason_names_the_constraint_and_the_parameters() -> None:
    reason = why_not_device(FLASH.with_parameters(**UNFIT), replace(DEVICE, renderer="NVIDIA"))
    text = "TN * BK // 4 % WG_Y == 0 and 8 % (TN * BK // 4 // WG_Y) == 0"
    assert reason == f"the shader needs {text}; here BK = 16, TN = 8, WG_Y = 2"
    assert why_not(FLASH.with_parameters(**UNFIT), SPEC, DEVICE) == reason


def test_a_tuned_choice_that_does_not_compile_is_not_taken() -> None:
    """A file is not trusted: its parameters may each be declared, and not go together."""
    unfit = FLASH.with_parameters(WG_Y=4, BK=32)
    choice = TunedChoice.from_kernel(unfit, 1e-3, None).apply(FLASH)
    assert choice is not None and "BK = 32" in (why_not(choice, SPEC, DEVICE) or "")


def test_other_parameters_than_the_declared_rows_go_together() -> None:
    """Where no row is admitted, the first others are that are, and that the shader compiles."""
    few = replace(DEVICE, renderer="NVIDIA", max_compute_work_group_invocations=32)
    (found,) = fitted_rows(FLASH, few)
    assert found.defaults not in [row.defaults for row in FLASH.rows_for("NVIDIA")]
    assert not refuses(directives(FLASH.path), found.defaults)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"renderer": "Mali-G52"}, 0),  # where flash is unfit
        ({"max_compute_shader_storage_blocks": 3}, 0),
        ({"max_compute_work_group_invocations": 16}, 0),
        ({"max_compute_work_group_invocations": 32}, 1),
    ],
)
def test_what_is_refused_becomes_no_kernel(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], most: int
) -> None:
    """There are 1,728 combinations, and planning waits for them."""
    made, with_parameters = [], Kernel.with_parameters

    def counted(self: Kernel, **values: int) -> Kernel:
        made.append(values)
        return with_parameters(self, **values)

    kernel = replace(FLASH)  # with a memo of its own
    monkeypatch.setattr(Kernel, "with_parameters", counted)
    assert len(fitted_rows(kernel, replace(DEVICE, **limits))) == most
    assert len(made) == most


@pytest.mark.parametrize(
    ("text", "parameters", "fits"),
    [
        ("A == 1 or B < 3", {"A": 1, "B": 3}, True),
        ("A == 1 or B < 3", {"A": 2, "B": 3}, False),
        ("A != 1 and B >= 3 - A", {"A": 2, "B": 1}, True),
        ("A % B == 0", {"A": 8, "B": 4}, True),
        ("A % B == 0", {"A": 8, "B": 3}, False),
        ("A % B == 0", {"A": 8, "B": 0}, False),
        ("A // B == 2", {"A": 8, "B": 3}, True),
        ("A * B // 4 % 3 == 0 or A // B == 0", {"A": 8, "B": 2}, False),
        ("A // B == 0", {"A": 8, "B": 0}, False),
    ],
)
def test_conditions(text: str, parameters: dict[str, int], fits: bool) -> None:
    assert (Constraint.read(text).why_not(parameters) is None) is fits


MALFORMED = {
    "no comparison": "A",
    "cut short": "A +",
    "empty": "",
    "number": 7,
    "real": "A == 1.5",
    "bool": "A == True",
    "true division": "A / 2 == 1",
    "power": "A ** 2 == 1",
    "call": "f(A) == 1",
    "attribute": "A.real == 1",
    "two comparisons": "1 < A < 3",
    "not": "not A == 1",
    "2,000 terms": "+".join(["A"] * 2000) + " == 1",
    "3,000 signs": "-" * 3000 + "A == 1",
    "100,000 signs": "-" * 100_000 + "A == 1",
    "3,000 brackets": "(" * 3000 + "A" + ")" * 3000 + " == 1",
    "5,000 digits": "A == " + "1" * 5000,
    "surrogate": "A == 1 or \ud800 == 1",
    "null": "A == 1\0",
    "statements": "A == 1; A == 2",
}
DECLARED = {
    "summary": "one",
    "operands": {"x": {"layout": "R", "binding": 0}, "out": {"layout": "R", "binding": 1}},
    "launch": {"grid": ["n"]},
    "tune": {"A": [4, 8], "B": [2, 3]},
    "constraints": ["A % B == 0"],
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_condition(text: object) -> None:
    with pytest.raises(DeclarationError, match=r"expected a (comparison|string)"):
        Constraint.read(text)
    with pytest.raises(ShaderError, match=r"^one.toml: constraints: expected a"):
        Kernel.declared(
            Path("one.toml"), Path("matmul/one.comp"), {**DECLARED, "constraints": [text]}
        )


def test_declared_values_meet_the_constraints() -> None:
    file, shader = Path("one.toml"), Path("matmul/one.comp")
    assert Kernel.declared(file, shader, DECLARED).with_parameters(B=3).why_not_parameters()
    for wrong, said in [
        (
            {"tune": {"A": [4], "B": [3]}},
            r"one.toml: tune: the shader needs A % B == 0; here A = 4",
        ),
        ({"architectures": {"NVIDIA": {"B": 3}}}, r"architectures.NVIDIA: the shader needs"),
        ({"constraints": ["A % C == 0"]}, r"constraints: C is not one of \('A', 'B'\)"),
    ]:
        with pytest.raises(ShaderError, match=said):
            Kernel.declared(file, shader, {**DECLARED, **wrong})
