"""`glnn plan`, `bench` and `verify` of a model one of whose branches does not fit its inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from glnn.backends import open_backend
from glnn.errors import DeviceError
from tests.cli.conftest import Glnn

# The second branch does not fit an x of eight numbers.
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[1, N] x, int64 rate) => (float[A, B] y)
<int64 high = {{16000}}, float[8, 2] w = {{{", ".join("1" * 16)}}},
 float[4, 2] v = {{{", ".join("1" * 8)}}}> {{
  c = Equal (rate, high)
  y = If (c) <
    then_branch = t () => (a) {{ a = MatMul (x, w) }},
    else_branch = e () => (b) {{ b = MatMul (x, v) }}>
}}"""


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
@pytest.mark.parametrize("verb", ["plan", "bench", "verify"])
def test_a_branch_that_is_never_taken(cli: Glnn, verb: str, backend: str, tmp_path: Path) -> None:
    try:
        open_backend(backend)
    except DeviceError as error:
        pytest.skip(str(error))
    path = tmp_path / "two.onnx"
    path.write_bytes(parser.parse_model(TEXT).SerializeToString())
    np.save(tmp_path / "rate.npy", np.array(16000))
    np.save(tmp_path / "x.npy", np.ones((1, 8), np.float32))
    option = "--backends" if verb == "bench" else "--backend"
    files = [f"{name}={tmp_path / name}.npy" for name in ("x", "rate")]
    found = cli(verb, path, *files, option, backend, "--json")
    assert found.code == 0, found.err
    assert set(found.json["inputs"]) == {"x", "rate"}


def test_a_branch_that_fits_no_sizes_without_the_numbers_that_choose_it(
    cli: Glnn, tmp_path: Path
) -> None:
    """The error says which input's numbers would choose a branch."""
    path = tmp_path / "two.onnx"
    path.write_bytes(parser.parse_model(TEXT).SerializeToString())
    found = cli("plan", path, "--backend", "cpu", "--shape", "x=1,8")
    assert found.code == 2
    assert "(1, 8)" in found.err and "depend on the numbers of 'rate'" in found.err


NESTED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, N] x, int64 rate) => (float[A, B] y)
<int64 high = {16000}> {
  c = Equal (rate, high)
  y = If (c) <
    then_branch = t () => (a) {
      n = Shape (x)
      m = ReduceMax <keepdims = 0> (x)
      q = Cast <to = 9> (m)
      a = If (q) <
        then_branch = t2 () => (r) { k = ConstantOfShape (n)  s = Selu (k)  r = Add (s, x) },
        else_branch = e2 () => (o) { o = Neg (x) }>
    },
    else_branch = e () => (b) { b = Identity (x) }>
}"""


def test_a_branch_in_a_branch_is_planned_though_its_cost_is_not_known(
    cli: Glnn, tmp_path: Path
) -> None:
    path = tmp_path / "nested.onnx"
    path.write_bytes(parser.parse_model(NESTED).SerializeToString())
    found = cli("plan", path, "--backend", "cpu", "--shape", "x=1,2", "--json")
    assert found.code == 0, found.err
