"""Every benchmark runs and prints one JSON object; nothing here is timed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import wave
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.kernels import kernels_for
from tests.generation.gguf_files import small_model

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="the benchmarks are not part of the package"
)
LONG = pytest.mark.skipif(
    not os.environ.get("GLNN_EXHAUSTIVE"), reason="it is long: make check-exhaustive has it"
)


def run(*arguments: str, given: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=given,
        capture_output=True,
        text=True,
        timeout=200,
    )
    if "the compute backend cannot run" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lenet() -> None:
    rows = json.loads(run("benchmarks.lenet", "--batch", "2", "--repeat", "1", "--json"))["rows"]
    assert {"glnn cpu", "glnn feedback"} <= {row["name"] for row in rows}
    assert all(row["error"] < 1e-5 for row in rows if row["name"].startswith("glnn"))


def test_startup() -> None:
    cold, warm = json.loads(run("benchmarks.startup", "lenet", "--rounds", "1", "--json"))["rows"]
    assert (cold["restored"], warm["restored"], warm["equal"]) == (False, True, True)
    assert cold["heavy"] > warm["heavy"] == 0 and warm["packed_bytes"] > 200_000
    assert {"import", "device", "session", "restore", "programs", "upload"} <= warm["ms"].keys()


def test_matmul() -> None:
    names = "default,cross_rm_rm,morton_4_2,gemm_blocked float16"
    result = json.loads(
        run("benchmarks.matmul", "--sizes", "9,1x7x5", "--kernels", names, "--alpha-beta", "--json")
    )
    ours = [row for row in result["rows"] if row["name"] in names.split(",")]
    assert len(ours) == 8
    assert all(row["gflops"] > 0 and row["error"] < 1e-5 for row in ours)
    assert all(0 < row["utilisation"] < 1 for row in ours)
    assert any(row["name"] == "NumPy" and row["error"] < 1e-5 for row in result["rows"])


@pytest.mark.parametrize(
    ("document", "size", "kernel"),
    [
        ("rovder_2017", "96", "morton_4_2"),
        pytest.param("gronqvist", "96", "blocked_nt", marks=LONG),
        pytest.param("cheng", "64", "cheng_v2", marks=LONG),
    ],
)
def test_documents(tmp_path, document, size, kernel) -> None:
    pytest.importorskip("matplotlib")
    options = ["--document", document, "--sizes", size, "--no-peers", "--json", "--plot", tmp_path]
    result = json.loads(run("benchmarks.matmul", *map(str, options)))
    beside = [row for row in result["beside"] if row["row"] == kernel and row["column"] == size]
    assert all(row["ours"] > 0 for row in beside) and beside
    if document != "cheng":
        assert any(row["theirs"] for row in beside)
    assert result["claims"]
    if document == "gronqvist":  # the best and the median of nine runs, alpha A B + beta C
        for row in result["rows"]:
            assert row["error"] < 1e-5 and 5 <= row["runs"] <= 9
            assert row["gflops"] >= row["median_gflops"] > 0
            assert row["gflops"] * row["ms"] == pytest.approx(1e-6 * 2 * 96 * 96 * 97)
            assert row["workgroup"] in ([8, 8, 1], [4, 16, 1], [16, 4, 1])
    if document == "cheng":  # version 3 with what goes before it
        parts = {row["name"]: row["parts_ms"] for row in result["rows"] if "_v3_" in row["name"]}
        assert {len(parts[name]) - ("float16" in name) for name in parts} == {2}
        assert all(row["n"] == 64 and 0 < row["error"] < 0.1 for row in result["errors"])
        assert {row["kernel"] for row in result["workgroups"]} < set(parts)
        assert {"table_1", "figure_26"} <= {row["figure"] for row in result["beside"]}
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    assert {row["figure"] for row in beside} <= drawn


def test_deviations_are_held_against_the_documents_greatest() -> None:
    from benchmarks.matmul import deviations

    row = {"name": "cross_rm_rm", "gflops": 1.0}
    for off, holds in ((0.05, "yes"), (0.06, "no")):
        (told,) = deviations([{**row, "deviation": off}, {**row, "name": "x", "deviation": 1.0}])
        assert told["holds"] == holds and "the document's 5.41%" in told["here"]
    assert not [*deviations([{**row, "gflops": None}])]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("matmul --sizes 0x", "--sizes: expected numbers as 96 or 1x64x256, got '0x'"),
        ("matmul --kernels foo", "--kernels: no kernel 'foo', expected default, "),
        ("matmul --document cheng --kernels tiled", "--kernels: expected none beside --document"),
        ("matmul --document cheng --sizes 7", "--sizes: expected some of 64, 128, "),
        ("matmul --plot benchmarks", "--plot: expected a .png or .svg file, got benchmarks"),
        ("matmul --plot a.txt", "--plot: expected a .png or .svg file, got a.txt"),
        ("matmul --document cheng --plot Makefile", "--plot: expected a folder, got the file"),
        ("filters --only no", "--only: no 'no', expected beginnings of gaussian_blur 5, "),
        ("filters --sizes 9", "--sizes: expected sizes as 1920x1080,640x480, got '9'"),
        ("bandwidth --only no", "--only: no 'no', expected beginnings of relu, sum of two, "),
        ("packed_products --sizes 9", "--sizes: expected NxK as 4096x4096, got '9'"),
        ("packed_products --rows 1,x", "--rows: expected numbers as 1,2,8, got 'x'"),
        ("packed_products --formats Q9", "--formats: expected some of f32, "),
        ("packed_products --kernel no", "--kernel: quantized_matmul has no kernel 'no'"),
        ("sobel --sizes 9", "--sizes: expected height x width as 512x512,64x67, got '9'"),
        ("sobel --kernels no", "--kernels: no 'no', expected 2xchar8, "),
        ("epilogues --epilogues no", "--epilogues: expected some of bias, ReLU, "),
        ("roofline --plot a.txt", "--plot: expected a .png or .svg file, got a.txt"),
        ("mlp --models none", "--models: no 'none', expected "),
        ("bias --shapes 9x9", "--shapes: no '9x9', expected some of 1024x1024, 256x4096, "),
        ("mnist --only mlp,no", "--only: no 'no', expected some of mlp, dnn, lenet"),
        ("mnist --kernels no", "--kernels: no 'no', expected some of cheng_v3_w4, "),
        ("training --only no", "--only: no 'no', expected beginnings of mlp_784_512_10, "),
        ("launches --steps 5,x", "--steps: expected numbers as 50,200, got '5,x'"),
        ("host_parts --only no", "--only: no 'no', expected some of training 64, "),
        ("transfers --mib 4x", "--mib: expected numbers as 0.3,4, got '4x'"),
        (
            "networks_page --networks . --only no",
            "--only: no 'no', expected some of squeezenet1_1, ",
        ),
        ("network_cpu", "expected --networks or names of .onnx files, got neither"),
        ("network_cpu --networks docs --only lstm", "--networks: no file docs/lstm.onnx; "),
        ("networks_page --networks docs --only lstm", "--networks: no file docs/lstm.onnx; "),
        ("networks_page --networks . --by no", "--by: no 'no', expected beginnings of glnn, "),
        (
            "networks_page --networks . --batch 1,x",
            "--batch: expected numbers as 1,8,32, got '1,x'",
        ),
        ("open_sizes none.onnx", "no file 'none.onnx', and none of encoder, detector"),
        ("open_sizes encoder --sizes L=9", "--sizes: expected NAME=LEAST:MOST or :STEP behind, "),
        ("open_sizes encoder --input x", "--shape: expected one for each --input, and at least "),
        ("tokens --tokens 40", "--tokens: expected at least 43, got 40"),
        ("tokens --width 70", "--width: expected a multiple of 64, got 70"),
        ("tokens --count 300", "--places: expected room for 300 tokens and 8, got 256"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(arguments, says, monkeypatch, capsys) -> None:
    from benchmarks import command

    name, *words = arguments.split()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as done:
        command.run(import_module(f"benchmarks.{name}").main)
    printed = capsys.readouterr().err
    assert done.value.code == 2
    assert printed.startswith(says) and printed.count("\n") == 1


def test_a_picture_is_what_its_name_says(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    size = ("--sizes", "9", "--kernels", "gemm_blocked", "--no-peers", "--json")
    run("benchmarks.matmul", *size, "--plot", str(tmp_path / "z.svg"))
    assert "<svg" in (tmp_path / "z.svg").read_text() and len(list(tmp_path.iterdir())) == 1


def well_formed(name: str) -> list[Any]:
    """The tables and figures of the document called `name`."""
    from benchmarks.documents import figures

    found = list(figures(name))
    assert len({figure.key for figure in found}) == len(found) > 2
    for figure in found:
        assert figure.title and figure.source
        for claim in figure.claims:
            assert claim.least <= claim.most
    return found


@pytest.mark.parametrize("name", ["rovder_2017", "gronqvist", "cheng"])
def test_a_document_is_well_formed(name) -> None:
    well_formed(name)


def test_cheng_is_counted_as_the_others() -> None:
    from benchmarks.documents import figures

    (rate,) = (figure for figure in figures("cheng") if figure.key == "figure_26")
    assert rate.rows["gpu"]["highest"] == 12  # printed as 6, of n^3 operations


def made(**given: Any) -> Any:
    """A figure of a and b at two sizes, with claims of every kind."""
    from benchmarks.documents import Claim, Figure, Told

    claims = (Claim("a", "b", 2.0, 2.0, "8"), Claim("a", "b", 0.8, 1.25), Claim("a", "", 3.0, 3.0))
    rows = {"a": {"8": 1.0, "9": 4.0}, "b": {"8": 2.0, "9": 2.0}}
    settled = {"told": (Told("a grows, as b does not"),), "document": "paper", **given}
    return Figure(
        "f", "title", "paper, f", "", "ms", rows, ("a", "b"), ("8", "9"), claims, **settled
    )


def test_times_and_rates_are_compared_by_speed() -> None:
    from benchmarks import beside

    ours = {("a", "8"): 1.0, ("a", "9"): 4.0, ("b", "8"): 2.0, ("b", "9"): 2.0}
    ms = beside.rows(made(), ours, "ms")
    assert [row["ours_over_first"] for row in ms] == [1, 1, 0.5, 2]
    assert [row["theirs_over_first"] for row in ms] == [1, 1, 0.5, 2]
    rate = beside.rows(made(), ours, "GB/s")
    assert [row["ours_over_first"] for row in rate] == [1, 1, 2, 0.5]
    assert {row["document"] for row in rate} == {"paper"}
    said = {c["claim"]: c["ours_mean"] for c in beside.claims(made(), ours, "ms")}
    assert said["a is 2 times as fast as b at 8"] == pytest.approx(2)
    assert said["a is about as fast as b"] == pytest.approx(1) and said["a is 3"] == pytest.approx(
        2
    )
    said = {c["claim"]: c["ours_mean"] for c in beside.claims(made(), ours)}
    assert said["a is 2 times as fast as b at 8"] == pytest.approx(0.5)


def test_what_is_said_in_words_is_answered_in_words() -> None:
    from benchmarks import beside
    from glnn.errors import GlnnError

    found = beside.answer(made(), "a grows", "a is 4 times b", "in part")
    assert found["claim"] == "a grows, as b does not" and found["holds"] == "in part"
    for text, holds in (("b grows", "yes"), ("a grows", "perhaps")):
        with pytest.raises(GlnnError, match="answer: expected the beginning of one sentence of f"):
            beside.answer(made(), text, "", holds)


def test_the_model_of_the_cache_is_the_documents() -> None:
    found = json.loads(run("benchmarks.cache", "--json"))["beside"]
    assert {one["figure"] for one in found} == {"table_1_2", "table_1_2_fraction", "table_8_1"}
    assert all(one["ours"] == pytest.approx(one["theirs"], rel=0.02) for one in found)
    assert len(found) == 16 + 16 + 6


@pytest.mark.parametrize("by", ["ticket", "count"])
def test_workgroup_order(by: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--size", "9", "--by", by, "--repeat", "2", "--plot", str(tmp_path / "order.png")]
    result = json.loads(run("benchmarks.workgroup_order", *options, "--json"))
    tickets = [ticket for row in result["tickets"] for ticket in row]
    assert len(tickets) == 81 and (by == "count" or sorted(tickets) == list(range(81)))
    assert result["order"] in [*result["distances"], "none of those known"]
    (claim,) = result["claims"]
    assert claim["holds"] in ("yes", "in part", "no") and result["order"] in claim["here"]
    assert (tmp_path / "order.png").stat().st_size > 1000


@pytest.mark.parametrize("size", [2, 8, 33])
def test_orders_of_workgroups_are_told_apart(size: int) -> None:
    from benchmarks.workgroup_order import distance, known, nearest

    orders = known(size)
    for order in orders.values():
        assert sorted(order.ravel()) == list(range(size * size))
        found = {name: distance(order, other) for name, other in orders.items()}
        assert found[str(nearest(found))] == 0
    y, x = np.divmod(np.argsort(orders["Hilbert order"].ravel()), size)
    if size < 33:  # each is beside the one before
        assert (np.abs(np.diff(x)) + np.abs(np.diff(y)) == 1).all()
    shuffled = np.random.default_rng(0).permutation(size * size).reshape(size, size).astype(float)
    if size == 33:
        assert nearest({name: distance(shuffled, one) for name, one in orders.items()}) is None


@pytest.mark.parametrize(
    ("compiler", "what"), [("cc", "C, one thread"), ("no-such-cc", "no no-such-cc on the path")]
)
def test_a_network_on_the_cpu(monkeypatch: pytest.MonkeyPatch, compiler: str, what: str) -> None:
    from benchmarks import baseline, compiled
    from glnn.layers import Linear

    if compiler == "cc" and shutil.which("cc") is None:
        pytest.skip("no C compiler")
    monkeypatch.setenv("CC", compiler)
    compiled.library.cache_clear()
    layers = [Linear(7, 5, seed=1), Linear(5, 3, seed=2)]
    x = np.random.default_rng(0).random((4, 7), dtype=np.float32)
    work, said = baseline.sequential(layers, x)
    inner = 1 / (1 + np.exp(-(x.astype(float) @ layers[0].weight.T + layers[0].bias)))
    assert what in said
    np.testing.assert_allclose(work(), inner @ layers[1].weight.T + layers[1].bias, rtol=1e-5)
    compiled.library.cache_clear()


def test_baseline() -> None:
    options = ["--repeat", "1", "--json"]
    result = json.loads(run("benchmarks.baseline", "--images", "40", *options))
    rows = {row["name"]: row for row in result["rows"]}
    assert {*rows} == {"gpu", "glnn_unfused", "glnn", "cpu", "numpy"}
    assert all(row["error"] < 1e-5 for row in rows.values())
    steps = [step["kernel"] for step in result["kernels"]["gpu"] if step["class"] != "reorder"]
    layer = ["cross_rm_rm", "bias_rm"]
    assert steps == [*layer, "activation_unbound", *layer, "activation_unbound", *layer]
    assert len(result["kernels"]["glnn"]) == 3
    ours = {(row["figure"], row["row"], row["column"]): row["ours"] for row in result["beside"]}
    assert ours["figure_6_2", "matmul", "all"] > ours["figure_6_2", "matmul", "layer 1"] > 0
    claimed = {claim["claim"]: claim["ours_least"] for claim in result["claims"]}
    assert len(claimed) == 3 and claimed["bias is faster than matmul in all"] > 0


def test_perceptrons() -> None:
    options = ["--batch", "3", "--models", "partial_cifar", "--repeat", "1", "--json"]
    result = json.loads(run("benchmarks.mlp", *options))
    rows = result["rows"]
    assert {"NumPy", "glnn compute", "glnn feedback"} <= {row["name"] for row in rows}
    assert all(row["error"] < 1e-5 for row in rows if row["name"] != "PyTorch CUDA")
    assert {row["theirs_ms"] for row in rows} == {11.2, 0.66, None}
    ours = {(row["figure"], row["row"]): row["ours"] for row in result["beside"]}
    times = {row["name"]: row["median_ms"] for row in rows}
    assert ours["table_10_5", "gpu"] == times["glnn compute"]
    speedup = times["NumPy"] / times["glnn compute"]
    assert ours["table_10_5_speedup", "gpu"] == pytest.approx(speedup)
    assert 0 < ours["figure_10_1", "his_pipeline"] < 1
    assert {claim["figure"] for claim in result["claims"]} == {figure for figure, _ in ours}


@pytest.mark.parametrize("op", ["bias", "activation"])
def test_elementwise(op) -> None:
    result = json.loads(run(f"benchmarks.{op}", "--shapes", "256x4096", "--json"))
    named = [k for k in kernels_for("pointwise", "compute") if k.name.startswith(op)]
    assert len(result["rows"]) == 1 + len(named)  # ours and the document's
    assert all(row["us"] > 0 for row in result["rows"])
    assert result["claims"] and len(result["beside"]) == len(named)


def test_clblast() -> None:
    pytest.importorskip("pyopencl")
    from benchmarks.clblast import Clblast, why_not

    if reason := why_not():
        pytest.skip(reason)
    a, b = np.random.default_rng(0).random((2, 33, 33), dtype=np.float32)
    with Clblast() as blast:
        seconds, result = blast.sgemm_seconds(a, b, 1)
    assert seconds > 0
    np.testing.assert_allclose(result, a @ b, rtol=1e-4)


def test_latency(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    result = json.loads(run("benchmarks.latency", "--mib", "1", "--json", "--plot", str(picture)))
    assert [row["bytes"] for row in result["rows"]] == [4096 << i for i in range(9)]
    assert all(row["gpu_ns"] > 0 for row in result["rows"])
    assert result["no_cpu"] or all(row["cpu_ns"] > 0 for row in result["rows"])
    assert {"l1", "memory"} <= set(result["levels"]["gpu"]) and picture.stat().st_size > 0


def test_levels_are_read_off_the_curve() -> None:
    from benchmarks.latency import levels

    curve = [(1, 1.0), (2, 1.0), (4, 4.0), (8, 9.0), (16, 10.0), (32, 11.0), (64, 50.0)]
    assert levels([*curve, (128, 100.0)]) == {"l1": 1.0, "l2": 10.0, "memory": 100.0}
    assert levels([(1, 1.0), (2, 1.2), (4, 1.3)]) == {"l1": 1.0, "memory": 1.3}
    assert levels([(1, 1.0)]) == {}


@pytest.mark.parametrize(
    ("backend", "kinds"), [("compute", {"fp32", "fp16", "int32"}), ("feedback", {"fp32"})]
)
def test_roofline(tmp_path, backend: str, kinds: set[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    options = ["--backend", backend, "--mib", "1", "--json", "--plot", str(picture)]
    result = json.loads(run("benchmarks.roofline", *options))
    assert result["backend"] == backend and result["peak_gflops"] > 0
    assert set(result["arithmetic"]) == {row["arithmetic"] for row in result["roofline"]} == kinds
    assert {r["row"] for r in result.get("beside", ())} == (kinds if len(kinds) > 1 else set())
    assert picture.stat().st_size > 0


def test_wrong_arithmetic_is_found() -> None:
    from benchmarks.arithmetic import FP32
    from glnn.errors import GlnnError

    out = FP32.room(128)
    out.set(np.resize(2 * np.arange(64, dtype=np.float32) / 64 + 1, 128))
    FP32.check(out, 0)
    with pytest.raises(GlnnError, match="FP32: 2 multiply-adds are wrong"):
        FP32.check(out, 2)


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_bandwidth(backend: str) -> None:
    options = ["--mib", "1", "--repeat", "1", "--only", "sum of,gather,concat", "--json"]
    result = json.loads(run("benchmarks.bandwidth", "--backend", backend, *options))
    assert result["mark"] in result["copies"] and len(result["rows"]) == 6
    assert [row["mib"] for row in result["transfers"]] == [1]
    assert all(row["ours"] > 0 for row in result["beside"]) and len(result["beside"]) == 3
    for row in result["rows"]:
        assert row["error"] < 1e-5
        assert row["share"] == pytest.approx(row["gb_s"] / result["copies"][result["mark"]])


@pytest.mark.parametrize(("backend", "sizes"), [("compute", "64x67,9x16"), ("feedback", "9x16")])
def test_sobel(backend: str, sizes: str) -> None:
    options = ["--sizes", sizes, "--repeat", "1", "--backend", backend, "--json"]
    result = json.loads(run("benchmarks.sobel", *options))
    each = sizes.split(",")
    assert len(result["rows"]) == len(each) * 9 and all(row["mpixel_s"] for row in result["rows"])
    assert [row["size"] for row in result["transfers"]] == each
    assert any(row["name"].startswith("NumPy") for row in result["peers"])
    beside = {(row["row"], row["column"]): row for row in result["beside"]}
    assert len(beside) == 2 * 8 and beside["char16_swizzle", "pixel_rate"]["theirs"] == 2.6
    assert beside["char8", "pixels"]["ours"] == 8


def test_filters() -> None:
    result = json.loads(run("benchmarks.filters", "--sizes", "14x9", "--seconds", "0", "--json"))
    ours = [row for row in result["rows"] if row["name"] == f"glnn {result['backend']}"]
    assert len({row["filter"] for row in ours}) == 11 and len(ours) == 21
    assert all(row["ms"] > 0 and (row["filter"] == "sobel" or row["steps_ms"] > 0) for row in ours)


def test_lenet_by_layer_beside_rovder_2019() -> None:
    options = ["--batch", "2", "--repeat", "1", "--no-peers", "--json"]
    result = json.loads(run("benchmarks.lenet", *options))
    layers = {row["layer"]: row for row in result["layers"]}
    assert layers["c1 + sigmoid1"]["theirs_ms"]["clblast"] == 721.14
    assert layers["softmax"]["theirs_ms"] == {}
    assert all(row["wall_ms"] > 0 for row in layers.values())
    kernels = {row["layer"]: row["kernel"] for row in result["baseline"]}
    assert kernels["c3 + sigmoid3"] == "loop_nchw" and kernels["f6 + sigmoid6"] == "cross_rm_rm"
    beside = {(row["row"], row["column"]): row for row in result["beside"] if row["unit"] == "ms"}
    assert beside["wall", "F5"]["theirs"] == 33.90 and beside["wall", "F5"]["ours"] > 0
    six = sum(beside["glnn", name]["ours"] for name in ("C1", "S2", "C3", "S4", "F5", "F6"))
    assert beside["glnn", "total"]["ours"] == pytest.approx(six)


def test_the_staircase_of_rovder_2019() -> None:
    """On a small network with VGG-16's names: its kernels are right, its figures filled."""
    from benchmarks import staircase
    from glnn.cli.screen import Screen, progress
    from glnn.errors import DeviceError
    from glnn.layers import Conv2d, Flatten, Linear, ReLU
    from glnn.model import Model

    layers = [Conv2d(3, 5, 3, padding=1), ReLU(), Conv2d(5, 4, 1), Flatten(), Linear(196, 3)]
    names = ["conv1_1", "relu1_1", "conv3_3", "flatten", "fc8"]
    model = Model.sequential(layers, (3, 7, 7), "small", names)
    x = np.random.default_rng(0).random((1, 3, 7, 7), np.float32)
    with progress(False) as bar:
        try:
            rows = list(staircase.measured(bar, model, x, model(x, backend="cpu"), 1, False))
        except DeviceError as error:
            pytest.skip(str(error))
    assert [row["name"] for row in rows] == list(staircase.KERNELS)
    assert all(row["error"] < 1e-5 for row in rows)
    entries, claims = staircase.compared(rows)
    found = {(row["figure"], row["row"], row["column"]): row["ours"] for row in entries}
    times = staircase.of_layers(rows[2])
    assert times["convolutions"] == times["conv1_1"] + times["conv3_3"] < times["total"]
    assert found["vgg16_section_5_1", "direct_nhwc", "convolutions"] == times["convolutions"]
    assert found["vgg16_figure_8", "direct_nhwc", "fc8"] == times["fc8"]
    assert 0 < found["vgg16_figure_7", "im2col_morton", "gemm"] < 1
    assert sum(claim.get("ours_least") is not None for claim in claims) == 3  # no CLBlast
    assert len([claim for claim in claims if "here" in claim]) == 4
    staircase.show(Screen(), rows)


