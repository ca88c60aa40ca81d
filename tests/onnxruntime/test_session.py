"""Sessions, against ONNX Runtime's own."""

from __future__ import annotations

import json
import pickle
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from tests.onnxruntime.models import F, identity, proto

SHAPE = "Please fix either the inputs/outputs or the model."
CPU = ["CPUExecutionProvider"]


def test_inputs_and_outputs(session) -> None:
    said = [str(one) for one in (*session.get_inputs(), *session.get_outputs())]
    assert said == [
        "NodeArg(name='x', type='tensor(float)', shape=['N', 3])",
        "NodeArg(name='i', type='tensor(int64)', shape=[None, 2])",
        "NodeArg(name='y', type='tensor(float)', shape=['N', 3])",
        "NodeArg(name='j', type='tensor(int64)', shape=[None, 2])",
        "NodeArg(name='z', type='tensor(float)', shape=['M', 3])",
    ]
    with pytest.raises(AttributeError):
        session.get_inputs()[0].name = "other"
    assert session.get_overridable_initializers() == []


@pytest.mark.parametrize("shape", [[], None, [-1, "a b", 0], ["?"], ["..."], ["N", "N"]])
def test_shapes_as_the_file_has_them(ort, shape) -> None:
    loaded = ort.InferenceSession(identity(F, shape), providers=CPU)
    expected = [None if size == -1 else size for size in shape or []]
    assert loaded.get_inputs()[0].shape == expected == loaded.get_outputs()[0].shape


@pytest.mark.parametrize(
    ("type", "name"),
    [
        (1, "float"),
        (2, "uint8"),
        (3, "int8"),
        (5, "int16"),
        (6, "int32"),
        (7, "int64"),
        (8, "string"),
        (9, "bool"),
        (10, "float16"),
        (11, "double"),
        (12, "uint32"),
    ],
)
def test_types_survive_a_run(ort, type, name) -> None:
    loaded = ort.InferenceSession(identity(type), providers=CPU)
    assert loaded.get_inputs()[0].type == f"tensor({name})" == loaded.get_outputs()[0].type
    array = np.array(["a", ""], object) if type == 8 else np.array([1, 0])
    array = array.astype(helper.tensor_dtype_to_np_dtype(type))
    (found,) = loaded.run(None, {"x": array})
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()
    (found,) = loaded.run(None, {"x": array.tolist()})
    assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())


def test_what_a_file_says_of_itself(session) -> None:
    about = session.get_modelmeta()
    assert about.custom_metadata_map == {"labels": "a,b"}
    assert (about.producer_name, about.domain, about.version) == ("a producer", "a domain", 7)
    assert (about.description, about.graph_description) == ("a model", "what it does")
    assert about.graph_name == "a graph"


def test_what_a_file_does_not_say(ort) -> None:
    about = ort.InferenceSession(identity(F), providers=CPU).get_modelmeta()
    assert about.custom_metadata_map == {}
    assert (about.producer_name, about.version) == ("", 2**63 - 1)


