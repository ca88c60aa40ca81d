"""The page of the documents is made of what was measured; one command runs the experiments."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("the benchmarks are not part of the package", allow_module_level=True)

from benchmarks import documents, documents_page, documents_plots, experiments  # noqa: E402
from benchmarks.documents import Claim, Figure, Told  # noqa: E402
from benchmarks.documents_page import faults, page, parts, read  # noqa: E402
from benchmarks.judging import Evidence, evidence, holds, verdicts  # noqa: E402
from glnn.errors import GlnnError  # noqa: E402

Json = dict[str, Any]
ANY = float("inf")


@pytest.mark.parametrize(
    ("claim", "measured", "verdict"),
    [
        (Claim("a", "b", 1.0), (1.1, 2.0, 3.0), "yes"),
        (Claim("a", "b", 1.0), (0.9, 0.95, 1.1), "in part"),
        (Claim("a", "b", 1.0), (0.5, 0.7, 1.0), "no"),
        (Claim("a", "b", 3.0, 3.0), (1.9, 2.1, 2.3), "yes"),
        (Claim("a", "b", 3.0, 3.0), (4.0, 4.6, 5.0), "in part"),
        (Claim("a", "b", 3.0, 3.0), (0.2, 0.9, 4.0), "no"),
        (Claim("a", "b", 1.12, 1.12), (0.9, 0.99, 1.1), "no"),
        (Claim("a", "b", 0.5, 0.5), (0.4, 0.7, 0.9), "yes"),
        (Claim("a", "b", 0.5, 0.5), (1.0, 1.2, 1.3), "no"),
        (Claim("a", "a", 1.0, 1.0), (0.7, 0.7, 0.7), "yes"),
        (Claim("a", "a", 1.0, 1.0), (0.6, 0.6, 0.6), "no"),
        (Claim("a", "b", 2.0, ANY), (5.0, 9.0, 30.0), "yes"),
        (Claim("a", "b", 2.0, ANY), (1.1, 1.2, 1.3), "in part"),
        (Claim("a", "b", 0.8, 1.25), (0.8, 1.0, 1.25), "yes"),
        (Claim("a", "b", 0.8, 1.25), (0.5, 1.0, 2.0), "in part"),
        (Claim("a", "b", 0.8, 1.25), (0.5, 0.6, 2.0), "no"),
        (Claim("a", "", 0.55, 0.55), (0.7, 0.7, 0.7), "yes"),
        (Claim("a", "", 0.55, 0.55), (0.9, 0.9, 0.9), "no"),
    ],
)
def test_a_claim_is_judged_by_one_rule(claim, measured, verdict) -> None:
    assert holds(claim, *measured) == verdict


def run_of(figure: Figure, unit: str, scale: float = 1.0) -> Json:
    """A run that has a number for every row and column of `figure`."""
    entries = [
        {"figure": figure.key, "row": row, "column": column, "unit": unit, "ours": scale * (i + j)}
        for i, row in enumerate(dict.fromkeys([*figure.rows_here, *figure.rows]), 1)
        for j, column in enumerate(figure.columns_here)
    ]
    return {"device": "a GPU", "version": "ES", "beside": entries, "claims": []}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder with what benchmarks.bias would write."""
    run = run_of(documents.figure("rovder_2017", "figure_9_1"), "GB/s")
    (tmp_path / "bias.json").write_text(json.dumps(run))
    return tmp_path


