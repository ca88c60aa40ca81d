"""The command line, called in this process or in one of its own, and files to hand to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import glnn
from glnn import data
from glnn.backends import Backend
from glnn.backends.opening import _shared
from glnn.cli import main
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.tuned import TunedChoice
from glnn.layers import Conv2d, Linear, MaxPool2d, ReLU
from glnn.model import Model
from glnn.tuning import Tuning
from tests.files import name_weights_plainly

PACKAGE = str(Path(glnn.__file__).parents[1])  # the one under test
SHELL = dict(os.environ)
"""The environment before any test changed it: what one has set is not another one's."""


@dataclass(frozen=True)
class Result:
    """What a call of the command line gave; as_json: whether it had --json."""

    code: int
    out: str
    err: str
    as_json: bool = False

    @property
    def json(self) -> Any:
        """The one JSON object on standard output of a call that succeeded."""
        assert (self.code, self.err) == (0, "")
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    @property
    def refusal(self) -> str:
        """The one sentence on standard error of a call that was a user's mistake.

        With --json the same is in the one object on standard output, else that is empty.
        """
        assert self.code == 2, f"{self.code}: {self.out}{self.err}"
        assert self.err.startswith("glnn: ") and self.err.endswith("\n")
        assert self.err.count("\n") == 1 and "Traceback" not in self.err
        said = self.err[len("glnn: ") : -1]
        assert said.isprintable()
        if self.as_json:
            document = json.loads(self.out)
            assert set(document) == {"error", "kind", "exit"}
            assert (document["error"], document["exit"]) == (said, 2)
            assert document["kind"].isidentifier()
        else:
            assert self.out == ""
        return said


Glnn = Callable[..., Result]
Digits = tuple[NDArray[Any], NDArray[Any]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Glnn:
    """Calls the command line in this process: `cli("run", "lenet")`. Timing does not warm up."""
    monkeypatch.setattr("glnn.profiling.timing.FIRST_SECONDS", 0.0)

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["glnn", *map(str, arguments)])
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            with pytest.raises(SystemExit) as exit:
                main()
        return Result(exit.value.code, out.getvalue(), err.getvalue(), "--json" in arguments)

    return call


@pytest.fixture(scope="session")
def environment() -> Mapping[str, str]:
    """What the command line's own processes get: no display, and glnn as it is tested here."""
    kept = {k: v for k, v in SHELL.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    path = os.pathsep.join(filter(None, [PACKAGE, SHELL.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path}


@pytest.fixture
def process(environment: Mapping[str, str], tmp_path: Path) -> Glnn:
    """Calls the command line in a process of its own, with more in its environment."""

    def call(*arguments: object, **more: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "glnn", *map(str, arguments)],
            env={**environment, **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr, "--json" in arguments)

    return call


@pytest.fixture
def digits() -> Digits:
    """Eight digits that lenet gets right, bytes of shape (8, 28, 28), and their labels."""
    images, labels = data.digits()
    return images[:8], labels[:8]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The .json file of relu(x @ weight.T + bias) for x of shape (n, 3), two classes."""
    linear = Linear(3, 2)
    linear.weight = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
    linear.bias = np.array([0.5, -3], np.float32)
    model = Model.sequential([linear, ReLU()], (3,), name="small", names=["affine", "relu"])
    model.save(tmp_path / "small.json")
    return name_weights_plainly(tmp_path / "small.json")


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two samples for `small`; the first is of class 0, the second of class 1."""
    np.save(tmp_path / "samples.npy", np.array([[2, 0, 0], [5, 0, 1]], np.float32))
    return tmp_path / "samples.npy"


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """The .json file of a model whose convolution can be made of stages."""
    layers = [Conv2d(4, 4, 3, padding=1), MaxPool2d(2)]
    Model.sequential(layers, (4, 8, 8), name="staged", names=["conv", "pool"]).save(
        tmp_path / "staged.json"
    )
    return tmp_path / "staged.json"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two samples for `staged`."""
    samples = np.random.default_rng(4).standard_normal((2, 4, 8, 8), dtype=np.float32)
    np.save(tmp_path / "images.npy", samples)
    return tmp_path / "images.npy"


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For `cli`: a cache of its own, and backends that have not read another."""
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glnn.profiling.timing.WARM_SECONDS", 0.0)
    monkeypatch.setattr("glnn.profiling.timing.LEAST_SECONDS", 0.0)
    _shared.backends.clear()
    yield
    _shared.backends.clear()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the search by one that finds the same at once; the sizes it was called for."""
    called: list[str] = []

    def found(
        backend: Backend, spec: OpSpec, *, advance: Callable[[str], None], **_: object
    ) -> Tuning:
        sizes = spec.op.sizes(spec.shapes)
        called.append("x".join(str(sizes[name]) for name in "mnk" if name in sizes))
        if called[-1] == "13x13x13":
            raise KeyboardInterrupt
        advance("gemm_tiled")
        kernel = kernels_for(spec.op.name, backend.name)[-1]
        if spec.op.name == "matmul":
            (kernel,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked")
            kernel = kernel.with_parameters(TM=2)
        return Tuning(spec, TunedChoice.from_kernel(kernel, 1e-3, 2e-3))

    monkeypatch.setattr(import_module("glnn.cli.tune"), "search", found)
    return called