@pytest.mark.parametrize("names", [None, [], ["y", "j", "z"], ("y", "j", "z")])
def test_a_run(session, feeds, y, names) -> None:
    found = session.run(names, feeds)
    for array, expected in zip(found, (y, feeds["i"], np.maximum(y, 0)), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype
    twice = session.run(["y", "y"], input_feed=feeds, run_options=None)
    np.testing.assert_array_equal(twice, [y, y])


def test_inputs_that_are_no_plain_arrays(ort, session, feeds, y) -> None:
    others = [
        feeds["x"].tolist(),
        ort.OrtValue.ortvalue_from_numpy(feeds["x"]),
        np.asfortranarray(feeds["x"]),
        feeds["x"][::-1][::-1],
        np.ma.masked_array(feeds["x"]),
    ]
    for x in others:
        np.testing.assert_array_equal(session.run(["y"], {**feeds, "x": x})[0], y)
    (j,) = session.run(["j"], {**feeds, "i": [[1.7, True]]})
    assert (j.tolist(), j.dtype) == ([[1, 1]], np.int64)
    assert session.run(["y"], {**feeds, "x": np.empty((0, 3), np.float32)})[0].shape == (0, 3)


WRONG = {
    "another type": ({"x": np.ones((2, 3))}, "Unexpected input data type. Actual: (tensor(double)) "
                     ", expected: (tensor(float))"),
    "integers": ({"i": np.ones((2, 2), np.int32)}, "Unexpected input data type. Actual: "
                 "(tensor(int32)) , expected: (tensor(int64))"),
    "texts": ({"x": np.array([["a"]])}, "Unexpected input data type. Actual: (tensor(string)) , "
              "expected: (tensor(float))"),
    "fewer dimensions": ({"x": np.ones(3, np.float32)},
                         f"Invalid rank for input: x Got: 1 Expected: 2 {SHAPE}"),
    "another size": ({"x": np.ones((2, 4), np.float32)}, "Got invalid dimensions for input: x for "
                     f"the following indices\n index: 1 Got: 4 Expected: 3\n {SHAPE}"),
    "an unknown input": ({"q": np.ones(3, np.float32)}, "Invalid input name: q"),
    "a constant": ({"w": np.ones(3, np.float32)}, "Invalid input name: w"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs(session, states, feeds, case) -> None:
    more, text = WRONG[case]
    for _ in range(2):  # also behind a run that was right
        with pytest.raises(states.InvalidArgument) as caught:
            session.run(None, {**feeds, **more})
        assert str(caught.value) == f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {text}"
        session.run(None, feeds)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.ones((2, 3), np.complex64), "Numpy_type 14 can't be converted to MLDataType."),
        ([["a", 1, 2]], "Could not create tensor from given input list"),
        ([[1], [2, 3]], "Could not create tensor from given input list"),
        (1.0, "Unable to handle object of type <class 'float'>"),
        (((1,),), "Input must be a list of dictionaries or a single numpy array for input 'x'."),
    ],
)
def test_inputs_that_are_no_tensors(session, feeds, x, text) -> None:
    with pytest.raises(RuntimeError) as caught:
        session.run(None, {**feeds, "x": x})
    assert str(caught.value) == text


def test_missing_inputs(session, feeds) -> None:
    text = r"Required inputs \(\['i'\]\) are missing from input feed \(\['x'\]\)\."
    for run in (session.run, session.run_with_ort_values):
        with pytest.raises(ValueError, match=text):
            run(None, {"x": feeds["x"]})
    with pytest.raises(ValueError, match=text):
        session.run_async(None, {"x": feeds["x"]}, print, None)
    with pytest.raises(AttributeError):
        session.run(None, [feeds["x"], feeds["i"]])


def test_wrong_outputs_and_options(session, states, feeds) -> None:
    with pytest.raises(states.InvalidArgument, match=r"INVALID_ARGUMENT : Invalid output name:q$"):
        session.run(["q"], feeds)
    for names, options in (("y", None), (["y"], 5), (3, None)):
        with pytest.raises(TypeError):
            session.run(names, feeds, options)


def test_a_run_that_is_told_to_end(ort, session, states, feeds, y) -> None:
    options = ort.RunOptions()
    np.testing.assert_array_equal(session.run(["y"], feeds, options)[0], y)
    options.terminate = True
    text = r"1 : FAIL : Exiting due to terminate flag being set to true\.$"
    with pytest.raises(states.Fail, match=text):
        session.run(["y"], feeds, options)


def test_scalars_may_be_arrays_of_one_number(ort) -> None:
    loaded = ort.InferenceSession(identity(TensorProto.INT64, []), providers=CPU)
    for x in (np.array(16000), np.array([16000]), [16000]):
        assert loaded.run(None, {"x": x})[0].reshape(-1).tolist() == [16000]


def test_lists_of_tensors(ort, states) -> None:
    listed = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, ["n"]))
    node = helper.make_node("SequenceInsert", ["s", "x"], ["t"])
    given = proto([node], [("x", F, ["n"])], [])
    given.graph.input.append(helper.make_value_info("s", listed))
    given.graph.output.append(helper.make_value_info("t", listed))
    loaded = ort.InferenceSession(given.SerializeToString(), providers=CPU)
    assert loaded.get_inputs()[1].type == "seq(tensor(float))"
    one, two = np.ones(2, np.float32), np.zeros(1, np.float32)
    (found,) = loaded.run(None, {"s": [one], "x": two})
    assert [array.tolist() for array in found] == [[1, 1], [0]]
    with pytest.raises(states.InvalidArgument):
        loaded.run(None, {"s": one, "x": two})