def made(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--measured", str(folder), "--into", str(folder / "page.md"), *options]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.documents_page", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_page_has_numbers_claims_and_pictures(measured) -> None:
    pytest.importorskip("matplotlib")
    done = made(measured)
    assert done.returncode == 0, done.stderr
    text = (measured / "page.md").read_text()
    assert "Here: a GPU, ES." in text and "\nGB/s:\n" in text
    assert "| bias_rm | 1 | 2 | 3 |" in text
    assert "| bias_vector is faster than bias_rm | 2.71 (2 to 4) | yes |" in text
    assert "| bias_vector is faster than bias_grouped_vector | 0.83 (0.8 to 0.857) | no |" in text
    assert "`python -m benchmarks.activation`: not measured yet" in text
    picture = measured / "documents" / "rovder_2017_figure_9_1.svg"
    assert "![" in text and f"(documents/{picture.name})" in text
    first = picture.read_bytes()
    assert made(measured).returncode == 0
    assert first == picture.read_bytes() and b"<svg" in first and len(first) < 25_000


def test_what_is_not_measured_yet_is_an_error_only_if_asked(measured) -> None:
    done = made(measured, "--strict", "--no-plots")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "rovder_2017 figure_9_2: not measured yet" in done.stderr
    assert "figure_9_1" not in done.stderr


def test_two_runs_of_one_figure_are_an_error(measured) -> None:
    (measured / "other.json").write_text((measured / "bias.json").read_text())
    done = made(measured, "--no-plots")
    assert done.returncode == 2
    says = "rovder_2017 figure_9_1: expected numbers in bias.json, got bias.json and other.json"
    assert done.stderr == says + "\n"


def test_an_empty_row_is_an_error(measured) -> None:
    run = json.loads((measured / "bias.json").read_text())
    run["beside"] = [entry for entry in run["beside"] if entry["row"] != "bias_rm"]
    assert faults({"bias": run}, False) == [
        "rovder_2017 figure_9_1: bias_rm has neither numbers nor a reason"
    ]
    run["rows"] = [{"kernel": "bias_rm", "reason": "this device has no such thing"}]
    assert faults({"bias": run}, False) == []
    assert "- bias_rm: this device has no such thing\n" in page({"bias": run})


def test_no_json_is_answered_in_one_sentence(measured) -> None:
    (measured / "bias.json").write_text("{")
    done = made(measured, "--no-plots")
    assert done.returncode == 2 and "bias.json: expected what a benchmark wrote, got" in done.stderr


FIGURE = Figure(
    "f", "title", "paper, f", "", "ms", {"a": {"8": 1.0}, "b": {"8": 2.0}}, ("a", "b"), ("8",),
    (Claim("a", "b", 2.0, 2.0), Claim("a", "c", 1.0, reason="elsewhere"), Claim("a", "d", 1.0)),
    "paper", "python -m benchmarks.f", told=(Told("a grows"), Told("b grows", "no b here")),
)  # fmt: skip


def test_claims_are_answered_by_numbers_by_answers_and_by_reasons() -> None:
    entries = [
        {"figure": key, "row": row, "column": "8", "unit": "ms", "ours": ours}
        for key, row, ours in (("f", "a", 3.0), ("f", "b", 6.0), ("g", "d", 6.0))
    ]
    claims = [{"figure": "f", "claim": "a grows", "here": "it does not", "holds": "no"}]
    found = evidence(FIGURE, {"beside": entries, "claims": claims})
    assert [(v.holds, v.here) for v in verdicts(FIGURE, found)] == [
        ("yes", "2"), ("not measurable", "elsewhere"), ("yes", "2"), ("no", "it does not"),
        ("not measurable", "no b here"),
    ]  # fmt: skip
    assert [v.holds for v in verdicts(FIGURE, Evidence())].count("not measured yet") == 3


def test_every_figure_has_a_command_or_a_reason() -> None:
    every = [figure for name in documents.ALL for figure in documents.figures(name)]
    assert all(figure.command or figure.reason for figure in every)
    for figure in every:
        known = {*figure.rows_here, *figure.rows, *figure.columns_here}
        assert {*figure.reasons, *figure.stand_ins} <= known, figure.key
        if not figure.command:
            assert not any(v.holds == "not measured yet" for v in verdicts(figure, Evidence()))


def test_the_page_has_every_picture_that_can_be_drawn() -> None:
    runs = read(documents_page.MEASURED)
    again = "python -m benchmarks.documents_page writes it anew"
    drawn = {p.picture for name in documents.ALL for p in parts(runs, name) if p.picture}
    folder = documents_page.PAGE.parent / "documents"
    assert drawn == {path.name for path in folder.iterdir()}, again
    assert all((folder / name).stat().st_size < 30_000 for name in drawn)


def test_the_page_is_complete() -> None:
    assert faults(read(documents_page.MEASURED), strict=True) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m benchmarks.matmul --document cheng", "cheng"),
        ("python -m benchmarks.vgg16 --document --repeat 9", "vgg16_document"),
        ("python -m benchmarks.lenet --repeat 500", "lenet"),
        ("python -m benchmarks.bias", "bias"),
        ("glnn kernels --cache", "kernels_cache"),
    ],
)
def test_a_run_is_named_after_its_command(command, name) -> None:
    assert documents.run_name(command) == name


