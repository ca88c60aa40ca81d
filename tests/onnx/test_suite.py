"""The list of cases that the GPU must compute, and what is said of the suite's others.

`make check-onnx` runs the suite itself.
"""

from __future__ import annotations

import sys

from tests.onnx import gpu_cases
from tests.onnx.gpu_cases import FAILURES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_list_is_what_the_rule_says() -> None:
    assert gpu_cases.frozen() == list(gpu_cases.by_rule())


def test_failures_are_cases() -> None:
    known = {(kind, case.name) for kind, case in gpu_cases.cases()}
    listed = tomllib.loads(FAILURES.read_text("utf-8"))
    pairs = {(kind, name) for kind, names in listed.items() for name in names}
    assert pairs <= known
    assert not pairs & set(gpu_cases.frozen())