@LONG
def test_training_on_digits() -> None:
    """Three steps of it: what is counted and compared, not what it reaches."""
    options = ["--only", "mlp", "--share", "0.005", "--agree", "2", "--seeds", "2"]
    result = json.loads(run("benchmarks.mnist", *options, "--kernels", "cheng_v3_w8", "--json"))
    rows = {(row["name"], row["seed"]): row for row in result["rows"]}
    both = [(name, seed) for name in ("glnn", "cpu") for seed in (0, 1)]
    assert {*rows} == {*both, ("cheng_v3_w8", 0)}
    assert all(len(row["curve"]) == 10 and row["seconds"] > 0 for row in rows.values())
    ends = [rows[name, 0]["loss"][-1] for name in ("glnn", "cpu", "cheng_v3_w8")]
    assert ends == pytest.approx([ends[0]] * 3, rel=1e-4) and 2 < ends[0] < 2.5
    assert [one["agree"] for one in result["agreement"]] == [True]
    (mean,) = result["accuracies"]
    assert mean["cpu"] == pytest.approx(sum(rows["cpu", i]["accuracy"] for i in (0, 1)) / 2)
    beside = {(row["figure"], row["row"], row["column"]): row["ours"] for row in result["beside"]}
    assert beside["tables_3_to_6", "cpu", "mlp"] == rows["cpu", 0]["seconds"]
    curve = rows["cheng_v3_w8", 0]["curve"]
    assert beside["figures_20_22_24", "cheng_v3_w8", "100"] == curve[-1]
    assert any(claim.get("holds") for claim in result["claims"])


