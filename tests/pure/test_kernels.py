"""Declarations, sources and the choice among kernels, without a device."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from glnn.core.glsl import shaders_folder
from glnn.core.types import DType, TensorType
from glnn.errors import LimitError, ShaderError, UnsupportedOpError
from glnn.gl import Capabilities
from glnn.graph.epilogue import BIASED, Epilogue, Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.operators import (
    ChannelSums,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Matmul,
    QuantizedMatmul,
)
from glnn.kernels import Kernel, export, kernels_for, library
from glnn.kernels.capability_check import fitted, fitted_rows, why_not_device
from glnn.kernels.library import read
from glnn.kernels.manifest import (
    Architectures,
    GridFactor,
    Launch,
    Range,
    Requirements,
    TimingModel,
    TuningRow,
)
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import choose
from glnn.kernels.source import assemble

DEVICE = Capabilities(
    "es", (3, 1), "Maker", "Board", "OpenGL ES 3.1", "GLSL ES 3.10", "EGL device 0",
    256, (256, 256, 64), (65535, 65535, 65535), 32768, 8, 1 << 27, 16, 16, 4096, 64, 4,
)  # fmt: skip
SHADER = '#version 310 es\n#include "common/one.glsl"\nvoid main() {}\n'
TOML = """
summary = "nothing"
tune = { WG_X = [8, 4], TM = [2] }
[operands]
x = { layout = "R", binding = 0 }
out = { layout = "R", binding = 1 }
[launch]
workgroup = ["WG_X"]
grid = ["m / TM / 4", ["n", "k"]]
shared_bytes = "4 * WG_X + 8 * TM"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "one.glsl").write_text("// one\n")
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / "k.comp").write_text(SHADER)
    (tmp_path / "op" / "k.toml").write_text(TOML)
    return tmp_path