def test_every_command_is_listed_once() -> None:
    found = experiments.commands()
    assert len(set(found.values())) == len(found)
    every = [figure for name in documents.ALL for figure in documents.figures(name)]
    assert {figure.command for figure in every if figure.command} == set(found.values())
    for command in found.values():
        module = command.split()[2].replace(".", "/")
        assert (ROOT / f"{module}.py").is_file(), command
    assert set(experiments.commands(("gronqvist",)).values()) < set(found.values())


def says(text: str) -> str:
    return f'python -c "{text}"'


def test_a_run_that_fails_leaves_what_was_there(tmp_path) -> None:
    path = tmp_path / "a.json"
    good = says("print('{}')")
    assert experiments.measure(good, path, 60) == (0, "") and path.read_text() == "{}\n"
    for command, status, words in (
        (says("import sys; print('{'); sys.exit('no GPU')"), 1, "no GPU"),
        (says("print('{')"), 1, "it printed no JSON: '{\\n'"),
        (
            says("import time; print('{'); time.sleep(60)"),
            experiments.LATE,
            "it took more than 1 s",
        ),
    ):
        assert experiments.measure(command, path, 1) == (status, words)
        assert path.read_text() == "{}\n" and list(tmp_path.iterdir()) == [path]


def test_what_is_late_is_ended_with_its_children(tmp_path) -> None:
    mark = tmp_path / "late"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path('{mark}').touch()"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', \\\"{child}\\\"])"
    status, _ = experiments.measure(says(text), tmp_path / "a.json", 1)
    assert status == experiments.LATE
    time.sleep(3)
    assert not mark.exists()


def test_experiments_go_on_after_one_that_fails(tmp_path, monkeypatch) -> None:
    found = {"bad": says("raise SystemExit(3)"), "good": says("print('[1]')")}
    monkeypatch.setattr(experiments, "commands", lambda chosen=(): found)
    into = tmp_path / "new"
    options = ["--into", str(into), "--json"]
    assert experiments.main(options, standalone_mode=False) == 1
    assert [path.name for path in into.iterdir()] == ["good.json"]
    assert experiments.main([*options, "--missing", "--list"], standalone_mode=False) == 0
    assert experiments.main([*options, "--only", "good"], standalone_mode=False) == 0


def test_without_matplotlib_pictures_stay(tmp_path, monkeypatch) -> None:
    (tmp_path / "old.svg").write_text("<svg/>")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(GlnnError, match="pictures need matplotlib"):
        documents_page.draw(tmp_path, {})
    assert (tmp_path / "old.svg").exists()


def test_a_picture_is_of_numbers_of_one_unit() -> None:
    entries = [
        {"row": row, "column": column, "unit": "ms", "theirs_unit": "s", "ours": 1.0}
        for row in "ab"
        for column in ("8", "9")
    ]
    assert documents_plots.drawable([*entries, {**entries[0], "unit": "x"}])
    assert not documents_plots.drawable([entry for entry in entries if entry["row"] == "a"])
    assert not documents_plots.drawable([{**entry, "ours": None} for entry in entries])
    assert not documents_plots.drawable([{**e, "unit": e["row"] + e["column"]} for e in entries])