def test_lenet_learns_a_few_digits_by_heart() -> None:
    from dataclasses import replace

    from benchmarks.digits import Digits, digits
    from benchmarks.mnist_training import RECIPES, apart, trained
    from glnn.training import Adam

    x, y = digits().x[:32], digits().y[:32]
    done: list[int] = []
    recipe = replace(RECIPES["lenet"], optimizer=Adam(lr=3e-3), steps=60, batch=8)
    given = Digits("a few", x, y, x, y)
    row = trained(recipe, given, "cpu", advance=done.append)
    assert len(row["curve"]) == 10 and sum(done) == row["steps"] == 60
    assert row["loss"][1] < 0.8 * row["loss"][0] and row["accuracy"] > 30
    assert apart([1.0, 2.0], [1.0, 1.5]) == pytest.approx(0.25) and apart([0.0], [0.0]) == 0


def test_steps_of_training() -> None:
    options = ["--only", "mlp_784_512,lenet", "--batch", "3", "--seconds", "0", "--rounds", "1"]
    result = json.loads(run("benchmarks.training", *options, "--versus-numpy", "--json"))
    rows = {(row["work"], row["name"]): row for row in result["rows"]}
    assert {name for _, name in rows} >= {"glnn compute", "glnn cpu"}
    assert {work for work, _ in rows} == {"mlp_784_512_10", "lenet_relu"}
    for (work, name), row in rows.items():
        assert row["loss_error"] < 1e-4 and row["least_ms"] <= row["median_ms"]
        ours = rows[work, "glnn compute"]
        assert row["ours_over"] == pytest.approx(ours["median_ms"] / row["median_ms"])
        assert name != "glnn compute" or row["launches"] > 3


