"""`import onnxruntime` gets glnn's: in a process, in those it starts, and by `python -m`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import glnn.onnxruntime
from glnn.onnxruntime.__main__ import command_of, options
from glnn.onnxruntime.shim import FOLDER, python_path

WHERE = "import onnxruntime; print(onnxruntime.__name__)"
REAL = "__version__ = '0.5'\n"
"""What these tests have in the place of ONNX Runtime."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with somebody's onnxruntime, its distribution, and a sitecustomize."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text(REAL)
    (tmp_path / "onnxruntime" / "quantization.py").write_text("")
    (tmp_path / "onnxruntime-0.5.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: onnxruntime\nVersion: 0.5\n"
    (tmp_path / "onnxruntime-0.5.dist-info" / "METADATA").write_text(metadata)
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = True\n")
    return tmp_path


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What this Python says, with PYTHONPATH and such of `environment`."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def drop_in(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `python -m glnn.onnxruntime` says."""
    return python("-m", "glnn.onnxruntime", *arguments, **environment)


PROGRAM = """
import json, subprocess, sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

def of(module):
    try:
        return version(module)
    except PackageNotFoundError:
        return None

spec = find_spec("onnxruntime").origin
import onnxruntime, onnxruntime.capi.onnxruntime_pybind11_state as state
import glnn.onnxruntime.capi.onnxruntime_pybind11_state as own
try:
    import onnxruntime.quantization
    there = True
except ImportError:
    there = False
child = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout.strip()
print(json.dumps({
    "name": __name__, "argv": sys.argv, "path": sys.path[0], "spec": spec, "file": __file__,
    "module": onnxruntime.__name__, "one": state is own, "kept": state.__spec__.name,
    "quantization": there, "version": of("onnxruntime"), "gpu": of("onnxruntime-gpu"),
    "own": onnxruntime.__version__, "child": child, "theirs": getattr(sys, "theirs", False),
}))
sys.exit(7)
""".replace("CODE", repr(WHERE))


def test_a_program_gets_glnn_for_its_own(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    path = folder / "detect.py"
    path.write_text(PROGRAM)
    done = drop_in(str(path), "a b", "-m", PYTHONPATH=str(site))
    assert done.returncode == 7, done.stderr
    said = json.loads(done.stdout)
    assert said == {
        "name": "__main__",
        "argv": [str(path), "a b", "-m"],
        "path": str(folder),
        "file": str(path),
        "spec": glnn.onnxruntime.__file__,
        "module": "glnn.onnxruntime",
        "one": True,
        "kept": "glnn.onnxruntime.capi.onnxruntime_pybind11_state",
        "quantization": False,  # glnn has none, and theirs is not mixed in
        "version": glnn.onnxruntime.__version__,
        "own": glnn.onnxruntime.__version__,
        "gpu": None,
        "child": "glnn.onnxruntime",
        "theirs": True,  # what glnn's sitecustomize.py hides was run
    }


def test_the_program_s_own_folder_comes_second(site: Path) -> None:
    """A program that lies beside an onnxruntime, as in site-packages, gets glnn's still."""
    (site / "beside.py").write_text(WHERE)
    assert drop_in(str(site / "beside.py")).stdout == "glnn.onnxruntime\n"


def test_one_variable_opts_out_with_children(site: Path) -> None:
    code = f"from importlib.metadata import version; {WHERE}, print(version('onnxruntime'))"
    path = os.pathsep.join([FOLDER, str(site)])
    off = {"GLNN_ONNXRUNTIME": "0"}
    assert python("-c", code, PYTHONPATH=path, **off).stdout == "onnxruntime\n0.5\n"
    assert drop_in("-c", code, PYTHONPATH=str(site), **off).stdout == "onnxruntime\n0.5\n"


def test_what_has_the_folder_only_later_gets_it_too(site: Path) -> None:
    code = f"import sys; sys.path[:0] = {[FOLDER, str(site)]}; {WHERE}"
    assert python("-c", code).stdout == "glnn.onnxruntime\n"
    assert python("-c", code, GLNN_ONNXRUNTIME="0").stdout == "onnxruntime\n"


def test_a_python_without_glnn_has_its_own(site: Path) -> None:
    without = "sys.path = [one for one in sys.path if not os.path.isdir(os.path.join(one, 'glnn'))]"
    code = f"import os, sys; {without}; {WHERE}"
    done = python("-c", code, PYTHONPATH=os.pathsep.join([FOLDER, str(site)]))
    assert done.stdout == "onnxruntime\n" and "has no glnn" in done.stderr


LEAVING = """
import os, sys
sys.path.insert(1, {site!r})
before = list(sys.path), list(sys.meta_path), os.environ.get("PYTHONPATH")
import glnn.onnxruntime as ours
assert ours.install() and ours.install()
import onnxruntime
assert onnxruntime is ours
ours.uninstall()
ours.uninstall()
assert (list(sys.path), list(sys.meta_path), os.environ.get("PYTHONPATH")) == before
import onnxruntime
assert onnxruntime.__version__ == "0.5"
try:
    ours.install()
except ours.capi.onnxruntime_pybind11_state.Fail:
    pass
except Exception as error:
    print(type(error).__name__, error)
"""


def test_uninstall_takes_all_back_and_a_late_install_says_so(site: Path) -> None:
    checkout = str(Path(FOLDER).parents[2])
    done = python("-c", LEAVING.format(site=str(site)), PYTHONPATH=checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("GlnnError expected no onnxruntime before")
    assert str(site / "onnxruntime" / "__init__.py") in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.py"], "expected a file, or a command in"),
        (["pytes"], "is it pytest?"),
        (["glnn.onnxruntime"], "expected a file"),
        (["-m"], "expected a module after -m"),
        (["--fast"], "expected a program, -m, -c, --path or --help, got '--fast'"),
        (["json"], "a module is run by `-m json`"),
    ],
)
def test_what_is_no_program_is_told(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(glnn.errors.GlnnError) as error:
        command_of(arguments, [])
    assert told in str(error.value)


def test_commands_go_by_this_python_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    link = tmp_path / "a link"
    link.symlink_to(os.path.dirname(sys.executable))
    heads = {
        "env": "#!/usr/bin/env python3",
        "long": f'#!/bin/sh\n\'\'\'exec\' "{sys.executable}" "$0" "$@"',
        "spaced": f"#!/bin/sh\n'''exec' '{link}/python' \"$0\" \"$@\"",
        "shell": "#!/bin/sh\nexec python serve.py",
        "other": "#!/opt/other/bin/python3",
    }
    for name, head in heads.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{head}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    found = {name: str(tmp_path / "bin" / name) for name in heads}
    assert command_of(["env", "x"], ["-u"]) == [sys.executable, "-u", found["env"], "x"]
    assert command_of(["long"], []) == [sys.executable, found["long"]]
    assert command_of(["spaced"], []) == [sys.executable, found["spaced"]]
    assert command_of(["shell", "x"], ["-u"]) == [found["shell"], "x"]
    for path in (found["shell"], os.path.relpath(found["shell"], tmp_path), "/bin/sh"):
        assert command_of([path, "x"], ["-u"]) == [path, "x"]  # no program of Python's
    (tmp_path / "bin" / "shell").chmod(0o644)
    assert command_of([found["shell"]], []) == [sys.executable, found["shell"]]
    with pytest.raises(glnn.errors.GlnnError, match="is run by /opt/other/bin/python3"):
        command_of(["other"], [])
    assert command_of(["-", "x"], []) == [sys.executable, "-", "x"]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("python -m glnn.onnxruntime a b", []),
        ("python -u -X dev -W error -m glnn.onnxruntime a b", ["-u", "-X", "dev", "-W", "error"]),
        ("python -Bum glnn.onnxruntime a b", ["-Bu"]),
        ("python -O -mglnn.onnxruntime a b", ["-O"]),
        ("python runner.py a b", []),
    ],
)
def test_python_s_own_options_are_kept(line: str, kept: list[str]) -> None:
    assert options(line.split(), 2) == kept


