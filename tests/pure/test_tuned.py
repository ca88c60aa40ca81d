"""What tuning found: kept in a file, found again, and passed over where it does not serve."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from glnn.graph.epilogue import BIASED
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import choose
from glnn.kernels.source import fingerprint
from glnn.kernels.tuned import Tuned, TunedChoice, problem_class
from glnn.kernels.verdicts import Verdict, Verdicts
from tests.pure.test_kernels import DEVICE

KERNELS = {kernel.name: kernel for kernel in kernels_for("matmul", "compute")}
CHOICE = TunedChoice.from_kernel(KERNELS["gemm_tiled"].with_parameters(TM=8), 1e-3, 2e-3)


def spec(m: int, n: int, k: int) -> OpSpec:
    return OpSpec.create(Matmul(), {"x": (m, k), "weight": (n, k)}, {})


def test_a_class_covers_the_sizes_near_it() -> None:
    assert problem_class(spec(1000, 64, 1)) == problem_class(spec(1024, 90, 1))
    assert problem_class(spec(1000, 64, 1)) != problem_class(spec(1000, 64, 2))
    assert problem_class(spec(1000, 64, 1)) != problem_class(spec(1000, 100, 1))
    chained = OpSpec.create(Matmul(), {"x": (4, 4), "weight": (4, 4)}, {"x": "R 2 4 R"})
    assert problem_class(chained) != problem_class(spec(4, 4, 4))
    shapes = {"x": (4, 4), "weight": (4, 4), "e1": (4,)}
    finished = OpSpec.create(Matmul(), shapes, {}, BIASED)
    assert problem_class(finished) == problem_class(spec(4, 4, 4))


def test_what_is_kept_is_found_by_the_next(tmp_path) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    assert tuned.find("compute", spec(64, 64, 64)) is None
    tuned.keep("compute", spec(64, 64, 64), CHOICE)
    again = Tuned.load(tmp_path, DEVICE, "1")
    assert again.find("compute", spec(60, 70, 64)) == CHOICE
    assert again.find("feedback", spec(64, 64, 64)) is None
    for other in (
        Tuned.load(tmp_path, replace(DEVICE, renderer="Other"), "1"),
        Tuned.load(tmp_path, replace(DEVICE, version_text="a newer driver"), "1"),
        Tuned.load(tmp_path, DEVICE.with_minimum(), "1"),
        Tuned.load(tmp_path, DEVICE, "2"),
        Tuned.load(None, DEVICE, "1"),
    ):
        assert other.choices == {}


def test_choices_of_the_former_names_are_dropped(tmp_path) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.keep("compute", spec(64, 64, 64), CHOICE)
    stored = json.loads(tuned.path.read_text("utf-8"))
    tuned.path.write_text(json.dumps(stored | {"form": 2}), "utf-8")
    assert Tuned.load(tmp_path, DEVICE, "1").choices == {}


def test_verdicts_on_the_former_names_are_dropped(tmp_path) -> None:
    key, wrong = "compute matmul tiled 0123", Verdict(wrong="off by 1.0")
    Verdicts.load(tmp_path, DEVICE, "1").keep({key: wrong})
    kept = Verdicts.load(tmp_path, DEVICE, "1")
    assert kept.found == {key: wrong}
    stored = json.loads(kept.file.path.read_text("utf-8"))
    kept.file.path.write_text(json.dumps(stored | {"form": stored["form"] - 1}), "utf-8")
    assert Verdicts.load(tmp_path, DEVICE, "1").found == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"form": 3}', '{"form": 3, "device": "x", "glnn": 2}', "\xff"]
)
def test_a_damaged_file_is_passed_over_and_replaced(tmp_path, text) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.keep("compute", spec(64, 64, 64), CHOICE)
    tuned.path.write_text(text, "latin-1")
    whole = not text.startswith('{"form": 3, "device"')  # that one belongs to another device
    if whole:
        with pytest.warns(UserWarning, match="not used, as it is damaged"):
            found = Tuned.load(tmp_path, DEVICE, "1")
    else:
        found = Tuned.load(tmp_path, DEVICE, "1")
    assert found.choices == {}
    found.keep("compute", spec(8, 8, 8), CHOICE)
    assert list(Tuned.load(tmp_path, DEVICE, "1").choices.values()) == [CHOICE]


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters": {"TM": "many"}},
        {"parameters": {"TM": inf}},
        {"parameters": {"TM": 8.0}},
        {"parameters": {"TM": True}},
        {"parameters": 3},
        {"seconds": 0},
        {"seconds": -1.0},
        {"seconds": nan},
        {"seconds": 10**400},
        {"default_seconds": inf},
        {"seconds": None},
    ],
)
def test_a_choice_of_a_wrong_form_is_damage_too(tmp_path, changes) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.keep("compute", spec(64, 64, 64), CHOICE)
    text = json.loads(tuned.path.read_text())
    next(iter(text["choices"].values())).update(changes)
    tuned.path.write_text(json.dumps(text))
    with pytest.warns(UserWarning, match="damaged"):
        assert Tuned.load(tmp_path, DEVICE, "1").choices == {}


def test_two_who_tune_keep_each_others_results(tmp_path) -> None:
    one, two = (Tuned.load(tmp_path, DEVICE, "1") for _ in range(2))
    one.keep("compute", spec(64, 64, 64), CHOICE)
    two.keep("compute", spec(8, 8, 8), CHOICE)
    assert len(two.choices) == len(Tuned.load(tmp_path, DEVICE, "1").choices) == 2
    two.forget()
    assert Tuned.load(tmp_path, DEVICE, "1").choices == two.choices == {}


def test_probing_leaves_nothing_behind(tmp_path) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.probe()
    assert tuned.path and list(tuned.path.parent.iterdir()) == []


def test_without_a_folder_choices_last_as_long_as_the_process(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tuned = Tuned.load(None, DEVICE, "1")
    assert tuned.path is None
    tuned.probe()
    tuned.keep("compute", spec(64, 64, 64), CHOICE)
    assert tuned.find("compute", spec(64, 64, 64)) == CHOICE
    tuned.forget()
    assert tuned.choices == {} and list(tmp_path.iterdir()) == []


def test_the_values_of_architectures_may_be_kept(tmp_path) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    familiar = KERNELS["gemm_blocked"].with_parameters(TM=6)
    tuned.keep("compute", spec(64, 64, 64), TunedChoice.from_kernel(familiar, 1.0, None))
    found = choose("compute", spec(64, 64, 64), DEVICE, tuned=tuned)
    assert (found.name, found.defaults) == ("gemm_blocked", familiar.defaults)


def test_another_source_is_another_kernel(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    prints = []
    for i, (shader, declared) in enumerate([("a", "b"), ("a", "c"), ("d", "b")]):
        path = tmp_path / "op" / f"{i}.comp"
        path.write_text(shader)
        kernel = replace(KERNELS["gemm_blocked"], path=path, text=declared)
        assert fingerprint(kernel) == fingerprint(kernel.with_parameters(TM=2))
        prints.append(fingerprint(kernel))
    assert len(set(prints)) == 3


def test_nothing_is_left_half_written(tmp_path, monkeypatch) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.keep("compute", spec(64, 64, 64), CHOICE)

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned.keep("compute", spec(8, 8, 8), CHOICE)
    assert [path.name for path in tuned.path.parent.iterdir()] == [tuned.path.name]
    assert len(Tuned.load(tmp_path, DEVICE, "1").choices) == 1


def test_what_was_tuned_comes_before_the_default(tmp_path) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    wanted = spec(1000, 1000, 1000)
    assert choose("compute", wanted, DEVICE, tuned=tuned).name == "gemm_blocked"
    tuned.keep("compute", wanted, CHOICE)
    found = choose("compute", wanted, DEVICE, tuned=tuned)
    assert (found.name, found.defaults["TM"], found.defaults["TN"]) == ("gemm_tiled", 8, 4)
    assert (
        choose("compute", wanted, DEVICE, "gemm_blocked", tuned).name == "gemm_blocked"
    )  # as asked for
    assert choose("compute", spec(100, 100, 100), DEVICE, tuned=tuned).name == "gemm_split_k16"


@pytest.mark.parametrize(
    "choice",
    [
        replace(CHOICE, kernel="gone"),
        replace(CHOICE, source="what it was before"),
        TunedChoice.from_kernel(KERNELS["cheng_v2"], 1.0, None),
        *(
            replace(CHOICE, parameters={**CHOICE.parameters, **changes})
            for changes in (
                {"NEW": 1},
                {"WG_X": 16, "WG_Y": 16, "SLICES": 4},  # 1024 invocations
                {"BK": 2},  # none of those declared
                {"WG_X": 0},
            )
        ),
        replace(CHOICE, parameters={"TM": 8}),
    ],
)
def test_what_cannot_run_any_more_gives_way_to_the_default(tmp_path, choice) -> None:
    tuned = Tuned.load(tmp_path, DEVICE, "1")
    tuned.keep("compute", spec(1000, 1000, 1000), choice)
    assert choose("compute", spec(1000, 1000, 1000), DEVICE, tuned=tuned).name == "gemm_blocked"