def test_digits_are_split_and_read(tmp_path: Path) -> None:
    from benchmarks.digits import digits
    from glnn.data import digits as bundled
    from glnn.errors import GlnnError

    found = digits()
    assert found.x.shape == (8000, 1, 28, 28) and found.test_x.shape == (2000, 1, 28, 28)
    assert "8,000 to train with and 2,000 to test with" in found.name
    images, labels = bundled()  # the first thousand of them: each is in one part, once
    both = np.concatenate([found.x, found.test_x])[:, 0], np.concatenate([found.y, found.test_y])
    assert both[0].max() == 1 and both[0].min() == 0 and found.y.dtype == np.int32
    where = {image.tobytes(): label for image, label in zip(*both, strict=True)}
    scaled = images.astype(np.float32) / np.float32(255)
    assert [where[image.tobytes()] for image in scaled] == labels.tolist()
    assert found.flat().test_x.shape == (2000, 784)
    for part, count in (("train", 5), ("t10k", 2)):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = np.array([0x800 | array.ndim, count, *array.shape[1:]], ">i4").tobytes()
            name = tmp_path / f"{part}-{kind}-ubyte"
            name.write_bytes(header + array[:count].tobytes())
    own = digits(tmp_path)
    assert own.y.tolist() == labels[:5].tolist() and len(own.test_x) == 2
    assert np.array_equal(own.x[:, 0], scaled[:5])
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    with pytest.raises(GlnnError, match="--data: expected images of 28 x 28 to train and to test"):
        digits(tmp_path)


@LONG
def test_vgg16() -> None:
    options = ["--size", "32", "--repeat", "1", "--configuration", "C", "--json"]
    result = json.loads(run("benchmarks.vgg16", *options, "--kernel", "conv2d=direct"))
    names = [row["name"] for row in result["rows"]]
    assert names[:2] == ["glnn compute, conv2d=direct", "glnn feedback"]
    assert all(row["error"] < 1e-5 for row in result["rows"] if "CUDA" not in row["name"])
    layers = {row["layer"]: row["kernel"] for row in result["layers"] if row["op"] == "conv2d"}
    assert len(layers) == 13 and layers["conv1_1 + relu1_1"] == "direct"
    assert any(part.get("total") == 17.40 for part in result["parts"])


def test_convolutions_one_by_one() -> None:
    case = "depthwise 3x3 960, 7"
    options = ["--only", "3x3 960", "--repeat", "1", "--no-peers", "--roof-mib", "1", "--json"]
    found = json.loads(run("benchmarks.convolutions", *options))
    (row,) = found["rows"]
    assert row["name"] == case and row["error"] < 1e-6 and row["ms"] > 0 < row["of_roof"]
    assert row["gflop"] == pytest.approx(2 * 9 * 960 * 7 * 7 / 1e9)
    assert "pytorch_ms" not in row


@pytest.mark.parametrize(
    "text", ["depthwise 3x3 960", "average pool 1280", "half of the channels", "attention of swin4"]
)
def test_a_wrong_last_sample_is_noticed(text: str) -> None:
    """All samples' result has those of one sample each, in their order."""
    from benchmarks.operator_cases import CASES
    from benchmarks.timing import CheckedSample

    (case,) = (one for one in CASES if text in one.name)
    op, operands = case.make(3)
    whole = CheckedSample(op, operands).expected
    first, last = case.checked(op, operands)
    assert first.error(whole) < 1e-12 and last.error(whole) < 1e-12
    samples = whole.reshape(3, -1)
    samples[2] = samples[0]
    assert first.error(whole) < 1e-12 and last.error(whole) > 0.1


def test_other_operators_of_networks() -> None:
    """Bounds are those of the least bytes."""
    only = "global average pool 1280,half of the channels,lookup of 128"
    options = ["--only", only, "--batch", "2", "--repeat", "1", "--no-peers", "--roof-mib", "1"]
    found = json.loads(run("benchmarks.convolutions", "--all", *options, "--json"))
    rows = {row["name"].split(" ", 1)[0]: row for row in found["rows"]}
    numbers = {
        "global": 2 * 1280 * (49 + 1),
        "half": 2 * 2 * 58 * 28 * 28,
        "lookup": 2 * 128 * (2 * 384 + 1),
    }
    assert rows.keys() == numbers.keys()
    for name, count in numbers.items():
        assert rows[name]["bound_ms"] == pytest.approx(4 * count / found["roof_gb_s"] / 1e6)
        assert rows[name]["error"] < 1e-6
        assert rows[name]["of_roof"] == pytest.approx(rows[name]["bound_ms"] / rows[name]["ms"])


def test_operators_by_kernels_with_parameters() -> None:
    asked = ["--kernel", "softmax=rows LANES=8,16 RESULTS=4", "--kernel", "direct"]
    options = ["--only", "softmax of rows 12 x 64", "--repeat", "1", "--no-peers"]
    run_options = ["--all", *options, *asked, "--roof-mib", "1", "--json"]
    rows = json.loads(run("benchmarks.convolutions", *run_options))["rows"]
    assert [row["kernel"] for row in rows] == [f"rows LANES={n} RESULTS=4" for n in (8, 16)]
    assert all(row["error"] < 1e-6 for row in rows)


def test_convolutions_by_kernels_with_parameters() -> None:
    """Each combination of values, of those kernels that can compute it."""
    wanted = "depthwise_taps WG_X=4,8 WG_Y=16 PX=1,2", "grouped", "direct", "grouped_nhwc"
    asked = [part for one in wanted for part in ("--kernel", one)]
    options = ["--only", "3x3 960", "--repeat", "1", "--no-peers", "--roof-mib", "1", "--json"]
    rows = json.loads(run("benchmarks.convolutions", *options, *asked))["rows"]
    sizes = [(x, pixels) for x in (4, 8) for pixels in (1, 2)]
    walked = [f"depthwise_taps WG_X={x} WG_Y=16 PX={pixels}" for x, pixels in sizes]
    assert [row["kernel"] for row in rows[:4]] == walked
    assert len(rows) == 5 and rows[4]["kernel"].startswith("grouped WG_X=")
    assert all(row["ms"] > 0 and row["error"] < 1e-6 for row in rows)


def test_steps_of_networks_beside_their_bounds() -> None:
    options = ["--networks", "mobilenet_v2", "--batches", "1", "--repeat", "1", "--roof-mib", "1"]
    result = json.loads(run("benchmarks.network_steps", *options, "--json"))
    found = {row["sizes"]: row for row in result["rows"]}
    assert found["196 x 64 > 384"]["count"] == 4
    row = found["12544 x 16 > 96"]
    nbytes = 4 * (12544 * (16 + 96) + 16 * 96 + 96)  # x, the result, weights and a bias, each once
    assert row["bytes_ms"] == pytest.approx(nbytes / result["roof_gb_s"] / 1e6)
    flops = 12544 * 96 * (2 * 16 + 3)  # with a bias and two bounds
    assert row["operations_ms"] == pytest.approx(flops / result["roof_gflops"] / 1e6)
    assert row["share"] == max(row["bytes_ms"], row["operations_ms"]) / row["ms"]


def test_steps_of_a_network_of_tokens(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, path = onnx.helper, tmp_path / "tokens.onnx"
    table = onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "tokens",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["N", 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 6, 4])],
        [table],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    options = ["--networks", str(path), "--batches", "5", "--repeat", "1", "--roof-mib", "1"]
    (row,) = json.loads(run("benchmarks.network_steps", *options, "--json"))["rows"]
    assert (row["op"], row["batch"], row["sizes"]) == ("gather", 5, "3 x 4 > 6 x 4")


