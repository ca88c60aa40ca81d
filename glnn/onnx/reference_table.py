"""The nodes for which the `onnx` package's reference is verified, and used.

tests/onnx/test_reference_table.py compares each row with NumPy, exact integers or ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OLDEST = "1.21"
"""The oldest version of the package whose reference is right for all rows. Earlier ones round
quotients of uint64, and lack operators. `make check-oldest` verifies the rows with it.
"""
Types = Mapping[str, Sequence[str]]
"""ONNX's names of types, by type constraint of the schema."""


@dataclass(frozen=True)
class CheckedNode:
    """Versions, types and attributes of one ONNX operator."""

    versions: tuple[int, ...]
    """The operator sets that changed the operator."""
    types: Types
    """Types of operands and results; a missing constraint allows all that the schema does."""
    attributes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Allowed values of attributes; any value for attributes that are missing here."""

    def allows(self, version: int, types: Types, attributes: Mapping[str, Any]) -> bool:
        """Return True where a node of these types is verified."""
        return (
            version in self.versions
            and all(set(used) <= {*self.types.get(name, used)} for name, used in types.items())
            and all(attributes.get(name) in values for name, values in self.attributes.items())
        )


INTEGERS = ("uint16", "int16", "uint32", "uint64")
"""Integer types that neither GPUs nor glnn's operators compute with."""
UNSIGNED = ("uint32", "uint64")
ML = "ai.onnx.ml"
TEXTS = ("string",)
COMPLEX = ("complex64", "complex128")
FLOATS = ("float", "float16", "bfloat16", "double")
NUMBERS = (*FLOATS, "bool", "uint8", "int8", "int32", "int64", *INTEGERS)
SEQUENCES = tuple(
    f"seq(tensor({name}))" for name in (*NUMBERS, *COMPLEX, "string") if name != "bfloat16"
)
OPTIONALS = tuple(f"optional({name})" for name in SEQUENCES)
BYTES = {
    1: ("bool", "uint8", "int8", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"),
    2: ("uint16", "int16", "float16", "bfloat16"),
    4: ("uint32", "int32", "float"),
    8: ("uint64", "int64", "double", "complex64"),
}
"""Types by bytes of a number."""


def _integers(*versions: int, **attributes: tuple[Any, ...]) -> tuple[CheckedNode, ...]:
    return (CheckedNode(versions, {"T": INTEGERS}, attributes),)


def _unsigned(*versions: int) -> tuple[CheckedNode, ...]:
    return (CheckedNode(versions, {"T": UNSIGNED}),)


REFERENCE: Mapping[tuple[str, str], tuple[CheckedNode, ...]] = {
    ("", "Abs"): _integers(6, 13),
    ("", "Add"): _integers(7, 13, 14),
    ("", "ArgMax"): _integers(1, 11, 12, 13),
    ("", "ArgMin"): _integers(1, 11, 12, 13),
    ("", "BitCast"): tuple(CheckedNode((26,), {"T1": t, "T2": t}) for t in BYTES.values()),
    ("", "BitShift"): (
        CheckedNode((11,), {"T": ("uint16", *UNSIGNED)}),
        CheckedNode((28,), {"T": INTEGERS}),
    ),
    ("", "BitwiseAnd"): _integers(18),
    ("", "BitwiseNot"): _integers(18),
    ("", "BitwiseOr"): _integers(18),
    ("", "BitwiseXor"): _integers(18),
    ("", "Clip"): _integers(12, 13),
    ("", "Compress"): (
        CheckedNode(
            (9, 11), {"T": (*(one for one in NUMBERS if one != "bfloat16"), *TEXTS, *COMPLEX)}
        ),
        CheckedNode((28,), {"T": (*NUMBERS, *TEXTS, *COMPLEX)}),
    ),
    ("", "ConcatFromSequence"): (CheckedNode((11,), {}),),
    ("", "CumProd"): _unsigned(26),
    ("", "CumSum"): _unsigned(11, 14),
    ("", "Div"): _integers(7, 13, 14),
    ("", "Einsum"): _integers(12, 28),
    ("", "Equal"): (*_integers(11, 13, 19), CheckedNode((19,), {"T": TEXTS})),
    ("", "EyeLike"): (
        CheckedNode((9, 22), {"T1": INTEGERS, "T2": NUMBERS}),
        CheckedNode((9, 22), {"T1": NUMBERS, "T2": INTEGERS}),
    ),
    ("", "Greater"): _integers(9, 13),
    ("", "GreaterOrEqual"): _integers(12, 16),
    ("", "Identity"): (
        CheckedNode((14,), {"V": SEQUENCES}),
        CheckedNode((16, 19, 21, 23, 24, 25), {"V": (*SEQUENCES, *OPTIONALS)}),
    ),
    ("", "Less"): _integers(9, 13),
    ("", "LessOrEqual"): _integers(12, 16),
    ("", "MatMul"): _unsigned(9, 13),
    ("", "Max"): _integers(12, 13),
    ("", "MelWeightMatrix"): (
        CheckedNode((17,), {"T1": ("int32", "int64"), "T2": ("float",), "T3": ("float", "double")}),
    ),
    ("", "Min"): _integers(12, 13),
    ("", "Mod"): _integers(10, 13, 28),
    ("", "Mul"): _integers(7, 13, 14),
    ("", "Neg"): (CheckedNode((6, 13), {"T": ("int16",)}),),
    ("", "PRelu"): _unsigned(9, 16),
    ("", "Pow"): (
        *(CheckedNode((12, 13, 15), {"T": (one,), "T1": (one,)}) for one in INTEGERS),
        CheckedNode((12, 13, 15), {"T": ("float", "double"), "T1": INTEGERS}),
    ),
    ("", "Range"): (CheckedNode((11, 27), {"T": ("int16",)}),),
    ("", "ReduceL1"): _unsigned(1, 11, 13, 18),
    ("", "ReduceMax"): _unsigned(1, 11, 12, 13, 18, 20),
    ("", "ReduceMin"): _unsigned(1, 11, 12, 13, 18, 20),
    ("", "ReduceProd"): _unsigned(1, 11, 13, 18),
    ("", "ReduceSum"): _unsigned(1, 11, 13),
    ("", "Relu"): (CheckedNode((14,), {"T": ("int16",)}),),
    ("", "SequenceAt"): (CheckedNode((11,), {}),),
    ("", "Sign"): _integers(9, 13),
    ("", "StringConcat"): (CheckedNode((20,), {}),),
    ("", "Sub"): _integers(7, 13, 14),
    (ML, "ArrayFeatureExtractor"): (
        CheckedNode((1,), {"T": ("float", "double", "int64", "int32", *TEXTS)}),
    ),
    (ML, "Binarizer"): (CheckedNode((1,), {"T": ("float", "double", "int64", "int32")}),),
    (ML, "FeatureVectorizer"): (CheckedNode((1,), {"T1": ("float",)}),),
    (ML, "OneHotEncoder"): (CheckedNode((1,), {"T": ("float", "double", "int64", *TEXTS)}),),
    (ML, "Scaler"): (CheckedNode((1,), {"T": ("float",)}),),
    (ML, "TreeEnsemble"): (
        CheckedNode(
            (5,), {"T": ("float", "double")}, {"aggregate_function": (0, 1), "post_transform": (0,)}
        ),
    ),
}
"""Verified nodes by domain and operator."""


def is_allowed(
    domain: str, op: str, version: int, types: Types, attributes: Mapping[str, Any]
) -> bool:
    """Return True where the package's reference is verified for such a node.

    version: the operator set that last changed the operator. types: the node's, by type constraint.
    """
    rows = REFERENCE.get((domain, op), ())
    return any(row.allows(version, types, attributes) for row in rows)


def is_checked(installed: str) -> bool:
    """Return True where the package's version is OLDEST or later."""
    return _release(installed) >= _release(OLDEST)


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, as of 1.22.0rc1."""
    return tuple(int(one) for one in version.split(".")[:2])


def describe(domain: str, op: str) -> str:
    """Return the rows of an operator in words; empty where there are none."""
    return "; ".join(map(_describe_row, REFERENCE.get((domain, op), ())))


def _describe_row(row: CheckedNode) -> str:
    parts = [f"operator sets {', '.join(map(str, row.versions))}"]
    parts += [f"{name}: {', '.join(types)}" for name, types in row.types.items()]
    parts += [
        f"{name}: {' or '.join('not given' if one is None else str(one) for one in values)}"
        for name, values in row.attributes.items()
    ]
    return ", ".join(parts)
