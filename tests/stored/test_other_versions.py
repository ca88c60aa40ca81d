"""What another version of glnn left in the cache folder: neither read nor removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from tests.random_models import random_model

Run = Callable[..., CompletedProcess[str]]
Old = Callable[[Path], Path]

CODE = """
import json, os, warnings
import glnn.version
glnn.version.VERSION = os.environ["VERSION"]
import glnn
from glnn.core.disk_cache import DiskCache
from glnn.core.settings import Settings
from glnn.gl.device_file import DeviceFile
from tests.stored_runs import numbers, written

disk = DiskCache.from_settings(Settings.from_environment())
before = {entry.name for entry in disk.entries()}
read = set()
map_entry, read_table = DiskCache.map, DeviceFile.read

def map_noted(self, name):
    found = map_entry(self, name)
    if found is not None and name in before:
        read.add(name)
    return found

def read_noted(self, entry):
    found = read_table(self, entry)
    if found:
        read.add(self.table)
    return found

DiskCache.map, DeviceFile.read = map_noted, read_noted
with warnings.catch_warnings():
    warnings.simplefilter("error")  # one would tell of damage
    session = glnn.InferenceSession(os.environ["MODEL"], os.environ["BACKEND"])
    (info,) = session.get_inputs()
    (y,) = session.run(None, {info.name: numbers(3, info.with_batch(2))})
    restored = session.restored
    if not restored:
        written(session)
del session
print(json.dumps({"restored": restored, "y": y.tolist(), "before": sorted(before),
                  "read": sorted(read), "left": [entry.name for entry in disk.entries()]}))
"""


@pytest.fixture
def run_as(python: Run, tmp_path: Path, old: Old) -> Callable[[str, str], Any]:
    """Runs a model in a process of its own, with glnn saying that it is of a given version."""
    random_model(9).save(tmp_path / "net.json")
    model = str(old(tmp_path / "net.json"))

    def run(version: str, backend: str) -> Any:
        environment = {"MODEL": model, "VERSION": version, "BACKEND": backend, "GLNN_DEBUG": "0"}
        done = python(CODE, GLNN_CACHE=str(tmp_path / "cache"), **environment)
        if "the compute backend cannot run" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("backend", ["compute", "feedback"])
def test_a_version_reads_its_own_entries_alone(
    run_as: Callable[[str, str], Any], backend: str
) -> None:
    first = run_as("0.9.0", backend)
    assert not first["before"] and {name.split("/")[0] for name in first["left"]} >= {"plans"}
    again = run_as("0.9.0", backend)
    assert again["restored"] and again["read"]  # or the test would say nothing of the next
    later = run_as("1.0.0", backend)
    assert not later["restored"] and not later["read"]
    assert {*first["left"]} < {*later["left"]}
    assert np.array_equal(later["y"], first["y"])
    assert run_as("1.0.0", backend)["restored"] and run_as("0.9.0", backend)["restored"]