def test_steps_of_training_beside_their_bounds() -> None:
    options = ["--training", "--networks", "mlp_784_512_10", "--batches", "3", "--repeat", "1"]
    result = json.loads(run("benchmarks.network_steps", *options, "--roof-mib", "1", "--json"))
    found = {row["sizes"]: row for row in result["rows"] if row["op"] == "matmul"}
    assert {"3 x 784 > 512", "512 x 3 > 784", "10 x 3 > 512"} <= found.keys()
    row = found["512 x 3 > 784"]  # the gradient by a weight, which updates this and its momentum
    nbytes = 4 * (3 * (512 + 784) + 4 * 512 * 784)
    assert row["bytes_ms"] == pytest.approx(nbytes / result["roof_gb_s"] / 1e6)
    assert {(row["network"], row["batch"]) for row in result["rows"]} == {("mlp_784_512_10", 3)}


def test_where_an_upload_spends_its_time() -> None:
    options = ["--batch", "4", "--parts", "2,3", "--seconds", "0", "--json"]
    found = json.loads(run("benchmarks.uploads", *options))
    assert found["mb"] == pytest.approx(4 * 4 * 3 * 224 * 224 / 1e6) and found["first_steps_ms"]
    names = {"steps", "device", "host", "host, 1 part", "steps and device, one behind the other"}
    names.add("4 requests")
    names |= {
        f"{what}, {n} parts"
        for what, counts in (("upload", (1, 2, 3)), ("run", (2, 3)))
        for n in counts
    }
    assert set(found["rows"]) == names and min(found["rows"].values()) > 0


def test_steps_of_training_with_a_pass_and_without() -> None:
    options = ["--only", "mlp_784_512", "--batch", "3", "--seconds", "0", "--json"]
    (row,) = json.loads(run("benchmarks.training_passes", *options))["rows"]
    assert row["with"]["launches"] < row["without"]["launches"]
    assert row["with"]["barriers"] < row["without"]["barriers"]
    assert all(
        times["waited_us"] > 0 < times["queued_us"] for times in (row["with"], row["without"])
    )


def test_networks_of_training_have_the_parameters_that_are_published() -> None:
    from benchmarks.training_zoo import mobilenet_v2, transformer

    parameters = mobilenet_v2(classes=1000).parameters()
    assert sum(v.size for k, v in parameters.items() if "running" not in k) == 3_504_872
    layer = 4 * (384 * 384 + 384) + 2 * 4 * 384 * 384 + 5 * 384 + 4 * 384  # and two norms
    assert sum(v.size for v in transformer().parameters().values()) == (
        6 * layer + 2 * 384 + 128 * 384 * 10 + 10
    )


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # torchvision's, without the mean and the scale that folding leaves out of each channel
        ("mobilenet_v2", 3_504_872 - 17_056),
        ("efficientnet_b0", 5_288_548 - 21_008),
        ("resnet50", 25_557_032 - 26_560),
        ("vit_b_16", 12 * 7_087_872 + 2 * 768),  # the encoder alone
    ],
)
def test_layered_networks_have_the_published_parameters(name: str, parameters: int) -> None:
    from benchmarks.layered_networks import NETWORKS

    model = NETWORKS[name]()
    assert sum(array.size for array in model.state_dict().values()) == parameters


@pytest.mark.parametrize("options", [(), ("--norm", "--gate", "silu")])
def test_packed_products_by_rows(options: tuple[str, ...]) -> None:
    """The kernel that is chosen, and those that are asked for, for each number of rows."""
    asked = ["--rows", "1,3,64", "--sizes", "66x96", "--formats", "Q4_0,q8_0", "--repeat", "1"]
    kernel = ["--kernel", "gemv ROWS=1,2"]
    found = json.loads(run("benchmarks.packed_products", *asked, *kernel, *options, "--json"))
    rows = {name: [] for name in ("dense", "Q4_0", "Q8_0")}
    for row in found["rows"]:
        assert row["us"] > 0 < row["gb_s"] and row["size"] == "66x96"
        rows[row["format"]].append(row)
    assert [row["rows"] for row in rows["dense"]] == [64]
    for packed in (rows["Q4_0"], rows["Q8_0"]):
        chosen = [row for row in packed if row["chosen"]]
        assert [row["rows"] for row in chosen] == [1, 3, 64] and chosen[0]["over_one"] == 1
        assert all(row["error"] < 1e-6 for row in packed)
        others = [row["parameters"]["ROWS"] for row in packed if not row["chosen"]]
        assert others == ([1, 2] * 3 if not options else [])


def test_what_follows_an_operator_by_kernel() -> None:
    options = ["--sizes", "5x8x12", "--only", "3x3 960", "--repeat", "1", "--json"]
    options += ["--epilogues", "GELU,residual"]
    product, convolution = json.loads(run("benchmarks.epilogues", *options))["rows"]
    assert product["name"] == "5x8x12" and convolution["name"] == "depthwise 3x3 960, 7"
    for row in (product, convolution):
        assert row["ms"] > 0 and row["GELU"] > 0 < row["residual"]
    asked = ["--kernel", "gemm_blocked TM=2,4", "--kernel", "depthwise"]
    rows = json.loads(run("benchmarks.epilogues", *options, *asked))["rows"]
    assert [row["kernel"].split(" ")[0] for row in rows] == [
        "gemm_blocked",
        "gemm_blocked",
        "depthwise",
    ]


def test_variants_of_convolutions() -> None:
    from benchmarks.variants import convolutions
    from glnn.model.load import vgg16

    found = convolutions(vgg16(size=32), 1)
    assert list(found) == [
        "conv1_1", "conv1_2", "conv2_1", "conv2_2", "conv3_1", "conv3_2", "conv4_1", "conv4_2",
        "conv5_1",
    ]  # fmt: skip


def test_alexnet_conv(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    scenarios = ["test", "conv5"] if os.environ.get("GLNN_EXHAUSTIVE") else ["test"]
    options = ["--repeat", "1", "--json", "--plot", str(picture)]
    options += ["--scenarios", ",".join(scenarios)]
    result = json.loads(run("benchmarks.alexnet_conv", *options))
    names = {row["name"] for row in result["rows"]}
    assert {"glnn cpu", "glnn feedback", "glnn compute"} <= names
    assert all(row["error"] < 1e-4 for row in result["rows"])
    cronin = [row for row in result["rows"] if row["kind"] == "cronin"]
    assert len(cronin) == 3 * len(scenarios) and all(row["steps"] for row in cronin)
    assert list(result["over_cronin"]) == scenarios
    theirs = {entry["ms"] for entry in result["theirs"] if entry["name"] == "opengl_abt_ki"}
    assert theirs == ({400} if "conv5" in scenarios else set())
    assert picture.stat().st_size > 0


def needs_a_compiler(source: Path, *more: str) -> None:
    from benchmarks.compiled import library
    from glnn.errors import GlnnError

    try:
        library(source, *more)
    except GlnnError as error:
        pytest.skip(str(error))


def test_cronins_convolutions_on_the_cpu_and_by_gl() -> None:
    from benchmarks import plain_gemm

    needs_a_compiler(plain_gemm.SOURCE)
    options = ["--document", "--scenarios", "test", "--repeat", "1", "--json"]
    result = json.loads(run("benchmarks.alexnet_conv", *options))
    kinds = [(row["kind"], row["order"]) for row in result["rows"]]
    assert kinds == [(kind, o) for kind in ("cronin", "loops") for o in plain_gemm.ORDERS]
    assert all(row["error"] < 1e-5 and row["median_ms"] > 0 for row in result["rows"])
    alike = [claim for claim in result["claims"] if claim["ours_least"] is not None]
    assert alike and len(alike) < len(result["claims"])  # some are of other scenarios


@pytest.mark.parametrize(
    ("c", "o", "h", "w", "k"), [(1, 1, 1, 1, 1), (3, 7, 5, 2, 3), (2, 5, 3, 9, 5)]
)
def test_plain_loops(c: int, o: int, h: int, w: int, k: int) -> None:
    from benchmarks import plain_gemm
    from tests import oracle

    needs_a_compiler(plain_gemm.SOURCE)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, c, h, w), np.float32)
    weight = generator.standard_normal((o, c, k, k), np.float32)
    exact = oracle.conv2d(x, weight, padding=(k // 2,) * 4)
    for _, work in plain_gemm.ways(x, weight):
        assert oracle.error(work(), exact) < 1e-5


def test_without_a_compiler(monkeypatch, tmp_path) -> None:
    from benchmarks.compiled import library
    from glnn.errors import GlnnError

    (tmp_path / "broken.c").write_text("int broken(")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(GlnnError, match=r"broken\.c needs a C compiler: no no-such-compiler on"):
        library(tmp_path / "broken.c")
    monkeypatch.delenv("CC")
    with pytest.raises(GlnnError, match=r"broken\.c"):
        library(tmp_path / "broken.c")


def test_gl_calls() -> None:
    from benchmarks import gl_calls, plain_gemm

    needs_a_compiler(gl_calls.SOURCE, "-O1")
    needs_a_compiler(plain_gemm.SOURCE)
    result = json.loads(run("benchmarks.gl_calls", "--scenario", "test", "--repeat", "2", "--json"))
    called = {row["name"]: row for row in result["rows"]}
    feedback = [called[f"gl{word}TransformFeedback"]["calls"] for word in ("Begin", "End")]
    assert feedback[0] == feedback[1] >= 2 * 2 * 3  # a product and its sums, each order twice
    assert "glCompileShader" not in called  # in the runs
    assert "glCompileShader" in {row["name"] for row in result["begun"]}
    assert sum(row["gl"] for row in called.values()) == pytest.approx(100)
    assert sum(row["app"] for row in called.values()) < 100
    for row in called.values():
        assert row["average"] * row["calls"] == pytest.approx(row["total"])
    beside = {(row["row"], row["column"]): row for row in result["beside"]}
    assert beside["glEndTransformFeedback", "calls"]["theirs"] == 15
    assert beside["glCompileShader", "calls"]["ours"] == 0


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 32, 32)])
def test_a_network_on_clblast(shape) -> None:
    pytest.importorskip("pyopencl")
    import glnn
    from benchmarks.clblast import Clblast, why_not
    from benchmarks.clblast_network import ClblastNetwork
    from glnn.model.load import vgg16

    if reason := why_not():
        pytest.skip(reason)
    model = glnn.load("lenet") if shape[1] == 1 else vgg16(size=32)
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    with Clblast() as blast:
        found = ClblastNetwork(blast, model, shape).time(x, 1)
    assert found.seconds > 0 and min(found.layers.values()) > 0
    np.testing.assert_allclose(found.result, model(x, backend="cpu"), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["rovder_2019", "cronin_2018"])