def _waited(session, names, given, told=None):
    """What a callback is given: outputs, the object, and an error."""
    there, found = threading.Event(), []

    def take(*given) -> None:
        found.extend(given)
        there.set()

    session.run_async(names, given, take, told)
    assert there.wait(60)
    return found


def test_run_async(session, feeds, y) -> None:
    told = object()
    outputs, given, error = _waited(session, ["y"], feeds, told)
    np.testing.assert_array_equal(outputs[0], y)
    assert given is told
    assert error == ""
    assert len(_waited(session, None, feeds)[0]) == 3
    text = f"Invalid rank for input: x Got: 1 Expected: 2 {SHAPE}"
    assert _waited(session, None, {**feeds, "x": feeds["x"][0]}) == [[], None, text]
    with pytest.raises(TypeError):
        session.run_async(None, feeds, "no function", None)


def test_a_callback_may_run_the_session(session, feeds, y) -> None:
    there, found = threading.Event(), []

    def again(outputs, told, error) -> None:
        found.extend(session.run(["y"], feeds))
        there.set()

    session.run_async(["y"], feeds, again, None)
    assert there.wait(60)
    np.testing.assert_array_equal(found[0], y)


def test_where_models_come_from(ort, content, feeds, y, tmp_path) -> None:
    path = tmp_path / "a model.onnx"
    path.write_bytes(content)
    path.with_suffix(".bin").write_bytes(content)
    for source in (str(path), path, str(path.with_suffix(".bin"))):
        loaded = ort.InferenceSession(source, None, CPU)
        assert loaded._model_path == str(source)
        np.testing.assert_array_equal(loaded.run(["y"], feeds)[0], y)
    loaded = ort.InferenceSession(content, ort.SessionOptions(), providers=CPU)
    assert loaded._model_bytes == content
    assert loaded._inputs_meta[0].name == loaded._sess.inputs_meta[0].name == "x"
    assert loaded._model_meta.graph_name == "a graph"
    assert loaded._outputs_meta[2].name == "z"
    assert loaded._enable_fallback


@pytest.mark.parametrize("given", [None, 5, bytearray(b"a"), memoryview(b"a")])
def test_what_is_no_model(ort, given) -> None:
    with pytest.raises(TypeError, match="Unable to load from type '<class"):
        ort.InferenceSession(given)


