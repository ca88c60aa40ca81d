"""What a declaration may say, and how a source is put together."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from glnn.errors import ShaderError
from glnn.glsl import expanded
from glnn.kernels import Kernel, export, library
from glnn.kernels.binding import written
from glnn.kernels.declaration import FORMS, fault
from glnn.kernels.generate.epilogue import Bound
from glnn.kernels.generate.generators import GENERATORS
from glnn.kernels.library import read
from glnn.kernels.report import ES_HEADERS
from glnn.kernels.source import assemble
from tests.backends.epilogues import finish

LAYOUTS = {"x": "R", "out": "R"}


def kernel(path: str = "op/k.comp", **values: object) -> Kernel:
    text = {"summary": "", "layouts": LAYOUTS, "bindings": {"x": 0, "out": 1}, "grid": ["n"]}
    shader = Path(path)
    return Kernel.declared(shader.with_suffix(".toml"), shader, {**text, **values})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("summary", 1),
        ("layouts", "R"),
        ("layouts", {"x": 1, "out": "R"}),
        ("workgroup", ["WG_X", 1]),
        ("workgroup", 8),
        ("grid", 3),
        ("grid", [["n", 2]]),
        ("per_invocation", 4),
        ("strided", 1),
        ("shared_bytes", []),
        ("shared_bytes", 1.5),
        ("shared_bytes", [["WG_X", 4], 8]),
        ("bindings", [0, 1]),
        ("tune", {"WG_X": 64}),
        ("tune", {"WG_X": ["a"]}),
        ("architectures", {"NVIDIA": 8}),
        ("requires", {"GROUPS": "1"}),
        ("max_outputs", True),
        ("at_most", {"m": 1.5}),
        ("devices", "NVIDIA"),  # would be a list of letters
        ("unfit", "V3D"),
        ("backend", 1),
        ("attributes", ["x"]),
        ("captures", 1.5),
        ("instances", 4),
        ("priority", "high"),
        ("stages", 1),
        ("generate", 1),
        ("at_least", ["m"]),
        ("tolerance", 1),
        ("tolerance", -1e-5),
        ("tolerance", "1e-4"),
    ],
)
def test_a_value_of_the_wrong_form_names_its_key_and_file(key, value) -> None:
    with pytest.raises(ShaderError, match=rf"^op/k\.toml: {key}: expected ") as caught:
        kernel(**{key: value})
    assert str(caught.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"grid": []}, "grid: expected one to three"),
        ({"grid": ["a", "b", "c", "d"]}, "grid: expected one to three"),
        ({"per_invocation": {"n": ["TM", 4]}}, "per_invocation: TM is not one of"),
        ({"shared_bytes": [["A", 4]], "tune": {"B": [1]}}, "shared_bytes: A is not one of"),
        ({"architectures": {"NVIDIA": {"TM": 2}}}, "tune: TM is not one of"),
        ({"architectures": {"nvidia": {}}}, "architectures: unknown architecture nvidia"),
        ({"unfit": ["Mali-T"]}, "unfit: unknown architecture Mali-T"),
        ({"devices": ["GPU"]}, "devices: unknown architecture GPU"),
        ({"stages": "fourier"}, r"stages: expected one of \['cronin', 'im2col', "),
        ({"stages": "winograd", "devices": ["GPU"]}, "devices: unknown architecture GPU"),
        ({"stages": "winograd", "tune": {"TILE": []}}, "tune: every parameter needs a default"),
        ({"in_place": "y"}, "in_place: y must be an operand"),
        ({"attributes": {"x": 4}}, "attributes, instances: a compute shader has none"),
        ({"backend": "feedback"}, "backend: the shader's file says that"),
        (
            {"path": "op/k.toml", "stages": "winograd", "backend": "cuda"},
            "backend: expected one of",
        ),
        ({"captures": 0}, "captures: expected at least 1"),
        ({"captures": [4, "PX"]}, "captures: PX is not one of"),
        (
            {"path": "op/k.vert", "bindings": {}, "textures": {"x": "rgba8"}},
            "textures: a format must be",
        ),
        (
            {"path": "op/k.vert", "bindings": {}, "textures": {}},
            "textures and attributes: expected",
        ),
    ],
)
def test_a_value_without_meaning(values, says) -> None:
    with pytest.raises(ShaderError, match=rf"op/k\.toml: {says}"):
        kernel(**values)


def test_every_key_is_a_field_of_a_kernel() -> None:
    given = {"name", "op", "path", "declaration"}
    assert set(FORMS) - {"shader"} == set(Kernel.__dataclass_fields__) - given
    assert fault({"summary": "", "layouts": LAYOUTS}) is None


def test_every_generator_may_be_declared() -> None:
    assert {k.generate for k in library() if k.generate} <= set(GENERATORS)


def test_two_shaders_for_one_declaration_and_none(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    declaration = tmp_path / "op" / "k.toml"
    declaration.write_text('summary = ""\nlayouts = { x = "R", out = "R" }\n')
    with pytest.raises(ShaderError, match=r"k\.toml: .* found 0"):
        read(tmp_path)
    for suffix in (".comp", ".vert"):
        declaration.with_suffix(suffix).write_text("")
    with pytest.raises(ShaderError, match=r"k\.toml: .* found 2"):
        read(tmp_path)


def test_a_kernel_of_stages_has_no_shader(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    declaration = tmp_path / "op" / "k.toml"
    text = 'summary = ""\nlayouts = { x = "R", out = "R" }\nstages = "winograd"\n'
    declaration.write_text(text)
    (made,) = read(tmp_path)
    assert (made.name, made.op, made.backend, made.stages) == ("k", "op", "compute", "winograd")
    declaration.write_text(text + 'shader = "k"\n')
    with pytest.raises(ShaderError, match=r"k\.toml: shader: a kernel of stages has none"):
        read(tmp_path)
    declaration.write_text(text)
    declaration.with_suffix(".comp").write_text("")
    with pytest.raises(ShaderError, match=r"k\.comp: it has no declaration"):
        read(tmp_path)
    assert all(k.tolerance == 1e-5 for k in library()) and not any(k.stages for k in library())


def test_arithmetic_of_quantities() -> None:
    one, sizes = kernel(), {"A": 3, "B": 5}
    assert one.evaluate(7, {}) == 7
    assert one.evaluate("B", sizes) == 5
    assert one.evaluate(("A", "B", 2), sizes) == 30
    assert one.evaluate((("A", 4), ("B",)), sizes) == 17


def test_groups_round_each_size_up_then_the_product() -> None:
    three = kernel(
        workgroup=["X", 2, 3],
        grid=[["a", "b"], [], "c"],
        per_invocation={"a": 4, "c": "X"},
        tune={"X": [8, 1]},
    )
    sizes = {"a": 9, "b": 5, "c": 17}
    # x: ceil(9 / 4) * 5 = 15 invocations, 2 groups of 8; y: one; z: ceil(17 / 8) = 3, one of 3.
    assert three.groups(sizes, three.defaults) == (2, 1, 1)
    assert three.groups(sizes, {"X": 1}) == (15, 1, 6)


def test_a_architecture_has_defaults_of_its_own() -> None:
    one = kernel(tune={"X": [8, 4], "Y": [2]}, architectures={"Bifrost": {"X": 16}})
    assert one.for_architecture("Bifrost").defaults == {"X": 16, "Y": 2}
    assert one.for_architecture("V3D") is one and one.for_architecture(None) is one
    with pytest.raises(ShaderError, match="Z is not one of"):
        one.with_parameters(Z=1)


@pytest.fixture
def shaders(tmp_path: Path) -> Path:
    """b includes a; k includes both, b twice."""
    files = {
        "common/a.glsl": "// a",
        "common/b.glsl": '// b1\n#include "common/a.glsl"\n// b3',
        "op/k.comp": "#version 310 es\n"
        '#include "common/b.glsl"\n  #include  "common/b.glsl"  \n#include "common/a.glsl"\n// k5',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def test_each_include_is_expanded_once_and_every_line_knows_its_place(shaders) -> None:
    source = assemble(kernel(str(shaders / "op/k.comp")), "#version 310 es\n// h2\n", {"b1": 1})
    assert list(zip(source.text.splitlines(), source.origin, strict=True)) == [
        ("#version 310 es", ("(header)", 1)),
        ("// h2", ("(header)", 2)),
        ("#define b1 1", ("(defines)", 1)),
        ("// b1", ("common/b.glsl", 1)),
        ("// a", ("common/a.glsl", 1)),
        ("// b3", ("common/b.glsl", 3)),
        ("// k5", ("op/k.comp", 5)),
    ]
    assert "op/k.comp:5: error: what" in source.explain("0:7(1): error: what")


def test_a_missing_include_of_an_include_is_named_where_it_stands(shaders) -> None:
    (shaders / "common/a.glsl").write_text('\n#include "common/gone.glsl"\n')
    with pytest.raises(ShaderError, match=r"common/a\.glsl:2: no shader file 'common/gone\.glsl'"):
        assemble(kernel(str(shaders / "op/k.comp")), "", {})


def test_an_include_must_not_leave_the_folder_even_by_a_link(shaders, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.glsl"
    outside.write_text("// secret\n")
    (shaders / "common/link.glsl").symlink_to(outside)
    for name in (str(outside), f"../{outside.parent.name}/secret.glsl", "common/link.glsl"):
        (shaders / "op/k.comp").write_text(f'#include "{name}"\n')
        with pytest.raises(ShaderError, match=r"op/k\.comp:1: no shader file"):
            assemble(kernel(str(shaders / "op/k.comp")), "", {})


def test_what_is_generated_is_put_in_with_its_own_includes(shaders) -> None:
    (shaders / "op/k.comp").write_text('// k1\n#include "common/a.glsl"\n#include <made>\n')
    generated = {"made": '#include "common/b.glsl"\n#include <inner>\n// m3', "inner": "// i"}
    one = kernel(str(shaders / "op/k.comp"))
    source = assemble(one, "", {"m3": 5}, generated=generated)
    assert list(zip(source.text.splitlines(), source.origin, strict=True)) == [
        ("#define m3 5", ("(defines)", 1)),
        ("// k1", ("op/k.comp", 1)),
        ("// a", ("common/a.glsl", 1)),
        ("// b1", ("common/b.glsl", 1)),
        ("// b3", ("common/b.glsl", 3)),
        ("// i", ("(inner)", 1)),
        ("// m3", ("(made)", 3)),
    ]
    del generated["inner"]
    with pytest.raises(ShaderError, match=r"\(made\):2: nothing is generated for <inner>"):
        assemble(one, "", {}, generated=generated)


@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator")
def test_every_parameter_worth_trying_compiles(tmp_path) -> None:
    tuned = [
        replace(k.with_parameters(**{name: value}), name=f"{k.name}-{name}-{value}")
        for k in library()
        for name, values in k.tune.items()
        for value in values[1:]
    ]
    paths = export(tmp_path, tuple(tuned))
    done = subprocess.run(["glslangValidator", *paths], capture_output=True, text=True)
    assert len(set(paths)) >= len(tuned) > 20 and done.returncode == 0, done.stdout


EPILOGUES = {
    "identity": None,
    "functions": finish(alpha=2.0, activation="sigmoid"),
    "everything": finish(alpha=2.0, bias=True, beta=0.5, full=True, activation="tanh"),
}


def test_a_kernel_that_takes_an_epilogue_asks_for_its_text() -> None:
    for one in library():
        assert ("#include <epilogue>" in expanded(one.path)) == bool(one.epilogue), one.declaration


@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator")
@pytest.mark.parametrize("called", EPILOGUES)
def test_every_epilogue_compiles(tmp_path, called) -> None:
    """With operands in buffers, one of them in the result's memory, or in textures."""
    epilogue, paths = EPILOGUES[called], []
    precision = "\nprecision highp float;\nprecision highp int;\nprecision highp sampler2D;\n"
    for k in library():
        extents = set(epilogue.extents) if epilogue else set()
        if not k.epilogue or not extents <= set(k.extents):
            continue
        bound = Bound({"e1": 4}, "e2")
        if k.backend == "feedback":
            bound = Bound(samplers={"e1": "sampler2D", "e2": "sampler2DArray"})
        header = ES_HEADERS[k.backend] + precision + "precision highp sampler2DArray;\n"
        path = tmp_path / f"{k.op}-{k.name}{k.path.suffix}"
        text = assemble(k, header, k.defaults, generated=written(k, epilogue, bound)).text
        path.write_text(text)
        paths.append(path)
    done = subprocess.run(["glslangValidator", *paths], capture_output=True, text=True)
    assert paths and done.returncode == 0, done.stdout
