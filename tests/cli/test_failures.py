"""Failures that are no plain mistake: closed streams, odd names, drivers that raise, Ctrl-C; and
what --json prints then."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.layers import Conv2d, LocalResponseNorm, MaxPool2d
from glnn.model import Model
from tests.cli.conftest import Glnn
from tests.printed_numbers import in_bytes


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("--json", "NoSuchOption"),
        ("fly", "UsageError NoSuchCommand"),  # as click's version has it
        ("info --fly", "NoSuchOption"),
        ("info --gpu voodoo", "NoDeviceError"),
        ("info --limits tiny", "BadParameter"),
        ("run", "MissingParameter"),
        ("run nowhere", "ModelError"),
        ("run lenet gone.npy", "ModelError"),
        ("run lenet --kernel lstm=fast", "UnsupportedOpError"),
        ("bench lenet --backends cuda", "GlnnError"),
        ("verify lenet --tolerance -1", "BadParameter"),
        ("plan nowhere", "ModelError"),
        ("plan lenet --batch x", "BadParameter"),
        ("kernels --op lstm", "GlnnError"),
        ("layout Q 8 8", "LayoutError"),
        ("layout C 8", "MissingParameter"),
        ("layout C 8 8 8", "UsageError"),
        ("tune --show --forget", "GlnnError"),
        ("tune --size 0x1x1", "GlnnError"),
    ],
)
def test_json_says_what_failed(cli: Glnn, arguments: str, kind: str) -> None:
    failed = cli(*arguments.split(), *["--json"] * (arguments != "--json"))
    document = json.loads(failed.out)
    assert document["kind"] in kind.split()
    assert document == {"error": failed.refusal, "kind": document["kind"], "exit": 2}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("the driver\nis odd\x1b[2J"), r"unexpected RuntimeError: the driver is odd"),
        (KeyError("x"), "unexpected KeyError: 'x'"),
        (RecursionError("too deep"), "unexpected RecursionError: too deep"),
        (MemoryError(), "not enough memory"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
@pytest.mark.parametrize("arguments", ["info", "run lenet", "bench lenet", "kernels"])
def test_what_a_driver_raises(
    cli: Glnn, monkeypatch: pytest.MonkeyPatch, arguments: str, error: Exception, says: str
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("glnn.gl.device.Device.__init__", fail)
    for json_too in ([], ["--json"]):
        assert says in cli(*arguments.split(), "--gpu", "0", *json_too).refusal


def started(
    environment: Mapping[str, str], *arguments: object, closed: int = -1, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """`glnn` in a process of its own whose file of the number `closed` is closed."""

    def close() -> None:
        if closed >= 0:
            os.close(closed)

    return subprocess.run(
        [sys.executable, "-m", "glnn", *map(str, arguments)],
        env=dict(environment),
        capture_output=True,
        preexec_fn=close,
        timeout=120,
        check=False,
        **more,
    )


@pytest.mark.parametrize("arguments", ["run lenet --backend cpu", "layout C 2 2 --json", "--help"])
def test_a_closed_standard_output(environment: Mapping[str, str], arguments: str) -> None:
    done = started(environment, *arguments.split(), closed=1)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"glnn: the standard output is closed\n"


@pytest.mark.parametrize("closed", [0, 2])
def test_other_streams_may_be_closed(
    environment: Mapping[str, str], small: Path, samples: Path, closed: int
) -> None:
    done = started(environment, "run", small, samples, "--json", closed=closed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(done.stdout)["inputs"]) == 2
    refused = started(environment, "run", "nowhere", closed=closed)
    assert refused.returncode == 2 and refused.stdout == b""


def test_an_output_that_cannot_be_written(environment: Mapping[str, str]) -> None:
    for arguments in (["layout", "C", "2", "2"], ["layout", "C", "2", "2", "--json"], ["run"]):
        command = [sys.executable, "-m", "glnn", *arguments]
        with open(os.devnull) as unwritable:
            done = subprocess.run(
                command, env=dict(environment), stdout=unwritable, stderr=subprocess.PIPE
            )
        assert done.returncode == 2
        assert done.stderr.startswith(b"glnn: ") and done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="such names need a file system of bytes")
def test_names_that_have_no_encoding_or_are_obeyed(
    environment: Mapping[str, str], small: Path, samples: Path, tmp_path: Path
) -> None:
    for name, shown, option in (
        (b"a\xff.npy", b"a\\udcff.npy", []),
        (b"a\x1b[2J.npy", b"a\\x1b[2J.npy", ["--json"]),
    ):
        odd = os.fsencode(tmp_path) + b"/" + name
        Path(os.fsdecode(odd)).write_bytes(samples.read_bytes())
        command = [sys.executable, "-m", "glnn", "run", small, odd, "--backend", "cpu"]
        done = subprocess.run(command, env=dict(environment), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert shown in done.stdout and name not in done.stdout
        as_json = subprocess.run([*command, "--json"], env=dict(environment), capture_output=True)
        assert os.fsencode(json.loads(as_json.stdout)["inputs"][0]) == odd + b"[0]"
        Path(os.fsdecode(odd)).unlink()
        gone = subprocess.run([*command, *option], env=dict(environment), capture_output=True)
        assert gone.returncode == 2
        assert shown in gone.stderr and name not in gone.stderr + gone.stdout


@pytest.mark.parametrize(
    "text",
    [
        "R_99999999999_99999999999_R",
        "R 99999 99999 R",
        "IO99999i9999o",
        "nC" + "1c" * 40,
        "C" + " 1 2 C" * 40,
    ],
)
def test_layouts_of_any_size(cli: Glnn, text: str) -> None:
    assert cli("layout", text, 8, 8).refusal.startswith("layout ")
    assert cli("layout", "R_" + "9" * 5000 + "_1_R", 8, 8).refusal.count("9") < 70


def edited(path: Path, **arguments: Any) -> Path:
    """The model at `path` with other arguments of its first layer."""
    document = json.loads(path.read_text())
    document["layers"][0]["arguments"] |= arguments
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("layer", "arguments", "says"),
    [
        (LocalResponseNorm(3), {"alpha": 10**400}, "not valid JSON: an integer of 401 digits"),
        (LocalResponseNorm(3), {"beta": 1e300}, "beta must be a number that float32 holds"),
        (LocalResponseNorm(3), {"size": 2**40}, "size must be an integer of at most 2147483647"),
        (MaxPool2d(2), {"kernel_size": 2**40}, "kernel_size must be an integer of at most"),
        (MaxPool2d(2), {"stride": [2**40, 1]}, "stride must be an integer of at most"),
        (Conv2d(2, 2, 1), {"stride": 2**40}, "stride must be an integer of at most"),
        (Conv2d(2, 2, 1), {"padding": 2**40}, "padding must be an integer of at most"),
        (Conv2d(2, 2, 1), {"out_channels": 2**40}, "out_channels must be an integer of at most"),
    ],
)
def test_numbers_of_any_size_in_models(
    cli: Glnn, tmp_path: Path, layer: Any, arguments: Any, says: str
) -> None:
    model = tmp_path / "model.json"
    Model.sequential([layer], (2, 4, 4)).save(model)
    edited(model, **arguments)
    for verb in ("plan", "bench", "verify"):
        refusal = cli(verb, model, "--json").refusal
        assert says in refusal and len(refusal) < 300


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", ""], "a model must be a name or a path, got an empty text"),
        (["run", "lenet", ""], "an INPUT must be the name of a file, got an empty text"),
        (["verify", "lenet", "--tolerance", "nan"], "nan is no number"),
        (["bench", "--suite", "--minutes", "nan"], "nan is no number"),
        (["bench", "--suite", "--minutes", "inf"], "inf is not in the range 0<x<=1440"),
        (["run", "lenet", "--gpu", "99", "--backend", "cpu"], "the cpu backend uses no GPU, but g"),
        (["bench", "lenet", "--gpu", "99", "--backends", "cpu"], "the cpu backend uses no GPU"),
        (["plan", "lenet", "--gpu", "99", "--backend", "cpu"], "the cpu backend uses no GPU"),
        (["verify", "lenet", "--gpu", "0", "--backend", "cpu"], "the cpu backend uses no GPU"),
    ],
)
def test_messages_that_misled(cli: Glnn, arguments: list[str], says: str) -> None:
    assert says in cli(*arguments).refusal


def test_bench_compares_a_named_gpu_with_the_cpu(cli: Glnn) -> None:
    gpus = cli("info", "--json").json["gpus"]
    if not gpus:
        pytest.skip("EGL lists no GPUs")
    found = cli("bench", "lenet", "--repeat", 1, "--gpu", 0, "--backends", "feedback,cpu", "--json")
    assert list(found.json["backends"]) == ["feedback", "cpu"]


def test_channels_last_in_a_file(cli: Glnn, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 28, 28, 1), np.float32))
    refusal = cli("run", "lenet", tmp_path / "x.npy").refusal
    assert "got (2, 28, 28, 1): channels come first here, (n, c, h, w)" in refusal


def test_an_npz_cut_short_is_called_so(cli: Glnn, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, input=np.zeros((2, 1, 28, 28), np.float32))
    path.write_bytes(path.read_bytes()[:-100])
    assert "one that is cut short" in cli("run", "lenet", path).refusal
    path.write_bytes(b"hello")
    assert "cut short" not in cli("run", "lenet", path).refusal


def test_memory_that_is_not_allowed(
    cli: Glnn, monkeypatch: pytest.MonkeyPatch, small: Path, samples: Path
) -> None:
    need = cli("plan", small, "--batch", 2, "--backend", "feedback", "--json").json["peak_bytes"]
    monkeypatch.setenv("GLNN_MEMORY", str(need - 1))
    refusal = cli("run", small, samples, "--backend", "feedback").refusal
    said = re.search(r"needs (.+?) of device memory, GLNN_MEMORY allows (.+?);(.*)", refusal)
    assert said is not None and said[1] != said[2]
    assert [in_bytes(one) for one in said.groups()[:2]] == pytest.approx([need, need - 1], rel=0.2)
    assert "(0.0 MiB)" not in said[3] and re.search(r"\(\d+ B\)", said[3])
    assert "allowed by GLNN_MEMORY" in cli("plan", small, "--backend", "feedback").out


INTERRUPTS = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.parametrize("module", ["tempfile", "rich_click", "numpy"])
def test_ctrl_c_while_modules_are_loaded(
    environment: Mapping[str, str], tmp_path: Path, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text(INTERRUPTS)
    path = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    done = interruptible({**environment, "PYTHONPATH": path}, "-m", "glnn", "info", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "glnn: interrupted\n")


MODERNGL_RETURNS_FIRST = """
import signal, time
from glnn.__main__ import interrupt

signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGALRM, interrupt)
inner = {"__name__": "moderngl.inner", "signal": signal, "done": False}
exec(\"\"\"
def compile():
    global done
    signal.raise_signal(signal.SIGINT)
    for _ in range(100_000):
        pass
    done = True
\"\"\", inner)
try:
    inner["compile"]()
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", inner["done"])
"""


def test_ctrl_c_waits_until_moderngl_returns(environment: Mapping[str, str]) -> None:
    """It crashes where Python that it called from C has raised."""
    done = interruptible(environment, "-c", MODERNGL_RETURNS_FIRST)
    assert (done.stdout, done.stderr) == ("interrupted True\n", "")


ENDS_AT_ONCE = """
import signal, sys, time
import glnn.__main__ as command, glnn.cli

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(0.2)  # as Python ends, when no signal has a handler any more

last = Last()
inner = {"__name__": "moderngl.inner", "signal": signal}
exec("def late(): signal.raise_signal(signal.SIGINT)", inner)

def run():
    inner["late"]()
    sys.exit(3)

glnn.cli.main = run
command.main()
"""


def test_ctrl_c_near_the_end_is_no_alarm(environment: Mapping[str, str]) -> None:
    done = interruptible(environment, "-c", ENDS_AT_ONCE)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def interruptible(
    environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Python in a process that heeds SIGINT, even if these tests run in the background."""
    heed: Callable[[], object] = _heed
    return subprocess.run(
        [sys.executable, *arguments],
        env=dict(environment),
        preexec_fn=heed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _heed() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
