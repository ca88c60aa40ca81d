"""Reports name nobody: paths and names are taken out, whatever they look like, and no more."""

from __future__ import annotations

import getpass
import platform
import random
from pathlib import Path

import pytest

from glnn.core import redaction
from glnn.core.glsl import shaders_folder
from glnn.core.redaction import redact, redact_texts
from glnn.core.settings import describe_environment
from glnn.kernels.library import declared

ENVIRONMENT = {"HOME": "/home/zaphod", "USER": "zaphod", "HOSTNAME": "heart-of-gold"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have names from the environment alone, wherever the tests run."""
    monkeypatch.setattr(platform, "node", lambda: "magrathea.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "zaphod")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read /home/zaphod/a b", "cannot read (a path)"),
        ("/home/zaphod/My Models/net.onnx: cannot open", "(a path): cannot open"),
        ("/home/zaphod/my net.onnx; left out", "(a path); left out"),
        ("/home/zaphod/Doe, Jane/net.onnx: no", "(a path): no"),
        ("/srv/it's mine/net.onnx: no", "(a path): no"),
        ("/srv/Models (old)/a (1) b.onnx: no", "(a path): no"),
        ("closed (/opt/x/y.so)", "closed ((a path))"),
        ("cannot open /opt/x/y.so.", "cannot open (a path)."),
        ("'/opt/x y/z.so': no", "'(a path)': no"),
        ('got "/opt/x/y.so", expected a folder', 'got "(a path)", expected a folder'),
        ("`/opt/x: y` and 'others'", "`(a path)` and 'others'"),
        ("path=/opt/x:/home/zaphod/lib", "path=(a path)"),
        ("//server/zaphod/x: no", "(a path): no"),
        ("../zaphod/x: no, ./y: no", "(a path): no"),
        ("~/models/net.onnx", "(a path)"),
        ("~arthur is full", "(a path)"),
        ("~me/models, and C:\\Users\\me\\net", "(a path)"),
        ("C:\\Users\\Jane Doe\\net.onnx: no", "(a path): no"),
        ("d:/Users/me/net.onnx: no", "(a path): no"),
        ("'C:\\\\Users\\\\me\\\\net'", "'(a path)'"),
        ("\\\\server\\Jane's share\\net.onnx: no", "(a path): no"),
        ("\\\\?\\C:\\Users\\me: no", "(a path): no"),
        ("\\Users\\me\\net.onnx: no", "(a path): no"),
        ("file:///home/me/net.onnx: no", "(a path): no"),
        ("https://me:secret@host:8000/v1: refused", "(a path): refused"),
        ("first\n/home/me/x\nlast", "first\n(a path)\nlast"),
        ("cannot read /srv/it' s/ford/x.onnx: bad", "cannot read (a path): bad"),
        ("cannot read /srv/a: b/ford/x.onnx: bad", "cannot read (a path): bad"),
        ("cannot read /srv/a; b, c: d/ford.onnx: bad", "cannot read (a path): bad"),
        ("cannot read /srv/a: ford.onnx: bad", "cannot read (a path): bad"),
        ("cannot read /srv/a`b/ford x/y: bad", "cannot read (a path): bad"),
        ('cannot read /srv/a "b" ford/y: bad', "cannot read (a path): bad"),
        ('cannot read /srv/a "b"; ford', "cannot read (a path) (rest left out)"),
        ("cannot read /srv/a\nb/ford/y: bad", "cannot read (a path)\n(a path): bad"),
        ("no '/srv/it' s ford/y' here", "no '(a path)' here"),
        ("no 'Jane Doe/y' here", "no '(a path)' here"),
        (repr('/srv/it\' s "q" /ford/x.onnx'), "'(a path)'"),
        (repr("\\\\server\\share\\ford\\x.onnx"), "'(a path)'"),
        ("\\\\\\\\server\\\\share: no", "(a path): no"),
        ("\\\\-server\\ford: no", "(a path): no"),
        ("ford\\models\\x.onnx: no", "(a path): no"),
        ("ford\\\\models\\\\x.onnx: no", "(a path): no"),
        ("\\ford: no", "(a path): no"),
        ("C:ford\\models: no", "(a path): no"),
        ("C:ford.onnx: no", "(a path): no"),
        ("models/ford/net.onnx: no", "(a path): no"),
        ("of ford.onnx: no", "of (a path): no"),
        ("$HOME/ford/x, ${HOME}/ford: no", "(a path): no"),
        ("%USERPROFILE%\\ford: no", "(a path): no"),
        ("cc -I/srv/ford: no", "cc (a path): no"),
        ("at 0/srv/ford: no", "at (a path): no"),
        ("é/srv/ford: no", "(a path): no"),
        ("file:ford/x: no", "(a path): no"),
        ("[/srv/ford]", "[(a path)]"),
        ("of /<ford [x]/y: no", "of (a path): no"),
        ("of d:ford; [x\\y: no", "of (a path): no"),
        ("of ~/<ford*/' ab/x: no", "of (a path): no"),
    ],
)
def test_paths_are_taken_out(text: str, expected: str) -> None:
    assert redact(text, ENVIRONMENT) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("zaphod may not", "(a name) may not"),
        ("Zaphod's lock, of ZAPHOD_1", "(a name)'s lock, of (a name)_1"),
        ("heart-of-gold: refused", "(a name): refused"),
        ("magrathea and magrathea.example.org", "(a name) and (a name)"),
        ("zaphodesque", "zaphodesque"),
        ("ford@corp.example and ssh ford@10.1.2.3", "(a name) and ssh (a name)"),
    ],
)
def test_names_are_taken_out(text: str, expected: str) -> None:
    assert redact(text, ENVIRONMENT) == expected


def test_names_of_windows() -> None:
    there = {"USERPROFILE": "C:\\Users\\Ford", "USERNAME": "fprefect", "COMPUTERNAME": "GUIDE"}
    assert redact("fprefect or ford at guide", there) == "(a name) or (a name) at (a name)"


@pytest.mark.parametrize(
    "text",
    [
        "NVIDIA H200/PCIe/SSE2 by NVIDIA",
        "5 / 3 is no path, nor is 7 // 3",
        "12 GB/s, ~3 ms, 50% w/o it",
        "matmul/gemm_tiled: 3 of 4 results are wrong, as x[0] = -inf",
        "root may, and a pi board does",
        "conv2d.comp:12(3): error: 'a': undeclared",
        "\\x1b[0m is escaped",
        "NVIDIA GeForce RTX 3080/PCIe/SSE2, NVIDIA Tegra X1 (nvgpu)/integrated, Mesa/X.org",
        "51 tokens/s, 3.2 GFLOP/s, 1.5 s/token, 12/34 rows, x86_64-linux, GL_R32F/GL_R16F",
        "attention/flash and pooled_conv2d/direct, of glnn / graph; inputs/outputs",
        "glnn.onnx and torch.onnx at Python 3.11.7, scipy-openblas 0.3.31.188.0",
        "shaders/matmul/gemm_tiled.comp:12(3): error",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert redact(text, {**ENVIRONMENT, "HOME": "/root", "LOGNAME": "pi"}) == text


def test_kernels_stay_whoever_runs_them() -> None:
    kernels = [f"{one.op}/{one.name}, {one.op} by {one.name}: {one.backend}" for one in declared()]
    text = "\n".join(kernels)
    assert len(kernels) > 300 and redact(text, ENVIRONMENT) == text
    assert redact(text, {"HOME": "/home/matmul", "USER": "tiled", "HOSTNAME": "compute"}) == text


def test_files_of_glnn_stay() -> None:
    shader = shaders_folder() / "matmul" / "gemm_tiled.comp"
    text = f"{shader}:12: error in {Path(__file__)}"
    expected = str(shader.relative_to(shaders_folder().parent))
    assert redact(text, ENVIRONMENT).startswith(f"{expected}:12: error in ")


@pytest.mark.parametrize(
    "folder",
    [
        '/srv/eve\'s "k"; dir: x',
        "/srv/a`b: c, d",
        "/srv/a\nb; c",
        'C:\\Users\\eve\'s "k"; dir: x',
        "\\\\server\\eve: x",
        "secretdir-eve",
        "./eve; x",
    ],
)
@pytest.mark.parametrize("variable", ["GLNN_KERNELS", "GLNN_CACHE", "MESA_SHADER_CACHE_DIR"])
def test_known_paths_are_taken_out_whatever_they_look_like(folder: str, variable: str) -> None:
    there = {**ENVIRONMENT, variable: folder}
    for written in (folder, str(Path(folder)), folder.replace("\\", "\\\\"), repr(folder)[1:-1]):
        for file in ("", "/matmul/ours.comp", "\\matmul\\ours.comp"):
            said = redact(f"compile: {written}{file} on llvmpipe; 3 GB/s", there)
            assert said == "compile: (a path) on llvmpipe; 3 GB/s"
        assert redact(f"{written}/My Models/x: no", there) == "(a path): no"


def test_no_folder_of_a_setting_is_told() -> None:
    generator = random.Random(0)
    odd = [
        *"'\"`()[]{}<>,;|=&%$@#!~?* -\u00e9",
        ": ",
        "; ",
        "' ",
        '" ',
        "\\'",
        "secret",
        "secret",
        "/",
    ]
    for _ in range(200):
        folder = f"/srv/secret{''.join(generator.choices(odd, k=8))}x"
        there = {**ENVIRONMENT, "GLNN_KERNELS": folder}
        for text in (f"no {folder}: bad", f"no {folder!r}", f"of {folder}/matmul/a.comp on b; c"):
            assert "secret" not in redact(text, there), text


@pytest.mark.parametrize(
    "variable", ["GLNN_KERNELS", "GLNN_CACHE", "GLNN_EGL", "LIBGL_DRIVERS_DIR"]
)
def test_settings_of_paths_are_told_as_such(variable: str) -> None:
    assert describe_environment({variable: "secret-eve"}) == {variable: "(a path)"}


def test_paths_of_this_process_are_taken_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "eve's: here; x"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("sys.path", ["/opt/eve; lib"])
    monkeypatch.setattr("sys.argv", ["glnn", "--report=/opt/eve: report"])
    for path in (here, "/opt/eve; lib", "/opt/eve: report"):
        assert redact(f"{path} is full", ENVIRONMENT) == "(a path) is full"
    for path in ("/home/zaphod-eve", "/home/zaphod.eve", "/home/zaphod eve", "/home/zaphod/eve"):
        assert redact(f"{path}: full", ENVIRONMENT) == "(a path): full"


def test_hosts_are_named_with_and_without_their_domain() -> None:
    there = {**ENVIRONMENT, "HOSTNAME": "nightowl.corp.example"}
    text = "nightowl, nightowl.corp.example, other.corp.example"
    assert redact(text, there) == "(a name), (a name), other.(a name)"


@pytest.mark.parametrize("user", ["conv2d", "compute", "max", "cpu", "tiled", "jo"])
def test_users_named_as_words_of_reports_are_kept_out_of_paths_alone(user: str) -> None:
    there = {"HOME": f"/home/{user}", "USER": user}
    text = f"conv2d/tiled on compute takes max. 3 ms, and {user}s jo's {user} of cpu"
    assert redact(text, there) == text
    text = f"{user}@corp.example may not read /home/{user}/x: no\nmodels/{user}: no"
    assert redact(text, there) == "(a name) may not read (a path): no\n(a path): no"


@pytest.mark.parametrize("root", ["/", "/opt/lib/"])
def test_files_of_glnn_below_any_folder_stay(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_roots", lambda: (root, f"{Path(__file__).parents[2]}/"))
    text = f"{root}glnn/core/glsl.py: 7 // 3, //server/ford/x: no"
    assert redact(text, ENVIRONMENT) == "glnn/core/glsl.py: 7 // 3, (a path): no"


def test_settings_are_told_without_paths_and_names() -> None:
    told = describe_environment(
        {
            **ENVIRONMENT,
            "GLNN_GPU": "0",
            "GLNN_EGL": "/home/zaphod/egl.so",
            "GLNN_CACHE": "~",
            "GLNN_KERNELS": "C:\\Users\\zaphod",
            "GLNN_GLES": "\\\\server\\zaphod",
            "MESA_LOG": "zaphod.log",
            "LIBGL_X": "a 1/b 2",
            "MESA_X": "",
        }
    )
    assert told == {
        "GLNN_CACHE": "(a path)",
        "GLNN_EGL": "(a path)",
        "GLNN_GLES": "(a path)",
        "GLNN_GPU": "0",
        "GLNN_KERNELS": "(a path)",
        "LIBGL_X": "(a path)",
        "MESA_LOG": "(a name).log",
    }


def test_texts_in_documents() -> None:
    document = {"why": ["/home/zaphod/x: no", 3, None], "by": ({"zaphod": "matmul/gemm_tiled"},)}
    assert redact_texts(document, ENVIRONMENT) == {
        "why": ["(a path): no", 3, None],
        "by": [{"zaphod": "matmul/gemm_tiled"}],
    }
