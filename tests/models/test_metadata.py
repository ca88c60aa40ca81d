"""What a model says of itself besides its graph goes through every format."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glnn import images
from glnn.errors import ModelError
from glnn.layers import Linear
from glnn.model import Model, load

SAID = {
    **images.metadata(images.Preprocessing(9, 8, mean=0.5), ["tench", "Hühner", "a\nb"]),
    "author": "nobody, é",
    "looks": "[1,2]",  # not as it would be written: stays a text
    "like": '{"a": 1, "a": 2}',
    "broken": "[",
}


def model(**said: Any) -> Model:
    made = Model.sequential([Linear(3, 2)], (3,), "small", metadata=said or SAID)
    made.begin(0)
    return made


@pytest.mark.parametrize("ending", ["json", "onnx"])
def test_round_trip(tmp_path: Path, ending: str) -> None:
    if ending == "onnx":
        pytest.importorskip("onnx")
    model().save(tmp_path / f"one.{ending}")
    found = load(tmp_path / f"one.{ending}")
    assert found.metadata == SAID
    assert pickle.loads(pickle.dumps(found)).metadata == SAID
    assert copy.deepcopy(found).metadata == SAID
    changed = replace(found, metadata={"author": "somebody"})
    for other in ("json", "onnx") if ending == "onnx" else ("json",):
        changed.save(tmp_path / f"two.{other}")
        assert load(tmp_path / f"two.{other}").metadata == {"author": "somebody"}


def test_a_file_has_objects_where_a_text_is_json(tmp_path: Path) -> None:
    model().save(tmp_path / "net.json")
    document = json.loads((tmp_path / "net.json").read_text())
    said = document["metadata"]
    assert said["labels"] == ["tench", "Hühner", "a\nb"]
    assert said["preprocessing"]["resize"] == 9
    assert said["looks"] == "[1,2]" and said["broken"] == "["
    model_without = Model.sequential([Linear(3, 2)], (3,))
    model_without.save(tmp_path / "plain.json")
    assert "metadata" not in json.loads((tmp_path / "plain.json").read_text())


@pytest.mark.parametrize("said", [3, [], {"a": 1}, {"a": None}])
def test_what_is_no_metadata_is_refused(tmp_path: Path, said: Any) -> None:
    model().save(tmp_path / "net.json")
    document = json.loads((tmp_path / "net.json").read_text())
    document["metadata"] = said
    (tmp_path / "net.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=r"net\.json: \"metadata\""):
        load(tmp_path / "net.json")
    with pytest.raises(ModelError, match="metadata must be texts by name"):
        Model.sequential([Linear(3, 2)], (3,), metadata=said)


def test_half_a_letter_is_refused_by_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    with pytest.raises(ModelError, match="a text that ONNX cannot have"):
        model(author="\ud800").save(tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
    model(author="\ud800").save(tmp_path / "net.json")
    assert load(tmp_path / "net.json").metadata == {"author": "\ud800"}


def test_vgg16_says_what_is_done_to_pictures() -> None:
    from glnn.model.load import vgg16

    made = vgg16(size=32, classes=2)
    assert images.described(made.metadata) == images.Preprocessing.imagenet(32)
