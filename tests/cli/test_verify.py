"""`glnn verify`: errors within the tolerance, and a divergence that is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from glnn.compiler.plan import Plan
from glnn.graph.operators import Pool2d, Slice
from tests.cli.conftest import Glnn


@pytest.mark.parametrize("limits", [[], ["--limits", "es31-minimum"]])
@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_lenet(cli: Glnn, backend: str, limits: list[str]) -> None:
    found = cli("verify", "lenet", "--backend", backend, *limits, "--json").json
    assert (found["model"], found["backend"], found["ok"]) == ("lenet", backend, True)
    assert found["first_divergence"] is None
    assert 0 < found["worst"] == max(layer["error"] for layer in found["layers"]) <= 1e-5
    assert len(found["layers"]) == (6 if backend == "compute" else 8)
    for layer in found["layers"]:
        assert set(layer) == {"name", "op", "kernel", "error", "ok", "own"}
        assert layer["own"] is None


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_weights_of_float16(cli: Glnn, backend: str) -> None:
    asked = ("lenet", "--backend", backend, "--precision", "float16", "--json")
    found = cli("verify", *asked).json
    assert (found["ok"], found["tolerance"]) == (True, 2e-3)
    assert found["worst"] > 1e-5
    assert not json.loads(cli("verify", *asked, "--tolerance", "1e-5").out)["ok"]
    assert cli("run", *asked).json["accuracy"] >= 0.99


@pytest.mark.parametrize("version", ["3.0", "3.1"])
def test_older_versions(process: Glnn, version: str) -> None:
    backend = "compute" if version == "3.1" else "feedback"
    found = process(
        "verify", "lenet", "--backend", backend, "--json", MESA_GLES_VERSION_OVERRIDE=version
    ).json
    assert found["ok"] and found["worst"] <= 1e-5


def test_the_table(cli: Glnn, small: Path, samples: Path) -> None:
    shown = cli("verify", small, samples, "--backend", "cpu")
    assert (shown.code, shown.err) == (0, "")
    assert "worst 0.00e+00, allowed 1e-05, on cpu" in shown.out
    assert "diverges" not in shown.out


def test_a_layer_of_several_steps_is_one_row(cli: Glnn, staged: Path, images: Path) -> None:
    forced = ("--backend", "compute", "--kernel", "conv2d=winograd_2")
    layers = cli("verify", staged, images, *forced, "--json").json["layers"]
    assert [(layer["name"], layer["op"]) for layer in layers] == [
        ("conv", "conv2d"),
        ("pool", "pool2d"),
    ]
    assert layers[0]["kernel"] == "winograd_2"


def test_a_tolerance_of_nothing(cli: Glnn) -> None:
    shown = cli("verify", "lenet", "--backend", "feedback", "--tolerance", 0)
    assert (shown.code, shown.err) == (1, "")
    assert "the first layer that diverges is c1" in shown.out


def test_a_wrong_layer_is_named(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Pool2d.compute

    def wrong(self: Pool2d, operands: Any) -> Any:
        result = right(self, operands)
        if result.dtype == np.float32:  # what the backend computes, not what verify expects
            result[0, 0, 0, 0] += 1
        return result

    monkeypatch.setattr(Pool2d, "compute", wrong)
    shown = cli("verify", "lenet", "--backend", "cpu", "--json")
    assert (shown.code, shown.err) == (1, "")
    found = json.loads(shown.out)
    pool = next(layer["name"] for layer in found["layers"] if layer["op"] == "pool2d")
    assert found["first_divergence"] == pool
    assert found["ok"] is False and found["worst"] > 1e-5
    verdicts = {layer["name"]: layer["ok"] for layer in found["layers"]}
    before = list(verdicts).index(pool)
    assert list(verdicts.values())[: before + 1] == [True] * before + [False]
    shown = cli("verify", "lenet", "--backend", "cpu")
    assert shown.code == 1
    assert f"the first layer that diverges is {pool}" in shown.out


@pytest.fixture
def cancelling(tmp_path: Path) -> Path:
    """A transform of 64 numbers, of which two slices and a sum of what cancels are taken."""
    angles = 2 * np.pi * np.outer(np.arange(64), np.arange(64)) / 64
    rows = ", ".join(f"{x:.9g}" for x in np.cos(angles).ravel())
    text = f"""<ir_version: 8, opset_import: ["" : 17]> transform (float[1, 64] x)
        => (float[1, 4] first, float[1, 60] rest, float[1, 1] sum) <float[64, 64] w = {{{rows}}}> {{
        zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
        four = Constant<value_ints = [4]>() end = Constant<value_ints = [64]>() y = MatMul(x, w)
        first = Slice(y, zero, four, one) rest = Slice(y, four, end, one)
        sum = ReduceSum<keepdims = 1>(rest, one) }}"""
    path = tmp_path / "transform.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    np.save(tmp_path / "x.npy", np.full((1, 64), 0.1, np.float32))
    return path


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_a_right_layer_of_what_cancels(cli: Glnn, cancelling: Path, backend: str) -> None:
    """All but the first frequency of equal numbers are nothing in float64, 1e-7 in float32."""
    asked = ("verify", cancelling, cancelling.parent / "x.npy", "--backend", backend)
    found = cli(*asked, "--json").json
    assert found["ok"] and found["worst"] > 1e-2
    off = [layer for layer in found["layers"] if layer["error"] > 1e-5]
    assert off and all(layer["ok"] and layer["own"] <= 1e-6 for layer in off)
    shown = cli(*asked)
    assert shown.code == 0
    assert "off by more, as those before and terms that cancel have it" in shown.out


def test_a_wrong_layer_of_what_cancels(
    cli: Glnn, cancelling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and those behind it are not."""
    monkeypatch.setattr(  # what the backend computes, not what verify expects
        Slice, "specialize", lambda op, _: lambda x: (op.move(x) * np.float32(1.01),)
    )
    asked = ("verify", cancelling, cancelling.parent / "x.npy", "--backend", "cpu", "--json")
    found = json.loads(cli(*asked).out)
    wrong = [layer["op"] for layer in found["layers"] if not layer["ok"]]
    assert wrong and set(wrong) == {"move"}


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_a_layer_alone_reads_the_operands_that_it_has(
    cli: Glnn, tmp_path: Path, backend: str
) -> None:
    """Constants that passes make may have one name."""
    text = """<ir_version: 8, opset_import: ["" : 17]> norm (float[2, 3, 4] x) => (float[2, 3, 4] y)
        <float[3] a = {1.5, -2.0, 0.3}, float[3] b = {0.1, 7.0, -5.0}, float[3] c = {2.0, 3.0, 4.0},
        float[3] d = {0.7, 1.9, 40.0}> { y = BatchNormalization(x, a, b, c, d) }"""
    path = tmp_path / "norm.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    shown = cli("verify", path, "--backend", backend, "--tolerance", "1e-12", "--json")
    (layer,) = json.loads(shown.out)["layers"]
    assert 1e-12 < layer["error"] <= 1e-6 and layer["own"] <= 1e-6


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
def test_int64_that_the_plan_has_as_int32(cli: Glnn, tmp_path: Path, backend: str) -> None:
    """How many keys there are of each sample, which is compared with the places of keys."""
    text = """<ir_version: 11, opset_import: ["" : 24]> padded (float[2, 1, 3, 4] q,
        float[2, 1, 5, 4] k, float[2, 1, 5, 4] v, int64[2] count) => (float[2, 1, 3, 4] y) {
        y = Attention(q, k, v, , , , count) }"""
    path = tmp_path / "padded.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    np.save(tmp_path / "count.npy", np.array([3, 5]))
    given = f"count={tmp_path / 'count.npy'}"
    assert cli("verify", path, given, "--backend", backend, "--json").json["ok"]


