"""How `auto` chooses: the rule, how often a run is timed, what is kept. No clock of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glnn.backends.backend_choice_cache import BackendChoiceCache
from glnn.compiler.backend_autotune import shape_class, warm_seconds
from glnn.core.settings import Settings
from glnn.core.types import TensorType
from glnn.errors import GlnnError
from glnn.gl.device_info import Capabilities
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.fingerprint import fingerprint
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operators import Matmul, Pointwise, Softmax
from glnn.runtime.options import BackendChoice, Options
from glnn.stored.index import options_key

DEVICE = Capabilities("es", (3, 2), "Somebody", "Some GPU", "OpenGL ES 3.2", "3.20", "here")


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({"compute": 1.0, "cpu": 2.0}, "compute"),
        ({"cpu": 2.0, "compute": 9.0}, "cpu"),
        ({"cpu": 1.0, "feedback": 0.5, "compute": 3.0}, "feedback"),
        ({"cpu": 1.0, "compute": 1.14}, "compute"),  # a tie
        ({"cpu": 1.0, "compute": 1.16}, "cpu"),
        ({"cpu": 1.0, "feedback": 1.1, "compute": 1.2}, "feedback"),
        ({"cpu": 1.0}, "cpu"),
    ],
)
def test_the_fastest_is_taken(seconds: dict[str, float], taken: str) -> None:
    assert BackendChoice.from_seconds(seconds, {}).backend == taken


def test_what_people_are_told_of_a_choice() -> None:
    found = BackendChoice(
        "cpu", {"cpu": 0.0105, "compute": 2.0}, {"compute": "far behind", "feedback": "x"}
    )
    assert str(found) == "cpu: cpu 10.5 ms, compute 2 s (far behind); feedback not timed: x"
    assert str(BackendChoice("compute", remembered=True)) == "compute (as seen before)"


@pytest.mark.parametrize("wrong", [("gpu", {}), ("cpu", {"cpu": 0.0}), ("cpu", {"x": 1.0})])
def test_a_choice_is_of_what_there_is(wrong: tuple[str, dict[str, float]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        BackendChoice(*wrong)


class Watch:
    """A clock that a run moves on by what comes next in `taken`."""

    def __init__(self, *taken: float) -> None:
        self.now, self.taken, self.runs = 0.0, list(taken), 0

    def __call__(self) -> float:
        return self.now

    def run(self) -> None:
        self.runs += 1
        self.now += self.taken.pop(0) if len(self.taken) > 1 else self.taken[0]


@pytest.mark.parametrize(
    ("taken", "first", "best", "seconds", "runs", "why"),
    [
        ((0.001,), 0.5, None, 0.001, 20, ""),  # the driver compiled in the first
        ((0.04, 0.03, 0.05), 0.1, None, 0.03, 3, ""),
        ((0.2,), 0.2, None, 0.2, 2, ""),
        ((1.0,), 1.5, None, 1.0, 1, ""),
        ((9.0,), 21.0, None, 21.0, 0, "its first run took 21 s and was not repeated"),
        ((0.1, 0.0004), 9.0, 0.0001, 0.0004, 2, "far behind"),  # a second run, not one slow one
        ((0.001,), 9.0, 0.3, 0.001, 20, ""),  # nine seconds of compiling tell nothing
        ((0.1, 0.0002), 9.0, 0.001, 0.0002, 3, ""),
        ((1.0,), 1.0, 0.3, 1.0, 1, "far behind"),
        ((0.001,), 0.2, 0.0001, 0.001, 2, "far behind"),
        ((0.0002,), 0.2, 0.0001, 0.0002, 20, ""),
    ],
)
def test_only_runs_after_the_first_are_judged(taken, first, best, seconds, runs, why) -> None:
    watch = Watch(*taken)
    found, said = warm_seconds(watch.run, first, best, watch)
    assert found == pytest.approx(seconds) and (watch.runs, said) == (runs, why)


def test_shapes_alike_are_of_a_class() -> None:
    assert shape_class({"x": (100, 1, 28, 28)}) == "x=32-127x1x8-31x8-31"
    assert shape_class({"b": (), "a": (0, 3)}) == "a=0x2-7,b="


def graph(weight: np.ndarray, name: str = "net", function: str = "tanh", axis: int = 1) -> Graph:
    builder = Builder(name)
    x = builder.input("x", TensorType(("N", 3)))
    value = Value("w", TensorType.from_array(weight), Kind.CONSTANT, weight)
    (made,) = builder.add(Matmul(), x, value, name="product")
    (joined,) = builder.add(Pointwise(call(function, Arg(0))), made, name="joined")
    return builder.graph(builder.add(Softmax(axis), joined, name="last"))


def test_a_fingerprint_is_of_what_is_computed() -> None:
    zeros, ones = np.zeros((4, 3), np.float32), np.ones((4, 3), np.float32)
    known = fingerprint(graph(zeros))
    assert len(known) == 32
    assert fingerprint(graph(ones, name="other")) == known  # numbers and names do not count
    others = (np.zeros((5, 3), np.float32), {}), (zeros, {"function": "exp"}), (zeros, {"axis": 0})
    assert len({known, *(fingerprint(graph(w, **more)) for w, more in others)}) == 4


def test_a_fingerprint_is_the_same_in_another_process(python) -> None:
    code = "import glnn; from glnn.graph.fingerprint import fingerprint as f; "
    code += "print(f(glnn.load('lenet').graph))"
    first, second = (python(code, PYTHONHASHSEED=seed).stdout for seed in "12")
    assert first == second and len(first.strip()) == 32


def test_answers_are_kept_by_device(tmp_path: Path) -> None:
    choice = BackendChoice("cpu", {"cpu": 0.5, "compute": 2.0}, {"feedback": "it does not open"})
    cache = BackendChoiceCache.load(tmp_path, DEVICE, "1")
    cache.keep("a key", choice, "net", "x=1x4")
    again = BackendChoiceCache.load(tmp_path, DEVICE, "1")
    assert again.find("a key") == replace(choice, remembered=True)
    assert again.find("another key") is None
    assert (again.found["a key"].model, again.found["a key"].shapes) == ("net", "x=1x4")
    assert BackendChoiceCache.load(tmp_path, DEVICE, "2").find("a key") is None
    other = replace(DEVICE, renderer="Other GPU")
    assert BackendChoiceCache.load(tmp_path, other, "1").find("a key") is None
    assert (
        "remembered" in json.loads(next(tmp_path.rglob("*.json")).read_text())["fastest"]["a key"]
    )


def test_answers_live_without_a_folder() -> None:
    cache = BackendChoiceCache.load(None, DEVICE, "1")
    cache.keep("a key", BackendChoice("cpu", {"cpu": 1.0}), "net", "x=1")
    assert cache.find("a key") == BackendChoice("cpu", {"cpu": 1.0}, remembered=True)


def test_a_damaged_file_is_passed_over(tmp_path: Path) -> None:
    BackendChoiceCache.load(tmp_path, DEVICE, "1").keep(
        "k", BackendChoice("cpu", {"cpu": 1.0}), "net", "x=1"
    )
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text().replace('"backend": "cpu"', '"backend": "gpu"'))
    with pytest.warns(UserWarning, match="damaged"):
        assert BackendChoiceCache.load(tmp_path, DEVICE, "1").find("k") is None


def test_the_oldest_answers_go(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20
    monkeypatch.setattr("glnn.backends.backend_choice_cache.MOST", most)
    now = iter(range(1, most + 2))
    monkeypatch.setattr("glnn.backends.backend_choice_cache.time", lambda: next(now))
    cache, choice = BackendChoiceCache.load(None, DEVICE, "1"), BackendChoice("cpu", {"cpu": 1.0})
    for i in range(most + 1):
        cache.keep(str(i), choice, "net", "x=1")
    assert len(cache.found) == most and cache.find("0") is None and cache.find("1")


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("auto", ()), ("cpu", ("cpu",)), (" feedback , cpu", ("feedback", "cpu"))],
)
def test_the_backends_of_the_environment(text: str, names: tuple[str, ...]) -> None:
    assert Settings.from_environment({"GLNN_BACKEND": text}).backends == names


def test_a_backend_of_the_environment_that_there_is_not() -> None:
    with pytest.raises(GlnnError, match=r"GLNN_BACKEND: expected auto, compute.*got 'gpu'"):
        Settings.from_environment({"GLNN_BACKEND": "compute,gpu"})


@pytest.mark.parametrize(
    ("renderer", "name"),
    [
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe"),
        ("zink Vulkan 1.3(llvmpipe (LLVM 19.1.7, 256 bits) (MESA_LAVAPIPE))", "llvmpipe"),
        ("ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero)), SwiftShader)", "SwiftShader"),
        ("softpipe", "softpipe"),
        ("Software Rasterizer", "swrast"),
        ("NVIDIA H200/PCIe/SSE2", None),
        ("V3D 4.2", None),
        ("Mali-G610 (Panfrost)", None),
    ],
)
def test_a_software_renderer_is_named(renderer: str, name: str | None) -> None:
    assert replace(DEVICE, renderer=renderer).software == name


def test_a_stored_choice_is_of_so_many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that `auto` stored beside two is not run beside sixty; one of a named backend is."""
    found = []
    for count in (2, 60):
        monkeypatch.setattr("glnn.stored.index.processors", lambda count=count: count)
        found.append([options_key(Options(backend)) for backend in ("auto", "compute")])
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1]