def test_a_declaration_is_read(folder) -> None:
    (kernel,) = read(folder)
    assert (kernel.op, kernel.name, kernel.backend) == ("op", "k", "compute")
    assert kernel.defaults == {"WG_X": 8, "TM": 2}
    assert kernel.launch.local_size(kernel.defaults) == (8, 1, 1)
    assert kernel.launch.shared_bytes.evaluate(kernel.defaults) == 8 * 4 + 2 * 8
    # 100 rows, 8 an invocation: 13 invocations, 2 workgroups of 8; then 3 x 5.
    assert kernel.launch.groups({"m": 100, "n": 3, "k": 5}, kernel.defaults) == (2, 15, 1)
    assert kernel.with_parameters(WG_X=4).launch.groups(
        {"m": 100, "n": 3, "k": 5}, {"WG_X": 4, "TM": 2}
    ) == (4, 15, 1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "summary",
            "sumary",
            "k.toml: unknown key 'sumary', expected one of ['architectures', 'back",
        ),
        ('summary = "nothing"', "", "key 'summary' is missing"),
        ('x = { layout = "R"', 'x = { layout = "Q"', "k.toml: operands.x.layout: "),
        ("out = {", "y = {", "operands.out: expected one layout"),
        (
            ", binding = 0",
            "",
            "operands.x: expected binding or texture or texels or in_place, got none",
        ),
        ('"WG_X"', '"WG_Z"', "launch.workgroup: WG_Z is not one of ('WG_X', 'TM')"),
        ("TM = [2]", "TM = []", "every parameter needs a default"),
        ("TM = [2]", "TM = [0]", "launch.grid: expected at least 1 everywhere"),
        ("tune = {", "tune = ", "k.toml"),
    ],
)
def test_a_wrong_declaration_names_its_file(folder, old, new, says) -> None:
    (folder / "op" / "k.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ShaderError, match=r"k\.toml") as caught:
        read(folder)
    assert says in str(caught.value)


def test_the_documents_kernels_lie_in_a_folder_of_their_own(folder) -> None:
    (folder / "documents" / "op").mkdir(parents=True)
    for suffix, text in ((".comp", SHADER), (".toml", TOML)):
        (folder / "documents" / "op" / f"theirs{suffix}").write_text(text)
    ours, theirs = read(folder)
    assert (theirs.op, theirs.name, theirs.document, ours.document) == ("op", "theirs", True, False)
    source = assemble(theirs, "", {})
    assert source.name == "documents/op/theirs.comp" and "// one" in source.text
    (folder / "documents" / "op" / "k.toml").write_text(TOML)
    (folder / "documents" / "op" / "k.comp").write_text(SHADER)
    with pytest.raises(ShaderError, match=r"k\.toml: its name is that of .*k\.toml, too"):
        read(folder)


def test_a_shader_and_its_declaration_belong_together(folder) -> None:
    (folder / "op" / "k.vert").write_text("")
    with pytest.raises(ShaderError, match="expected one shader beside it, found 2"):
        read(folder)
    (folder / "op" / "k.vert").unlink()
    (folder / "op" / "lonely.comp").write_text("")
    with pytest.raises(ShaderError, match="no declaration"):
        read(folder)


def test_a_source_knows_where_its_lines_come_from(folder) -> None:
    (kernel,) = read(folder)
    source = assemble(kernel, "#version 310 es\nprecision highp float;\n", {"main": 8, "unused": 9})
    lines = source.text.splitlines()
    assert lines.count("#version 310 es") == 1
    assert source.origin[lines.index("// one")] == ("common/one.glsl", 1)
    assert source.origin[lines.index("void main() {}")] == ("op/k.comp", 3)
    assert lines.index("#define main 8") < lines.index("// one")
    assert "unused" not in source.text


@pytest.mark.parametrize("name", ["common/gone.glsl", "../op/k.toml", "../../etc/passwd"])
def test_a_wrong_include_is_named(folder, name) -> None:
    (folder / "op" / "k.comp").write_text(f'#include "{name}"\n')
    (kernel,) = read(folder)
    if name == "../op/k.toml":  # inside the folder above: refused as it leaves the shaders
        (folder.parent / "op").mkdir(exist_ok=True)
        (folder.parent / "op" / "k.toml").write_text("")
    with pytest.raises(ShaderError, match=r"op/k\.comp:1: no shader file"):
        assemble(kernel, "", {})


@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator")
def test_every_exported_source_is_valid_glsl_es(tmp_path) -> None:
    paths = export(tmp_path)
    for first in range(0, len(paths), 50):
        command = ["glslangValidator", *paths[first : first + 50]]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_what_is_exported_for_a_board_is_what_it_admits(tmp_path) -> None:
    midgard = replace(DEVICE, renderer="Mali-T860 (Panfrost)")
    names = ("gemm_blocked", "gemm_tiled", "feedback_4x4")
    kernels = tuple(k for k in library() if k.op == "matmul" and k.name in names)
    paths = export(tmp_path, kernels, device=midgard)
    found = {path.name.split("-")[1].split(".")[0] for path in paths}
    assert found == {"gemm_blocked", "feedback_4x4"}  # tiled is unfit there
    assert "#define TM 4\n" in (tmp_path / "matmul-gemm_blocked.comp").read_text("utf-8")
    (lying,) = (k for k in library() if k.op == "matmul" and k.name == "gemm_blocked_column_major")
    export(tmp_path, (lying,), device=midgard)  # of weights in columns, its first layout
    assert "#define WEIGHT_IN_C 1\n" in (
        tmp_path / "matmul-gemm_blocked_column_major.comp"
    ).read_text("utf-8")
    old = replace(midgard, version=(3, 0))  # no compute shaders
    assert {path.suffix for path in export(tmp_path, kernels, device=old)} == {".vert"}


def spec(m: int = 64, n: int = 64, k: int = 64) -> OpSpec:
    return OpSpec.create(Matmul(), {"x": (m, k), "weight": (n, k)}, {})


def test_the_choice_follows_size_and_device() -> None:
    assert choose("compute", spec(), DEVICE).name == "gemm_split_k16"
    assert choose("compute", spec(1024, 1024), DEVICE).name == "gemm_blocked"
    nvidia = replace(DEVICE, vendor="NVIDIA Corporation", multiprocessors=132)
    for few in ((192, 256, 256), (512, 191, 256), (63, 1024, 256)):
        assert choose("compute", spec(*few), nvidia).name.startswith("gemm_split_k"), few
    older = replace(nvidia, multiprocessors=0)  # a driver that does not tell
    assert choose("compute", spec(1024, 1024, 1024), older).name == "gemm_tiled"
    assert choose("compute", spec(), DEVICE, "gemm_tiled").name == "gemm_tiled"


NVIDIA = replace(
    DEVICE,
    vendor="NVIDIA Corporation",
    max_compute_work_group_invocations=1024,
    max_compute_work_group_size=(1024, 1024, 64),
    max_compute_shared_memory_size=48 << 10,
)


@pytest.mark.parametrize(
    ("m", "n", "k", "taken"),
    [
        # by 21.6 operations a byte: 6.9 of 401408 x 16 by 96
        (401408, 96, 16, "gemm_tall"),
        (100352, 144, 24, "gemm_tall"),
        (401408, 16, 32, "gemm_tall"),
        (100352, 24, 96, "gemm_tiled"),
        (16383, 96, 16, "gemm_tiled"),  # too few rows for so many processors
        (16384, 96, 16, "gemm_tall"),
    ],
)
def test_nvidia_streams_products_that_are_bound_by_their_bytes(m, n, k, taken) -> None:
    device = replace(NVIDIA, multiprocessors=132, max_shader_storage_block_size=1 << 31)
    assert choose("compute", spec(m, n, k), device).name == taken
    boards = replace(device, vendor="ARM", renderer="Mali-G610")
    assert not choose("compute", spec(m, n, k), boards).name.startswith("gemm_tall")


@pytest.mark.parametrize("operator", [{}, {"eps": 1e-5}, {"gate": "silu"}])
@pytest.mark.parametrize(
    ("m", "n", "taken"),
    [
        (1, 4096, "gemv"),
        (2, 4096, "gemm_skinny_2x16"),
        (3, 4096, "gemm_skinny_4x16"),
        (8, 128256, "gemm_skinny_8x64"),
        (8, 4096, "gemm_skinny_8x32"),
        (8, 576, "gemm_skinny_8x16"),
        (12, 576, "gemm_skinny_8x16"),
        (16, 4096, "gemm_skinny_16x32"),
        (12, 128256, "gemm_skinny_16x32"),
    ],
)
def test_weights_are_unpacked_once_for_several_rows(m, n, taken, operator) -> None:
    """Whatever is done to rows before and to products behind; by how many processors have work."""
    op = QuantizedMatmul("q4_0", n // 2 if "gate" in operator else n, 4096, **operator)
    shapes = {"x": (m, 4096), "weight": (op.packing.words(op.rows, 4096),)}
    types = {"x": TensorType(shapes["x"]), "weight": TensorType(shapes["weight"], DType.int32)}
    if op.eps:
        types["norm"] = TensorType((4096,))
    device = replace(NVIDIA, multiprocessors=132, max_shader_storage_block_size=1 << 31)
    kernel = choose("compute", OpSpec.create(op, types, {}), device).name
    assert kernel == ("gemv_normed_long" if m == 1 and op.eps else taken)


@pytest.mark.parametrize(
    ("m", "n", "taken"),
    [
        (64, 576, (16, 32)),
        (64, 4096, (32, 32)),
        (512, 576, (32, 32)),
        (512, 4096, (64, 128)),
    ],
)
def test_tiles_of_packed_weights_fill_the_processors(m, n, taken) -> None:
    op = QuantizedMatmul("q4_k", n, 1024)
    weight = TensorType((op.packing.words(n, 1024),), DType.int32)
    spec = OpSpec.create(op, {"x": TensorType((m, 1024)), "weight": weight}, {})
    device = replace(NVIDIA, multiprocessors=132)
    assert tile(choose("compute", spec, device)) == taken


def tile(kernel: Kernel) -> tuple[int, int]:
    """The rows and the columns of a workgroup of gemm_tiled."""
    assert kernel.name == "gemm_tiled"
    own = kernel.defaults
    return own["WG_Y"] * own["TM"], own["WG_X"] * own["TN"]


@pytest.mark.parametrize(
    ("sizes", "fast"),
    [
        # What took at most 1.1 times the time of the fastest kernel on an H200: tiles, or the
        # slices of gemm_split_k_column_major. Stacks have a fourth size.
        ((25088, 128, 128, 16), {(96, 128), (128, 128), (64, 64)}),
        ((784, 64, 64, 36), {(64, 64)}),
        ((6272, 32, 32, 36), {(64, 32)}),
        ((98, 256, 256, 36), {(48, 128), (32, 64), (64, 64), (32, 32)}),
        ((44, 3132, 2160), {8, (32, 64), (32, 32)}),
        ((32, 1000, 1280), {32, 16, 8}),
        ((895, 2116, 4328), {(48, 128), (64, 128), (32, 128), (64, 64)}),
        ((2297, 28, 4356), {32, 16, 8}),
        ((1838, 320, 4072), {(64, 128), (32, 64), (32, 32)}),
        ((1454, 772, 2960), {(48, 128), (32, 64), (32, 32)}),
        ((109317, 28, 120), {(64, 32)}),
        ((380368, 16, 72), {(64, 32)}),
        ((242212, 192, 48), {(96, 128), (128, 128), (64, 64)}),
        ((25546, 1256, 48), {(96, 128), (64, 64)}),
        ((30544, 304, 60), {(64, 64)}),
        ((123481, 80, 120), {(48, 128), (96, 128), (128, 128), (64, 64), (64, 32)}),
        ((2169, 3280, 1608), {(64, 128), (96, 128), (128, 128), (64, 64)}),
        ((6396, 788, 300), {(64, 64)}),
        ((24876, 180, 200), {(64, 64), (32, 64)}),
        ((232, 1848, 1388), {(32, 64)}),
        ((2145, 136, 1776), {(32, 32)}),
        ((114444, 16, 164), {(64, 32), (32, 32)}),
        ((6272, 112, 672), {(48, 128), (32, 64)}),
    ],
    ids=lambda value: str(sorted(value, key=str) if isinstance(value, set) else value),
)
def test_nvidia_takes_tiles_that_were_measured_to_be_fast(sizes, fast) -> None:
    m, n, k, *batch = sizes
    device = replace(
        NVIDIA,
        multiprocessors=132,
        max_shader_storage_block_size=1 << 31,
        max_compute_work_group_count=(65535, 65535, 65535),
    )
    stack = OpSpec.create(Matmul(), {"x": (m * math.prod(batch), k), "weight": (*batch, n, k)}, {})
    taken = choose("compute", stack, device)
    slices = taken.defaults.get("WG_K")
    assert (tile(taken) if slices is None else slices) in fast


def test_the_fastest_row_is_chosen_by_its_timing(tmp_path) -> None:
    """Rows of a kernel, by microseconds that are counted here by hand, on 8 multiprocessors."""
    (declared,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_tiled")
    quick = TuningRow({"TM": 8}, TimingModel(start=1, term=100))
    late = TuningRow({"TM": 4}, TimingModel(start=9, term=10, wait=40, together=4))
    rows = replace(declared, architectures=Architectures({"NVIDIA": (quick, late)}))
    first, second = rows.rows_for("NVIDIA")
    assert (first.defaults["TM"], second.defaults["TM"]) == (8, 4)
    assert first.timing is not None and second.timing is not None
    # 20 workgroups are 3 for one multiprocessor, all at once; 40 are 5, so that one comes after 4
    assert first.timing.microseconds(20, 50, 8) == pytest.approx(1 + 50 * 3 * 0.1)
    assert second.timing.microseconds(20, 50, 8) == pytest.approx(9 + 50 * (0.04 + 3 * 0.01))
    assert second.timing.microseconds(40, 50, 8) == pytest.approx(9 + 50 * (2 * 0.04 + 5 * 0.01))
    long = TimingModel(start=1, term=100, finish=0.5)
    assert long.microseconds(20, 50, 8) == first.timing.microseconds(20, 50, 8)
    assert long.microseconds(20, 50, 8, long=True) == pytest.approx(1 + 50 * 3 * 0.1 + 3 * 0.5)
    # and what each of the two rounds takes beside its terms
    stores = TimingModel(start=9, term=10, wait=40, together=4, overhead=3)
    assert stores.microseconds(40, 50, 8) == second.timing.microseconds(40, 50, 8) + 2 * 3
    assert first.with_parameters(TM=4).timing is None  # it is of these parameters alone
    for wrong in ({"start": -1}, {"wait": -1}, {"overhead": -1}, {"finish": -1}):
        with pytest.raises(ShaderError, match="times of at least 0"):
            TimingModel(**{"start": 1, "term": 1, **wrong})
    for wrong in ({"together": 0}, {"step": 0}):
        with pytest.raises(ShaderError, match="one or more together, and in a step"):
            TimingModel(**{"start": 1, "term": 1, **wrong})


@pytest.mark.parametrize(
    ("sizes", "plain", "fast"),
    [
        # rows, columns and terms; what took at most 1.05 times the time of the fastest row on an
        # H200, with a bias alone and with GELU behind it
        ((4096, 1536, 384), {(48, 128), (64, 64)}, {(48, 128), (64, 64)}),
        ((8192, 1536, 384), {(96, 128), (128, 128)}, {(128, 128), (48, 128), (64, 64)}),
    ],
    ids=str,
)
def test_long_epilogues_take_tiles_that_finish_soon(sizes, plain, fast) -> None:
    m, n, k = sizes
    device = replace(NVIDIA, multiprocessors=132)
    gelu = BIASED.then(Epilogue(call("gelu", Arg(0))))
    for epilogue, tiles in ((BIASED, plain), (gelu, fast)):
        operands = {"x": (m, k), "weight": (n, k), "e1": (n,)}
        taken = choose("compute", OpSpec.create(Matmul(), operands, {}, epilogue), device)
        assert tile(taken) in tiles


@pytest.mark.parametrize(
    ("sizes", "fast"),
    [
        # rows, columns and terms, with a bias; what took at most 1.03 times the time of the fastest
        # row on an H200
        ((1024, 1152, 384), {(48, 64)}),
        ((1024, 384, 384), {(32, 32)}),
        ((1024, 384, 1536), {(32, 32), (48, 64)}),
        ((4096, 1152, 384), {(96, 128)}),
        ((4096, 384, 384), {(48, 128), (64, 64)}),
        ((4096, 384, 1536), {(48, 128)}),
    ],
    ids=str,
)
def test_tiles_fill_whole_rounds_of_the_multiprocessors(sizes, fast) -> None:
    m, n, k = sizes
    operands = {"x": (m, k), "weight": (n, k), "e1": (n,)}
    spec = OpSpec.create(Matmul(), operands, {}, BIASED)
    assert tile(choose("compute", spec, replace(NVIDIA, multiprocessors=132))) in fast


def test_rows_that_a_device_does_not_admit_are_left_out() -> None:
    (tiled,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_tiled")
    least = replace(NVIDIA, max_compute_shared_memory_size=16 << 10)
    rows = fitted_rows(tiled, least)
    assert 0 < len(rows) < len(fitted_rows(tiled, NVIDIA)) == len(tiled.rows_for("NVIDIA"))
    assert all(why_not_device(row, least) is None for row in rows)


@pytest.mark.parametrize(
    ("x", "weight", "stride", "fast"),
    [
        # pixels by channels of a workgroup, of tiles or of split sums, that took at most 1.13 times
        # the time of the fastest row on an H200
        ((1, 128, 56, 56), (128, 128, 3, 3), 2, {(32, 32), (4, 32), (4, 64)}),
        ((1, 256, 28, 28), (256, 256, 3, 3), 2, {(4, 32), (4, 64)}),
        ((1, 512, 14, 14), (512, 512, 3, 3), 2, {(4, 32)}),
        ((8, 256, 28, 28), (256, 256, 3, 3), 2, {(32, 32), (32, 64)}),
        ((1, 64, 56, 56), (64, 64, 3, 3), 2, {(4, 64)}),
        ((1, 80, 1, 3000), (384, 80, 1, 3), 1, {(32, 32), (32, 64)}),
        ((1, 384, 1, 3000), (384, 384, 1, 3), 2, {(32, 32), (32, 64)}),
        ((8, 384, 1, 3000), (384, 384, 1, 3), 2, {(64, 128), (32, 64)}),
        ((1, 128, 14, 14), (32, 128, 3, 3), 1, {(4, 32)}),
        ((1, 512, 7, 7), (512, 512, 3, 3), 1, {(4, 32)}),
    ],
)
def test_convolutions_take_rows_that_are_fast(x, weight, stride, fast) -> None:
    op = Conv2d((min(stride, x[2]), stride), (weight[2] // 2, 1, weight[2] // 2, 1))
    device = replace(NVIDIA, multiprocessors=132)
    spec = OpSpec.create(op, {"x": x, "weight": weight}, {"x": "nhwC4c"})
    taken = choose("compute", spec, device).defaults
    size = (
        taken.get("WG_Y", 1) * taken["TM"],
        taken["WG_X"] * taken["TN"] * (4 if "WG_K" in taken else 1),
    )
    assert size in fast


@pytest.mark.parametrize("side", [14, 28])
def test_nvidia_takes_winograd_for_vggs_last_layers(side) -> None:
    shapes, op = (
        {"x": (1, 512, side, side), "weight": (512, 512, 3, 3)},
        Conv2d(padding=(1, 1, 1, 1)),
    )
    chosen = choose("compute", OpSpec.create(op, shapes, {"x": "nhwC4c"}), NVIDIA)
    assert chosen.stages == "winograd"


def test_sums_are_split_from_so_many_terms_on() -> None:
    for channels, taken in ((28, "implicit_gemm_tiled"), (29, "implicit_gemm_split_k")):
        shapes = {"x": (1, channels, 16, 16), "weight": (64, channels, 3, 3)}
        spec = OpSpec.create(Conv2d(padding=(1, 1, 1, 1)), shapes, {"x": "nhwC4c"})
        assert choose("compute", spec, NVIDIA).name == taken


@pytest.mark.parametrize(
    ("x", "weight", "stride", "groups", "taken"),
    [
        # groups of 4, 12 and 16 results, of 2 channels, and few results in all
        ((1, 128, 56, 56), (128, 4, 3, 3), 1, 32, "grouped_nhwc"),
        ((1, 32, 28, 28), (48, 8, 5, 5), 2, 4, "grouped_nhwc"),
        ((1, 256, 14, 14), (256, 16, 3, 3), 1, 16, "implicit_gemm_tiled"),
        ((1, 64, 14, 14), (64, 2, 3, 3), 1, 32, "grouped"),
        ((1, 16, 14, 14), (16, 4, 3, 3), 1, 4, "implicit_gemm_few_channels"),
        # both sides of 32 channels of planar images
        ((1, 3, 64, 64), (32, 3, 3, 3), 2, 1, "direct_tiled_to_nhwc_few_channels"),
        ((1, 3, 64, 64), (33, 3, 3, 3), 2, 1, "direct_tiled_to_nhwc"),
    ],
)
def test_nvidia_has_kernels_for_groups_and_first_layers(x, weight, stride, groups, taken) -> None:
    sides = tuple(side // 2 for side in weight[2:]) * 2
    op, lies = Conv2d((stride,) * 2, sides, groups=groups), "R" if groups == 1 else "nhwC4c"
    made = OpSpec.create(op, {"x": x, "weight": weight}, {"x": lies})
    assert choose("compute", made, NVIDIA).name == taken


SLICED = ("depthwise", 2, 1), ("depthwise", 2, 4), ("depthwise", 2, 5)


@pytest.mark.parametrize(
    ("x", "side", "fast"),
    [
        # kernels, pixels beside each other and slices of a window, or rows, of an invocation, that
        # took at most 1.1 times the time of the fastest on an H200, of windows of 3 to 7 rows
        ((1, 960, 7, 7), 3, SLICED),
        ((8, 144, 56, 56), 3, [("depthwise_columns", 4, 7), ("depthwise_columns", 4, 14)]),
        ((32, 144, 56, 56), 3, [("depthwise_columns", 4, rows) for rows in (7, 14)]),
        ((32, 384, 14, 14), 3, [("depthwise_columns", 4, 7), ("depthwise_columns", 4, 14)]),
        ((32, 960, 7, 7), 3, [("depthwise_columns", 4, 7), ("depthwise_columns", 4, 14)]),
        ((32, 240, 28, 28), 5, [("depthwise_columns", 7, 14)]),
        ((32, 1152, 7, 7), 5, [("depthwise_columns", 4, 7), ("depthwise_columns", 4, 14)]),
        ((8, 240, 28, 28), 5, [("depthwise_columns", 4, 7), ("depthwise_columns", 4, 14)]),
        ((8, 672, 14, 14), 5, [("depthwise_columns", 4, 7)]),
        ((32, 672, 14, 14), 5, [("depthwise_columns", 7, 14), ("depthwise_columns", 4, 14)]),
        ((1, 768, 7, 7), 7, SLICED),
        ((8, 96, 56, 56), 7, [("depthwise_columns", 4, 14), ("depthwise_columns", 7, 7)]),
        ((32, 96, 56, 56), 7, [("depthwise_columns", 7, 28)]),
        ((32, 192, 28, 28), 7, [("depthwise_columns", 7, 14)]),
        ((32, 384, 14, 14), 7, [("depthwise_columns", 4, 14)]),
    ],
)
def test_depthwise_convolutions_take_rows_that_are_fast(x, side, fast) -> None:
    op = Conv2d(padding=(side // 2,) * 4, groups=x[1])
    spec = OpSpec.create(op, {"x": x, "weight": (x[1], 1, side, side)}, {"x": "nhwC4c"})
    taken = choose("compute", spec, replace(NVIDIA, multiprocessors=132))
    values = taken.defaults
    assert (taken.name, values["PX"], values.get("SLICES", values.get("ROWS"))) in fast


@pytest.mark.parametrize(
    ("x", "o", "size", "stride", "by_input", "by_weight"),
    [
        # ResNet-18's of images of 32 x 32, from the first to the last stage
        ((64, 64, 8, 8), 64, 3, 1, "convolution", "two_stage_tiled"),
        ((64, 64, 8, 8), 128, 3, 2, "gemm_tiled", "two_stage_tiled"),
        ((64, 128, 4, 4), 256, 1, 2, "gemm_tiled", "two_stage_tiled"),
        ((64, 512, 1, 1), 512, 3, 1, "convolution", "two_stage_tiled"),
        # of one tap
        ((32, 384, 4, 4), 64, 1, 1, "product", "two_stage_tiled"),
        # few channels, few images
        ((64, 3, 32, 32), 64, 7, 2, "nhwc", "two_stage_tiled_few_channels"),
        ((64, 6, 12, 12), 16, 5, 1, "planar", "two_stage"),
        ((4, 64, 8, 8), 64, 3, 2, "gemm_tiled", "two_stage_tiled"),
    ],
)
def test_nvidia_has_products_for_gradients_of_convolutions(
    x, o, size, stride, by_input, by_weight
) -> None:
    weight, how = (o, x[1], size, size), ((stride,) * 2, (size // 2,) * 4)
    dy = Conv2d(*how).shape_of({"x": x, "weight": weight})
    op, lie = Conv2dInputGradient(x[2:], *how), {"dy": "nhwC4c", "weight": "R"}
    spec = OpSpec.create(op, {"dy": dy, "weight": weight}, lie)
    assert choose("compute", spec, NVIDIA).name == by_input
    gradient = Conv2dWeightGradient((size, size), *how)
    spec = OpSpec.create(gradient, {"x": x, "dy": dy}, {"x": "nhwC4c", "dy": "nhwC4c"})
    assert choose("compute", spec, NVIDIA).name == by_weight


@pytest.mark.parametrize(
    ("x", "o", "size", "parts", "fast"),
    [
        # parts, and tiles with slices of sums, that took at most 1.08 times the time of the fastest
        # on an H200
        ((64, 64, 8, 8), 64, 3, range(14, 30), {(32, 32, 2), (64, 64, 1), (64, 64, 4)}),
        ((64, 128, 4, 4), 128, 3, range(3, 8), {(64, 64, 1), (64, 64, 4)}),
        ((64, 256, 2, 2), 256, 3, range(1, 2), {(32, 32, 2)}),
        ((64, 512, 1, 1), 512, 3, range(1, 2), {(64, 64, 1)}),
        ((32, 384, 4, 4), 64, 1, range(5, 11), {(32, 32, 8)}),
    ],
)
def test_gradients_by_weights_take_parts_and_rows_that_are_fast(x, o, size, parts, fast) -> None:
    device = replace(NVIDIA, multiprocessors=132)
    gradient = Conv2dWeightGradient((size, size), padding=(size // 2,) * 4)
    lie = {"x": "nhwC4c", "dy": "nhwC4c"}
    spec = OpSpec.create(gradient, {"x": x, "dy": (x[0], o, *x[2:])}, lie)
    first, *_ = spec.lowered(choose("compute", spec, device)).stages
    assert isinstance(first.op, Conv2dWeightGradient) and first.op.parts in parts
    stage = OpSpec.create(first.op, {"x": x, "dy": (x[0], o, *x[2:])}, lie)
    taken = choose("compute", stage, device, first.kernel)
    assert (*tile(taken), taken.defaults["SLICES"]) in fast


@pytest.mark.parametrize("device", [NVIDIA, replace(NVIDIA, multiprocessors=132)])
def test_sums_of_many_pixels_are_in_parts(device) -> None:
    for x, kernel in (((32, 32, 32, 32), "two_stage"), ((32, 384, 4, 4), "nhwc")):
        spec = OpSpec.create(ChannelSums(), {"x": x}, {"x": "nhwC4c"})
        chosen = choose("compute", spec, device)
        assert chosen.name == kernel
        if kernel == "two_stage":
            pixels, parts = x[0] * 32 * 32, spec.lowered(chosen).stages[0].op.parts
            assert parts > 1 and pixels % parts == 0
    odd = OpSpec.create(ChannelSums(), {"x": (17, 32, 31, 29)}, {"x": "nhwC4c"})
    assert odd.lowered(choose("compute", odd, device)).stages[0].op.parts in (17, 29, 31)


@pytest.mark.parametrize(
    ("x", "weight", "groups", "name"),
    [
        ((32, 144, 16, 16), (24, 144, 1, 1), 1, "pointwise_few_channels"),
        ((32, 64, 4, 4), (384, 64, 1, 1), 1, "pointwise"),
        ((32, 384, 4, 4), (384, 1, 3, 3), 384, "depthwise_columns_row_major_weight"),
        ((32, 96, 32, 32), (96, 1, 3, 3), 96, "depthwise_row_major_weight"),
    ],
)
def test_weights_that_runs_change_are_taken_as_they_lie(x, weight, groups, name) -> None:
    op = Conv2d(padding=(weight[2] // 2,) * 4, groups=groups)
    lie = {"x": "nhwC4c", "weight": "R"}
    spec = OpSpec.create(op, {"x": x, "weight": weight}, lie)
    assert choose("compute", spec, NVIDIA).name == name
    fixed = OpSpec.create(op, {"x": x, "weight": weight}, {"x": "nhwC4c"})
    assert "row_major" not in choose("compute", fixed, NVIDIA).name


def test_parameters_shrink_until_the_device_admits_them() -> None:
    (tiled,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_tiled")
    nvidia = replace(DEVICE, vendor="NVIDIA Corporation")
    assert fitted(tiled, nvidia).defaults["TM"] == 16
    least = replace(nvidia, max_compute_work_group_invocations=64)
    row = TuningRow({"WG_X": 16, "WG_Y": 16})
    large = replace(tiled, architectures=Architectures({"NVIDIA": (row,)}))
    assert why_not_device(large.for_architecture("NVIDIA"), least) is not None
    shrunk = fitted(large, least)
    assert shrunk is not None
    x, y, z = shrunk.launch.local_size(shrunk.defaults)
    assert x * y * z <= 64
    nothing = replace(least, max_compute_shader_storage_blocks=1)
    assert fitted(tiled, nothing) is None
    with pytest.raises(UnsupportedOpError, match="3 storage blocks, the device has 1"):
        choose("compute", spec(), nothing)


def test_a_device_whose_registers_are_too_few_is_refused() -> None:
    (tiled,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_tiled")
    midgard = replace(DEVICE, renderer="Mali-T860 (Panfrost)")
    assert fitted(tiled, midgard) is None
    assert "registers of Mali-T860" in (why_not_device(tiled, midgard) or "")
    assert choose("compute", spec(1024, 1024), midgard).name == "gemm_blocked"


@pytest.mark.parametrize("renderer", ["Mali-T860", "Mali-G52", "Mali-G610", "V3D 7.1", "Adreno"])
def test_boards_have_kernels_of_their_own(renderer: str) -> None:
    """By what their compilers make of them: see benchmarks/board_compilers.md."""
    board = replace(DEVICE, renderer=renderer)
    operands = {"x": (1024, 64), "weight": (1024, 64)}
    before = Prologue(call("relu", Arg(0)), ())
    behind = OpSpec.create(Matmul(prologue=before), operands, {})
    few, mali = choose("compute", spec(49, 160, 960), board), renderer.startswith("Mali")
    assert few.path.stem == "gemm_split_k" and few.defaults["WG_X"] * few.defaults["WG_K"] == 64
    more = choose("compute", spec(196, 384, 64), board)
    blocked = "gemm_blocked_column_major" if renderer == "V3D 7.1" else "gemm_blocked"
    assert more.name == ("gemm_split_k16" if renderer == "Adreno" else blocked)
    assert choose("compute", behind, board).name == ("gemm_blocked_prologue" if mali else blocked)
    both = OpSpec.create(Matmul(prologue=before), operands, {"x": "R4", "weight": "R4"})
    lying = (
        "gemm_blocked_column_major_prologue"
        if renderer == "Mali-T860"
        else "gemm_blocked_column_major"
    )
    assert choose("compute", both, board).name == lying
    large = "depthwise_taps" if renderer == "Mali-T860" else "depthwise_rows"
    for side, name in ((3, "depthwise_rows_3x3"), (5, large)):
        operands = {"x": (1, 96, 56, 56), "weight": (96, 1, side, side)}
        apart = OpSpec.create(Conv2d(padding=(1, 1, 1, 1), groups=96), operands, {"x": "nhwC4c"})
        assert choose("compute", apart, board).name == name
    joined = OpSpec.create(replace(apart.op, prologue=before), operands, {"x": "nhwC4c"})
    walked = "depthwise_taps" if renderer == "Mali-T860" else "depthwise"
    assert choose("compute", joined, board).name == walked
    operands = {"x": (1, 64, 28, 28), "weight": (64, 4, 3, 3)}
    groups = OpSpec.create(Conv2d(padding=(1, 1, 1, 1), groups=16), operands, {"x": "nhwC4c"})
    wide = OpSpec.create(Conv2d(dilation=(2, 2), groups=16), operands, {"x": "nhwC4c"})
    small = {"Mali-T860": "implicit_gemm", "Adreno": "grouped_nhwc"}.get(
        renderer, "grouped_nhwc_window_3"
    )
    assert choose("compute", groups, board).name == small
    large = "grouped_nhwc" if renderer == "Adreno" else "implicit_gemm"
    assert choose("compute", wide, board).name == large
    operands = {"x": (1, 3, 57, 57), "weight": (9, 3, 3, 3)}
    first = OpSpec.create(Conv2d((2, 2), (1, 1, 1, 1)), operands, {"x": "R"})
    last = "direct_to_nhwc_3x3" if renderer == "Mali-T860" else "direct_to_nhwc"
    assert choose("compute", first, board).name == last


def test_reasons_are_listed() -> None:
    grouped = OpSpec.create(Conv2d(groups=2), {"x": (1, 4, 5, 5), "weight": (4, 2, 3, 3)}, {})
    assert choose("compute", grouped, DEVICE).name == "grouped"
    with pytest.raises(UnsupportedOpError, match="direct: GROUPS is 2, it needs 1"):
        choose("compute", grouped, DEVICE, "direct")
    wide = OpSpec.create(Conv2d(dilation=(1, 2)), {"x": (1, 4, 9, 9), "weight": (4, 4, 3, 5)}, {})
    with pytest.raises(UnsupportedOpError, match="direct_tiled: WINDOW is 9, it needs 0 to 7"):
        choose("compute", wide, DEVICE, "direct_tiled")
    with pytest.raises(LimitError, match="a storage block has 134217728"):
        choose("compute", spec(1, 1, 1 << 26), DEVICE)
    old = replace(DEVICE, version=(3, 0))
    with pytest.raises(UnsupportedOpError, match=r"compute shaders need OpenGL ES 3\.1"):
        choose("compute", spec(), old)
    assert choose("feedback", spec(), old).name == "feedback_4x4"


def test_every_kernel_is_admissible_on_the_smallest_legal_device() -> None:
    least = DEVICE.with_minimum()
    refused = [k for k in library() if fitted(k, least) is None]
    # One of Rovder's workgroups is larger than that device allows, a mask, a table of angles, the
    # other matrix of a gate or a variance takes a fifth block, and there are no texture buffers.
    batch_norms = ["nhwc", "planar"]
    rotary = ["per_element_rotary", "chunked_rotary", "one_pass_rotary"]
    several = ["direct_masked", "flash_masked", "split_kv_rotary", *batch_norms, *rotary]
    several += ["gemv_gated", "flash_masked", "cross_rm_cm_8x32"]
    assert [k.name for k in refused if not k.texture_buffers] == several
    some = replace(least, max_texture_buffer_size=1 << 16)
    assert all(k in refused and fitted(k, some) for k in library() if k.texture_buffers)


def test_no_binding_is_beyond_what_the_smallest_device_has() -> None:
    for kernel in library():
        if kernel.backend == "compute":
            most = 5 if {"mask", "rotary", "up", "variance"} & kernel.layouts.keys() else 4
            assert max(kernel.bindings_of(kernel.layouts).values()) < most, kernel.name


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"requires": Requirements({"GRUPS": 1})}, "requires: matmul has no GRUPS"),
        (
            {"launch": Launch(grid=((GridFactor("n"),), (GridFactor("height"),)))},
            "launch: matmul has no height",
        ),
        ({"suits": {"depth": Range(max=4)}}, "suits: matmul has no depth"),
    ],
)
def test_names_that_an_op_does_not_know(monkeypatch, changes, says) -> None:
    (blocked,) = (k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked")
    monkeypatch.setattr(
        "glnn.kernels.selector.kernels_for", lambda op, backend: (replace(blocked, **changes),)
    )
    with pytest.raises(ShaderError, match=says):
        choose("compute", spec(), DEVICE)


def test_no_shader_has_a_variable_named_as_a_function_of_expressions() -> None:
    """Expressions go into any shader: a global of a function's name would not compile there."""
    folder = shaders_folder()
    kind = r"(?:highp )?(?:float|int|uint|bool|[iub]?vec[234]) "
    texts = {path: path.read_text() for path in folder.rglob("*.*") if path.suffix != ".toml"}
    functions = {
        name
        for path, text in texts.items()
        if path.parent.name == "functions" or path.name == "nan.glsl"
        for name in re.findall(rf"^{kind}(\w+)\(", text, re.MULTILINE)
    }
    assert len(functions) > 60
    for path, text in texts.items():
        declared = re.findall(rf"^(?:uniform )?{kind}([^;(]+);", text, re.MULTILINE)
        names = {name for line in declared for name in re.findall(r"[A-Za-z_]\w*", line)}
        assert not names & functions, path


def test_texture_buffers_are_taken_where_they_suit_and_there_are_some() -> None:
    (fetched,) = (
        k for k in kernels_for("matmul", "compute") if k.name == "gemm_blocked_texture_buffer"
    )
    llvmpipe = replace(DEVICE, renderer="llvmpipe", max_texture_buffer_size=1 << 20)
    assert choose("compute", spec(1024, 1024), llvmpipe).name == "gemm_blocked_texture_buffer"
    assert fetched.sampler("rgba32f", 4 << 20, llvmpipe) == "samplerBuffer"
    with pytest.raises(LimitError, match="1048577 texels, a buffer has 1048576"):
        fetched.sampler("rgba32f", 4 + (4 << 20), llvmpipe)
    elsewhere = replace(llvmpipe, vendor="NVIDIA Corporation", renderer="a GPU")
    assert choose("compute", spec(1024, 1024), elsewhere).name == "gemm_tiled"
    without = replace(llvmpipe, max_texture_buffer_size=0)
    assert choose("compute", spec(1024, 1024), without).name == "gemm_blocked"
    assert fitted(fetched, without) is None
    assert why_not_device(fetched, without) == "texture buffers need OpenGL ES 3.2"