def test_a_document_of_networks_is_well_formed(name) -> None:
    for figure in well_formed(name):
        for row in figure.rows.values():
            assert set(row) <= set(figure.columns_here)


def test_the_printed_tables_add_up() -> None:
    from benchmarks.documents import figure

    layers = figure("rovder_2019", "lenet_table_2").rows
    for row in layers.values():
        assert sum(row.values()) == pytest.approx(2 * row["total"], abs=0.02)
    times, percent = (figure("cronin_2018", f"alexnet_table_4_3{k}").rows for k in ("", "_percent"))
    for order, row in percent.items():
        for name, printed in row.items():
            ratio = times[f"opengl_{order}"][name] / times[f"cpu_{order}"][name]
            assert 100 * ratio == pytest.approx(printed, rel=0.03)  # of rounded cycles


@LONG
def test_variants_are_timed_by_name() -> None:
    import glnn
    from benchmarks import variants
    from glnn.backends import open_backend
    from glnn.cli.screen import Screen, progress
    from glnn.errors import DeviceError
    from glnn.gl import Device

    with Device() as device, progress(False) as bar:  # of its own: this thread holds it
        try:
            backend = open_backend("compute", device)
        except DeviceError as error:
            pytest.skip(str(error))
        rows = variants.measure(bar, backend, glnn.load("lenet"), 1, 1)
    assert [row["layer"] for row in rows] == ["c1", "c3"]
    for row in rows:
        assert row["ms"]["implicit_gemm"] > 0 and row["default_ms"] > 0
        assert row["ms"]["winograd_4"] is None  # of 5 x 5
    variants.show(Screen(), rows)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("alexnet_conv --scenarios x", "--scenarios: no 'x', expected test, conv2, "),
        ("alexnet_conv --document --steps conv2", "--steps: expected none beside --document, "),
        ("alexnet_conv --steps test", "--steps: 'test' is not measured, expected conv2, "),
        ("gl_calls --scenario x", "--scenario: no 'x', expected one of test, conv2, "),
        ("vgg16 --document --variants", "--document: expected no --kernel, no --variants and no "),
        ("vgg16 --size 33", "vgg16: size must be a multiple of 32, got 33"),
        ("vgg16 --kernel x", "Invalid value for '--kernel': expected OP=NAME, got 'x'"),
        ("lenet --plot a.txt", "--plot: expected a .png or .svg file, got a.txt"),
        ("convolutions --only y", "--only: no convolution has 'y' in its name"),
        ("convolutions --kernel x", "--kernel: conv2d has no kernel 'x'"),
        ("network_steps --networks x", "--networks: expected mobilenet_v2, efficientnet_b0, "),
        ("network_steps --training --networks x", "--networks: expected mlp_784_512_10, "),
        ("uploads --network x", "--network: expected mobilenet_v2, efficientnet_b0, "),
        ("uploads --parts 1", "--parts: expected numbers above 1 as 8,16, got '1'"),
        ("network_steps --batches 0", "--batches: expected numbers as 8,32, got '0'"),
    ],
)
def test_mistakes_with_networks_are_answered_too(arguments, says, monkeypatch, capsys) -> None:
    test_mistakes_are_answered_in_one_sentence(arguments, says, monkeypatch, capsys)


def test_versions_are_measured_in_turn() -> None:
    options = ["--only", "lenet,sgemm16", "--rounds", "1", "--seconds", "0", "--batch", "1"]
    options += ["--backend", "feedback", "--against", str(ROOT), "--json"]
    rows = json.loads(run("benchmarks.speed", *options))["rows"]
    assert list(rows) == ["lenet", "sgemm16"]
    for row in rows.values():
        assert row["here"] > 0 and row["rounds"] == [row["ratio"]]


def in_two_versions(name: str, *options: str) -> dict[str, Any]:
    """The rows of a benchmark of this version and of the same one again, measured in one round."""
    both = ["--rounds", "1", "--seconds", "0", "--against", str(ROOT), "--json"]
    rows: dict[str, Any] = json.loads(run(f"benchmarks.{name}", *options, *both))["rows"]
    for row in rows.values():
        assert row["rounds"] == ([row["ratio"]] if row["here"] else [])
    return rows


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_launches(backend: str) -> None:
    rows = in_two_versions("launches", "--steps", "3", "--backend", backend)
    parts = ("issued", "in all", "no work")
    names = {f"3 {kind}: {part}" for kind in ("activations", "products") for part in parts}
    names |= {f"lenet: {part}" for part in ("run", "steps", "run less steps", "no work")}
    assert names == set(rows)
    assert all(row["here"] > 0 for what, row in rows.items() if "less" not in what)


@pytest.mark.parametrize("idle", [(), ("--idle",)])
def test_host_parts(idle: tuple[str, ...]) -> None:
    from benchmarks import host_parts

    needs_a_compiler(host_parts.SOURCE)
    rows = in_two_versions("host_parts", "--only", "training 64,lenet 1", *idle)
    for work in ("training 64", "lenet 1"):
        found = {what: rows[f"{work}: {what}, median"]["here"] for what in host_parts.PARTS}
        whole = rows[f"{work}: in all, median"]["here"]
        assert 0 < sum(found.values()) < 2 * whole
        assert rows[f"{work}: calls of glDispatchCompute"]["ratio"] == 1
        assert rows[f"{work}: calls of glFenceSync"]["here"] == 1


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_transfers(backend: str) -> None:
    rows = in_two_versions("transfers", "--mib", "0.004,0.1", "--backend", backend)
    ours = {what for what, row in rows.items() if row["here"]}
    ways = ("run", "up", "down", "pixels as floats", "pixels as bytes")
    names = {f"{size} MiB: {way}" for size in ("0.004", "0.1") for way in ways}
    assert ours == names | {"32 outputs of 256 bytes: run"}
    assert all(row["here"] or row["peer"] for row in rows.values())


TIMES = {"again", "new / again", "new / again, p90", "bind / again", "bind a command, us"}


@pytest.mark.parametrize(
    "options",
    [
        ["encoder", "--sizes", "batch=2:2", "--sizes", "length=40:100", "--backend", "cpu"],
        ["detector", "--sizes", "H=64:128:2", "--sizes", "W=64:128:2"],
    ],
    ids=["encoder", "detector"],
)
def test_open_sizes(options: list[str]) -> None:
    """Results are ONNX Runtime's, and what was planned is told from what was not."""
    pytest.importorskip("onnxruntime")
    more = ["--count", "6", "--versus-onnxruntime", "--json", "--against", str(ROOT)]
    rows = json.loads(run("benchmarks.open_sizes", *options, *more))["rows"]
    assert {"again", "planned", "onnxruntime"} < rows.keys()
    assert rows["error"]["here"] < 1e-5 and 4 <= rows["shapes"]["here"] <= 6
    assert (
        rows.keys() > TIMES
        if rows["plans"]["here"] < rows["shapes"]["here"]
        else not rows.keys() > TIMES
    )
    assert all(row["here"] > 0 and len(row["rounds"]) == 1 for row in rows.values())


