"""Operators of com.microsoft, random settings of each: beside ONNX Runtime, or NumPy in float64.

A few settings of each; `make check-contrib` has them all.
"""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

import glnn
from glnn.core.types import TensorType
from glnn.errors import DeviceError
from glnn.onnx.operators import ENTRIES
from tests.onnx.contrib_cases import CASES, MICROSOFT, OLDER, case, expected
from tests.onnx.contrib_quantized_cases import QUANTIZED

GENERATORS = {**CASES, **QUANTIZED}
ALL = bool(os.environ.get("GLNN_EXHAUSTIVE"))
SEEDS = {
    "cpu": range(25) if ALL else (0, 1, 4),
    "compute": range(25) if ALL else (2,),
    "feedback": range(0, 25, 6) if ALL else (),
}
"""The seeds of settings, by backend; some are in 16 bits."""


@pytest.mark.parametrize(
    ("op", "seed", "backend"),
    [(op, seed, backend) for op in GENERATORS for backend in SEEDS for seed in SEEDS[backend]],
)
def test_case(op: str, seed: int, backend: str) -> None:
    try:
        one = case(op, seed, GENERATORS)
        wanted = expected(one)
    except Exception as error:  # ONNX Runtime raises many kinds
        if not OLDER:
            raise
        pytest.skip(str(error))
    try:
        session = glnn.InferenceSession(one.model().SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    found = session.run(None, one.feeds())
    assert len(found) == len(wanted)
    for number, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if right is None:
            continue
        assert (got.dtype, got.shape) == (right.dtype, right.shape), (str(one), number)
        if number in one.compared:
            got, right = one.compared[number](got), one.compared[number](right)
        if right.dtype.kind in "fV":  # bfloat16 is none of NumPy's floats
            got, right = got.astype(np.float64), right.astype(np.float64)
            most = np.abs(right).max(initial=1e-3, where=np.isfinite(right))
            message = f"{one}, result {number}"
            np.testing.assert_allclose(
                got, right, one.tolerance, one.tolerance * most, err_msg=message
            )
        else:
            np.testing.assert_array_equal(got, right, f"{one}, result {number}")
    narrow = any(a is not None and a.dtype == ml_dtypes.bfloat16 for a in one.operands)
    if backend != "cpu" and not narrow:  # which the host casts
        assert bool(session.hosted) == one.hosted, (str(one), session.hosted)


@pytest.mark.skipif(OLDER, reason="earlier versions lack operators")
@pytest.mark.parametrize("op", GENERATORS)
def test_signatures_say_the_types_of_results(op: str) -> None:
    """Models whose operands have no known rank go by these."""
    for seed in range(10):
        one = case(op, seed, GENERATORS)
        for entry in ENTRIES[one.domain, op]:
            if entry.signature is not None:
                operands = [None if a is None else TensorType.from_array(a) for a in one.operands]
                types = entry.signature.result_types(operands, len(one.results))
                for type, dtype in zip(types, one.results, strict=True):
                    assert dtype is None or type.dtype.numpy == dtype


def test_each_operator_has_cases() -> None:
    known = {name for domain, name in ENTRIES if domain == MICROSOFT}
    assert known <= {*GENERATORS, "TransposeMatMul"}
