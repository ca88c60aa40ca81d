"""Weights read out of ONNX files: names that exporters leave, and files that do not run.

The files have the nodes that read parameters, named as Optimum 2.1 names them, and no others;
test_optimum_whisper.py has those that Optimum writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import glnn  # noqa: E402
from glnn.errors import ModelError  # noqa: E402
from glnn.generation.speech.whisper_files import HUGGING_FACE, open_whisper  # noqa: E402
from tests.generation.speech.test_speech_to_text import noise  # noqa: E402
from tests.generation.speech.whisper_folders import LAYERS, hugging_face, weights  # noqa: E402

TENSORS = weights(6)
Change = Callable[[Any], None]


def graph(half: str, turned: bool, dtype: str) -> Any:
    """The graph of a half, with numbers of `dtype`.

    turned: whether matrices are stored turned round, without names.
    """
    prefix = f"model.{half}." if half == "encoder" else ""
    nodes, initializers = [], {}

    def node(kind: str, module: str, *inputs: str) -> None:
        name = f"/{module.replace('.', '/').replace('layers/', 'layers.')}/{kind}"
        nodes.append(onnx.helper.make_node(kind, ["x", *inputs], [f"{name}_output_0"], name))

    for name, array in TENSORS.items():
        if not name.startswith(f"model.{half}."):
            continue
        short = name.removeprefix(prefix)
        module, _, kind = short.rpartition(".")
        if "embed_positions" in name and half == "encoder":
            initializers["onnx::Add_7"] = array
            nodes.append(onnx.helper.make_node("Add", ["x", "onnx::Add_7"], ["placed"], "/Add"))
            continue
        initializers[short] = array
        if "embed" in name or (kind == "bias" and ("norm" in name or "conv" in name)):
            continue
        if "norm" in name:
            node("LayerNormalization", module, short, f"{module}.bias")
        elif "conv" in name:
            node("Conv", module, short, f"{module}.bias")
        elif kind == "bias":
            node("Add", module, short)
        elif turned:
            initializers[f"onnx::MatMul_{len(nodes)}"] = initializers.pop(short).T
            node("MatMul", module, f"onnx::MatMul_{len(nodes)}")
        else:
            nodes.append(onnx.helper.make_node("Transpose", [short], [f"{short}.T"], perm=[1, 0]))
            node("MatMul", "", f"{short}.T")
    if half == "decoder":  # its last product is by the table of tokens
        initializers["onnx::MatMul_9"] = TENSORS["model.decoder.embed_tokens.weight"].T
        node("MatMul", "proj_out", "onnx::MatMul_9")
    tensors = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(one.astype(dtype)), name)
        for name, one in initializers.items()
    ]
    return onnx.helper.make_graph(nodes, half, [], [], tensors)


def merged(decoder: Any) -> Any:
    """The graph of a decoder as both branches of an If, whose initialisers are renamed."""
    names = {one.name: f"{one.name}_merged_0" for one in decoder.initializer}
    for one in decoder.initializer:
        one.name = names[one.name]
    for node in decoder.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    branch = onnx.helper.make_graph(decoder.node, "branch", [], [])
    node = onnx.helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    return onnx.helper.make_graph([node], "merged", [], [], decoder.initializer)


def exported(
    folder: Path,
    turned: bool = True,
    decoder: str = "decoder_model.onnx",
    dtype: str = "float32",
    change: Change | None = None,
) -> Path:
    """Write the folder of an export. change: of the decoder's graph."""
    hugging_face(folder, {})
    (folder / "model.safetensors").unlink()
    names = {"encoder": "encoder_model.onnx", "decoder": decoder}
    halves = {name: graph(half, turned, dtype) for half, name in names.items()}
    if "merged" in decoder:
        halves[decoder] = merged(halves[decoder])
    if change is not None:
        change(halves[decoder])
    for name, made in halves.items():
        onnx.save(onnx.helper.make_model(made), folder / name)
    return folder


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("decoder", ["decoder_model.onnx", "decoder_model_merged.onnx"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_are_those_that_were_exported(tmp_path: Path, turned, decoder, dtype) -> None:
    found = open_whisper(exported(tmp_path / "onnx", turned, decoder, dtype))
    tensors = {name: one.astype(dtype) for name, one in TENSORS.items()}
    expected = open_whisper(hugging_face(tmp_path / "source", tensors))
    assert found.config == expected.config and found.special == expected.special
    assert found.nbytes == expected.nbytes
    parts = HUGGING_FACE.block_tensors
    names = [f"blk.{layer}.{part}" for layer in range(LAYERS) for part in parts]
    for ours, theirs in ((found.encoder, expected.encoder), (found.decoder, expected.decoder)):
        for part, kind in product((*names, *HUGGING_FACE.model_tensors), ("weight", "bias")):
            name = f"{part}.{kind}"
            assert (name in ours) == (name in theirs)
            if name in theirs:
                np.testing.assert_array_equal(ours.array(name), theirs.array(name))
    samples = noise(1.2)
    first, second = (
        glnn.SpeechToText(tmp_path / name, backend="cpu").transcribe(samples)
        for name in ("onnx", "source")
    )
    assert first == second


def test_folders_within_and_numbers_in_a_file_of_their_own(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    (folder / "onnx").mkdir()
    for name in ("encoder_model.onnx", "decoder_model.onnx"):
        model = onnx.load(folder / name)
        (folder / name).unlink()
        onnx.save(
            model, folder / "onnx" / name, save_as_external_data=True, location=f"{name}_data",
            size_threshold=0,
        )  # fmt: skip
    found = open_whisper(folder).decoder.array("blk.1.ffn_up.weight")
    np.testing.assert_array_equal(found, TENSORS["model.decoder.layers.1.fc1.weight"])


def without_bias(made: Any) -> None:
    """Take out the nodes and initialisers of a bias."""
    name = "model.decoder.layers.1.fc2.bias"
    kept = [node for node in made.node if name not in node.input]
    tensors = [one for one in made.initializer if one.name != name]
    del made.node[:], made.initializer[:]
    made.node.extend(kept)
    made.initializer.extend(tensors)


def quantized(made: Any) -> None:
    made.node[0].op_type = "MatMulInteger"


def fused(made: Any) -> None:
    made.node[0].domain = "com.microsoft"


def renamed(made: Any) -> None:
    for node in made.node:
        node.name = re.sub("layers.1/fc1", "other", node.name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_bias, "there is no node that adds 'model.decoder.layers.1.fc2.bias'"),
        (quantized, "a graph with MatMulInteger .* is fused or quantized"),
        (fused, "is fused or quantized, which weights are not read of"),
        (renamed, "there is no tensor 'model.decoder.layers.1.fc1.weight'"),
    ],
)
def test_graphs_that_are_others(tmp_path: Path, change, message) -> None:
    with pytest.raises(ModelError, match=message):
        open_whisper(exported(tmp_path, change=change))


def test_folders_that_lack_something(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    alone = (
        "an ONNX file alone has no tokenizer and no settings: expected a folder of encoder_model"
    )
    with pytest.raises(ModelError, match=alone):
        glnn.SpeechToText(folder / "decoder_model.onnx")
    (folder / "tokenizer.json").rename(folder / "kept.json")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        open_whisper(folder)
    (folder / "kept.json").rename(folder / "tokenizer.json")
    (folder / "decoder_model.onnx").rename(folder / "decoder_with_past_model.onnx")
    with pytest.raises(ModelError, match=r"there must be decoder_model\.onnx or decoder_model_"):
        open_whisper(folder)
    (folder / "decoder_model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"decoder_model\.onnx: not an ONNX model"):
        open_whisper(folder)