def test_tokens() -> None:
    """Both decoders give the same tokens as ONNX Runtime, and the fixed one has one plan."""
    pytest.importorskip("onnxruntime")
    options = ["--layers", "1", "--width", "64", "--count", "12", "--versus-onnxruntime"]
    rows = json.loads(run("benchmarks.tokens", *options, "--json"))["rows"]
    for name in ("growing", "fixed"):
        assert rows[f"{name}: tokens alike"]["here"] == 1
        assert rows[f"{name}: new / again"]["here"] > 0
    assert rows["fixed: plans"]["here"] == 1 and rows["growing: plans"]["here"] <= 5
    assert {f"growing: {what}" for what in TIMES} < rows.keys()
    assert rows["growing / fixed: new, wall"]["here"] > 0


@pytest.mark.parametrize("shape", [{}, {"layers": 3, "width": 192, "tokens": 60}])
def test_a_decoder_gives_the_same_with_either_cache(shape: dict[str, int]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from benchmarks import one_shapes, open_models

    found = []
    for growing in (True, False):
        model = open_models.decoder(3, growing=growing, shape=open_models.Shape(**shape))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        dims = next(one.shape for one in session.get_inputs() if one.name == "past")
        past = np.zeros([0 if isinstance(n, str) else n for n in dims], np.float32)
        steps, logits = one_shapes.decoding(past, 20, not growing), []
        feeds = next(steps)
        with suppress(StopIteration):
            while True:
                results = session.run(None, feeds)
                logits.append(results[0][0, -1])
                feeds = steps.send(results)
        found.append(np.stack(logits[-20:]))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
    assert len(set(found[0].argmax(1))) > 4


@pytest.mark.parametrize(("depth", "count"), [(18, 11_689_512), (50, 25_557_032)])
def test_a_resnet_has_the_parameters_that_are_published(depth: int, count: int) -> None:
    from benchmarks.training_zoo import resnet

    parameters = resnet(depth, size=32).parameters()
    assert sum(v.size for k, v in parameters.items() if "running" not in k) == count


def test_a_resnet_gives_what_numpy_gives() -> None:
    from benchmarks.training_zoo import resnet

    model, x = resnet(18, size=32, classes=5), np.ones((2, 3, 32, 32), np.float32)
    expected = model(x, backend="cpu")
    assert np.isfinite(expected).all() and expected.std() > 1e-3
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)


def test_in_flight() -> None:
    options = ["--model", "lenet", "--batch", "2", "--seconds", "0", "--json"]
    result = json.loads(run("benchmarks.in_flight", *options))
    rows = result["rows"]
    assert result["beside"] == [] and len(result["claims"]) == 3  # the figure is of VGG-16
    images = {row["name"] for row in rows if row["what"] == "images"}
    assert images == {"run", "steps", "steps, back to back", "2 in flight", "4 in flight"}
    names = [row["name"] for row in rows if row["what"] == "requests"]
    assert names == ["one by one", "64 at once", "64 at once, max_batch 32"]
    assert all(row["per_s"] > 0 for row in rows)


def small_network(path: Path) -> None:
    """A convolution that takes what squeezenet1_1 takes."""
    onnx = pytest.importorskip("onnx")
    weight = np.random.default_rng(0).standard_normal((4, 3, 7, 7)).astype(np.float32)
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Conv", ["input", "weight"], ["y"], strides=[16, 16]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("GlobalAveragePool", ["z"], ["output"]),
    ]
    ends = [
        helper.make_tensor_value_info("input", real, ["N", 3, 224, 224]),
        helper.make_tensor_value_info("output", real, ["N", 4, 1, 1]),
    ]
    weights = [onnx.numpy_helper.from_array(weight, "weight")]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def test_networks_are_measured_each_in_a_process(tmp_path) -> None:
    """What fails costs its rows, and what is kept is not measured again."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("onnxruntime")
    small_network(tmp_path / "squeezenet1_1.onnx")
    (tmp_path / "lstm.onnx").write_bytes(b"no network")
    kept, drawn = tmp_path / "kept.json", tmp_path / "drawn.svg"
    options = ["benchmarks.networks_page", "--networks", str(tmp_path), "--backend", "feedback"]
    options += ["--by", "glnn", "--seconds", "0", "--save", str(kept), "--roof", "10", "10"]
    options += ["--batch", "1,3"]
    found = json.loads(run(*options, "--only", "squeezenet1_1,lstm", "--json"))
    places = [(row["network"], row["batch"]) for row in found["rows"]]
    assert places == [("squeezenet1_1", 1), ("lstm", 1), ("squeezenet1_1", 3), ("lstm", 3)]
    for ours in found["rows"][::2]:
        assert ours["error"] < 1e-5 and ours["steps"] > 0 and ours["host_steps"] == 0
        assert ours["median_ms"] > 0 and ours["resident_ms"] > 0 and ours["plan_mib"] > 0
        assert ours["share"] == pytest.approx(ours["roof_ms"] / ours["median_ms"])
    for broken in found["rows"][1::2]:
        assert "ModelError" in broken["failed"] or "lstm.onnx" in broken["failed"]
    table = run(*options, "--only", "squeezenet1_1", "--plot", str(drawn))
    assert json.loads(kept.read_text()) == found and "<svg" in drawn.read_text()
    assert table.count("glnn is right with 1 of 2 networks") == 2


def test_networks_beside_a_cuda_graph_are_counted() -> None:
    """One pair is slower by 1.003, which is not rounded down; one failed and one is wrong."""
    from benchmarks import network_tables

    times = {("resnet18", 1): (1.0, 2.0), ("resnet18", 8): (4.012, 4.0), ("lstm", 1): (3.0, 3.0)}
    rows = [
        {"network": network, "batch": batch, "name": name, "median_ms": ms, "error": 1e-6}
        for (network, batch), pair in times.items()
        for name, ms in zip(("glnn", "PyTorch CUDA graph"), pair, strict=True)
    ]
    rows += [
        {"network": "lstm", "batch": 8, "name": "glnn", "failed": "took more than 60 s"},
        {**rows[1], "network": "gpt2"},
        {**rows[0], "network": "gpt2", "error": 0.5},
    ]
    found = {"rows": rows}
    standing = network_tables.GraphComparison.from_results(found)
    assert standing.sentence == (
        "glnn takes at most the time of PyTorch's CUDA graph in 2 of 3 pairs of a network and a "
        "batch; none takes more than 1.01 times the graph's, which is resnet18 at batch 8. "
        "Not compared: 2."
    )
    assert network_tables.slower(found)[1] == [["resnet18", "8", "4.01", "4.00", "1.003"]]
    assert network_tables.not_compared(found)[1] == [
        ["gpt2", "1", "glnn: 1.00, wrong: 5e-01"],
        ["lstm", "8", "glnn: took more than 60 s; PyTorch CUDA graph: not measured"],
    ]
    heads, cells = network_tables.graph_comparison(found)
    assert {len(line) for line in cells} == {len(heads)}
    assert cells == [
        ["resnet18", "1", "1.00", "2.00", "0.50"],
        ["resnet18", "8", "4.01", "4.00", "1.00"],
        ["lstm", "1", "3.00", "3.00", "1.00"],
        ["lstm", "8", "took more than 60 s", "-", "-"],
        ["gpt2", "1", "1.00, wrong: 5e-01", "2.00", "-"],
    ]
    only_glnn = network_tables.GraphComparison.from_results({"rows": rows[:1]})
    assert not only_glnn.ratios and "No network was measured by both" in only_glnn.sentence


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("batches", [(1,), (8, 32), (1, 8, 32)])
def test_the_page_of_networks_is_made_of_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: tuple[int, ...], others: bool
) -> None:
    """A row for each network and batch, whatever was measured, and by whom."""
    from benchmarks import summary

    names = ["glnn", "PyTorch CUDA graph", *(["PyTorch eager"] if others else [])]
    plan = dict.fromkeys(("gflop", "moved_mb", "roof_ms", "plan_mib", "host_mib"), 1.5)
    plan |= {"steps": 3, "host_steps": 0, "share": None, "version": "1.0.0"}
    rows = [
        {"network": network, "batch": batch, "name": name, "median_ms": ms, "error": 1e-6, **plan}
        for batch in batches
        for network in ("a_new_network", "resnet18")
        for name, ms in zip(names, (1.0, 2.0, 4.0), strict=False)
    ]
    rows.append({"network": "lstm", "batch": batches[0], "name": "glnn", "failed": "no"})
    about = {"device": "GPU", "version": "ES 3.2", "glnn": "1.0.0"}
    for name in ("networks.json", "networks_by_others.json"):
        (tmp_path / name).write_text(json.dumps({**about, "rows": rows}))
    monkeypatch.setattr(summary, "MEASURED", tmp_path)
    page = summary.networks()
    for batch in batches:
        assert page.index(f"| resnet18 | {batch} | 1.00 | 2.00 | 0.50 |") > 0
        assert f"| a_new_network | {batch} | 1.00 | 2.00 | 0.50 |" in page
    assert f"in {2 * len(batches)} of {2 * len(batches)} pairs" in page
    assert f"| lstm | {batches[0]} | no | - | - |" in page and "Not compared:" in page
    by_others = summary.networks_by_others()
    assert by_others.count("PyTorch eager |") == (2 * len(batches) if others else 0)
    assert others or "Nobody else" in by_others
    assert f"Batch {batches[0]}:" in summary.plans_of_networks()
    picture = summary.speeds("Speed")
    assert f"<title>Speed, batch {batches[0]}</title>" in picture
    assert picture.count('class="own"') == 2 and "2.00 (1.00 ms, PyTorch 2.00 ms)" in picture


def test_who_runs_networks_is_asked_for_by_whole_names_or_beginnings() -> None:
    from benchmarks.networks_page import chosen_names

    graph, half = "PyTorch CUDA graph", "PyTorch CUDA graph FP16"
    assert chosen_names(f"{graph}, glnn") == ("glnn", graph)
    assert chosen_names("PyTorch CUDA") == (graph, half)
    assert chosen_names(half) == (half,)


def test_a_process_that_is_late_or_fails_says_so() -> None:
    from benchmarks.network_rows import Process

    with Process("network_device", "cpu") as process:
        assert [found["backend"] for found in process.answers(60)] == ["cpu"]
    with Process("network_device", "no such backend") as process:
        (found,) = process.answers(60)
    assert "no such backend" in found["failed"]
    with Process("network_device", "cpu") as process:
        assert [*process.answers(0.01)] == [{"failed": "took more than 0.01 s"}]


def test_networks_that_are_neither_torchvisions_nor_transformers() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import torch_networks as made

    torch.manual_seed(0)
    tokens, sounds = torch.randint(50, (2, 16)), torch.randn(2, 8, 12)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        assert made.Sentences(50, 16).eval()(tokens).shape == (2, 384)
        assert made.Prompt(50, 16).eval()(tokens).shape == (2, 50)
        assert made.Speech(8, 12).eval()(sounds).shape == (2, 6, 512)
        assert made.UNet((4, 8, 16)).eval()(images).shape == (2, 21, 64, 96)
        found = made.Detector().eval()(images)
        assert found.shape == (2, 84, 8 * 12 + 4 * 6 + 2 * 3)
        assert (found[:, :4] > 0).all() and (found[:, 4:] < 1).all()
        prompt = made.Prompt(50, 16).eval()  # whose states know no later tokens
        parts = torch.nn.Sequential(*prompt.layers)
        states = prompt.words(tokens) + prompt.places
        later = states.clone()
        later[:, 9:] += 1
        apart = (parts(states) - parts(later)).abs().amax((0, 2))
        assert apart[:9].max() < 1e-6 < apart[9:].min()


@LONG
def test_workers() -> None:
    options = ["--model", "lenet", "--batch", "2", "--gpus", "", "--seconds", "0", "--json"]
    rows = json.loads(run("benchmarks.workers", *options))["rows"]
    assert {row["name"]: len(row["each_per_s"]) for row in rows} == {
        "one process": 1,
        "two processes on one GPU": 2,
    }
    assert all(row["images_per_s"] > 0 for row in rows)


def test_threads() -> None:
    options = [
        "--batch",
        "1",
        "--runs",
        "6",
        "--rounds",
        "1",
        "--threads",
        "1,3",
        "--wait",
        "sleep",
    ]
    (part,) = json.loads(run("benchmarks.threads", *options, "--json"))["parts"]
    names = [row["name"] for row in part["rows"]]
    assert names == ["alone by run"] + [f"{n} by {w}" for w in ("run", "run_async") for n in (1, 3)]
    assert all(row["per_s"] > 0 and row["cpu_us"] > 0 for row in part["rows"])
    assert part["wait"] == "sleep" and part["wrong"] == 0


@LONG
def test_priority() -> None:
    options = ["--beside-batch", "1", "--seconds", "0", "--rounds", "1", "--json"]
    rows = json.loads(run("benchmarks.priority", *options))["rows"]
    assert [(row["what"], row["beside"]) for row in rows] == [
        (what, priority)
        for priority in ("nothing", "normal", "low")
        for what in ("runs", "processor")
    ]
    assert all(row["median_ms"] > 0 for row in rows)
    assert all((row["other"] is None) == (row["beside"] == "nothing") for row in rows)


def test_small_models(tmp_path: Path) -> None:
    """Beside ONNX Runtime, of its own models and of a file."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from benchmarks.small_models import gru

    file = tmp_path / "own.onnx"
    onnx.save(gru(), file)
    options = ["benchmarks.small_models", str(file), "--only", "cnn,lstm", "--rounds", "1"]
    found = json.loads(run(*options, "--json"))
    assert [row["model"] for row in found["rows"]] == ["cnn", "lstm", "own"]
    for row in found["rows"]:
        assert row["ratio"]["cpu"] > 0 and row["us"]["onnxruntime"] > 0
        assert row["error"]["cpu"] < 1e-5


