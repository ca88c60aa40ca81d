"""What a stored plan gives: bit for bit what the plan gave that was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.core.disk_cache import DiskCache
from glnn.core.settings import Settings
from glnn.errors import GlnnError
from glnn.gl import Device
from tests.models.test_image_outputs import LARGE, check, expected, network
from tests.random_models import random_model
from tests.stored_runs import Twice, numbers, same, written

onnx = pytest.importorskip("onnx")
TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
Old = Callable[[Path], Path]


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("seed", [0, 5, 7])
def test_a_random_network(seed, backend, keeping: Device, tmp_path: Path, old: Old) -> None:
    random_model(seed).save(tmp_path / "net.json")
    precision = "float16" if seed == 0 else "float32"
    options = {"backend": backend, "device": keeping, "precision": precision}
    twice = Twice(old(tmp_path / "net.json"), options)
    (info,) = twice.session().get_inputs()
    feeds = [{info.name: numbers(i, info.with_batch(2))} for i in range(3)]
    expected = twice.cold(feeds[0])
    same(twice.warm(feeds[0]), expected)
    made, found = glnn.InferenceSession(twice.path, "cpu"), twice.session()
    for one in feeds:
        got = found.run(None, one)
        for a, b in zip(got, made.run(None, one), strict=True):
            assert np.allclose(a, b, rtol=1e-2 if seed == 0 else 1e-4, atol=1e-2)
    futures = [found.run_async(None, one) for one in (*feeds, *feeds)]  # in two BufferSets
    for one, future in zip((*feeds, *feeds), futures, strict=True):
        same(future.result(), found.run(None, one))
    assert found.restored


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_images_that_come_in_rows(
    backend, keeping: Device, tmp_path: Path, old: Old, rng, monkeypatch
) -> None:
    offers = replace(keeping.capabilities, dedicated_memory=True, buffer_storage=False)
    monkeypatch.setattr(keeping, "capabilities", offers)
    model, weights = network(rng)
    model.save(tmp_path / "net.json")
    twice = Twice(old(tmp_path / "net.json"), {"backend": backend, "device": keeping})
    feeds = {"x": rng(LARGE)}
    for found in (twice.cold(feeds), twice.warm(feeds)):
        check(found, expected(feeds["x"], weights))


def test_the_least_limits(least: Device, tmp_path: Path, old: Old) -> None:
    random_model(4).save(tmp_path / "net.json")
    twice = Twice(old(tmp_path / "net.json"), {"backend": "feedback", "device": least})
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    same(twice.cold(feeds), twice.warm(feeds))


def _mixed(path: Path) -> Path:
    """Inputs and outputs of many types: given back, constant, a view of an input, empty."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3]),
        helper.make_tensor_value_info("on", TensorProto.BOOL, [2, 6]),
        helper.make_tensor_value_info("bytes", TensorProto.UINT8, [2, 6]),
    ]
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    constants = {"w": weight, "table": table, "shape": np.array([3, 4]), "none": np.zeros((0, 3))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Reshape", ["x", "shape"], ["seen"]),
        helper.make_node("Identity", ["x"], ["again"]),
        helper.make_node("Identity", ["w"], ["fixed"]),
        helper.make_node("Cast", ["bytes"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Where", ["on", "x", "wide"], ["chosen"]),
        helper.make_node("Add", ["ids", "ids"], ["sum"]),
    ]
    outputs = ["y", "rows", "seen", "again", "fixed", "chosen", "sum", "none"]
    graph = helper.make_graph(
        nodes,
        "mixed",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [
            numpy_helper.from_array(a.astype(np.float32) if n == "none" else a, n)
            for n, a in constants.items()
        ],
    )
    types = dict.fromkeys(outputs, TensorProto.FLOAT) | {"sum": TensorProto.INT64}
    for output in graph.output:
        output.type.tensor_type.elem_type = types[output.name]
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_inputs_and_outputs_of_all_kinds(
    backend, keeping: Device, tmp_path: Path, old: Old
) -> None:
    twice = Twice(old(_mixed(tmp_path / "n.onnx")), {"backend": backend, "device": keeping})
    generator = np.random.default_rng(1)
    feeds = {
        "x": numbers(1, (2, 6)),
        "ids": generator.integers(0, 9, (2, 3)),
        "on": generator.random((2, 6)) < 0.5,
        "bytes": generator.integers(0, 255, (2, 6)).astype(np.uint8),
    }
    expected = twice.cold(feeds)
    same(twice.warm(feeds), expected)
    session = twice.session()
    names = [one.name for one in session.get_outputs()]
    out = {"y": np.empty((2, 5), np.float32), "sum": np.empty((2, 3), np.int64)}
    some = session.run(["sum", "fixed", "y"], feeds, out=out)
    same(some, [expected[names.index(name)] for name in ("sum", "fixed", "y")])
    assert some[0] is out["sum"] and some[2] is out["y"] and session.restored
    some[1][...] = 0  # it is the caller's own
    same(session.run(["fixed"], feeds), [expected[names.index("fixed")]])
    there = {name: glnn.DeviceArray(array) for name, array in feeds.items()}
    for _ in range(2):  # inputs and outputs that lie on the device, views of one another too
        kept = session.run(None, there, out=dict.fromkeys(names, glnn.DeviceArray))
        again = session.run(None, {**feeds, "x": kept[names.index("again")]})
        same([one.numpy() for one in kept], expected)
        same(again, expected)
    assert session.restored
    far = {**feeds, "ids": np.array([[1, 2, 3], [4, 5, 9]]) + (1 << 40)}
    with pytest.raises(GlnnError):  # as by the plan that was made
        session.run(None, far)


def test_other_shapes_are_planned_and_stored_beside(
    keeping: Device, tmp_path: Path, old: Old
) -> None:
    random_model(9).save(tmp_path / "net.json")
    twice = Twice(old(tmp_path / "net.json"), {"backend": "compute", "device": keeping})
    (info,) = twice.session().get_inputs()
    before = {
        entry.name for entry in DiskCache.from_settings(Settings.from_environment()).entries()
    }
    one, two = ({info.name: numbers(0, info.with_batch(n))} for n in (1, 2))
    expected = [twice.cold(one)]
    session = twice.session()
    same(session.run(None, one), expected[0])
    assert session.restored
    expected.append(session.run(None, two))
    assert not session.restored
    written(session)
    third = twice.session()
    for feeds, found in zip((one, two), expected, strict=True):
        same(third.run(None, feeds), found)
    assert third.restored
    kept = [entry.name for entry in DiskCache.from_settings(Settings.from_environment()).entries()]
    (plans,) = (name for name in kept if name.startswith("plans/") and name not in before)
    key = plans.removeprefix("plans/")[:32]
    assert sum(name.startswith(f"weights/{key}") for name in kept) == 1  # both plans'


def test_what_fails_while_a_plan_is_kept_is_nobody_s_error(
    keeping: Device, tmp_path: Path, old: Old, monkeypatch
) -> None:
    def failing(plan: object) -> None:
        raise MemoryError("no room to say why not")

    random_model(4).save(tmp_path / "net.json")
    monkeypatch.setattr("glnn.compiler.executor._why_not_saved", failing)
    options = {"backend": "compute", "device": keeping}
    for ask in (lambda s, f: s.run(None, f), lambda s, f: s.run_async(None, f).result(60)):
        session = Twice(old(tmp_path / "net.json"), options).session()
        (info,) = session.get_inputs()
        feeds = {info.name: numbers(0, info.with_batch(1))}
        assert ask(session, feeds) and ask(session, feeds)


def test_a_path_from_the_root_on(keeping: Device, tmp_path: Path, old: Old, monkeypatch) -> None:
    """Which sessions that were pickled have: the same plan is found."""
    random_model(9).save(tmp_path / "net.json")
    old(tmp_path / "net.json")
    monkeypatch.chdir(tmp_path)
    twice = Twice(Path("net.json"), {"backend": "compute", "device": keeping})
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    expected = twice.cold(feeds)
    whole = Twice(tmp_path / "net.json", twice.options)
    same(whole.warm(feeds), expected)


def test_weights_that_are_assigned_anew(keeping: Device, tmp_path: Path, old: Old) -> None:
    random_model(9).save(tmp_path / "net.json")
    twice = Twice(old(tmp_path / "net.json"), {"backend": "compute", "device": keeping})
    (info,) = twice.session().get_inputs()
    feeds = {info.name: numbers(0, info.with_batch(1))}
    before = twice.cold(feeds)
    session = twice.session()
    same(session.run(None, feeds), before)
    layer = next(one.layer for one in session.model.nodes if "weight" in one.layer.shapes)
    layer.weight = np.zeros(layer.shapes["weight"], np.float32)
    after = session.run(None, feeds)
    assert not session.restored and after[0].tobytes() != before[0].tobytes()
    written(session)
    same(twice.warm(feeds), before)  # what was assigned is not what is in the file


def test_a_warm_start_imports_little(keeping: Device, tmp_path: Path, old: Old, python) -> None:
    path = old(_mixed(tmp_path / "n.onnx"))
    backend = "feedback" if keeping.capabilities.why_no_compute() else "compute"
    code = f"""
import sys, numpy as np
from glnn.session import InferenceSession
session = InferenceSession({str(path)!r}, {backend!r})
feeds = {{"x": np.ones((2, 6), np.float32), "ids": np.ones((2, 3), np.int64)}}
feeds |= {{"on": np.ones((2, 6), bool), "bytes": np.ones((2, 6), np.uint8)}}
print(session.run(None, feeds)[0].tobytes().hex(), session.restored)
heavy = "onnx", "glnn.graph", "glnn.kernels", "glnn.backends", "glnn.compiler", "glnn.layers"
heavy += "glnn.model", "glnn.onnx"
print([name for name in sys.modules if name.startswith(heavy)])
"""
    cold, warm = (python(code).stdout.splitlines() for _ in range(2))
    assert cold[0].split()[0] == warm[0].split()[0]
    assert (cold[0].split()[1], warm[0].split()[1]) == ("False", "True")
    assert warm[1] == "[]"


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_no_process_had_before(
    backend, batch, keeping: Device, tmp_path: Path, old: Old
) -> None:
    """One stored plan is for a range of widths, also where the batch is open and is 1."""
    shape = ["N", 3, "H", "W"]
    weight = numbers(1, (4, 3, 3, 3))
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, "H", "W"])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    twice = Twice(old(tmp_path / "net.onnx"), {"backend": backend, "device": keeping})
    twice.cold({"x": numbers(2, (batch, 3, 40, 44))})
    host = glnn.InferenceSession(twice.path, "cpu")
    session = twice.session()
    for height, width in ((40, 44), (43, 61), (101, 33)):
        feeds = {"x": numbers(height, (batch, 3, height, width))}
        (found,) = session.run(None, feeds)
        assert session.restored, (height, width)
        assert np.allclose(found, host.run(None, feeds)[0], rtol=1e-4, atol=1e-4)