def test_the_path_is_put_in_front_once() -> None:
    once = python_path("/a::/b").split(os.pathsep)
    assert once[0] == FOLDER and once[-3:] == ["/a", "", "/b"]
    assert python_path(os.pathsep.join(once)).split(os.pathsep) == once


def test_help_and_isolation() -> None:
    done = python("-I", "-c", "import runpy, sys; sys.argv[1:] = ['x.py'];"
                  f"sys.path.insert(0, {str(Path(FOLDER).parents[2])!r});"
                  "runpy.run_module('glnn.onnxruntime', run_name='__main__')")  # fmt: skip
    assert done.returncode == 2 and "started with -E or -I" in done.stderr


def test_the_distribution_says_the_version_of_the_module() -> None:
    (folder,) = Path(FOLDER).glob("*.dist-info")
    version = glnn.onnxruntime.__version__
    assert folder.name == f"onnxruntime-{version}.dist-info"
    assert f"\nVersion: {version}\n" in (folder / "METADATA").read_text()


def test_what_starts_a_program_loads_no_names() -> None:
    code = "import sys, glnn.onnxruntime as o; print('numpy' in sys.modules, 'OrtValue' in dir(o))"
    done = python("-c", f"{code}; o.OrtValue = 1; print(o.RunOptions.__name__, o.OrtValue)")
    assert done.stdout == "False True\nRunOptions 1\n", done.stderr
