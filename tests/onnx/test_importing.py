"""ONNX files as they should not be, tensors in files beside them, and versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import glnn
from glnn import onnx_backend
from glnn.errors import LimitError, ModelError, ShapeError, extra
from glnn.session import InferenceSession
from tests.onnx import fuzz

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
ADD = "g (float[2, 3] x, float[2, 3] w) => (float[2, 3] y) { y = Add (x, w) }"


def parsed(text: str, head: str = HEAD) -> Any:
    return parser.parse_model(head + text)


def session(model: Any, backend: str = "cpu") -> InferenceSession:
    return InferenceSession(model.SerializeToString(), backend)


def with_weight(tensor: TensorProto) -> Any:
    """x + w, `tensor` being w."""
    model = parsed(ADD)
    del model.graph.input[1]
    model.graph.initializer.append(tensor)
    return model


def outside(**entries: Any) -> TensorProto:
    tensor = TensorProto(name="w", data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


class TestTensorsInFiles:
    @pytest.fixture
    def load(self, tmp_path) -> Any:
        folder = tmp_path / "models"
        (folder / "sub").mkdir(parents=True)
        numbers = np.arange(8, dtype=np.float32)
        for path in (folder / "w.bin", folder / "sub" / "w.bin", tmp_path / "secret"):
            path.write_bytes(numbers.tobytes())
        (folder / "link").symlink_to(tmp_path / "secret")
        (folder / "inner").symlink_to(folder / "sub" / "w.bin")

        def load(**entries: Any) -> InferenceSession:
            path = folder / "net.onnx"
            path.write_bytes(with_weight(outside(**entries)).SerializeToString())
            return InferenceSession(path, "cpu")

        return load

    @pytest.mark.parametrize(
        ("entries", "first"),
        [
            ({"location": "w.bin", "length": 24}, 0),
            ({"location": "sub/w.bin", "offset": 8, "length": 24}, 2),
            ({"location": "inner", "offset": 4}, 1),
        ],
    )
    def test_are_read(self, load, entries, first) -> None:
        x = np.zeros((2, 3), np.float32)
        (got,) = load(**entries).run(None, {"x": x})
        np.testing.assert_array_equal(got, np.arange(first, first + 6).reshape(2, 3))

    @pytest.mark.parametrize(
        ("entries", "message"),
        [
            ({}, "expected a file name, got None"),
            ({"location": ""}, "expected a file name"),
            ({"location": "none.bin"}, "no such file"),
            ({"location": "/etc/passwd"}, "must be relative to the model's folder"),
            ({"location": "C:\\w.bin"}, "must be relative to the model's folder"),
            ({"location": "../secret"}, "leaves the model's folder"),
            ({"location": "sub/../../secret"}, "leaves the model's folder"),
            ({"location": "link"}, "leaves the model's folder"),
            ({"location": "sub"}, "is not a file"),
            ({"location": "w\x00"}, "is not a usable file name"),
            ({"location": "w.bin", "offset": 12}, "has 32 bytes, 24 from 12 on are wanted"),
            ({"location": "w.bin", "offset": 10**17}, "has 32 bytes"),
            ({"location": "w.bin", "offset": -4}, "offset must be a number of bytes"),
            ({"location": "w.bin", "length": "1e3"}, "length must be a number of bytes"),
            ({"location": "w.bin", "length": 20}, "take 24 bytes, got 20"),
        ],
    )
    def test_that_are_refused(self, load, entries, message) -> None:
        with pytest.raises(ModelError, match=message):
            load(**entries)

    def test_beside_the_file_that_a_link_leads_to(self, load, tmp_path) -> None:
        """Caches of models are folders of links to files with other names."""
        blobs, links = tmp_path / "blobs", tmp_path / "links"
        blobs.mkdir()
        links.mkdir()
        (blobs / "a").write_bytes(with_weight(outside(location="w.bin")).SerializeToString())
        (tmp_path / "models" / "w.bin").rename(blobs / "b")
        (links / "net.onnx").symlink_to(blobs / "a")
        (links / "w.bin").symlink_to(blobs / "b")
        (got,) = InferenceSession(links / "net.onnx", "cpu").run(None, {"x": np.zeros((2, 3), "f")})
        np.testing.assert_array_equal(got, np.arange(6).reshape(2, 3))
        (links / "w.bin").unlink()
        (links / "w.bin").symlink_to(tmp_path / "secret")
        with pytest.raises(ModelError, match="leaves the model's folder"):
            InferenceSession(links / "net.onnx", "cpu")

    def test_of_a_model_given_as_bytes(self) -> None:
        with pytest.raises(ModelError, match="in a file, which a model given as bytes cannot name"):
            session(with_weight(outside(location="w.bin")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_data": bytes(20)}, "take 24 bytes, got 20"),
        ({"raw_data": bytes(28)}, "take 24 bytes, got 28"),
        ({"dims": [-2, -3]}, "its sizes must be from 0"),
        ({"dims": [2**40, 2**40]}, "its sizes must be from 0"),
        ({"data_type": 99}, "unknown tensor type 99"),
        ({"data_type": 0}, "unknown tensor type 0"),
        ({"raw_data": None, "float_data": [1.0] * 5}, "cannot reshape|numbers"),
    ],
)
def test_tensors_that_are_not_what_they_say(change, message) -> None:
    tensor = numpy_helper.from_array(np.zeros((2, 3), np.float32), "w")
    for name, value in change.items():
        if value is None:
            tensor.ClearField(name)
        elif isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    with pytest.raises(ModelError, match=message):
        session(with_weight(tensor))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("g (float[N] x) => (float[N] y) { y = Neg (z) z = Neg (y) }", "nodes need each other"),
        ("g (float[N] x) => (float[N] y) { y = Neg (q) }", "reads 'q', which no node makes"),
        ("g (float[N] x) => (float[N] q) { y = Neg (x) }", "nothing makes the output 'q'"),
        ("g (float[N] x) => (float[N] y) { y = Neg (x) y = Abs (x) }", "'y' is made twice"),
        ("g (float[N] x, float[N] x) => (float[N] y) { y = Neg (x) }", "an input needs a name of"),
        ("g (float[N] x) => (float[N] y) { y = Neg (x, x) }", "Neg has 1 to 1 operands, got 2"),
        ("g (float[N] x) => (float[N] y) { y = Nag (x) }", "Nag, which version 17 .* has not"),
        ("g (float[N] x) => (float[N] y) { y = relu (x) }", "has not: did you mean 'Relu'"),
        ("g (float[N] x) => (float[N] y) { y = com.own.Neg (x) }", "operator set 'com.own', which"),
        ("g (float[N] x) => (float[N] y) { y = Cast (x) }", "Cast lacks the attribute 'to'"),
        ("g (float[N] x) => (float[N] y) { y = Elu <alpha = 1> (x) }", "'alpha' must be of type"),
        ("g (float[2] x) => (float[N] y) { w = Constant <value = float[3] {1, 2, 3}> () "
         "y = Add (x, w) }", "Add.*broadcast"),
        ("g (float[2] x, int32[2] w) => (float[N] y) { y = MatMul (x, w) }", "MatMul"),
        ("g (float[N] x) => (float[M] y) { s = Constant <value_ints = [-5]> () "
         "y = ConstantOfShape (s) }", "no tensor has the shape"),
        ("g (float[N, 4611686018427387904] x) => (float[N] y) { y = Neg (x) }", "must be sizes of"),
        ('g (float[N, 4] x) => (float[N] y) { y = Einsum <equation = "ii..->q"> (x) }',
         "dots of .* are not one ellipsis"),  # ONNX's own inference would not end
    ],
)  # fmt: skip
def test_graphs_that_do_not_hold_together(text, message) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        session(parsed(text))
    assert "\n" not in str(caught.value)


def test_sizes_that_no_memory_holds() -> None:
    text = "g (float[1] x) => (float[A, B] y) { s = Constant <value_ints = [60000, 60000]> () "
    with pytest.raises(ModelError, match=r"no tensor has the shape \(60000, 60000\)"):
        session(parsed(text + "r = ConstantOfShape (s) y = Add (x, r) }"))
    text = "g (float[1] x, int64[1] n) => (float[A] y) { y = Expand (x, n) }"
    one = session(parsed(text))
    x = np.ones(1, np.float32)
    np.testing.assert_array_equal(one.run(None, {"x": x, "n": np.array([3])})[0], np.ones(3))
    with pytest.raises((LimitError, ShapeError)):
        one.run(None, {"x": x, "n": np.array([2**62])})


def test_files_that_are_no_models(tmp_path) -> None:
    content = parsed(ADD).SerializeToString()
    for bad in (b"", b"\x00", content[: len(content) // 2], b"not an ONNX model", content[:-1]):
        (tmp_path / "net.onnx").write_bytes(bad)
        with pytest.raises(ModelError, match=r"net\.onnx"):
            glnn.load(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="no such file"):
        glnn.load(tmp_path / "none.onnx")


@pytest.mark.parametrize("depth", [3, 20])
def test_graphs_too_deep_in_each_other(depth) -> None:
    def graph(*nodes: Any) -> Any:
        return helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info("y")])

    inner = other = graph(helper.make_node("Neg", ["x"], ["y"]))
    for _ in range(depth):
        inner = graph(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=other))
    given = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [2])]
    inner.input.extend(given)
    model = helper.make_model(inner, opset_imports=[helper.make_opsetid("", 17)])
    x = np.array([1, -2], np.float32)
    if depth == 3:
        assert session(model).run(None, {"c": np.array(True), "x": x})[0].tolist() == [-1, 2]
        return
    with pytest.raises(ModelError, match="more than 12 graphs") as caught:
        session(model)
    assert "\n" not in str(caught.value)


def test_versions_of_operator_sets() -> None:
    newest = onnx.defs.onnx_opset_version()
    text = "g (float[N] x) => (float[N] y) { y = Neg (x) }"
    for version in (1, 5, 6, 12, 13, newest):
        x = np.array([1, -2], np.float32)
        head = f'<ir_version: 8, opset_import: ["" : {version}]>'
        np.testing.assert_array_equal(session(parsed(text, head)).run(None, {"x": x})[0], -x)
    for version in (0, -1, newest + 1, 2**40):
        head = f'<ir_version: 8, opset_import: ["" : {max(version, 1)}]>'
        model = parsed(text, head.replace(str(2**40), "9"))
        model.opset_import[0].version = version
        with pytest.raises(ModelError, match=rf"version {version} .* has 1 to {newest}"):
            session(model)
    text = "g (float[N] x) => (float[N] y) { y = Gelu (x) }"
    with pytest.raises(ModelError, match=r"Gelu, which version 17 of the operator set ai\.onnx"):
        session(parsed(text))


def test_older_forms_of_operators(rng) -> None:
    """Legacy broadcasting along an axis, sizes as attributes, and a Dropout that was told."""
    x, w = rng((2, 3, 4)), rng((3,))
    text = """
    g (float[2, 3, 4] x, float[3] w) => (float[2, 4] y) {
      a = Add <axis = 1, broadcast = 1> (x, w)
      b = Reshape <shape = [2, 3, -1]> (a)
      c = Dropout <is_test = 1, ratio = 0.5> (b)
      d = Slice <axes = [1], starts = [1], ends = [2]> (c)
      y = Squeeze <axes = [1]> (d)
    }"""
    for version in (1, 6):
        if version == 6:
            text = text.replace("b = Reshape <shape = [2, 3, -1]> (a)", "b = Identity (a)")
        head = f'<ir_version: 3, opset_import: ["" : {version}]>'
        found = session(parsed(text, head)).run(None, {"x": x, "w": w})[0]
        np.testing.assert_array_equal(found, (x + w[:, None])[:, 1])


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ("onnx", extra("onnx")),
        ("onnx.reference", "[[-1.0, 0.0]]"),
    ],
)
def test_without_the_package(tmp_path, hidden, message) -> None:
    """With no reference implementations, all that has a converter still works."""
    text = "g (float[N] x) => (float[N] y) { y = Neg (x) }"
    (tmp_path / "net.onnx").write_bytes(parsed(text).SerializeToString())
    code = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "import numpy, glnn\n"
        "try:\n"
        f"    session = glnn.InferenceSession({str(tmp_path / 'net.onnx')!r}, 'cpu')\n"
        "    print([r.tolist() for r in session.run(None, {'x': numpy.array([1, -0.0], 'f')})])\n"
        "except glnn.errors.GlnnError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert message in done.stdout


def test_numbers_beyond_int32(gpu_backend) -> None:
    """An end of a slice may be as large as it likes; indices must be found, or are refused."""
    text = """
    g (float[N] x, int64[1] end, int64[K] at) => (float[M] y, float[K] z, int64[K] w) {
      start = Constant <value_ints = [1]> ()
      y = Slice (x, start, end)
      z = Gather (x, at)
      w = Mul (at, at)
    }"""
    x = np.arange(4, dtype=np.float32)
    one = session(parsed(text), gpu_backend)
    y, z, w = one.run(None, {"x": x, "end": np.array([2**63 - 1]), "at": np.array([3, -1])})
    assert (y.tolist(), z.tolist(), w.tolist()) == ([1, 2, 3], [3, 3], [9, 1])
    with pytest.raises(
        ShapeError, match="input 'at' must be indices from -4 to 3, of a table of 4"
    ):
        one.run(None, {"x": x, "end": np.array([2]), "at": np.array([2**40, 0])})
    only = "g (int64[K] at) => (int64[K] w) { w = Mul (at, at) }"
    (w,) = session(parsed(only), gpu_backend).run(None, {"at": np.array([2**31, -3])})
    assert w.tolist() == [2**62, 9]


@pytest.fixture(params=["compute", "feedback"])
def gpu_backend(request) -> str:
    return str(request.param)


def test_what_the_host_computes_is_said(gpu_backend, caplog, monkeypatch) -> None:
    text = """
    g (float[N] x, double[N] i) => (float[N] y, double[N] j) {
      y = Relu (x)
      j = Mul (i, i)
    }"""
    model = parsed(text)
    one = session(model, gpu_backend)
    feeds = {"x": np.ones(2, np.float32), "i": np.array([1.0, 2.0])}
    for size in (2, 3):
        one.run(None, {name: np.resize(array, size) for name, array in feeds.items()})
    said = [record.getMessage() for record in caplog.records if "the host" in record.getMessage()]
    reason = "mul (float64 is the host's)"
    assert one.hosted == (reason,)
    assert said == [f"g: the host computes {reason} in Mul_1"]
    monkeypatch.delenv("GLNN_BACKEND")  # a software renderer's kernels are those of a GPU
    gpu, host = (one.on_gpu for one in onnx_backend.supports(model))
    assert gpu and not host
    relu, mul = onnx_backend.supports(model, backend=gpu_backend)
    assert (relu.node, relu.operator, relu.on_gpu, relu.reason) == ("Relu_0", "Relu", True, "")
    assert (mul.node, mul.operator, mul.on_gpu, mul.reason) == ("Mul_1", "Mul", False, reason)


def test_a_model_as_a_table() -> None:
    text = """
    g (float[N, 3] x, seq(int32[M]) s) => (float[N, 2] y, int64 n) {
      a = MatMul (x, w)
      y = Relu (a)
      n = SequenceLength (s)
    }"""
    model = parsed(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    one = session(model).model
    assert str(one).splitlines() == [
        "g: x (N, 3), s seq(tensor(int32)) -> y, n, 6 parameters",
        "layer             kind            output  parameters",
        "MatMul_0          MatMul          (N, 2)           6",
        "Relu_1            Relu            (N, 2)           0",
        "SequenceLength_2  SequenceLength  ()               0",
    ]
    assert list(one.parameters()) == ["w"] and one.parameters()["w"].shape == (3, 2)


def test_a_short_run_of_the_fuzzer(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    found = list(fuzz.fuzz(200, 1000, 1, folder))
    assert len(found) == 200
    assert not [one for one in found if one.kind.startswith("FAULT")]
    assert sum(one.kind == "ran" for one in found) > 20


def test_max_batch_of_a_model_without_dimensions() -> None:
    content = parsed("g (float x) => (float y) { y = Neg (x) }")
    with pytest.raises(ModelError, match=r"needs a batch 'N' first .* shape \(\)"):
        InferenceSession(content.SerializeToString(), "cpu", max_batch=2)


def test_an_output_of_another_type_than_is_said() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (int64[2] y) { y = Relu (x) }'
    )
    with pytest.raises(ModelError, match="the output 'y' is said to be int64, it is float32"):
        InferenceSession(model.SerializeToString(), "cpu")


def test_types_in_attributes_that_say_nothing() -> None:
    """UNDEFINED is a type that is left out where it may be, and no type to cast to."""
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.UNDEFINED)
    eye = helper.make_node("EyeLike", ["x"], ["y"], dtype=TensorProto.UNDEFINED)
    ends = [
        helper.make_tensor_value_info(name, kind, (2, 2))
        for name, kind in (("x", TensorProto.FLOAT), ("y", TensorProto.FLOAT16))
    ]
    model = helper.make_model(helper.make_graph([cast], "g", ends[:1], ends[1:]))
    with pytest.raises(ModelError, match=r"attribute 'to': unknown tensor type 0$"):
        InferenceSession(model.SerializeToString(), "cpu")
    ends[1].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(helper.make_graph([eye], "g", ends[:1], ends[1:]))
    (found,) = InferenceSession(model.SerializeToString(), "cpu").run(
        None, {"x": np.ones((2, 2), np.float32)}
    )
    np.testing.assert_array_equal(found, np.eye(2, dtype=np.float32))
