"""Kernels in a folder of the user's: found, used, refused where they are wrong, read again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.backends import open_backend
from glnn.core.glsl import shaders_folder
from glnn.core.types import TensorType
from glnn.errors import DeviceError, GlnnError, ShaderError, UnsupportedOpError
from glnn.filters import sobel
from glnn.filters.sobel import Edges
from glnn.gl import Device
from glnn.kernels import Kernel, kernels_for, reload, table
from glnn.kernels.library import declared, revision
from glnn.kernels.source import fingerprint
from glnn.kernels.tuned import TunedChoice
from glnn.layers import Linear
from tests.cli.conftest import Glnn, cli, environment, process
from tests.conftest import Run

__all__ = ["cli", "environment", "process"]  # fixtures
Product = Callable[..., tuple[glnn.InferenceSession, np.ndarray]]
PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kernel.md"
X = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)


def blocks(language: str) -> list[str]:
    """The blocks of the page in that language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


(SHADER, TOGETHER), (TOML, TOGETHER_TOML) = blocks("glsl"), blocks("toml")
WRONG = SHADER.replace("epilogue(sum,", "epilogue(2.0 * sum,")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of kernels, `GLNN_KERNELS`, with nothing in it yet; what is in it is looked at."""
    folder = tmp_path / "mine"
    (folder / "matmul").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setenv("GLNN_KERNELS", str(folder))
        patched.setenv("GLNN_TRUST", "0")
        yield folder
    reload()


def write(folder: Path, shader: str = SHADER, toml: str = TOML, name: str = "scalar") -> None:
    (folder / "matmul" / f"{name}.comp").write_text(shader)
    (folder / "matmul" / f"{name}.toml").write_text(toml)


def found(name: str = "scalar") -> Kernel:
    (kernel,) = (k for k in kernels_for("matmul", "compute") if k.name == name)
    return kernel


@pytest.fixture
def product(device: Device) -> Product:
    """Gives a session of a product with a bias, on a backend of its own, and what it is to give."""

    def opened(**more: object) -> tuple[glnn.InferenceSession, np.ndarray]:
        model = glnn.Model.sequential([Linear(7, 3)], (7,))
        try:
            session = glnn.InferenceSession(model, "compute", device=device, **more)  # type: ignore[arg-type]
        except DeviceError as error:
            pytest.skip(str(error))
        return session, model(X, backend="cpu")

    return opened


def taken(session: glnn.InferenceSession) -> str:
    return session.plan({"input": X.shape}).steps[-1].kernel


def test_the_pages_program_runs(mine: Path, product: Product, python: Run) -> None:
    product()
    write(mine)
    done = python(f"import os\nos.chdir({str(mine.parent)!r})\n{blocks('python')[0]}")
    assert done.returncode == 0, done.stderr
    said, error = done.stdout.splitlines()
    assert said == "matmul scalar one result an invocation" and float(error) < 1e-5


def test_a_kernel_is_added_changed_and_removed_while_python_runs(
    mine: Path, product: Product
) -> None:
    session, expected = product()

    def right() -> str:
        np.testing.assert_allclose(session.run(None, {"input": X})[0], expected, rtol=1e-5)
        return taken(session)

    def said() -> str | None:
        backend = session.plan({"input": X.shape}).backend
        (row,) = (
            row for row in table(op="matmul", verdicts=backend.verdicts) if row.name == "scalar"
        )
        return row.seen

    assert reload() == () and right() != "scalar"
    first = f"priority = 1000\n{TOML}"
    write(mine, toml=first)
    assert reload() == (found(),) and right() == "scalar"
    assert reload() == ()
    before, was = found(), fingerprint(found())
    choice = TunedChoice.from_kernel(before, 1.0, None)
    assert choice.apply(found()) is not None
    write(mine, WRONG, first)
    assert fingerprint(found()) == was  # until it is read again
    (changed,) = reload()
    assert changed != before and fingerprint(changed) != was and choice.apply(changed) is None
    assert right() != "scalar"  # it was looked at, and is not used
    with pytest.raises(UnsupportedOpError, match=r"scalar: its results on .* are wrong, off by"):
        product(kernels={"matmul": "scalar"})[0].run(None, {"input": X})
    assert "not used: its results" in (said() or "")
    write(mine, toml=first)
    assert reload() == (found(),) and right() == "scalar"
    assert said() is None  # what was seen of the former is not said of this one
    for path in (mine / "matmul").iterdir():
        path.unlink()
    assert reload() == () and right() != "scalar"


def test_filters_take_it_too(mine: Path, product: Product, device: Device) -> None:
    product()
    backend = open_backend("compute", device)  # its own: one that others share must trust
    image = np.zeros((5, 17), np.uint8)

    def used() -> str:
        sobel(image, backend)
        (step,) = Edges(None).plan(TensorType.from_array(image), backend).steps
        return step.kernel

    was, folder = used(), mine / "sobel"
    folder.mkdir()
    for one in (shaders_folder() / "sobel").glob("lanes.[ct]o*"):
        folder.joinpath(f"mine{one.suffix}").write_text(one.read_text())
    declaration = folder / "mine.toml"
    declaration.write_text(declaration.read_text().replace("priority = 1", "priority = 1000"))
    assert len(reload()) == 1 and used() == "mine" != was


def test_a_file_that_is_included_is_part_of_it(mine: Path, product: Product) -> None:
    (mine / "common").mkdir()
    (mine / "common" / "factor.glsl").write_text("#define FACTOR 1.0\n")
    scaled = SHADER.replace("epilogue(sum,", "epilogue(FACTOR * sum,")
    write(mine, scaled.replace("#include <epi", '#include "common/factor.glsl"\n#include <epi'))
    reload()
    session, expected = product(kernels={"matmul": "scalar"})
    np.testing.assert_allclose(session.run(None, {"input": X})[0], expected, rtol=1e-5)
    (mine / "common" / "factor.glsl").write_text("#define FACTOR 2.0\n")
    assert reload() == (found(),)
    with pytest.raises(UnsupportedOpError, match="are wrong"):
        session.run(None, {"input": X})


def test_the_pages_workgroup_for_each_result_is_chosen(mine: Path, product: Product) -> None:
    session, expected = product()
    write(mine, TOGETHER, TOGETHER_TOML, "together")
    assert [kernel.name for kernel in reload()] == ["together"]
    got = session.run(None, {"input": X[:3]})[0]
    np.testing.assert_allclose(got, expected[:3], rtol=1e-5)
    assert session.plan({"input": (3, 7)}).steps[-1].kernel == "together"


def test_a_misspelt_uniform_is_named(mine: Path, product: Product) -> None:
    """GL has no error for a uniform that nobody sets: it is 0."""
    write(mine, SHADER.replace("weight_row", "weigth_row"))
    reload()
    with pytest.raises(UnsupportedOpError) as raised:
        product(kernels={"matmul": "scalar"})[0].run(None, {"input": X})
    said = str(raised.value)
    assert re.search(r"off by .*: \S+ at \(\d+, \d+\), not \S+, of x \(", said), said
    assert said.endswith("glnn sets no uniform weigth_row, which is 0"), said


def test_a_wrong_declaration_names_its_file_and_all_stays(mine: Path) -> None:
    write(mine)
    reload()
    before, number, was = declared(), revision(), fingerprint(found())
    path = mine / "matmul" / "scalar.toml"
    for text, says in (("summary = ", "Invalid value"), ('sumary = "a"', "unknown key 'sumary'")):
        write(mine, WRONG, text)
        with pytest.raises(ShaderError, match=f"^{re.escape(str(path))}: .*{says}"):
            reload()
        assert declared() is before and revision() == number and fingerprint(found()) == was
    path.write_bytes(b'summary = "\xff"')
    with pytest.raises(ShaderError, match=f"^{re.escape(str(path))}: 'utf-8' codec"):
        reload()
    write(mine)
    assert reload() == () and declared() is before


def test_tables_of_other_devices_are_looked_at(mine: Path, product: Product) -> None:
    """A row for a GPU that is not here is refused as the file is read; a size of `suits` that the
    operator has not, of a kernel that cannot run here, as the operator is first planned.
    """
    rows = "[architectures]\nAdreno = [{ WG_X = 8 }, { WG_X = 0 }]\n"
    write(mine, toml=f"{TOML}\n{rows}")
    with pytest.raises(ShaderError, match=r"scalar.toml: architectures.Adreno\[1\].workgroup: exp"):
        reload()
    unfit = 'suits.mm.max = 4\n[architectures]\nothers = "slow"\nllvmpipe = "unfit"\n'
    write(mine, toml=TOML.replace("[operands]", f"{unfit}\n[operands]"))
    reload()
    with pytest.raises(ShaderError, match=r"scalar.toml: suits: matmul has no mm, only m, "):
        product()[0].run(None, {"input": X})


def test_a_shader_that_does_not_compile_names_file_and_line(mine: Path, product: Product) -> None:
    write(mine, SHADER.replace("float sum = 0.0;", "float sum = nothing;"))
    reload()
    session, _ = product(kernels={"matmul": "scalar"})
    line = 1 + SHADER.split("float sum = 0.0;")[0].count("\n")
    path = mine / "matmul" / "scalar.comp"
    with pytest.raises(ShaderError, match=re.escape(f"{path}:{line}: ")):
        session.run(None, {"input": X})


def test_programs_are_of_the_folder_that_is_used(
    mine: Path, product: Product, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders may have a shader of one text: errors name programs by the file."""
    write(mine)
    other = mine.with_name("other")
    shutil.copytree(mine, other)
    with monkeypatch.context() as patched:  # over before the folder of all is
        for folder in (mine, other):
            patched.setenv("GLNN_KERNELS", str(folder))
            reload()
            product(kernels={"matmul": "scalar"})[0].run(None, {"input": X})
            names = {program.name for program in device.programs.values()}
            assert f"{folder}/matmul/scalar.comp" in names