def test_network_cpu(tmp_path: Path) -> None:
    """Of a file, and of one with an open size; without files it is refused."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    from benchmarks.small_models import cnn, lstm

    files = [str(tmp_path / name) for name in ("cnn.onnx", "lstm.onnx")]
    for file, make in zip(files, (cnn, lstm), strict=True):
        onnx.save(make(), file)
    found = json.loads(run("benchmarks.network_cpu", *files, "--rounds", "1", "--json"))
    assert [row["network"] for row in found["rows"]] == ["cnn", "lstm"]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["cpu_ms"] / row["onnxruntime_ms"])
        assert row["error"] < 1e-5 and row["peak_bytes"] > 0


def test_generation_cpu(tmp_path: Path) -> None:
    """All ways add the same text; each rate has the peer's beside it."""
    pytest.importorskip("tokenizers")
    small_model(tmp_path / "m.gguf", "llama", "q4_0", **{"llama.context_length": 64})
    sizes = ["--prompt", "12", "--tokens", "6", "--rounds", "2", "--threads", "1", "--no-peers"]
    command = ["benchmarks.generation_cpu", str(tmp_path / "m.gguf"), *sizes]
    rows = json.loads(run(*command, "--backends", "cpu,compute", "--json"))["rows"]
    names = [row["name"].split(" (")[0] for row in rows]
    assert names == [f"NumPy {np.__version__} float32", "glnn cpu", "glnn compute"]
    assert all(row["same"] == 2 and row["decode_of_NumPy"] > 0 < row["cpu_s"] for row in rows)
    assert rows[0]["prompt_of_NumPy"] == rows[0]["decode_of_NumPy"] == 1


def test_speech_of_a_model(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tests.generation.speech.whisper_folders import hugging_face, weights

    folder = hugging_face(tmp_path / "model", weights())
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        noise = np.random.default_rng(0).standard_normal(20000) * 3000
        file.writeframes(noise.astype("<i2").tobytes())
    options = [str(folder), "--recording", str(tmp_path / "a.wav"), "--repeat", "1"]
    found = json.loads(run("benchmarks.speech", "--backend", "cpu", *options, "--json"))["rows"]
    assert [row["way"] for row in found] == ["glnn cpu", "glnn cpu whole"]
    assert found[0]["tokens"] == 24 and found[0]["features_s"] > 0
    for row in found:
        assert row["model"] == "model" and row["seconds_per_s"] > 0


@LONG
def test_speech_of_a_shape() -> None:
    options = ["--backend", "cpu", "--tokens", "3", "--beams", "1,2", "--repeat", "1", "--json"]
    rows = json.loads(run("benchmarks.speech", "tiny.en", *options))["rows"]
    assert [row["beams"] for row in rows] == [1, 2]
    for row in rows:
        assert row["tokens"] == 3 and row["encoder_s"] > 0 < row["features_s"]
        assert row["seconds_per_s"] > 0


def test_tables_and_pictures_of_pages_are_those_that_were_measured() -> None:
    """`python -m benchmarks.summary` would change nothing."""
    from benchmarks import summary

    for path, text in summary.written():
        assert path.read_text("utf-8") == text, path.name


def test_the_page_of_boards_is_of_its_files() -> None:
    from benchmarks.boards_page import PAGE, page, reports

    found = reports()
    assert {"llvmpipe"} <= found.keys()
    assert PAGE.read_text("utf-8") == page(found)


def test_a_report_of_another_format_is_refused(tmp_path: Path) -> None:
    from benchmarks.boards_page import reports

    """As those of format 1, which counted the kernels that format 2 names."""
    (tmp_path / "board.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match=r"board\.json: expected a report of format 2, got 1"):
        reports(tmp_path)
