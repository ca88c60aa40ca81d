"""What `onnx.reference` is asked for, row by row of the table, against results of our own."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import defs, helper

import glnn
from glnn import onnx_backend
from glnn.errors import GlnnError, LimitError, ModelError, ShapeError
from glnn.onnx.delegate import Delegate
from glnn.onnx.reference_table import COMPLEX, OLDEST, REFERENCE, is_checked
from glnn.onnx.reference_table import NUMBERS as REAL
from tests.onnx import (
    conformance,
    gpu_cases,
    reference_integers,
    reference_ml,
    reference_others,
    reference_page,
)
from tests.onnx.reference_integers import Case
from tests.onnx.runtime import node_model

ALL: dict[tuple[str, str], Any] = {
    **reference_integers.CASES,
    **reference_others.CASES,
    **reference_ml.CASES,
}
NEWEST = 25  # operator set that ONNX Runtime has


def cases_of(domain: str, op: str, version: int, types: dict[str, str]) -> list[Case]:
    if op == "Equal" and "string" in types.values():
        return [*reference_others.equal_texts(version, types)]
    if op == "Pow" and types["T"] in ("float", "double"):
        return [*reference_others.mixed_power(version, types)]
    return [*ALL[domain, op](version, types)]


def runtime_results(domain: str, op: str, version: int, case: Case) -> list[Any]:
    """ONNX Runtime's results; the types of these are what the package infers."""
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(case.operands)]
    results = [f"y{i}" for i in range(len(case.expected))]
    node = helper.make_node(op, names, results, domain=domain, **case.attributes)
    feeds = {n: one for n, one in zip(names, case.operands, strict=True) if n}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], op, inputs, outputs)
    sets = {"": 21, domain: min(version, NEWEST)}
    opsets = [helper.make_opsetid(*one) for one in sets.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return list(session.run(None, feeds))


def same(found: Any, right: Any) -> bool:
    if isinstance(right, list):
        found = found.item() if isinstance(found, np.ndarray) else found
        return len(found) == len(right) and all(map(same, found, right))
    right = np.asarray(right)
    if found.dtype != right.dtype or found.shape != right.shape:
        return False
    if right.dtype.hasobject:
        return bool(np.all(found == right))
    if right.dtype.kind == "f":  # ONNX Runtime sums in another order
        return bool(np.allclose(found, right, 1e-5, 1e-6, equal_nan=True))
    return bool(np.array_equal(found, right, equal_nan=right.dtype.kind == "c"))


def check(domain: str, op: str, version: int, types: dict[str, str], case: Case) -> None:
    names = [f"x{i}" if one is not None else "" for i, one in enumerate(case.operands)]
    results = [f"y{i}" for i in range(len(case.expected))]
    node = helper.make_node(op, names, results, domain=domain, **case.attributes)
    delegate = Delegate(node, {"": 21, domain: version}, 10)
    found = delegate.reference(*case.operands)
    expected = case.expected
    if any(right is None for right in expected):
        expected = runtime_results(domain, op, version, case)
    for got, right in zip(found, expected, strict=True):
        assert same(got, right), (op, version, types, case, got)


NUMBERS = (*REAL, *COMPLEX)
OWN = [
    ("", "RegexFullMatch", 20, {}),
    ("", "SequenceInsert", 11, {}),
    ("", "StringNormalizer", 10, {}),
    ("", "StringSplit", 20, {}),
    (reference_ml.ML, "LabelEncoder", 2, {}),
    (reference_ml.ML, "LabelEncoder", 4, {}),
    *((reference_ml.ML, "Imputer", 1, {"T": name}) for name in ("float", "int64")),
    *(
        (reference_ml.ML, op, 1, {key: name})
        for op, key in (("LinearClassifier", "T1"), ("Normalizer", "T"))
        for name in ("float", "double", "int64", "int32")
    ),
    (reference_ml.ML, "LinearRegressor", 1, {"T": "float"}),
    (reference_ml.ML, "SVMClassifier", 1, {"T1": "float"}),
    (reference_ml.ML, "SVMRegressor", 1, {"T": "float"}),
    *(("", "NonZero", version, {"T": name}) for version in (9, 13) for name in NUMBERS),
    *(("", "TfIdfVectorizer", 9, {"T": name}) for name in ("int32", "int64", "string")),
]
"""What glnn computes itself by NumPy."""


@pytest.mark.parametrize(("domain", "op", "version", "types"), OWN)
def test_our_own(domain: str, op: str, version: int, types: dict[str, str]) -> None:
    for case in cases_of(domain, op, version, types):
        check(domain, op, version, types, case)


@pytest.mark.parametrize(("domain", "op"), REFERENCE)
def test_each_row(domain: str, op: str) -> None:
    for row in REFERENCE[domain, op]:
        for version, dtypes in itertools.product(
            row.versions, itertools.product(*row.types.values())
        ):
            types = dict(zip(row.types, dtypes, strict=True))
            cases = cases_of(domain, op, version, types)
            assert cases
            for case in cases:
                check(domain, op, version, types, case)


def test_the_page_has_the_table() -> None:
    text = reference_page.PAGE.read_text("utf-8")
    assert reference_page.page(text) == text, "python -m tests.onnx.reference_page writes it"


def test_every_row_has_cases() -> None:
    assert REFERENCE.keys() <= ALL.keys()


def test_the_suite_asks_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ONNX's cases send to `onnx.reference` is in the table; the GPU's cases send nothing."""
    asked: list[tuple[str, str, int, tuple[str, ...]]] = []
    package = Delegate._run_package

    def recorded(self: Delegate, arrays: Any) -> Any:
        node = self.node
        schema = defs.get_schema(node.op_type, self.opsets.get(node.domain, 1), node.domain)
        names = tuple(str(one.dtype) for one in arrays if one is not None)
        asked.append((node.domain, node.op_type, schema.since_version, names))
        return package(self, arrays)

    monkeypatch.setattr(Delegate, "_run_package", recorded)
    frozen = set(gpu_cases.frozen())
    for kind, case in gpu_cases.cases(["node", "simple"]):
        if (kind, case.name) in frozen or case.name.startswith("test_resize"):
            continue
        try:
            for model, inputs, _ in conformance.data(case):
                onnx_backend.prepare(model, backend="cpu").run(inputs)
        except ModelError:
            assert "gradient" in case.name, case.name
    assert len(asked) > 100
    for domain, op, version, names in asked:
        rows = REFERENCE.get((domain, op), ())
        assert any(version in row.versions for row in rows), (domain, op, version, names)


@pytest.mark.parametrize(
    ("op", "dtype", "opset", "says"),
    [
        ("ReduceMean", np.uint32, 18, r"ReduceMean \(operator set 18\) of uint32: .* not relied"),
        (
            "Add",
            np.uint32,
            6,
            r"Add \(operator set 6\).*only for operator sets 7, 13, 14, T: uint16",
        ),
        ("Shrink", np.int16, 9, r"Shrink \(operator set 9\) of int16: int16 is the host's"),
        ("Erf", np.uint64, 9, r"Erf \(operator set 9\) of uint64"),
    ],
)
def test_what_is_not_in_the_table_is_refused(op: str, dtype: Any, opset: int, says: str) -> None:
    x = np.ones((2, 3), dtype)
    operands = [x, x] if op == "Add" else [x]
    model = node_model(op, operands, opset=opset, kinds=[dtype])
    with pytest.raises(GlnnError, match=says):
        glnn.InferenceSession(model.SerializeToString(), "cpu").run(
            None, {f"x{i}": one for i, one in enumerate(operands)}
        )


def test_an_exception_of_the_package_names_node_and_operands() -> None:
    x, y = np.ones((2, 3), np.uint16), np.ones((2, 3), np.uint16)
    node = helper.make_node("Add", ["x0", "x1"], ["y0"], name="sum")
    delegate = Delegate(node, {"": 14}, 10)
    with pytest.raises(
        ShapeError,
        match=r"^Add of the node 'sum': operands uint16 \(2, 3\), uint16.*: .*\(2,3\) \(2,2\)",
    ):
        delegate.reference(x, y[:, :2])


def test_a_lack_of_memory_is_no_wrong_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Delegate, arrays: Any) -> None:
        raise TypeError("Issues with types") from MemoryError("Unable to allocate 8 GiB")

    monkeypatch.setattr(Delegate, "_run_package", fails)
    delegate = Delegate(helper.make_node("Add", ["x0", "x1"], ["y0"]), {"": 14}, 10)
    x = np.ones(3, np.uint16)
    with pytest.raises(LimitError, match="too little memory: Unable to allocate 8 GiB"):
        delegate.reference(x, x)


def test_versions_of_the_package_that_were_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused: onnx 1.17 gives 9223372036854775808 for 9223372036854775809 / 1."""
    assert is_checked("1.23.2") and is_checked("1.22.0rc1") and is_checked("2.0")
    assert not is_checked("1.9.0") and not is_checked("1.20.1")
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert set(re.findall(r"onnx>=([\d.]+)", text)) == {OLDEST}
    x = np.array([9223372036854775809], np.uint64)
    model = node_model("Div", [x, x], opset=14, kinds=[np.uint64]).SerializeToString()
    monkeypatch.setattr(onnx, "__version__", "1.17.0")
    with pytest.raises(ModelError, match=f"from onnx {OLDEST} on, 1.17.0 is installed"):
        glnn.InferenceSession(model, "cpu").run(None, {"x0": x, "x1": x})
