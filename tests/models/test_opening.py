"""Which backend opens, and what is said when none does."""

from __future__ import annotations

import pytest

from glnn.backends import open_backend
from glnn.compiler.executor import Executor
from glnn.errors import DeviceError, GlnnError
from glnn.gl import Capabilities, gpus
from glnn.layers import Linear
from glnn.model import Model
from tests.conftest import NO_GL

AUTO = """
from glnn.backends import open_backend
try:
    print(open_backend("auto", gpu={gpu!r}).name)
except Exception as error:
    print(type(error).__name__, error)
"""
ES_30 = {"MESA_GLES_VERSION_OVERRIDE": "3.0"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cuda", "; compute is the GPU"),
        ("GPU", "; compute is the GPU"),
        ("computes", ": did you mean 'compute'?"),
        ("CPU", ": did you mean 'cpu'?"),
        ("npu2", ""),
    ],
)
def test_unknown_backend(name: str, hint: str) -> None:
    with pytest.raises(GlnnError) as refused:
        open_backend(name)
    expected = f"unknown backend {name!r}: expected auto, compute, feedback, cpu{hint}"
    assert str(refused.value) == expected


@pytest.mark.parametrize("name", ["compute", "feedback", "cpu"])
def test_the_environment_says_what_auto_means(monkeypatch, device, name) -> None:
    monkeypatch.setenv("GLNN_BACKEND", name)
    assert open_backend("auto").name == name
    assert open_backend("cpu").name == "cpu"
    expected = "compute" if name == "cpu" else name
    assert open_backend("auto", device).name == expected


def test_a_backend_that_the_environment_cannot_mean(monkeypatch) -> None:
    monkeypatch.setenv("GLNN_BACKEND", "cuda")
    says = "GLNN_BACKEND: expected auto, compute, feedback, cpu, got 'cuda'; compute is the GPU"
    with pytest.raises(GlnnError, match=says):
        open_backend("auto")


def test_a_named_gpu_without_compute_runs_feedback(python) -> None:
    if not gpus():
        pytest.skip("EGL lists no GPUs")
    found = python(AUTO.format(gpu=0), **ES_30).stdout.strip()
    if found == "compute":
        pytest.skip("this driver cannot be told to be OpenGL ES 3.0")
    assert found == "feedback"


@pytest.mark.parametrize("environment", [{"GLNN_GPU": "bogus"}, {"GLNN_LIMITS": "bogus"}])
def test_the_cpu_does_not_stand_in_for_what_was_asked_for(python, environment) -> None:
    said = python(AUTO.format(gpu=None), **environment).stdout
    assert "Error" in said
    assert "bogus" in said


def test_without_gl_auto_takes_the_cpu(python) -> None:
    assert python(AUTO.format(gpu=None), **NO_GL).stdout.strip() == "cpu"


@pytest.mark.parametrize("software", [None, "llvmpipe"])
def test_auto_takes_the_cpu_instead_of_a_software_renderer(monkeypatch, device, software) -> None:
    """Unless something says that GL is wanted: a GPU, a device, limits, kernels, GLNN_BACKEND."""
    for name in ("GLNN_BACKEND", "GLNN_GPU", "GLNN_LIMITS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Capabilities, "software", property(lambda self: software))
    first = open_backend("auto", device).name
    assert first in ("compute", "feedback")
    assert open_backend("auto").name == (first if software is None else "cpu")
    assert open_backend("auto", limits="es31-minimum").name == first
    assert open_backend("auto", gl_kernels=True).name == first
    monkeypatch.setenv("GLNN_BACKEND", first)
    assert open_backend("auto").name == first
    monkeypatch.setenv("GLNN_BACKEND", "auto")
    monkeypatch.setenv("GLNN_LIMITS", "es31-minimum")
    assert open_backend("auto").name == first
    if gpus():
        monkeypatch.delenv("GLNN_LIMITS")
        assert open_backend("auto", gpu=0).name == first
        monkeypatch.setenv("GLNN_GPU", "0")
        assert open_backend("auto").name == first


@pytest.mark.parametrize("software", [None, "llvmpipe"])
def test_what_measures_nothing_goes_by_that_rule(monkeypatch, device, software) -> None:
    monkeypatch.delenv("GLNN_BACKEND")
    monkeypatch.setattr(Capabilities, "software", property(lambda self: software))
    model = Model.sequential([Linear(3, 2)], (3,))
    executors = [
        Executor(model.graph, "auto"),
        Executor(model.graph, "auto", kernels={"matmul": "gemm_blocked"}),
    ]
    on_cpu = [one.backend.name == "cpu" for one in executors]
    assert on_cpu == [software is not None, False]


def test_sessions_on_one_device_share_programs(device) -> None:
    import numpy as np

    from glnn.session import InferenceSession

    x = np.zeros((1, 1, 28, 28), np.float32)
    counts = []
    for _ in range(2):
        try:
            InferenceSession("lenet", "compute", device=device).run(None, {"input": x})
        except DeviceError as error:
            pytest.skip(str(error))
        counts.append(len(device.programs))
    assert counts[0] == counts[1]
