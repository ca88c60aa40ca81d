"""`glnn kernels`: the table, compiling, exporting."""

from __future__ import annotations

from pathlib import Path

import pytest

from glnn.errors import ShaderError
from glnn.kernels import library, report
from glnn.kernels.library import declared
from tests.cli.conftest import Glnn

KEYS = {
    "name",
    "op",
    "backend",
    "ok",
    "reason",
    "summary",
    "parameters",
    "defaults",
    "stages",
    "document",
    "seen",
    "folder",
    "priority",
}


def test_the_table(cli: Glnn) -> None:
    rows = cli("kernels", "--json").json["kernels"]
    assert len(rows) == len(declared())
    shown = cli("kernels")
    for row in rows:
        assert set(row) == KEYS
        assert row["ok"] is (row["reason"] is None)
        assert row["name"] in shown.out and row["op"] in shown.out
    marked = {(row["op"], row["name"]) for row in rows if row["document"]}
    assert marked == {(k.op, k.name) for k in declared() if k.document}
    assert "document" in shown.out.splitlines()[0]
    by_name = {(row["op"], row["name"]): row["priority"] for row in rows}
    assert by_name == {(k.op, k.name): k.priority for k in declared()}


def test_the_kernels_of_one_op(cli: Glnn) -> None:
    rows = cli("kernels", "--op", "softmax", "--json").json["kernels"]
    assert {row["op"] for row in rows} == {"softmax"}
    assert {row["backend"] for row in rows} == {"compute", "feedback"}


