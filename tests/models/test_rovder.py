"""Network Definitions of Rovder 2017: they load as they are, and bad ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.errors import ModelError
from glnn.layers import Linear, ReLU, Sigmoid
from glnn.model import load

Matrices = dict[str, list[list[float]]]


def refuses(path: Path, message: str, file: str | None = None) -> None:
    """Loading `path` must fail with one line that names the file and holds `message`."""
    with pytest.raises(ModelError) as caught:
        load(path)
    text = str(caught.value)
    assert message in text
    assert text.startswith(str(path.parent / (file or path.name)))
    assert "\n" not in text


def test_layers_and_shapes(network: Path) -> None:
    model = load(network)
    assert [type(node.layer) for node in model.nodes] == [Linear, Sigmoid, Linear, ReLU]
    assert model.name == "net"
    assert model.inputs[0].shape == ("N", 3)
    assert model.tensors[model.outputs[0]].shape == ("N", 3)


def test_computes_w_i_plus_b(network: Path, matrices: Matrices) -> None:
    """As the report has it: samples are the columns of I, and R = W x I + b."""
    columns = np.array([[1, 5], [2, 0], [3, 1]], np.float64)
    hidden = 1 / (1 + np.exp(-(np.array(matrices["1_w"]) @ columns + matrices["1_b"])))
    result = np.maximum(np.array(matrices["2_w"]) @ hidden + matrices["2_b"], 0)
    x = np.ascontiguousarray(columns.T, np.float32)
    assert load(network)(x, backend="cpu") == pytest.approx(result.T, rel=1e-6)


def test_round_trips_into_our_own_format(network: Path, tmp_path: Path) -> None:
    model = load(network)
    model.save(tmp_path / "own.json")
    again = load(tmp_path / "own.json")
    for name, array in model.parameters().items():
        assert np.array_equal(again.parameters()[name], array)


def test_nan_and_infinity_are_numbers(network: Path) -> None:
    (network.parent / "1_b.csv").write_text("nan\n-inf\n")
    layer = load(network).nodes[0].layer
    assert isinstance(layer, Linear)
    assert np.array_equal(layer.parameters["bias"], [np.nan, -np.inf], equal_nan=True)


def test_matrices_in_a_subfolder(network: Path, matrices: Matrices) -> None:
    folder = network.parent / "matrices"
    folder.mkdir()
    for name in matrices:
        for suffix in (".json", ".csv"):
            (network.parent / f"{name}{suffix}").rename(folder / f"{name}{suffix}")
    document = json.loads(network.read_text())
    for entry in document["layers"]:
        for key in {"weights", "biases"} & set(entry):
            entry[key] = f"matrices/{entry[key]}"
    network.write_text(json.dumps(document))
    assert load(network).inputs[0].shape == ("N", 3)


def edit(path: Path, how: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda d: d.update(size=5), '"size" is 5, but there are 4 layers'),
        (lambda d: d.update(size="4"), "\"size\" is '4', but there are 4 layers"),
        (lambda d: d.update(layers=[], size=0), '"layers" must be a list that is not empty'),
        (lambda d: d.pop("layers"), '"layers" must be a list that is not empty'),
        (lambda d: d["layers"][1].update(layer="TanhLayer"), "unknown layer 'TanhLayer'"),
        (lambda d: d["layers"].__setitem__(1, 3), "unknown layer None"),
        (lambda d: d["layers"][0].pop("weights"), 'an AffineLayer needs "weights"'),
        (lambda d: d["layers"][0].update(weights="/1_w.json"), "must be relative"),
        (lambda d: d["layers"][0].update(weights="../1_w.json"), "leaves the model's folder"),
        (lambda d: d.update(layers=[{"layer": "ReLULayer"}], size=1), "without an AffineLayer"),
        (lambda d: d["layers"].__delitem__(0) or d.pop("size"), ""),
    ],
)
def test_bad_network(network: Path, how: Callable[[Any], object], message: str) -> None:
    edit(network, how)
    if message:
        refuses(network, message)
    else:
        assert load(network).inputs[0].shape == ("N", 2)  # an activation may come first


def test_layers_that_do_not_fit(network: Path) -> None:
    edit(network, lambda d: d["layers"][2].update(weights="1_w.json", biases="1_b.json"))
    refuses(network, "layer 'linear2'")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (lambda d: d.update(rows=3), '"rows"'),
        (lambda d: d.update(rows=0), '"rows" and "cols" must be positive integers'),
        (lambda d: d.update(rows="2"), '"rows" and "cols" must be positive integers'),
        (lambda d: d.pop("cols"), '"rows" and "cols" must be positive integers'),
        (lambda d: d.update(data_type="binary"), '"data_type" must be "csv", got \'binary\''),
        (lambda d: d.update(file="/1_w.csv"), "must be relative to the model's folder"),
        (lambda d: d.update(file="../1_w.csv"), "leaves the model's folder"),
        (lambda d: d.pop("file"), "expected a file name, got None"),
    ],
)
def test_bad_matrix_definition(network: Path, how: Callable[[Any], object], message: str) -> None:
    edit(network.parent / "1_w.json", how)
    if message == '"rows"':
        refuses(network, "1_w.json promises (3, 3), got (2, 3)", "1_w.csv")
    else:
        refuses(network, message, "1_w.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "1_w.json promises (2, 3), got (0, 1)"),
        ("1,0,-1\n", "1_w.json promises (2, 3), got (1, 3)"),
        ("1,0\n2,1\n", "1_w.json promises (2, 3), got (2, 2)"),
        ("1,0,-1\n2,1\n", "not numbers separated by commas"),
        ("1,0,-1\n2,one,0\n", "not numbers separated by commas"),
        ("1 0 -1\n2 1 0\n", "not numbers separated by commas"),
        ("1,0,-1\n2,1,0\n# end\n", "not numbers separated by commas"),
        ("\0\1\2", "not numbers separated by commas"),
    ],
)
def test_bad_csv(network: Path, content: str, message: str) -> None:
    (network.parent / "1_w.csv").write_text(content)
    refuses(network, message, "1_w.csv")


def test_csv_with_a_byte_order_mark(network: Path) -> None:
    expected = load(network).parameters()
    for name in ("1_w.csv", "1_b.csv"):
        file = network.parent / name
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    for name, array in load(network).parameters().items():
        assert np.array_equal(array, expected[name])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # one is enough
    refuses(network, "not numbers separated by commas", "1_b.csv")


def test_csv_that_is_not_text(network: Path) -> None:
    (network.parent / "1_w.csv").write_bytes(b"\xff\xfe\x81\n")
    refuses(network, "not numbers separated by commas", "1_w.csv")


def test_bias_of_the_wrong_shape(network: Path) -> None:
    edit(network, lambda d: d["layers"][0].update(biases="2_b.json"))
    refuses(network, "biases for 2 rows must be (2, 1), got (3, 1)", "2_b.json")


def test_missing_files(network: Path) -> None:
    (network.parent / "2_b.csv").unlink()
    refuses(network, "no such file", "2_b.csv")
    (network.parent / "2_b.json").unlink()
    refuses(network, "no such file", "2_b.json")