def test_sizes_that_were_seen_to_be_right_after_a_plan_was_stored(
    cache: Path, tmp_path: Path, old: Old, monkeypatch
) -> None:
    """As of a cache that grows: the plan is written again, in the place of the one before."""
    monkeypatch.setenv("GLNN_TRUST", "0")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Softmax", ["p"], ["y"], axis=1),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "P", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "P", 8])],
        [numpy_helper.from_array(numbers(1, (24, 8)), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    with Device() as device:
        twice = Twice(old(tmp_path / "net.onnx"), {"backend": "compute", "device": device})
        session = twice.session()
        for length in (32, 60, 100):
            session.run(None, {"x": numbers(length, (1, length, 24))})
            written(session)
        assert len(session._lazy.loaded.executor.saving._writer._slot.index()[0].plans) == 1
        again = twice.session()
        for length in (100, 32, 61, 110):
            feeds = {"x": numbers(length, (1, length, 24))}
            (found,) = again.run(None, feeds)
            assert again.restored, length
            assert np.allclose(found, glnn.InferenceSession(twice.path, "cpu").run(None, feeds)[0])


MASK = """<ir_version: 9, opset_import: ["": 20]>
    masked (float[1, P, 8] x) => (float[A, B, C] y, float[D, E, F] large)
    <int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}, float low = {-10000}, float no = {0},
     float[1] scale = {0.1}, float[3] scales = {1, 2.5, 1}> {
        s = Shape (x)  n = Gather <axis = 0> (s, one)  r = Range (zero, n, one)
        c = Unsqueeze (r, axis)  m = Greater (r, c)  f = Where (m, low, no)
        t = Transpose <perm = [0, 2, 1]> (x)  p = MatMul (x, t)
        q = Add (p, f)  a = Softmax (q)
        g = Cast <to = 1> (c)  h = Mul (g, scale)  i = Sin (h)
        y = Add (a, i)
        large = Resize <mode = "linear"> (x, , scales)
    }"""
"""A causal mask, sines of positions and tables by which a sequence is enlarged."""


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_weights_that_follow_from_sizes(
    backend, keeping: Device, tmp_path: Path, old: Old, python
) -> None:
    """They are made anew for sizes that no process had, without what made the plan."""
    path = tmp_path / "masked.onnx"
    onnx.save(onnx.parser.parse_model(MASK), path)
    twice = Twice(old(path), {"backend": backend, "device": keeping})
    feeds = {size: {"x": numbers(size, (1, size, 8))} for size in (20, 1, 9, 23, 31)}
    session = twice.session()
    expected = {size: session.run(None, given) for size, given in feeds.items()}
    assert not session.restored
    written(session)
    assert any(
        len(plan.executable.array_program.calls) > 9 for plan in session._executor.range_plans
    )  # type: ignore[union-attr]
    warm, host = twice.session(), glnn.InferenceSession(path, "cpu")
    for size, given in feeds.items():
        found = warm.run(None, given)
        assert warm.restored
        same(found, expected[size])
        for got, right in zip(found, host.run(None, given), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
    code = f"""
import sys, numpy as np
from glnn.session import InferenceSession
session = InferenceSession({str(path)!r}, {backend!r})
for size in (1, 11, 30, 13):
    y, large = session.run(None, {{"x": np.ones((1, size, 8), np.float32)}})
    print(y.tobytes().hex(), large.tobytes().hex())
heavy = "onnx", "glnn.graph", "glnn.kernels", "glnn.backends", "glnn.compiler", "glnn.onnx"
print(session.restored, [name for name in sys.modules if name.startswith(heavy)])
"""
    cold, warm = (python(code).stdout.splitlines() for _ in range(2))
    assert cold[:-1] == warm[:-1] and warm[-1] == "True []"