def test_kernels_made_of_stages(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    monkeypatch.setattr(report, "link", lambda device, kernel, source: linked.append(kernel.name))
    rows = cli("kernels", "--op", "conv2d", "--compile", "--json").json["kernels"]
    staged = {row["name"]: row["stages"] for row in rows if row["stages"]}
    assert staged.items() >= {"winograd_4": "winograd", "im2col_morton": "im2col"}.items()
    assert {k.name for k in declared() if k.stages and k.op == "conv2d"} == set(staged)
    assert not set(linked) & set(staged) and set(linked) <= {row["name"] for row in rows}
    shown = cli("kernels", "--op", "conv2d").out
    assert "stages" in shown and "winograd_4" in shown


def test_all_compile(cli: Glnn) -> None:
    rows = cli("kernels", "--compile", "--json").json["kernels"]
    refused = [row for row in rows if not row["ok"]]
    if "llvmpipe" in cli("info", "--json").json["device"]["renderer"]:
        assert refused == []
    assert all(row["reason"].startswith("not admissible: ") for row in refused)


def test_the_smallest_device(cli: Glnn) -> None:
    rows = cli("kernels", "--compile", "--limits", "es31-minimum", "--json").json["kernels"]
    for row in rows:
        assert row["ok"] or row["reason"].startswith("not admissible: ")
    fused = {"batch_normalize_gradient"}  # five operands: made only where there is a kernel
    for op in {row["op"] for row in rows} - fused:
        there = [row for row in rows if row["op"] == op]
        assert {row["backend"] for row in there if row["ok"]} == {r["backend"] for r in there}, op


def test_what_does_not_compile_says_so(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ShaderError("compile: softmax/rows.comp on this device\nrows.comp:1: no")

    monkeypatch.setattr(report, "link", fail)
    rows = cli("kernels", "--op", "softmax", "--compile", "--json").json["kernels"]
    rows = [row for row in rows if not row["stages"]]
    assert rows and not any(row["ok"] for row in rows)
    assert all(row["reason"].startswith("compile: ") for row in rows)


def test_es_30(process: Glnn) -> None:
    rows = process("kernels", "--compile", "--json", MESA_GLES_VERSION_OVERRIDE="3.0").json
    compute = [row for row in rows["kernels"] if row["backend"] == "compute"]
    if any(row["ok"] for row in compute):
        pytest.skip("not Mesa")
    for row in compute:
        assert row["reason"].startswith("not admissible: compute shaders need OpenGL ES 3.1")
    assert all(row["ok"] for row in rows["kernels"] if row["backend"] == "feedback")


def test_without_gl_nothing_is_admissible(process: Glnn) -> None:
    rows = process("kernels", "--json", __EGL_VENDOR_LIBRARY_FILENAMES="/nonexistent").json
    if any(row["ok"] for row in rows["kernels"]):
        pytest.skip("this EGL does not dispatch to vendors")
    assert len(rows["kernels"]) == len(declared())
    for row in rows["kernels"]:
        assert row["reason"].startswith("not admissible: no usable OpenGL ES context")


def test_export(cli: Glnn, tmp_path: Path) -> None:
    done = cli("kernels", "--export", tmp_path / "a" / "b")
    assert done.code == 0
    names = [one.name for kernel in library() for one in report.Example.all_of(kernel)]
    assert done.err == f"wrote {len(names)} sources to {tmp_path / 'a' / 'b'}\n"
    files = list((tmp_path / "a" / "b").iterdir())
    assert sorted(file.stem for file in files) == sorted(names)
    for file in files:
        version = {".comp": "#version 310 es", ".vert": "#version 300 es"}[file.suffix]
        text = file.read_text("utf-8")
        assert text.startswith(version) and "#include" not in text and "void main()" in text


def test_export_of_one_op(cli: Glnn, tmp_path: Path) -> None:
    assert cli("kernels", "--op", "softmax", "--export", tmp_path).code == 0
    assert {file.name.partition("-")[0] for file in tmp_path.iterdir()} == {"softmax"}


def test_export_for_an_architecture(cli: Glnn, tmp_path: Path) -> None:
    assert (
        cli("kernels", "--op", "matmul", "--export", tmp_path, "--architecture", "Adreno").code == 0
    )
    text = (tmp_path / "matmul-gemm_blocked.comp").read_text("utf-8")
    assert "#define TM 8\n" in text and "#define TN 2\n" in text
    refusal = cli("kernels", "--architecture", "Adreno").refusal
    assert refusal == "--architecture: expected --export with it, got Adreno alone"


def test_export_of_what_is_admissible(cli: Glnn, tmp_path: Path) -> None:
    """Those that the table says run here; Rovder's 8 x 32 has too many invocations."""
    options = ("--op", "matmul", "--limits", "es31-minimum")
    done = cli("kernels", *options, "--export", tmp_path / "some", "--admissible")
    rows = cli("kernels", *options, "--json").json["kernels"]
    assert cli("kernels", "--op", "matmul", "--export", tmp_path / "all").code == 0
    found = {path.stem.split("-")[1] for path in (tmp_path / "some").iterdir()}
    every = {path.stem.split("-")[1] for path in (tmp_path / "all").iterdir()}
    able = {row["name"] for row in rows if row["ok"] and not row["stages"]}
    assert done.code == 0 and found == able and "gemm_blocked" in found
    assert "cross_rm_cm_8x32" in every - found
    row = next(row for row in rows if row["name"] == "cheng_v2")
    text = (tmp_path / "some" / "matmul-cheng_v2.comp").read_text("utf-8")
    for name, value in row["parameters"].items():
        assert f"#define {name} {value}\n" in text
    assert row["defaults"] == "within the limits"
    for options in (["--admissible"], ["--export", tmp_path, "--architecture", "V3D"]):
        refusal = cli("kernels", "--admissible", *options).refusal
        assert refusal == "--admissible: expected --export with it, and no --architecture"


def test_where_parameters_come_from(cli: Glnn) -> None:
    rows = {r["name"]: r for r in cli("kernels", "--op", "matmul", "--json").json["kernels"]}
    if "llvmpipe" not in cli("info", "--json").out or not rows["gemm_blocked"]["ok"]:
        pytest.skip("the architectures of other devices are shown there")
    assert rows["gemm_blocked"]["defaults"] == "llvmpipe"
    assert rows["gemm_blocked"]["parameters"]["TM"] == 8
    assert rows["gemm_split_k16"]["defaults"] == "any device"
    least = cli("kernels", "--op", "matmul", "--limits", "es31-minimum", "--json").json["kernels"]
    assert {r["name"]: r for r in least}["cheng_v2"]["defaults"] == "within the limits"


def test_the_cache_lines_of_products(cli: Glnn) -> None:
    found = cli("kernels", "--cache", "--json").json
    assert (found["line_bytes"], found["cache_lines"], found["invocations"]) == (64, 256, 128)
    rows = {row["name"]: row for row in found["kernels"]}
    assert rows["blocked_nn"]["lines"]["4x32"] == 48 and rows["blocked_nt"]["computes"] == "2x2"
    assert rows["morton_4_2"]["bulk"] == 20 and rows["morton_4_2"]["period"] == 8
    shown = cli("kernels", "--op", "matmul", "--cache", "--wide").out
    assert all(name in shown for name in rows)
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "cache lines (NN) 513 258 132 72 48 48 72 132" in lines
    assert "L1 fraction (NT) 1 0.52 0.28 0.19 0.19 0.28 0.52 1" in lines
    assert "Morton 4-4 morton_4_4 R 4 4 R R 4 4 R R 4 4 R 10 1" in lines
    refusal = cli("kernels", "--op", "conv2d", "--cache").refusal
    assert refusal == "--cache: expected --op matmul or none, got conv2d"
    assert "expected it without --forget" in cli("kernels", "--cache", "--forget").refusal
