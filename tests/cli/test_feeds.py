"""What models are given: files by the names of inputs, and numbers at random that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.cli.feeds import random_feeds, read_feeds, table_rows
from glnn.core.tensor_info import TensorInfo
from glnn.data import digits
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.layers import Embedding
from glnn.model import Model, Node
from tests.cli.conftest import Glnn

onnx = pytest.importorskip("onnx")
FLOATS = ("float16", "float32", "float64")
BYTES = {"uint8": (0, 255), "int8": (-128, 127)}


def built(tmp_path: Path, nodes: list[Any], inputs: dict[str, Any], **tables: Any) -> Path:
    """An .onnx file of `nodes`: whose results are its outputs, where nothing reads them."""
    helper = onnx.helper
    read = {name for node in nodes for name in node.input}
    made = [name for node in nodes for name in node.output if name not in read]
    dtype = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "built",
        [
            helper.make_tensor_value_info(name, dtype(np.dtype(type)), list(shape))
            for name, (type, shape) in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in made],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in tables.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "built.onnx")
    return tmp_path / "built.onnx"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """ids (N, length) of int64, of 7 rows, in the end of 5 of another table; a mask of each."""
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["rows", "ids"], ["embedded"]),
        node("Cast", ["kinds"], ["narrow"], to=onnx.TensorProto.INT32),
        node("Transpose", ["narrow"], ["turned"]),
        node("Gather", ["few", "turned"], ["looked"], axis=1),
        node("Cast", ["mask"], ["weights"], to=onnx.TensorProto.FLOAT),
        node("Unsqueeze", ["weights", "last"], ["column"]),
        node("Mul", ["embedded", "column"], ["y"]),
    ]
    sizes = ("N", "length")
    inputs = dict.fromkeys(("ids", "kinds", "mask"), (np.int64, sizes))
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    few = np.arange(10, dtype=np.float32).reshape(2, 5)
    return built(tmp_path, nodes, inputs, rows=rows, few=few, last=[2])


@pytest.fixture
def every(tmp_path: Path) -> Path:
    """An input of each type: `uint8` and so on."""
    dtypes = (*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64")
    nodes = [onnx.helper.make_node("Identity", [name], [f"{name} out"]) for name in dtypes]
    return built(tmp_path, nodes, {name: (np.dtype(name), ("N", 500)) for name in dtypes})


def test_every_type_at_random(cli: Glnn, every: Path) -> None:
    model = glnn.load(every)
    found = read_feeds(model, (), str(every), 3, {})
    assert found.random == tuple(found.arrays) and len(found.arrays) == 9
    for name, array in found.arrays.items():
        assert (array.dtype, array.shape) == (np.dtype(name), (3, 500))
        if name in FLOATS:
            assert 0 <= array.min() < 0.1 < 0.9 < array.max() <= 1
        else:
            ends = BYTES.get(name, (0, 1))  # of which any number of 1,500 has met both, or nearly
            assert ends[0] <= array.min() <= ends[0] + 3 and ends[1] - 3 <= array.max() <= ends[1]
    again = read_feeds(model, (), str(every), 3, {}).arrays
    assert all(np.array_equal(array, again[name]) for name, array in found.arrays.items())
    timed = cli("bench", every, "--batch", 2, "--repeat", 1, "--backends", "compute,cpu", "--json")
    shapes = {name: one["shape"] for name, one in timed.json["inputs"].items()}
    assert shapes == {name: [2, 500] for name in found.arrays}
    assert cli("verify", every, "--json").json["ok"]


def test_ids_are_of_rows_that_there_are(text: Path) -> None:
    model = glnn.load(text)
    assert table_rows(model, dict.fromkeys(("ids", "kinds", "mask"), (4, 300))) == {
        "ids": 7,
        "kinds": 5,
    }
    found = read_feeds(model, (), str(text), 4, {"length": (300,)}).arrays
    for name, rows in {"ids": 7, "kinds": 5, "mask": 2}.items():
        assert np.array_equal(np.unique(found[name]), np.arange(rows))


def test_ids_of_a_layer() -> None:
    ids = TensorInfo("x", ("N",), "tensor(int32)")
    model = Model((Node("table", Embedding(11, 2), ("x",), "y"),), (ids,), ("y",), "words")
    assert table_rows(model, {"x": (3,)}) == {"x": 11}


def test_the_least_of_several_tables(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("Gather", ["a", "ids"], ["x"]), node("Gather", ["b", "ids"], ["y"])]
    tables = {"a": np.zeros((9, 1), np.float32), "b": np.zeros((4, 1), np.float32)}
    path = built(tmp_path, nodes, {"ids": (np.int64, ("N",))}, **tables)
    assert table_rows(glnn.load(path), {"ids": (3,)}) == {"ids": 4}


def test_what_is_looked_up_in_is_no_index(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Gather", ["x", "at"], ["y"])]
    path = built(tmp_path, nodes, {"x": (np.int64, ("N", 3))}, at=[0])
    assert table_rows(glnn.load(path), {"x": (2, 3)}) == {}


def test_texts_are_not_made_up(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    path = built(tmp_path, nodes, {"x": (np.dtype(object), ("N",))})
    with pytest.raises(ModelError, match="input 'x' is of texts: there are none at random"):
        random_feeds(glnn.load(path), {"x": (2,)}, ("x",))


def test_open_sizes_by_name(cli: Glnn, text: Path) -> None:
    for verb, more in (("plan", ()), ("verify", ()), ("bench", ("--repeat", 1))):
        asked = (verb, text, "--batch", 2, "--shape", "length=6", *more, "--json")
        inputs = cli(*asked).json["inputs"]
        shapes = [one if verb == "plan" else one["shape"] for one in inputs.values()]
        assert shapes == [[2, 6]] * 3, verb
    shown = cli("bench", text, "--shape", "length=6", "--repeat", 1, "--backends", "cpu").out
    assert "ids int64 (1, 6) at random" in shown


def test_sizes_follow_from_the_shape_of_another(cli: Glnn, text: Path) -> None:
    found = cli("plan", text, "--shape", "mask=3,8", "--json").json["inputs"]
    assert found == {"ids": [3, 8], "kinds": [3, 8], "mask": [3, 8]}


def saved(folder: Path, name: str, array: Any) -> Path:
    np.save(folder / name, array)
    return folder / name


def test_files_by_name(cli: Glnn, text: Path, tmp_path: Path) -> None:
    ids = saved(tmp_path, "a=b.npy", np.array([[1, 2, 6]]))
    mask = saved(tmp_path, "mask.npy", np.array([[1, 0, 2]]))
    np.savez(tmp_path / "kinds.npz", kinds=np.array([[4, 4, 0]]), ids=np.zeros(7))
    given = (f"ids={ids}", f"mask={mask}", f"kinds={tmp_path / 'kinds.npz'}")
    cli("run", text, *given, "--dump", tmp_path / "y.npz", "--json").json  # noqa: B018
    with np.load(tmp_path / "y.npz") as found:
        assert found["y"].tolist() == [[[2, 3], [0, 0], [24, 26]]]
        assert found["looked"].shape == (2, 3, 1)
    assert cli("verify", text, *given, "--json").json["ok"]


def test_files_one_behind_the_other(text: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", ids=[[1, 2]], kinds=[[0, 0]], mask=[[1, 1]], more=[3])
    np.savez(tmp_path / "then.npz", ids=[[5, 6]], kinds=[[3, 4]], mask=[[0, 1]])
    given = [str(tmp_path / "all.npz"), str(tmp_path / "then.npz")]
    found = read_feeds(glnn.load(text), given, str(text), None, {}, random=False)
    assert found.arrays["ids"].tolist() == [[1, 2], [5, 6]] and found.random == ()
    longer = read_feeds(glnn.load(text), given, str(text), 3, {})
    assert longer.arrays["kinds"].tolist() == [[0, 0], [3, 4], [0, 0]]


def test_one_input_of_several_files(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Gather", ["a", "ids"], ["x"])
    table = np.zeros((9, 1), np.float32)
    path = built(tmp_path, [node], {"ids": (np.int64, ("N", 2))}, a=table)
    files = [saved(tmp_path, f"{i}.npy", np.array([[i, i + 1]])) for i in range(3)]
    given = [str(files[0]), f"ids={files[1]}", str(files[2])]
    found = read_feeds(glnn.load(path), given, str(path), None, {}).arrays
    assert found["ids"].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_the_rest_is_at_random_and_fits(cli: Glnn, text: Path, tmp_path: Path) -> None:
    ids = f"ids={saved(tmp_path, 'ids.npy', np.zeros((3, 9), np.int64))}"
    found = cli("bench", text, ids, "--repeat", 1, "--backends", "cpu", "--json").json
    assert found["inputs"] == {
        name: {"shape": [3, 9], "type": "int64", "random": name != "ids"}
        for name in ("ids", "kinds", "mask")
    }
    assert found["batch"] == 3
    assert "no INPUT has 'kinds': expected kinds=FILE" in cli("run", text, ids).refusal


def test_a_bundled_model_by_the_name_of_its_input(tmp_path: Path) -> None:
    images = digits()[0]
    path = saved(tmp_path, "x.npy", images[:2])
    found = read_feeds(glnn.load("lenet"), [f"input={path}", str(path)], "lenet", None, {}, most=9)
    expected = np.concatenate([images[:2]] * 2)[:, None] / np.float32(255)
    assert np.array_equal(found.arrays["input"], expected)


def test_a_picture_for_one_of_two_inputs(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "photo.png")
    nodes = [onnx.helper.make_node("Mul", ["image", "factor"], ["y"])]
    inputs = {"image": (np.float32, ("N", 3, 4, 6)), "factor": (np.float32, (1,))}
    model = glnn.load(built(tmp_path, nodes, inputs))
    factor = saved(tmp_path, "factor.npy", np.ones(1, np.float32))
    given = [f"image={tmp_path / 'photo.png'}", f"factor={factor}"]
    found = read_feeds(model, given, "built", None, {}).arrays["image"]
    expected = pixels.transpose(2, 0, 1)[None] / np.float32(255)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("idz=x.npy", "built.onnx has no input 'idz', it takes 'ids', 'kinds', 'mask'"),
        ("ids=", "an INPUT must be the name of a file, got an empty text"),
        ("ids=gone.npy", "gone.npy: no such file"),
        ("x.npy", "built.onnx takes 'ids', 'kinds', 'mask': expected ids=FILE for each"),
        ("ids=x.npy ids=y.npy", "alike, got (1, 2), (1, 3)"),
        ("ids=x.npy mask=y.npy", "must have one size length, got 2 and 3"),
        ("ids=f.npy", "input 'ids' must be an int64 NumPy array, got float32"),
        ("ids=x.npy --shape ids=1,2", "expected it without INPUT, got both for 'ids'"),
        ("ids=x.npy --shape length=3", "must have one size length, got 2 and 3"),
        ("other.npz", "other.npz: there is no array 'ids'"),
        ("ids=two.npz", "two.npz: there is no array 'ids'"),
    ],
)
def test_refused(
    cli: Glnn, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", [[1, 2]])
    np.save("y.npy", [[1, 2, 3]])
    np.save("f.npy", np.zeros((1, 2), np.float32))
    np.savez("other.npz", idz=[[1, 2]])
    np.savez("two.npz", a=[[1, 2]], b=[[1, 2]])
    assert said in cli("verify", text, *given.split()).refusal


def test_rows_are_unknown_where_the_model_does_not_fit(text: Path) -> None:
    model = glnn.load(text)
    wrong = {"ids": (1, 2), "kinds": (1, 2), "mask": (1, 5)}
    with pytest.raises(GlnnError):
        model.check(wrong)
    assert table_rows(model, wrong) == {}
    with pytest.raises(ShapeError):
        read_feeds(model, (), str(text), None, {"mask": (1,)})


def test_files_of_indices_and_of_other_types(cli: Glnn, tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("Gather", ["t", "ids"], ["y"]), node("Neg", ["x"], ["z"])]
    inputs = {"ids": (np.int64, ("N",)), "x": (np.float32, ("M", 2))}
    path = built(tmp_path, nodes, inputs, t=np.ones((2, 4), np.float32))
    ids, x = tmp_path / "bad.npy", tmp_path / "x.npy"
    np.save(x, np.full((3, 2), 0.1))  # float64 is rounded
    np.save(ids, np.array([1, 2]))
    asked = ("run", path, f"ids={ids}", f"x={x}", "--backend", "cpu")
    assert "must be indices from -2 to 1, of a table of 2, got 2 at [1]" in cli(*asked).refusal
    np.save(ids, np.array([1, 0]))
    assert cli(*asked, "--json").code == 0
    for dtype in (np.int32, np.float64):
        np.save(ids, np.array([1, 0], dtype))
        said = f"{ids}: input 'ids' must be an int64 NumPy array, got {np.dtype(dtype)} array"
        assert cli(*asked).refusal.startswith(said)
    np.save(ids, np.array([1, 0]))
    np.save(x, np.zeros((3, 2), np.int32))
    assert cli(*asked).refusal.startswith(f"{x}: input 'x' must be a float32 NumPy array")
    np.save(x, np.full((3, 2), 1e300))
    assert cli(*asked).refusal.startswith(f"{x}: input 'x' has numbers that float32 does not hold")