@pytest.mark.parametrize(
    ("op", "name", "says"),
    [
        (
            "matmul",
            "gemm_tiled",
            r"mine/matmul/gemm_tiled\.toml: its name is that of "
            r".*gemm_tiled\.toml, too",
        ),
        ("matmull", "scalar", r"mine/matmull/scalar\.toml: no op 'matmull', expected one of"),
        ("matmul", "a b", r"mine/matmul/a b\.toml: expected a name of letters and digits"),
        (".", "scalar", r"mine/scalar\.toml: expected it in a folder of the op's name"),
    ],
)
def test_what_has_no_place_is_refused(mine: Path, op: str, name: str, says: str) -> None:
    (mine / op).mkdir(exist_ok=True)
    (mine / op / f"{name}.toml").write_text(TOML)
    (mine / op / f"{name}.comp").write_text(SHADER)
    with pytest.raises(ShaderError, match=says):
        reload()


@pytest.mark.parametrize("name", ["nowhere", "documents", "loop", 300 * "a"])
def test_a_folder_is_asked_for(mine: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (mine / "documents").mkdir()
    (mine / "loop").symlink_to("loop")
    with monkeypatch.context() as patched:
        patched.setenv("GLNN_KERNELS", str(mine / name))
        with pytest.raises(GlnnError, match=f"GLNN_KERNELS: expected a folder.*, got .*{name}$"):
            reload()


def test_the_command_line(mine: Path, product: Product, cli: Glnn, process: Glnn) -> None:
    product()
    write(mine)
    reload()
    more = {"GLNN_KERNELS": str(mine), "GLNN_CACHE": str(mine.parent / "cache")}
    rows = cli("kernels", "--op", "matmul", "--compile", "--json").json["kernels"]
    own = {row["name"]: row["ok"] for row in rows if row["folder"] == str(mine)}
    assert own == {"scalar": True} and {row["folder"] for row in rows} == {None, str(mine)}
    assert str(mine) in cli("kernels", "--op", "matmul").out
    asked = ("lenet", "--batch", 2, "--kernel", "matmul=scalar", "--backend", "compute", "--json")
    layers = process("verify", *asked, **more).json["layers"]
    assert any("scalar" in layer["kernel"] for layer in layers)
    (mine / "matmul" / "scalar.toml").write_text("sumary = 1")
    assert "scalar.toml: unknown key 'sumary'" in process("run", *asked[:-1], **more).refusal