STEPS = {
    "floor": "y = Floor(x)",
    "ceil": "y = Ceil(x)",
    "round": "y = Round(x)",
    "mod": "one = Constant<value = float[1] {1.0}>() y = Mod<fmod = 1>(x, one)",
    "comparison": "c = Constant<value = float[1] {100.0}>() b = GreaterOrEqual(x, c)"
    "n = Neg(x) y = Where(b, x, n)",
    "argument": "y = ArgMax<axis = 0>(x)",
    "bool": "c = Constant<value = float[1] {100.0}>() y = Less(x, c)",
    "integer": "y = Cast<to = 6>(x)",
}
TYPES = {"argument": "int64[1, 256]", "bool": "bool[256]", "integer": "int32[256]"}


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
@pytest.mark.parametrize("name", STEPS)
def test_a_layer_with_steps_that_is_wrong_by_one(
    cli: Glnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, backend: str
) -> None:
    """Of operands at its steps: an ulp changes a right result by as much."""
    x = np.arange(256, dtype=np.float32)[None if name == "argument" else slice(None)]
    shape, made = ", ".join(map(str, x.shape)), TYPES.get(name, "float[256]")
    text = f"""<ir_version: 8, opset_import: ["" : 17]> steps (float[{shape}] x) => ({made} y) {{
        {STEPS[name]} }}"""
    path = tmp_path / "steps.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    np.save(tmp_path / "x.npy", x)
    asked = ("verify", path, tmp_path / "x.npy", "--backend", backend, "--json")
    assert cli(*asked).json["ok"]
    right = Plan.value

    def wrong(plan: Plan, name: str) -> Any:
        value = right(plan, name)
        return ~value if value.dtype == bool else value + value.dtype.type(1)

    monkeypatch.setattr(Plan, "value", wrong)
    shown = cli(*asked)
    assert shown.code == 1 and not json.loads(shown.out)["ok"]


def test_nan_diverges_from_numbers_only(cli: Glnn, small: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "nan.npy", np.array([[np.nan, 0, 1], [1, 2, 3]], np.float32))
    for backend in ("compute", "feedback", "cpu"):
        assert cli("verify", small, tmp_path / "nan.npy", "--backend", backend, "--json").json["ok"]
