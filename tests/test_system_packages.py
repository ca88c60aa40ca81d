"""What `.ci/need` does on systems unlike this one: its PATH holds nothing but what a test puts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NEED = Path(__file__).parents[1] / ".ci" / "need"
GL = ("libegl1", "libgles2", "libgl1-mesa-dri")
pytestmark = pytest.mark.skipif(not NEED.exists(), reason="outside the repository")

APT = {
    "dpkg-query": 'for name; do :; done; case " $HAS " in *" $name "*) echo installed ;; '
    "*) echo not-installed; exit 1 ;; esac",
    "apt-get": 'echo "apt-get ${DEBIAN_FRONTEND-} $*"',
}
USER, ROOT = {"id": "echo 1000"}, {"id": "echo 0"}
SUDO = {"sudo": 'echo "sudo $*"; unset DEBIAN_FRONTEND; exec "$@"'}
PYTHON = {"python3": "exit 0"}
NO_VENV = {"python3": "exit 1"}


class System:
    """A machine with a few commands and GL libraries, all in a folder."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.lib = folder / "bin", folder / "lib"
        self.bin.mkdir()
        self.lib.mkdir()
        for tool in ("env", "grep"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self.add(ldconfig="exit 1")

    def add(self, *libraries: str, **commands: str) -> None:
        for name in libraries:
            (self.lib / name).touch()
        for name, body in commands.items():
            (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.bin / name).chmod(0o755)

    def need(self, *packages: str, has: str = "") -> tuple[int, list[str], str]:
        """Exit status, lines of stdout, and stderr; `has`: packages that dpkg knows."""
        done = subprocess.run(
            ["/bin/sh", NEED, *packages],
            env={"PATH": str(self.bin), "LIBRARY_FOLDERS": str(self.lib), "HAS": has},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr.strip()


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_without_apt_but_with_the_libraries(system) -> None:
    system.add("libEGL.so.1", "libGLESv2.so.2", **PYTHON)
    assert system.need("python3", "python3-venv", *GL, "xvfb", "gcc") == (0, [], "")


def test_without_apt_libraries_that_only_ldconfig_knows(system) -> None:
    system.add(ldconfig="echo '  libEGL.so.1 => /opt/gl/libEGL.so.1'; echo '  libGLESv2.so.2 => x'")
    assert system.need(*GL) == (0, [], "")


@pytest.mark.parametrize(
    ("python", "names"),
    [({}, " python3 python3-venv"), (NO_VENV, " python3-venv"), (PYTHON, "")],
)
def test_without_apt_what_is_missing_is_named(system, python, names) -> None:
    system.add("libEGL.so.1.1.0", **python, ldconfig="echo 'libEGL_mesa.so.0 => x'")
    says = f"There is no apt here. Please install what brings:{names} libEGL.so.1 libGLESv2.so.2"
    assert system.need("python3", "python3-venv", *GL) == (1, [], says)


def test_with_every_package_nothing_is_done(system) -> None:
    system.add(**APT, **USER)
    assert system.need(*GL, has=" ".join(GL)) == (0, [], "")


def test_without_root_and_sudo_it_says_what_to_install(system) -> None:
    system.add(**APT, **USER)
    says = "Please install, as root: libgles2 libgl1-mesa-dri"
    assert system.need(*GL, has="libegl1") == (1, [], says)


@pytest.mark.parametrize(("user", "by"), [(ROOT, []), ({**USER, **SUDO}, ["sudo"])])
def test_what_is_missing_is_installed(system, user, by) -> None:
    system.add(**APT, **user)
    status, lines, says = system.need(*GL, has="libgles2")
    assert (status, says) == (0, "")
    assert [line for line in lines if not line.startswith("sudo")] == [
        "Installing libegl1 libgl1-mesa-dri",
        "apt-get  update -qq",
        "apt-get noninteractive install -y -qq --no-install-recommends --no-remove "
        "libegl1 libgl1-mesa-dri",
    ]
    assert sum(line.startswith("sudo") for line in lines) == 2 * len(by)


@pytest.mark.parametrize("broken", ["update", "install"])
def test_a_failure_of_apt_is_its_own(system, broken) -> None:
    system.add(**{**APT, "apt-get": f'case "$*" in *{broken}*) exit 100 ;; esac'}, **ROOT)
    assert system.need("xvfb")[0] == 100


def test_a_package_of_two_architectures_is_there(system) -> None:
    system.add(**{**APT, "dpkg-query": "echo installed; echo installed"}, **USER)
    assert system.need(*GL) == (0, [], "")


def test_a_package_that_was_removed_is_missing(system) -> None:
    system.add(**{**APT, "dpkg-query": "echo config-files"}, **USER)
    assert system.need("xvfb") == (1, [], "Please install, as root: xvfb")


def test_a_vendors_driver_is_left_alone(system) -> None:
    system.add("libEGL.so.1", "libGLESv2.so.2", **APT, **USER)
    assert system.need(*GL) == (0, [], "")
    assert system.need(*GL, "xvfb") == (1, [], "Please install, as root: xvfb")
    # Debian's own library needs a driver of Debian's.
    says = "Please install, as root: libgl1-mesa-dri"
    assert system.need(*GL, has="libegl1") == (1, [], says)
