"""`glnn plan`: the steps, the blocks of memory, and that nothing is allocated to show them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glnn.backends import NAMES, open_backend
from glnn.errors import DeviceError
from glnn.gl import BufferBlock
from glnn.layers import ReLU
from glnn.model import Model
from glnn.model.load import BUILDERS, vgg16
from tests.cli.conftest import Glnn
from tests.recurrent import Recurrent

STEP = (
    "name layer why_host op kernel via inputs output shape layouts halves reads block bytes "
    "parameter_bytes saved_bytes texture_bytes int8 dtype sources"
)
WINOGRAD = ("--backend", "compute", "--kernel", "conv2d=winograd_2")


@pytest.fixture(autouse=True)
def nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("memory was allocated")

    monkeypatch.setattr(BufferBlock, "__init__", refuse)
    for name in ("compute", "feedback"):
        try:
            context = open_backend(name).device.context  # type: ignore[union-attr]
        except DeviceError:
            continue
        monkeypatch.setattr(context, "buffer", refuse)
        monkeypatch.setattr(context, "texture", refuse)


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_what_float16_saves(cli: Glnn, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    model = vgg16(size=32)
    monkeypatch.setitem(BUILDERS, "vgg16", lambda: model)
    asked: tuple[str, ...] = ("plan", "vgg16", "--backend", backend)
    if backend == "compute":  # Winograd's weights are no halves
        asked += ("--kernel", "conv2d=implicit_gemm")
    floats = cli(*asked, "--json").json
    halves = cli(*asked, "--precision", "float16", "--json").json
    assert (floats["precision"], halves["precision"]) == ("float32", "float16")
    assert floats["saved_bytes"] == 0
    taken = [found["parameter_bytes"] + found["texture_bytes"] for found in (floats, halves)]
    assert halves["saved_bytes"] == taken[0] - taken[1] > 0.49 * taken[0]
    assert {tuple(step["halves"]) for step in halves["steps"]} == {(), ("weight",)}
    assert "less by float16" in cli(*asked, "--precision", "float16").out


@pytest.mark.parametrize("verb", [("plan",), ("bench", "--repeat", 1), ("verify",)], ids=str)
def test_nothing_is_joined(cli: Glnn, verb: tuple[object, ...]) -> None:
    backends = "--backends" if verb[0] == "bench" else "--backend"
    asked = cli(*verb, "lenet", "--batch", 2, backends, "cpu", "--no-fuse", "--json").json
    steps = asked.get("steps") or asked.get("layers") or asked["backends"]["cpu"]["layers"]
    assert len(steps) == 8 + 5 + 4  # biases, sigmoids
    assert asked.get("fused", False) is False


@pytest.mark.parametrize("backend", NAMES)
def test_lenet(cli: Glnn, backend: str) -> None:
    found = cli("plan", "lenet", "--batch", 7, "--backend", backend, "--json").json
    assert (found["model"], found["backend"]) == ("lenet", backend)
    assert found["inputs"] == {"input": [7, 1, 28, 28]}
    ops = [step["op"] for step in found["steps"] if step["op"] != "reorder"]
    joined = backend == "compute"
    first = ["pooled_conv2d"] if joined else ["conv2d", "pool2d"]
    last = ["matmul", "perceptron"] if joined else ["matmul"] * 3
    assert ops == first * 2 + last + ["softmax"]
    for step in found["steps"]:
        assert set(step) == set(STEP.split())
        assert step["via"] is None
        assert set(step["layouts"]) > {"out"}
        block = found["blocks"][step["block"]]
        assert step["output"] in block["tensors"] and step["bytes"] <= block["bytes"]
    assert found["tensor_bytes"] == sum(block["bytes"] for block in found["blocks"])
    for key in ("parameter_bytes", "saved_bytes", "texture_bytes"):
        assert found[key] == sum(step[key] for step in found["steps"])
    parts = ("tensor_bytes", "parameter_bytes", "texture_bytes", "passing_bytes")
    assert found["peak_bytes"] == sum(found[key] for key in parts)
    ways = {way for step in found["steps"] for way in step["reads"].values()}
    assert (found["texture_bytes"] > 0) is ("sampler2D" in ways)
    assert ways <= {"compute": {"buffer", "samplerBuffer"}, "cpu": set()}.get(
        backend, {"samplerBuffer", "sampler2D", "attribute"}
    )
    assert all(
        set(step["reads"]) == set(step["layouts"]) - {"out"} for step in found["steps"] if ways
    )
    pixels = (1 if joined else 6) * 28 * 28 + 6 * 14 * 14
    tensors = ["input" if joined else "sigmoid1", "s2"]
    assert found["largest_adjacent"] == {"bytes": 7 * 4 * pixels, "tensors": tensors}


def test_stages_and_reorders(cli: Glnn, staged: Path) -> None:
    steps = cli("plan", staged, *WINOGRAD, "--json").json["steps"]
    assert [(step["name"], step["op"], step["via"]) for step in steps] == [
        ("input to nhwC4c", "reorder", "winograd_2"),
        ("conv: tiles", "winograd_input", "winograd_2"),
        ("conv: products", "matmul", "winograd_2"),
        ("conv: result", "winograd_output", "winograd_2"),
        ("pool", "pool2d", None),
        ("pool as R", "reorder", None),
    ][: len(steps)]
    assert {step["layer"] for step in steps} >= {"conv", "pool"}
    assert steps[0]["layouts"] == {"x": "R", "out": "nhwC4c"}


def test_the_tables(cli: Glnn, staged: Path) -> None:
    shown = cli("plan", staged, *WINOGRAD, "--batch", 3)
    assert (shown.code, shown.err) == (0, "")
    assert "staged on compute" in shown.out and "input (3, 4, 8, 8)" in shown.out
    for text in ("winograd_2", "conv: tiles", "x=R out=nhwC4c", "3 x 4 x 8 x 8", "predicted peak"):
        assert text in shown.out
    assert "textures" not in shown.out.partition("predicted peak")[0].partition("tensors that")[0]
    least = ("--limits", "es31-minimum")  # which has no texture buffers
    feedback = cli("plan", "lenet", "--backend", "feedback", *least).out
    assert "textures" in feedback.partition("tensors that")[0]
    for text in ("sampler2D: x weight e1", "until parameters are in textures"):
        assert text in feedback


@pytest.mark.parametrize("backend", NAMES)
def test_the_bodies_of_a_loop(cli: Glnn, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By names that say where they are, behind the step that runs them; blocks are their own."""
    model = Model.sequential([Recurrent(5, 3), ReLU()], (5,), "loop", ["again", "relu"])
    monkeypatch.setattr("glnn.cli.plan.load", lambda path: model)
    found = cli("plan", "loop", "--backend", backend, "--json").json
    names = [step["name"] for step in found["steps"] if step["op"] not in ("reorder", "reduce")]
    inner = ["above", "if", "if/then/product + bent", "if/otherwise/turned"]
    assert names == ["again", *(f"again/body/{name}" for name in inner), "relu"]
    for step in found["steps"]:
        assert step["output"] in found["blocks"][step["block"]]["tensors"]
    assert found["tensor_bytes"] == sum(block["bytes"] for block in found["blocks"])
    assert found["parameter_bytes"] == sum(step["parameter_bytes"] for step in found["steps"])
    assert "again/body/if/then/product" in cli("plan", "loop", "--backend", backend, "--wide").out