def test_files_that_are_no_models(ort, states, content, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    text = f"3 : NO_SUCHFILE : Load model from {path} failed:Load model {path} failed. File doesn't"
    with pytest.raises(states.NoSuchFile) as caught:
        ort.InferenceSession(path, providers=CPU)
    assert str(caught.value) == f"[ONNXRuntimeError] : {text} exist"
    path.write_bytes(b"hello world")
    with pytest.raises(states.InvalidProtobuf) as caught:
        ort.InferenceSession(str(path), providers=CPU)
    text = f"7 : INVALID_PROTOBUF : Load model from {path} failed:Protobuf parsing failed."
    assert str(caught.value) == f"[ONNXRuntimeError] : {text}"
    with pytest.raises(states.InvalidProtobuf, match=r"Failed to load model because protobuf pars"):
        ort.InferenceSession(b"hello world", providers=CPU)
    with pytest.raises(states.InvalidProtobuf):
        ort.InferenceSession(content[: len(content) // 2], providers=CPU)
    with pytest.raises(states.InvalidProtobuf):
        ort.InferenceSession(tmp_path, providers=CPU)
    path.write_bytes(b"")
    for empty in (str(path), b""):
        text = "No graph was found in the protobuf.$"
        with pytest.raises(states.InvalidArgument, match=text):
            ort.InferenceSession(empty, providers=CPU)
    path.write_bytes(b"\x20\0\0\0ORTM" + bytes(60))
    with pytest.raises(Exception, match=r"ONNXRuntimeError.*: FAIL : .*ORT format"):
        ort.InferenceSession(path.rename(tmp_path / "model.ort"), providers=CPU)


def test_models_that_cannot_be(ort, states) -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    given = proto([node], [("x", F, [1])], [("y", F, [1])]).SerializeToString()
    with pytest.raises(Exception, match=r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : .*NoSuchOperat"):
        ort.InferenceSession(given, providers=CPU)
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    given = proto([node], [("x", F, ["a", "b"])], [("y", F, ["c", "d"])]).SerializeToString()
    loaded = ort.InferenceSession(given, providers=CPU)
    with pytest.raises(states.Fail, match=r"^\[ONNXRuntimeError\] : 1 : FAIL : .*"):
        loaded.run(None, {"x": np.ones((2, 3), np.float32)})


class Pickled:
    """How a program makes a session picklable, mixed into a session's class."""

    def __init__(self, path: str, **told: object) -> None:
        super().__init__(path, **told)
        self.path = path

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["path"])


def test_derived_classes_can_be_pickled(ort, monkeypatch, content, feeds, y, tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    kind = type("Kind", (Pickled, ort.InferenceSession), {"__module__": __name__})
    monkeypatch.setitem(globals(), "Kind", kind)
    made = kind(str(tmp_path / "model.onnx"), providers=CPU)
    again = pickle.loads(pickle.dumps(made))
    assert again.get_inputs()[0].name == "x"
    np.testing.assert_array_equal(again.run(["y"], feeds)[0], y)


def test_sessions_can_be_pickled(ours, model, content, feeds, y, tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    options = ours.SessionOptions()
    options.logid = "mine"
    options.add_initializer("w", ours.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32)))
    for source in (tmp_path / "model.onnx", content, model):
        made = ours.InferenceSession(source, options)
        made.mark = 5
        again = pickle.loads(pickle.dumps(made))
        assert again.mark == 5
        assert again.get_session_options().logid == "mine"
        np.testing.assert_array_equal(again.run(["y"], feeds)[0], feeds["x"])


def test_sizes_that_are_given_ahead(ort, states, content, feeds, y) -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 2)
    loaded = ort.InferenceSession(content, options, CPU)
    assert [one.shape for one in loaded.get_inputs()] == [[2, 3], [None, 2]]
    assert loaded.get_outputs()[0].shape == [2, 3]
    np.testing.assert_array_equal(loaded.run(["y"], feeds)[0], y)
    with pytest.raises(states.InvalidArgument, match="index: 0 Got: 1 Expected: 2"):
        loaded.run(["y"], {**feeds, "x": feeds["x"][:1]})


def test_sizes_by_what_they_denote(ort, model, feeds) -> None:
    denoting = ModelProto()
    denoting.CopyFrom(model)
    denoting.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 4)
    loaded = ort.InferenceSession(denoting.SerializeToString(), options, CPU)
    assert loaded.get_inputs()[0].shape == [4, 3]


def test_constants_that_are_given_ahead(ort, content, feeds) -> None:
    options = ort.SessionOptions()
    given = ort.OrtValue.ortvalue_from_numpy(np.full(3, 5, np.float32))
    options.add_initializer("w", given)
    loaded = ort.InferenceSession(content, options, CPU)
    np.testing.assert_array_equal(loaded.run(["y"], feeds)[0], feeds["x"] + 5)
    with pytest.raises(RuntimeError):
        options.add_initializer("w", np.ones(3, np.float32))


def test_profiling(ort, content, feeds, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "mine"
    loaded = ort.InferenceSession(content, options, CPU)
    loaded.run(None, feeds)
    assert loaded.get_profiling_start_time_ns() > 10**18
    name = loaded.end_profiling()
    assert name.startswith("mine_20")
    events = json.loads(Path(name).read_text())
    assert {"session_initialization", "model_run"} <= {event["name"] for event in events}
    assert loaded.end_profiling() == ""


def test_without_profiling(session) -> None:
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0
    assert session.get_tuning_results() == []
    session.disable_fallback()
    assert not session._enable_fallback
    session.enable_fallback()
    assert session._enable_fallback


def test_threads(session, feeds) -> None:
    wrong: list[object] = []

    def work(start: int) -> None:
        for i in range(start, start + 20):
            given = {**feeds, "x": np.full((1 + i % 2, 3), i, np.float32)}
            (found,) = session.run(["y"], given)
            if not np.array_equal(found, given["x"] + np.array([1, 2, 3], np.float32)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(20 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_warnings_without_need(ort, content, feeds) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ort.InferenceSession(content, providers=CPU).run(None, feeds)
    assert not [one for one in caught if "provider" in str(one.message).lower()]
