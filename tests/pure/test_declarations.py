"""What a declaration may say, and how a source is put together."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

from glnn.core.glsl import expanded
from glnn.core.layout.layout import DENSE
from glnn.core.types import TensorType
from glnn.errors import ShaderError
from glnn.graph.expression import Arg, call
from glnn.graph.functions import FUNCTIONS
from glnn.graph.operators.pointwise import Pointwise
from glnn.kernels import Kernel, export, library
from glnn.kernels.binding import written
from glnn.kernels.codegen.expression import Bound
from glnn.kernels.codegen.generators import GENERATORS
from glnn.kernels.codegen.pointwise import FEW, LONG, MANY, generate
from glnn.kernels.library import read as read_folder
from glnn.kernels.manifest import (
    FINISH,
    KEYS,
    LAUNCH,
    OPERAND,
    RANGE,
    EpilogueSupport,
    GridFactor,
    Launch,
    Operand,
    Quantity,
    Range,
    Requirements,
    read,
)
from glnn.kernels.report import ES_HEADERS, Example
from glnn.kernels.source import assemble, fingerprint
from tests.backends.epilogues import finish

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kernel.md"
OPERANDS = {"x": {"layout": "R", "binding": 0}, "out": {"layout": "R", "binding": 1}}
FETCHED = {"x": {"layout": "R", "texture": "r32f"}, "out": "R"}
STAGED = {"path": "op/k.toml", "stages": "winograd", "operands": {"x": "R", "out": "R"}}


def kernel(path: str = "op/k.comp", **values: object) -> Kernel:
    text: dict[str, object] = {"summary": "", "operands": OPERANDS}
    if path.endswith(".comp"):
        text["launch"] = {"grid": ["n"]}
    shader = Path(path)
    return Kernel.declared(shader.with_suffix(".toml"), shader, {**text, **values})


def operands(**x: object) -> dict[str, object]:
    return {**OPERANDS, "x": {"layout": "R", **x}}


def nested(keys: str, value: object) -> dict[str, object]:
    """What is at "a.b.c"."""
    for key in reversed(keys.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("key", "value", "got"),
    [
        ("summary", 1, 1),
        ("operands", "R", "R"),
        ("operands.x.layout", 1, 1),
        ("operands.x.binding", "0", "0"),
        ("operands.x.texture", 4, 4),
        ("operands.x.attribute", ["x"], ["x"]),
        ("operands.x.batched", 1, 1),
        ("operands.x.in_place", "into", "into"),
        ("launch", ["n"], ["n"]),
        ("launch.workgroup", 8, 8),
        ("launch.workgroup", [["WG_X", 4]], ["WG_X", 4]),
        ("launch.grid", 3, 3),
        ("launch.grid", ["n", 2], 2),
        ("launch.grid", [["n", 2]], 2),
        ("launch.grid", ["n / "], "n / "),
        ("launch.grid", ["n * TN"], "n * TN"),
        ("launch.strided", 1, 1),
        ("launch.resident", 1, 1),
        ("launch.shared_bytes", [], []),
        ("launch.shared_bytes", 1.5, 1.5),
        ("launch.shared_bytes", True, True),
        ("launch.shared_bytes", -4, -4),
        ("launch.shared_bytes", "4 WG_X", "4 WG_X"),
        ("launch.shared_bytes", "4 * (A + B)", "4 * (A + B)"),
        ("launch.captures", 1.5, 1.5),
        ("launch.instances", 4, 4),
        ("epilogue.form", 4, 4),
        ("epilogue.extents", "one", "one"),  # would be a list of letters
        ("tune.WG_X", 64, 64),
        ("tune.WG_X", ["a"], "a"),
        ("architectures", "NVIDIA", "NVIDIA"),
        ("architectures.NVIDIA", 8, 8),
        ("architectures.NVIDIA.WG_X", [8], [8]),
        ("requires", ["m"], ["m"]),
        ("suits", ["m"], ["m"]),
        ("requires.GROUPS", "1", "1"),
        ("requires.GROUPS", True, True),
        ("suits.m.max", 1.5, 1.5),
        ("suits.m.min", "4", "4"),
        ("backend", 1, 1),
        ("priority", "high", "high"),
        ("architectures.NVIDIA.timing.start", "1", "1"),
        ("architectures.NVIDIA.timing.start", float("nan"), float("nan")),
        ("architectures.NVIDIA.timing.together", 1.5, 1.5),
        ("architectures.NVIDIA", [], []),
        ("stages", 1, 1),
        ("generate", 1, 1),
        ("tolerance", 1, 1),
        ("tolerance", -1e-5, -1e-5),
        ("tolerance", "1e-4", "1e-4"),
    ],
)
def test_a_value_of_the_wrong_form_names_its_key_and_file(key, value, got) -> None:
    with pytest.raises(ShaderError, match=rf"^op/k\.toml: {key}: expected ") as caught:
        kernel(**{"operands": operands(), **nested(key, value)})
    assert str(caught.value).endswith(f"got {got!r}")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"launch": {"grid": []}}, "launch.grid: expected one to three"),
        ({"launch": {"grid": ["a", "b", "c", "d"]}}, "launch.grid: expected one to three"),
        ({"launch": {"grid": ["a"], "resident": True}}, "launch.resident: expected a strided"),
        ({"launch": {"workgroup": [1, 1, 1, 1]}}, "launch.workgroup: expected at most three"),
        ({"launch": {"grid": ["n / TM / 4"]}}, "launch.grid: TM is not one of"),
        (
            {"launch": {"grid": ["n"], "shared_bytes": "4 * A"}, "tune": {"B": [1]}},
            "launch.shared_bytes: A is not one of",
        ),
        ({"launch": {"grid": ["n"], "captures": 0}}, "launch.captures: expected at least 1"),
        ({"launch": {"grid": ["n"], "captures": "4 * PX"}}, "launch.captures: PX is not one of"),
        ({"launch": {"grid": ["n"], "instances": "n"}}, "launch.instances: a compute shader has"),
        ({"launch": {"grids": ["n"]}}, "launch: unknown key 'grids'"),
        ({"tune": {"TM": []}}, "tune.TM: every parameter needs a default"),
        ({"architectures": {"NVIDIA": {"TM": 2}}}, "architectures.NVIDIA: TM is not one of"),
        (
            {"architectures": {"NVIDIA": [{"A": 1}, {"TM": 2}]}, "tune": {"A": [1]}},
            r"architectures.NVIDIA\[1\]: TM is not one of",
        ),
        (
            {"architectures": {"V3D": [{"A": 1}, {"A": "2"}]}, "tune": {"A": [1]}},
            r"architectures.V3D\[1\].A: expected an integer",
        ),
        (
            {"architectures": {"V3D": [{"A": 1}, {"A": 2, "fit": "slow"}]}, "tune": {"A": [1]}},
            r"architectures.V3D\[1\].fit: expected it of the architecture, not of one of its rows",
        ),
        ({"architectures": {"NVIDIA": [3]}}, r"architectures.NVIDIA\[0\]: expected a table, got 3"),
        (
            {"architectures": {"V3D": [{}, {"timing": {"start": 1}}]}},
            r"architectures.V3D\[1\].timing: key 'term' is missing",
        ),
        (
            {
                "architectures": {"V3D": {"A": 0}},
                "tune": {"A": [1]},
                "launch": {"grid": ["n"], "workgroup": ["A"]},
            },
            "architectures.V3D.workgroup: expected at least 1 everywhere",
        ),
        (
            {
                "architectures": {"V3D": [{"A": 1}, {"A": 0}]},
                "tune": {"A": [1]},
                "launch": {"grid": ["n / A"]},
            },
            r"architectures.V3D\[1\].grid: expected at least 1 everywhere",
        ),
        ({"architectures": {"nvidia": {}}}, "architectures: unknown architecture nvidia"),
        ({"architectures": {"Mali-T": "unfit"}}, "architectures: unknown architecture Mali-T"),
        ({"architectures": {"V3D": "bad"}}, "architectures.V3D: expected parameters or one of"),
        ({"architectures": {"others": "unfit"}}, "architectures.others: expected one of"),
        (
            {"architectures": {"others": {"TM": 2}}, "tune": {"TM": [1]}},
            "architectures.others: expected one of",
        ),
        ({"suits": {"m": {"most": 4}}}, "suits.m: unknown key 'most'"),
        ({"suits": {"m": {"min": 5, "max": 4}}}, "suits.m.max: expected at least 5, got 4"),
        (
            {"operands": {"x": {"layout": "R", "binding": -1}}},
            "operands.x.binding: expected at least 0, got -1",
        ),
        ({"epilogue": "vec3"}, "epilogue.form: expected one of"),
        ({"epilogue": {"extents": ["one"]}}, "epilogue: key 'form' is missing"),
        ({"epilogue": {"form": "vec4", "extents": ["two"]}}, "epilogue.extents: unknown extent"),
        ({"operands": {"x": OPERANDS["x"]}}, "operands.out: expected one layout"),
        (
            {"operands": operands()},
            "operands.x: expected binding or texture or texels or in_place, got none",
        ),
        ({"operands": operands(binding=0, texture="r32f")}, "operands.x: expected one place"),
        ({"operands": operands(attribute=4)}, "operands.x: expected binding or texture or "),
        ({"operands": operands(texture="rgba8")}, "operands.x.texture: expected one of"),
        ({"operands": operands(half=True)}, "operands.x: unknown key 'half'"),
        ({"operands": {**OPERANDS, "x": {"binding": 0}}}, "operands.x: key 'layout' is missing"),
        (
            {"operands": {**OPERANDS, "x": {"layout": "C", "in_place": True}}},
            "operands.x.in_place: expected the layout of out",
        ),
        ({"operands": FETCHED}, "operands.out: expected binding, got none"),
        ({"path": "op/k.vert"}, "operands.x: expected texture or attribute, got binding"),
        (
            {"path": "op/k.vert", "operands": {**OPERANDS, "x": FETCHED["x"]}},
            "operands.out: expected a layout alone, got binding",
        ),
        (
            {"backend": "feedback"},
            "backend: expected it with stages alone: a shader's is by its suffix",
        ),
        ({**STAGED, "backend": "cuda"}, "backend: expected one of"),
        (
            {**STAGED, "stages": "fourier"},
            r"stages: expected one of \['attention_parts', 'channel_sums_parts', ",
        ),
        ({**STAGED, "architectures": {"GPU": "slow"}}, "architectures: unknown architecture GPU"),
        ({**STAGED, "tune": {"TILE": []}}, "tune.TILE: every parameter needs a default"),
        ({**STAGED, "operands": OPERANDS}, "operands.x: expected a layout alone, got binding"),
        ({**STAGED, "launch": {"grid": ["n"]}}, "launch: a kernel of stages has none"),
        ({**STAGED, "epilogue": "vec4"}, "epilogue.form: expected one of"),
    ],
)
def test_a_value_without_meaning(values, says) -> None:
    with pytest.raises(ShaderError, match=rf"^op/k\.toml: {says}"):
        kernel(**values)


def test_every_key_is_a_field_and_explained() -> None:
    given = {"name", "op", "path", "declaration", "text", "folder", "edition", "timing"}
    assert set(KEYS) == {f.name for f in fields(Kernel)} - given
    parts = {Operand: OPERAND, Launch: LAUNCH, EpilogueSupport: FINISH, Range: RANGE}
    assert all(set(keys) == {f.name for f in fields(part)} for part, keys in parts.items())
    page = PAGE.read_text("utf-8")
    assert all(f"`{key}`" in page for keys in (KEYS, *parts.values()) for key in keys)
    assert read({"summary": "", "operands": OPERANDS}).keys() == {"summary", "operands"}


VARIANTS = """
launch = { grid = ["n / TM"] }
tune = { TM = [4, 2] }
architectures = { V3D = "unfit", others = "slow" }
requires = { GROUPS = 1 }
suits = { m = { min = 4 } }
[operands]
x = { layout = "R", binding = 0 }
out = { layout = "R", binding = 1 }
[variants.k]
summary = "one"
[variants.other]
summary = "two"
operands = { x = "C", out.batched = true }
launch.strided = true
tune = { TM = [8], TN = [1] }
architectures = { V3D = { TM = 1 }, others = "suits" }
requires = { STRIDE_H = { max = 4 } }
suits = { m = { max = 9 } }
"""


def test_variants_say_what_is_theirs(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "k.comp").write_text("// k")
    declaration = tmp_path / "op" / "k.toml"
    declaration.write_text(VARIANTS)
    one, other = kernels = read_folder(tmp_path)
    assert [(k.name, k.summary, k.path.name) for k in kernels] == [
        ("k", "one", "k.comp"),
        ("other", "two", "k.comp"),
    ]
    assert (one.tune, other.tune) == ({"TM": (4, 2)}, {"TM": (8,), "TN": (1,)})
    assert other.operands == {"x": Operand(("C",), 0), "out": Operand(("R",), 1, batched=True)}
    assert [k.launch.strided for k in kernels] == [False, True]
    assert one.launch.grid == other.launch.grid == ((GridFactor("n", Quantity((("TM",),))),),)
    assert one.requires == Requirements({"GROUPS": 1}) and one.suits == {"m": Range(4)}
    assert other.requires == Requirements({"GROUPS": 1}, {"STRIDE_H": Range(0, 4)})
    assert other.suits == {"m": Range(0, 9)}
    assert [one.architectures.fit(name) for name in ("V3D", "NVIDIA", None)] == [
        "unfit",
        "slow",
        "slow",
    ]
    assert {other.architectures.fit(name) for name in ("V3D", "NVIDIA", None)} == {"suits"}
    before = fingerprint(one), fingerprint(other)
    declaration.write_text(VARIANTS.replace("TN = [1]", "TN = [2]"))
    after = tuple(map(fingerprint, read_folder(tmp_path)))
    assert before[0] == after[0] and before[1] != after[1]


def test_a_kernel_may_be_for_another_op_too(tmp_path) -> None:
    """With what is said of it, and what is different there."""
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "k.comp").write_text("// k")
    declaration = tmp_path / "op" / "k.toml"
    differs = "{ tune = { TM = [1] }, requires.POOL = { min = 1 }, architectures.V3D = 'slow' }"
    declaration.write_text(f"{VARIANTS}aliases.more = {differs}\n")
    more, one, other = read_folder(tmp_path)
    assert [(k.op, k.name) for k in (more, other)] == [("more", "other"), ("op", "other")]
    assert more.shares_declaration(other) and not more.shares_declaration(one)
    assert (more.path, more.operands, more.launch) == (other.path, other.operands, other.launch)
    assert (more.tune, other.tune) == ({"TM": (1,), "TN": (1,)}, {"TM": (8,), "TN": (1,)})
    assert more.requires.ranges == {**other.requires.ranges, "POOL": Range(1)}
    assert more.requires.least == {"GROUPS": 1, "POOL": 1}
    assert (more.architectures.fit("V3D"), other.architectures.fit("V3D")) == ("slow", "suits")
    # What several have in common is said once, for those that name the op.
    common = "[aliases.more]\ntune.TM = [1]\nrequires.POOL = { min = 1 }\n[variants.k]"
    declaration.write_text(
        VARIANTS.replace("[variants.k]", common) + "aliases.more.architectures.V3D = 'slow'\n"
    )
    again = read_folder(tmp_path)
    assert [fingerprint(k) for k in again] == [fingerprint(k) for k in (more, one, other)]
    for text, says in (
        (f"{VARIANTS}aliases.more = 1\n", r"k\.toml: .*aliases\.more: expected a table, got 1"),
        (f"aliases.more = 1\n{VARIANTS}", r"k\.toml: aliases\.more: expected a table, got 1"),
        (f"aliases.more = {{}}\n{VARIANTS}", r"k\.toml: aliases: no variant names 'more'"),
    ):
        declaration.write_text(text)
        with pytest.raises(ShaderError, match=says):
            read_folder(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("TM = [8]", "TM = 8", r"k\.toml: other: tune\.TM: expected a list, got 8$"),
        ('"two"', '"two"\nprio = 1', r"k\.toml: other: unknown key 'prio', expected one of"),
        ('summary = "two"', "", r"k\.toml: other: key 'summary' is missing"),
        ("[variants.k]", "[variants.k.variants.l]", r"k\.toml: unknown key 'variants'"),
        ("[variants.k]", "[variant.k]", r"k\.toml: other: unknown key 'variant', "),
    ],
)
def test_what_is_wrong_with_a_variant_names_it(tmp_path, old, new, says) -> None:
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "k.comp").write_text("// k")
    (tmp_path / "op" / "k.toml").write_text(VARIANTS.replace(old, new))
    with pytest.raises(ShaderError, match=says):
        read_folder(tmp_path)


@pytest.mark.parametrize("given", ["variants = 1", "[variants]", "variants = { k = 1 }"])
def test_variants_are_tables_by_name(tmp_path, given) -> None:
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "k.toml").write_text(given)
    with pytest.raises(ShaderError, match=r"k\.toml: variants(\.k)?: expected (a table|at least)"):
        read_folder(tmp_path)


def test_every_generator_may_be_declared() -> None:
    assert {k.generate for k in library() if k.generate} <= set(GENERATORS)


def test_two_shaders_for_one_declaration_and_none(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    declaration = tmp_path / "op" / "k.toml"
    declaration.write_text('summary = ""\noperands = { x = "R", out = "R" }\n')
    with pytest.raises(ShaderError, match=r"k\.toml: .* found 0"):
        read_folder(tmp_path)
    for suffix in (".comp", ".vert"):
        declaration.with_suffix(suffix).write_text("")
    with pytest.raises(ShaderError, match=r"k\.toml: .* found 2"):
        read_folder(tmp_path)


def test_a_kernel_of_stages_has_no_shader(tmp_path) -> None:
    (tmp_path / "op").mkdir()
    declaration = tmp_path / "op" / "k.toml"
    declaration.write_text('summary = ""\noperands = { x = "R", out = "R" }\nstages = "winograd"\n')
    (made,) = read_folder(tmp_path)
    assert (made.name, made.op, made.backend, made.stages) == ("k", "op", "compute", "winograd")
    declaration.with_suffix(".comp").write_text("")
    with pytest.raises(ShaderError, match=r"k\.comp: it has no declaration"):
        read_folder(tmp_path)
    assert all(k.tolerance == 1e-5 for k in library() if "mediump" not in k.name)
    assert not any(k.stages for k in library())


def test_arithmetic_of_quantities() -> None:
    sizes = {"A": 3, "B": 5}
    assert Quantity.read(7).evaluate({}) == 7
    assert Quantity.read("B").evaluate(sizes) == 5
    assert Quantity.read("2 * A * B").evaluate(sizes) == 30
    assert Quantity.read("A*4 + B").evaluate(sizes) == 17
    assert Quantity.read("4 * A + B + 2").names == {"A", "B"}


def test_groups_round_each_size_up_then_the_product() -> None:
    three = kernel(
        launch={"workgroup": ["X", 2, 3], "grid": [["a / 4", "b"], [], "c / X"]},
        tune={"X": [8, 1]},
    )
    sizes = {"a": 9, "b": 5, "c": 17}
    # x: ceil(9 / 4) * 5 = 15 invocations, 2 groups of 8; y: one; z: ceil(17 / 8) = 3, one of 3.
    assert three.launch.groups(sizes, three.defaults) == (2, 1, 1)
    assert three.launch.groups(sizes, {"X": 1}) == (15, 1, 6)


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
        if k.epilogue is None or not extents <= set(k.epilogue.extents):
            continue
        bound = Bound({"e1": 4}, "e2")
        if k.backend == "feedback":
            bound = Bound(samplers={"e1": "sampler2D", "e2": "sampler2DArray"})
        header = ES_HEADERS[k.backend] + precision + "precision highp sampler2DArray;\n"
        for one in Example.all_of(k) if k.generate else [Example(k.name, k, k.defaults, {})]:
            path = tmp_path / f"{k.op}-{one.name}{k.path.suffix}"
            texts = {**one.texts, **written(k, epilogue, bound)}
            path.write_text(assemble(k, header, one.defines, generated=texts).text)
            paths.append(path)
    done = subprocess.run(["glslangValidator", *paths], capture_output=True, text=True)
    assert paths and done.returncode == 0, done.stdout


@pytest.mark.parametrize(("function", "count"), [("asin", 1), ("remainder", 2), ("tan", 1)])
def test_what_spills_is_computed_few_at_once(function, count) -> None:
    """On Mali: its vertices compute two vec4 of such functions, and four of others."""
    assert {row.source for row in FUNCTIONS.values()} >= LONG
    image = TensorType((6, 8))
    for expr, vectors in ((call(function, *[Arg(0)] * count), FEW), (call("relu", Arg(0)), MANY)):
        types, layouts = {"x": image, "out": image}, dict.fromkeys(("x", "out"), DENSE)
        found = generate(Pointwise(expr), types, layouts, "feedback")
        assert found.defines["VECTORS"] == vectors