def test_how_operands_are_read(cli: Glnn) -> None:
    """Layers of a texture where one is too small, the buffer itself where it may be."""
    least = ("--backend", "feedback", "--limits", "es31-minimum")
    steps = cli("plan", "vgg16", *least, "--json").json["steps"]
    ways = {step["name"]: step["reads"] for step in steps}
    assert ways["fc6 + relu6: parts"] == {"x": "sampler2D", "weight": "sampler2DArray"}
    assert ways["conv1_1 + relu1_1"] == dict.fromkeys(("x", "weight", "e1"), "sampler2D")


def test_a_model_that_is_too_large(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    few = cli("plan", "lenet", "--json").json
    monkeypatch.setenv("GLNN_MEMORY", "1m")
    assert cli("plan", "lenet", "--json").json["fits"] is True
    found = cli("plan", "lenet", "--batch", 10000, "--json").json
    assert (found["available_bytes"], found["fits"]) == (2**20, False)
    assert found["peak_bytes"] > 1000 * (few["peak_bytes"] - few["parameter_bytes"])
    assert "more than is free" in cli("plan", "lenet", "--batch", 10000).out


def test_mistakes(cli: Glnn, staged: Path) -> None:
    assert cli("plan", "nowhere").refusal.startswith("unknown model 'nowhere'")
    assert "no kernel 'none' for conv2d" in cli("plan", staged, "--kernel", "conv2d=none").refusal
    assert cli("plan", staged, "--kernel", "bias=rows").refusal.endswith("no op of that name")
    assert "'--batch'" in cli("plan", staged, "--batch", 0).refusal


def test_files_take_a_batch_and_no_shape(cli: Glnn, tmp_path: Path) -> None:
    """As of `bench`."""
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 28, 28), np.float32))
    asked = ("lenet", tmp_path / "x.npy", "--backend", "cpu")
    for more, count in (((), 2), (("--batch", 5), 5)):
        found = cli("plan", *asked, *more, "--json").json
        assert list(found["inputs"].values()) == [[count, 1, 28, 28]]
    name = next(iter(found["inputs"]))
    said = cli("plan", *asked, "--shape", f"{name}=7,1,28,28").refusal
    assert said == (
        f"--shape is for inputs of random numbers: expected it without INPUT, got both for {name!r}"
    )
