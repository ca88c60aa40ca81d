"""A user's mistakes: one sentence on standard error, exit code 2, no traceback, no output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.data import model as bundled
from glnn.errors import ShaderError
from glnn.layers import ReLU
from glnn.model import Model
from tests.cli.conftest import Glnn

NO_DRIVER = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}
ES_30 = {"MESA_GLES_VERSION_OVERRIDE": "3.0"}
ZEROS = np.zeros((2, 1, 28, 28), np.float32)
PICKLED = np.array([{}], object)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("fly", "No such command 'fly': expected one of bench, cache"),
        ("rnu lenet", "No such command 'rnu': did you mean 'run'?"),
        ("--fly", "--fly"),
        ("info --fly", "--fly"),
        ("info --limits tiny", "'tiny' is not 'es31-minimum'"),
        ("info --gpu voodoo", "no usable GPU 'voodoo'"),
        ("info --gpu 99", "no usable GPU 99"),
        ("run", "Missing argument 'MODEL'"),
        ("run vgg", "unknown model 'vgg': expected a .json or .onnx file, or one of lenet"),
        ("run vgg.onnx", "vgg.onnx: no such file"),
        ("run r18.onn x.png", "r18.onn: no such file: expected a .json or .onnx file, or one of"),
        ("run nets/vgg", "nets/vgg: no such file"),
        (f"run {__file__}", "unknown ending '.py': expected a .json or .onnx file"),
        ("run .", ".: is not a file: expected a .json or .onnx file"),
        ("run gone.json", "gone.json: no such file"),
        ("run lenet --backend cuda", "'cuda' is not one of 'auto', 'compute', 'feedback', 'cpu'"),
        ("run lenet --batch 0", "0 is not in the range x>=1"),
        ("run lenet --batch few", "'few' is not a valid integer"),
        ("run lenet --top 0", "0 is not in the range x>=1"),
        ("run lenet --gpu voodoo", "no usable GPU 'voodoo'"),
        ("run lenet --kernel matmul", "expected OP=NAME, got 'matmul'"),
        ("run lenet --kernel matmul=none", "has no kernel 'none' for matmul"),
        ("run lenet --kernel lstm=fast", "lenet has no op of that name"),
        ("run lenet gone.png", "gone.png: no such file"),
        ("run lenet gone.npy", "gone.npy: no such file"),
        ("run lenet gone.npz", "gone.npz: no such file"),
        ("run lenet .", ".: is not a file"),
        ("bench lenet --backends cpu,cuda", "unknown backend 'cuda', expected compute, feedback"),
        ("run lenett", "unknown model 'lenett': did you mean lenet? expected a .json or .onnx"),
        ("doctor --backend cuda", "unknown backend 'cuda', expected compute, feedback"),
        ("doctor --quick --full", "--quick: expected it without --full, got both"),
        ("tune --backend cpu", "'cpu' is not one of 'compute', 'feedback'"),
        ("bench lenet --backends ,", "--backend: expected one or more of compute"),
        ("bench lenet --batch 0", "0 is not in the range"),
        ("bench lenet --repeat 0", "0 is not in the range"),
        ("bench lenet --kernel matmul=none", "have no kernel matmul=none"),
        (f"bench lenet --batch {10**40}", "is not in the range 1<=x<=2147483647"),
        ("verify lenet --tolerance -1", "-1.0 is not in the range x>=0"),
        ("verify lenet --batch 0", "0 is not in the range"),
        ("kernels --op lstm", "no kernels for 'lstm', expected one of attention, attention_parts"),
        ("kernels --export /proc/new", "cannot write to /proc/new"),
        ("kernels --export /dev/null", "/dev/null"),
    ],
)
def test_arguments(cli: Glnn, arguments: str, says: str) -> None:
    assert says in cli(*arguments.split(), *["--json"] * (arguments[0] != "-")).refusal


@pytest.mark.parametrize("arguments", ["fly", "run vgg"])
def test_in_a_process_of_its_own(process: Glnn, arguments: str) -> None:
    assert process(*arguments.split()).refusal


@pytest.mark.parametrize("verb", ["run", "bench", "verify"])
def test_no_usable_gl(process: Glnn, verb: str) -> None:
    asked = ("--backends" if verb == "bench" else "--backend", "feedback")
    refused = process(verb, "lenet", *asked, **NO_DRIVER)
    if refused.code == 0:
        pytest.skip("this EGL does not dispatch to vendors")
    assert refused.refusal.startswith("no usable OpenGL ES context (EGL device: ")
    assert "glfwInit" in refused.refusal


def test_without_gl_auto_takes_the_cpu(process: Glnn) -> None:
    found = process("run", "lenet", "--json", **NO_DRIVER).json
    if found["backend"] != "cpu":
        pytest.skip("this EGL does not dispatch to vendors")
    assert found["accuracy"] >= 0.98


def test_es_30_only(process: Glnn) -> None:
    found = process("run", "lenet", "--json", **ES_30).json  # auto
    if found["backend"] != "feedback":
        pytest.skip("not Mesa")
    assert found["accuracy"] >= 0.98
    refused = process("run", "lenet", "--backend", "compute", **ES_30).refusal
    assert "the compute backend cannot run: compute shaders need OpenGL ES 3.1" in refused
    assert "offers OpenGL ES 3.0" in refused


def write(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    else:
        np.savez(path, **content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("text.png", b"hello", "expected an image (PNG, JPEG, "),
        ("empty.jpg", b"", "expected an image (PNG, JPEG, "),
        ("short.png", b"\x89PNG\r\n\x1a\n\0\0", "expected an image (PNG, JPEG, "),
        ("empty.npy", b"", "cannot be read as .npy"),
        ("short.npy", b"\x93NUMPY\x01\x00", "cannot be read as .npy"),
        ("long.npy", b"\x93NUMPY\x01\x00\xff\xff" + b" " * 65535, "cannot be read as .npy"),
        ("text.npy", b"hello, this is no array", "cannot be read as .npy"),
        ("text.npz", b"hello", "expected an .npz archive"),
        ("broken.npz", b"PK\x03\x04 broken", "expected an .npz archive"),
        ("pickled.npy", PICKLED, "cannot be read as .npy: Object arrays cannot be loaded"),
        ("pickled.npz", {"input": PICKLED}, "'input' holds pickled objects, which are refused"),
        ("several.npz", {"a": ZEROS, "b": ZEROS}, "expected an array 'input', or only one"),
        ("no.npz", {"label": np.zeros(2)}, "it has none"),
        ("short.npy", ZEROS.astype(np.int16), "expected float32 (or uint8), got int16"),
        ("text2.npy", np.array(["a"]), "expected float32 (or uint8), got <U1"),
        ("flat.npy", np.zeros((2, 784), np.float32), "expected shape (N, 1, 28, 28), got (2, 784)"),
        ("scalar.npy", np.array(0, np.float32), "expected shape (N, 1, 28, 28), got ()"),
        ("colour.npy", np.zeros((2, 3, 28, 28), np.float32), "got (2, 3, 28, 28)"),
        ("wide.npy", np.zeros((2, 1, 28, 29), np.float32), "got (2, 1, 28, 29)"),
        ("none.npy", ZEROS[:0], "expected at least one sample"),
        ("few.npz", {"input": ZEROS, "label": np.zeros(3)}, "2 samples need as many labels"),
        ("names.npz", {"input": ZEROS, "label": np.array(["a", "b"])}, "labels must be"),
    ],
)
def test_inputs(cli: Glnn, tmp_path: Path, name: str, content: Any, says: str) -> None:
    if name.endswith(("png", "jpg")):
        pytest.importorskip("PIL.Image")
    path = write(tmp_path / name, content)
    for verb in ("run", "verify"):
        refusal = cli(verb, "lenet", path).refusal
        assert says in refusal and refusal.startswith(str(path))


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.png"])
def test_inputs_cut_short(cli: Glnn, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".png":
        image = pytest.importorskip("PIL.Image")
        noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
        image.fromarray(noise).save(path)
    else:
        write(path, ZEROS if path.suffix == ".npy" else {"input": ZEROS})
    whole = path.read_bytes()
    for length in (len(whole) // 20, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:length])
        assert str(path) in cli("run", "lenet", path, "--backend", "cpu").refusal


def test_folders_and_pipes_are_no_inputs(cli: Glnn, tmp_path: Path) -> None:
    for name in ("x.npy", "x.npz", "x.png", "x.json"):
        (tmp_path / name).mkdir()
        model = ("lenet", tmp_path / name) if name != "x.json" else (tmp_path / name,)
        assert "is not a file" in cli("run", *model).refusal


def test_a_name_of_two_lines_gets_one(cli: Glnn, tmp_path: Path) -> None:
    assert "no such file" in cli("run", "lenet", tmp_path / "a\nb.npy").refusal


def test_what_takes_no_image_says_so(cli: Glnn, small: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("L", (3, 3)).save(tmp_path / "x.png")
    assert "takes no image" in cli("run", small, tmp_path / "x.png").refusal


def test_only_bundled_models_bring_inputs(cli: Glnn, small: Path) -> None:
    assert "small.json needs an INPUT" in cli("run", small).refusal


def change(document: Any, **changes: Any) -> Any:
    document.update(changes)
    return document


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: [1], "expected a JSON object, got list"),
        (lambda d: {}, '"layers"'),
        (lambda d: change(d, version=99), "version 99 is newer"),
        (lambda d: change(d, colour="red"), "unknown key 'colour'"),
        (lambda d: change(d, weights="gone.npz"), "gone.npz: no such file"),
        (lambda d: change(d, weights="/etc/passwd"), "'/etc/passwd' must be relative"),
        (lambda d: change(d, weights="../up.npz"), "'../up.npz' leaves the model's folder"),
        (lambda d: change(d, layers=[]), '"layers" must be a list that is not empty'),
        (lambda d: change(d, outputs=["lost"]), "lost"),
        (lambda d: change(d["layers"][0], layer="Transformer") and d, "kind 'Transformer'"),
        (lambda d: change(d["layers"][0], inputs=["lost"]) and d, "lost"),
        (lambda d: change(d["layers"][0]["arguments"], in_features=4) and d, "affine"),
        (lambda d: change(d["inputs"][0], shape=["N", 0]) and d, "input"),
    ],
)
def test_models(
    cli: Glnn, small: Path, samples: Path, edit: Callable[[Any], Any], says: str
) -> None:
    small.write_text(json.dumps(edit(json.loads(small.read_text()))))
    assert says in cli("run", small, samples).refusal


@pytest.mark.parametrize("text", ["", "{", '{"format": "glnn"', "\xff\0", "[" * 100_000])
def test_models_that_are_no_json(cli: Glnn, small: Path, samples: Path, text: str) -> None:
    small.write_text(text, "latin-1")
    assert f"{small}: not valid JSON" in cli("run", small, samples).refusal


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello", "expected an .npz archive"),
        ({"affine.weight": PICKLED, "affine.bias": PICKLED}, "pickled objects, which are refused"),
        ({"affine.weight": np.zeros((2, 3), np.float32)}, "'affine.bias' is missing"),
        (
            {
                "affine.weight": np.zeros((3, 2), np.float32),
                "affine.bias": np.zeros(2, np.float32),
            },
            "weight",
        ),
    ],
)
def test_weights(cli: Glnn, small: Path, samples: Path, content: Any, says: str) -> None:
    write(small.with_suffix(".npz"), content)
    refusal = cli("run", small, samples).refusal
    assert says in refusal and "small.npz" in refusal


def test_weights_cut_short(cli: Glnn, tmp_path: Path) -> None:
    model = tmp_path / "lenet.json"
    model.write_bytes(bundled("lenet").read_bytes())
    weights = bundled("lenet").with_name("lenet.npz").read_bytes()
    np.save(tmp_path / "x.npy", ZEROS)
    for length in (0, 100, len(weights) - 50):
        model.with_name("lenet.npz").write_bytes(weights[:length])
        assert "lenet.npz" in cli("run", model, tmp_path / "x.npy").refusal


def test_an_input_that_exceeds_a_limit(cli: Glnn, tmp_path: Path) -> None:
    path = tmp_path / "wide.json"
    Model.sequential([ReLU()], (6000, 6000)).save(path)  # one sample exceeds a block
    np.save(tmp_path / "x.npy", np.zeros((1, 6000, 6000), np.float32))
    limited = ("--backends", "compute", "--limits", "es31-minimum")
    refusal = cli("bench", path, tmp_path / "x.npy", *limited).refusal
    assert "(1, 6000, 6000)" in refusal and "134217728" in refusal


def test_more_than_memory_holds(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 5.70 TiB")

    monkeypatch.setattr(np, "resize", resize)
    refusal = cli("bench", "lenet", "--backends", "cpu").refusal
    assert refusal == "not enough memory: Unable to allocate 5.70 TiB"


def test_nothing_is_written_when_the_gpu_is_unknown(cli: Glnn, tmp_path: Path) -> None:
    assert cli("kernels", "--export", tmp_path / "new", "--gpu", "voodoo").refusal
    assert not (tmp_path / "new").exists()


def test_a_drivers_message_keeps_its_lines(cli: Glnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ShaderError("compile: rows.comp\nrows.comp:1: syntax error\n    void man() {")

    monkeypatch.setattr("glnn.backends.compute.Compute.program", fail)
    failed = cli("run", "lenet", "--backend", "compute", "--limits", "es31-minimum")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.splitlines()[1] == "rows.comp:1: syntax error"


def test_names_are_not_markup(cli: Glnn, samples: Path, small: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a[bold]b.npy"
    odd.write_bytes(samples.read_bytes())
    done = cli("run", small, odd, "--backend", "cpu")
    assert done.code == 0
    assert "a[bold]b.npy[0]" in done.out
    assert cli("run", small, tmp_path / "a[/x].npy", "--backend", "cpu").refusal


def test_a_full_disk_is_no_traceback(environment: Mapping[str, str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "glnn", "info", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_of_a_fixed_batch(cli: Glnn, small: Path, samples: Path) -> None:
    small.write_text(small.read_text().replace('"N"', "5"))
    assert cli("run", small, samples, "--backend", "cpu", "--json").code == 0
    assert cli("bench", small, samples, "--repeat", 1).code == 0
    refusal = cli("verify", small, samples, "--batch", 3).refusal
    assert f"--batch: {small} takes 5 samples a run, got 3" in refusal


def test_bench_leaves_out_what_does_not_open(process: Glnn) -> None:
    done = process("bench", "lenet", "--repeat", 1, MESA_GLES_VERSION_OVERRIDE="3.0")
    assert done.code == 0
    if "lenet on compute" not in done.out:
        assert "compute does not open" in done.out
