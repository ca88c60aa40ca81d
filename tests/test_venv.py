"""Where `.ci/venv` has moderngl from, on machines unlike this one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_system_packages import APT, ROOT, System

REPOSITORY = Path(__file__).parents[1]
VENV = REPOSITORY / ".ci" / "venv"
pytestmark = pytest.mark.skipif(not VENV.exists(), reason="outside the repository")

# Python as far as the script knows it: environments are made, pip finds what PYPI and HAS hold.
PYTHON = r"""
echo "$*" >> "$LOG"
for last; do :; done
case "$*" in
    "-m venv"*)
        mkdir -p "$last/bin"
        cp "$0" "$last/bin/python"
        echo "$*" > "$last/made" ;;
    "-m pip"*)
        [ "$PYPI" = wheel ] && exit 0
        grep -q system-site "${0%/bin/python}/made" && [ "$SYSTEM" = new ] && exit 0
        [ "$PYPI" = full ] && echo "ERROR: Could not install packages: no space" >&2 && exit 1
        [ "$PYPI" = down ] && echo "WARNING: Retrying (Retry(total=4, connect=None, read=None, \
redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.\
connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno 111] \
Connection refused')': /simple/moderngl/" >&2
        echo "ERROR: Could not find a version that satisfies the requirement moderngl (from \
versions: none)" >&2
        echo "ERROR: No matching distribution found for moderngl" >&2
        exit 1 ;;
    -c*) echo "$PREFIX" ;;
esac
"""


class Machine:
    """A machine whose commands are a folder's."""

    def __init__(self, folder: Path) -> None:
        self.system = System(folder)
        self.log, self.made = folder / "log", folder / "made"
        for tool in ("sh", "sed", "dirname", "rm", "cat", "uname", "cp", "mkdir"):
            (self.system.bin / tool).symlink_to(str(shutil.which(tool)))
        self.system.add(**APT, **ROOT, python3=PYTHON)

    def venv(self, script: Path = VENV, **facts: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of the script where these `facts` hold."""
        done = subprocess.run(
            ["/bin/sh", script, "python3", self.made],
            env={
                **{"PATH": str(self.system.bin), "LOG": str(self.log), "HAS": ""},
                **{"LIBRARY_FOLDERS": "", "PREFIX": "/usr", "SYSTEM": "", **facts},
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_wheels_need_nothing_of_the_system(machine: Machine) -> None:
    assert machine.venv(PYPI="wheel") == (0, "", "")
    assert machine.made.exists() and "system-site" not in machine.log.read_text()
    assert "--only-binary moderngl,glcontext moderngl>=" in machine.log.read_text()


def test_without_wheels_debians_packages_are_taken(machine: Machine) -> None:
    status, says, errors = machine.venv(PYPI="none", SYSTEM="new")
    assert (status, errors) == (0, "") and machine.made.exists()
    assert "Installing python3-moderngl python3-glcontext" in says
    assert "--system-site-packages --without-pip" in machine.log.read_text()


@pytest.mark.parametrize("prefix", ["/usr", "/root/.pyenv/versions/3.13.0"])
def test_neither_is_said_and_leaves_nothing(machine: Machine, prefix: str) -> None:
    status, says, errors = machine.venv(PYPI="none", SYSTEM="old", PREFIX=prefix)
    assert status == 1 and not machine.made.exists()
    assert ("Installing" in says) == (prefix == "/usr")  # Debian's are for Debian's Python
    assert "the system no package" in errors and "make PYTHON=/usr/bin/python3" in errors


DOWN = [("down", "Connection refused"), ("full", "no space")]


@pytest.mark.parametrize(("pypi", "error"), DOWN)
def test_a_net_that_is_down_is_no_missing_wheel(machine: Machine, pypi: str, error: str) -> None:
    status, says, errors = machine.venv(PYPI=pypi)
    assert status == 1 and "Installing" not in says and not machine.made.exists()
    assert error in errors


@pytest.mark.parametrize(("pypi", "error"), [*DOWN, ("none", "")])
def test_the_oldest_is_left_out_only_where_there_is_no_wheel(
    machine: Machine, tmp_path: Path, pypi: str, error: str
) -> None:
    script = tmp_path / "copy" / ".ci" / "check-oldest"  # it makes its folder beside itself
    shutil.copytree(VENV.parent, script.parent)
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path / "copy")
    status, says, errors = machine.venv(script, PYPI=pypi)
    assert (status, says.startswith("Left out: PyPI has no wheel")) == (
        (0, True) if pypi == "none" else (1, False)
    )
    assert error in errors and bool(errors) == bool(error)


def test_the_documents_name_the_oldest_moderngl() -> None:
    (oldest,) = re.findall(r'"moderngl>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    assert f"moderngl {oldest}" in (REPOSITORY / "docs" / "installing.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("1000", "only root can make and enter a root: sudo make check-arm64"),
        ("0", "there is no unshare here: please install it"),
    ],
)
def test_emulation_says_what_it_needs(tmp_path: Path, user: str, says: str) -> None:
    system = System(tmp_path)
    for tool in ("sh", "dirname"):
        (system.bin / tool).symlink_to(str(shutil.which(tool)))
    system.add(id=f"echo {user}", debootstrap="exit 0")
    done = subprocess.run(
        ["/bin/sh", REPOSITORY / ".ci" / "check-arm64", "trixie"],
        env={"PATH": str(system.bin)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"check-arm64: {says}\n")
