"""The kernel in docs/adding-a-kernel.md works as the page says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from glnn.backends.compute import Compute
from glnn.core.glsl import shaders_folder
from glnn.core.layout import parse
from glnn.gl import Buffer
from glnn.graph.operators import Matmul
from glnn.kernels.library import read
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.epilogues import finish

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kernel.md"


def test_the_pages_kernel_is_right(opened, rng, tmp_path) -> None:
    backend = opened("compute")
    assert isinstance(backend, Compute)
    folder = tmp_path / "matmul"
    folder.mkdir()
    for shared in ("common", "functions"):
        shutil.copytree(shaders_folder() / shared, tmp_path / shared)
    text = PAGE.read_text("utf-8")
    for language, name in (("glsl", "scalar.comp"), ("toml", "scalar.toml")):
        block, *_ = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(block)
    (kernel,) = read(tmp_path)
    assert not kernel.document
    arrays = {"x": rng((13, 7)), "weight": rng((9, 7)), "e1": rng((9,))}
    stores = {}
    for name, array in arrays.items():
        stores[name] = Buffer(array.shape, parse("R4"))
        stores[name].set(array)
    out = Buffer((13, 9), parse("R4"))
    shapes = {name: array.shape for name, array in arrays.items()}
    spec = OpSpec.create(Matmul(), shapes, {}, finish(bias=True, activation="relu"))
    backend.prepare(kernel, spec, stores, out)()
    expected = oracle.matmul(arrays["x"], arrays["weight"], arrays["e1"], function="relu")
    assert oracle.error(out.pull(), expected) < 1e-5
