"""Why a kernel cannot run, and which of those that can is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from glnn.core.types import Shape
from glnn.errors import LimitError, ShaderError, ShapeError, UnsupportedOpError
from glnn.gl import Capabilities
from glnn.graph.epilogue import BIASED, Epilogue, Extent
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Conv2d, Matmul, Pointwise, Pool2d, Recurrence, Reduce
from glnn.graph.operators.attention import Attention, StridedView, Windows
from glnn.graph.operators.normalization import Normalize, Softmax
from glnn.graph.operators.reorder import Reorder
from glnn.kernels import Kernel, kernels_for, selector
from glnn.kernels.architecture import architecture
from glnn.kernels.binding import bind
from glnn.kernels.capability_check import fitted, why_not_device, why_not_here
from glnn.kernels.codegen.expression import Bound
from glnn.kernels.manifest import Architectures, TimingModel, TuningRow
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import choose, why_chosen
from glnn.kernels.tuned import Tuned, TunedChoice

RELU = Pointwise(call("relu", Arg(0)))
DEVICE = Capabilities(
    "es", (3, 1), "Maker", "Board", "OpenGL ES 3.1", "GLSL ES 3.10", "EGL device 0",
    128, (128, 128, 64), (100, 50, 10), 4096, 4, 1 << 20, 16, 2, 2048, 64, 4, 256,
)  # fmt: skip


def kernel(
    name: str = "k", backend: str = "compute", folder: str = "shaders", **values: object
) -> Kernel:
    """A pointwise kernel, an element an invocation."""
    path = Path(f"{folder}/pointwise/{name}{'.comp' if backend == 'compute' else '.vert'}")
    text: dict[str, object] = {
        "summary": "",
        "operands": {"x0": {"layout": "R", "texture": "rgba32f"}, "out": "R"},
    }
    if backend == "compute":
        text |= {"operands": bound(x0=0, out=1), "launch": launch()}
    return Kernel.declared(path.with_suffix(".toml"), path, {**text, **values})


def bound(**bindings: int) -> dict[str, object]:
    return {name: {"layout": "R", "binding": binding} for name, binding in bindings.items()}


def launch(**values: object) -> dict[str, object]:
    return {"grid": ["out_size"], **values}


def spec(*shape: int) -> OpSpec:
    return OpSpec.create(RELU, {"x0": shape}, {})


@pytest.fixture
def offer(monkeypatch):
    """Replaces the library."""

    def replaced(*kernels: Kernel) -> None:
        ordered = tuple(sorted(kernels, key=lambda k: -k.priority))
        monkeypatch.setattr(selector, "kernels_for", lambda op, backend: ordered)

    return replaced


@pytest.mark.parametrize(
    ("values", "limits", "reason"),
    [
        (
            {"launch": launch(workgroup=[8, 4, 2])},
            {"max_compute_work_group_invocations": 32},
            "a workgroup of 64 invocations, the device allows 32",
        ),
        (
            {"launch": launch(workgroup=[1, 1, 65])},
            {},
            "a workgroup of (1, 1, 65), the device allows (128, 128, 64)",
        ),
        (
            {"launch": launch(shared_bytes="4 * A"), "tune": {"A": [1025]}},
            {},
            "4100 bytes of shared memory, the device has 4096",
        ),
        (
            {},
            {"max_compute_shader_storage_blocks": 1},
            "2 storage blocks, the device has 1",
        ),
        (
            {"operands": bound(x0=0, out=9)},
            {"max_compute_shader_storage_blocks": 9},
            "a storage block at binding 9, the device has 0 to 8",
        ),
        (
            {},
            {"version": (3, 0)},
            "compute shaders need OpenGL ES 3.1 or OpenGL 4.3; Board offers OpenGL ES 3.0",
        ),
        (
            {},
            {"api": "gl", "version": (4, 2)},
            "compute shaders need OpenGL ES 3.1 or OpenGL 4.3; Board offers OpenGL 4.2",
        ),
        (
            {"architectures": {"V3D": "unfit"}},
            {"renderer": "V3D 4"},
            "the registers of V3D 4 cannot hold it",
        ),
        ({"backend": "feedback"}, {"version": (2, 0)}, "transform feedback needs OpenGL ES 3.0"),
        (
            {"backend": "feedback"},
            {"max_vertex_texture_image_units": 0},
            "1 vertex textures, the device has 0",
        ),
    ],
)
def test_why_a_device_refuses_a_kernel(values, limits, reason) -> None:
    assert why_not_device(kernel(**values), replace(DEVICE, **limits)) == reason


@pytest.mark.parametrize(
    "values",
    [
        {"launch": launch(workgroup=[8, 4, 4], shared_bytes=4096)},  # each limit met exactly
        {"launch": launch(workgroup=[2, 1, 64])},
        {"backend": "feedback"},
    ],
)
def test_a_limit_may_be_reached(values) -> None:
    assert why_not_device(kernel(**values), DEVICE) is None


def test_operands_that_share_a_binding_take_one_block() -> None:
    shared = kernel(operands=bound(x=0, out=1, bias=2, c=2))
    three = replace(DEVICE, max_compute_shader_storage_blocks=3)
    assert why_not_device(shared, three) is None


@pytest.mark.parametrize(
    ("made", "values", "device", "reason"),
    [
        (spec(512, 512), {"launch": launch(strided=True)}, {}, None),  # 1 MiB: exactly a block
        (
            spec(1, 1 + 512 * 512),
            {"launch": launch(strided=True)},
            {},
            "x0 of shape (1, 262145) takes 1048592 bytes, a storage block has 1048576",
        ),
        (spec(512, 513), {"launch": launch(strided=True)}, {}, None),  # some samples at a time
        (spec(1, 100), {}, {}, None),
        (spec(1, 101), {}, {}, "104 workgroups in one dimension, the device allows 100"),
        (spec(1, 101), {"launch": launch(workgroup=[2])}, {}, None),
        (
            spec(1, 5),
            {"launch": launch(grid=[[], "x0_rows", "out_size"], strided=True)},
            {"max_compute_work_group_count": (1, 1, 1)},
            None,  # the strided dimension is cut short
        ),
        (
            spec(1, 60),
            {"launch": launch(grid=[[], "x0_row", "out_size"], strided=True)},
            {},
            "60 workgroups in one dimension, the device allows 50",
        ),
        (spec(128, 128), {"backend": "feedback"}, {}, None),
        (spec(8192, 4096), {"backend": "feedback"}, {}, None),  # two layers
        (
            spec(8192, 4096),
            {"backend": "feedback"},
            {"max_array_texture_layers": 1},
            "x0 of shape (8192, 4096): 33554432 floats take a texture of 2048 x 2048 x 2, "
            "the device allows 2048 x 2048 x 1",
        ),
        (
            spec(8192, 4096),
            {"backend": "feedback"},
            {"max_array_texture_layers": 1, "max_texture_buffer_size": 1 << 23},
            None,
        ),
        (
            spec(1 << 16, 1 << 15),
            {"backend": "feedback"},
            {"max_texture_buffer_size": 1 << 30},
            "x0 of shape (65536, 32768) has more elements than a shader's int can count",
        ),
    ],
)
def test_why_a_size_is_too_much(made, values, device, reason) -> None:
    assert why_not_here(kernel(**values), made, replace(DEVICE, **device)) == reason


@pytest.mark.parametrize(
    ("op", "shapes", "name", "backend", "reason"),
    [
        (Conv2d(groups=2), [(1, 4, 5, 5), (4, 2, 3, 3)], "direct", "compute", "GROUPS is 2"),
        (Conv2d(), [(1, 4, 5, 5), (4, 4, 3, 2)], "winograd_2", "compute", "KERNEL_W is 2"),
        (
            Matmul(),
            [(6, 4), (3, 5, 4)],
            "gemv",
            "compute",
            "it takes one matrix as weight, no stack of them",
        ),
        (
            Reorder("nChw4c", "R"),
            [(1, 4, 2, 2)],
            "feedback_group",
            "feedback",
            "it goes from R or R4 to nChw4c",
        ),
    ],
)
def test_why_a_kernel_refuses_a_problem(op, shapes, name, backend, reason) -> None:
    named: dict[str, Shape] = dict(zip((*op.inputs, *op.parameters), shapes, strict=False))
    with pytest.raises(UnsupportedOpError) as caught:
        choose(backend, OpSpec.create(op, named, {}), DEVICE, name)
    assert f"{name}: " in str(caught.value) and reason in str(caught.value)


SHAPES = {"x": (1, 4, 5, 5), "weight": (4, 4, 3, 3)}
FULL, CHANNEL = (1, 4, 3, 3), (4,)


def finished(*extents: Extent) -> OpSpec:
    """A convolution to which operands of these extents are added."""
    shapes = {"full": FULL, "channel": CHANNEL, "one": (1,)}
    epilogue, own = Epilogue(Arg(0)), dict(SHAPES)
    for i, extent in enumerate(extents, 1):
        epilogue = epilogue.then(Epilogue(call("add", Arg(0), Arg(1)), (extent,)))
        own[f"e{i}"] = shapes[extent]
    return OpSpec.create(Conv2d(), own, {}, epilogue)


@pytest.mark.parametrize(
    ("name", "extent"),
    [
        ("direct", "full"),
        ("im2col_morton", "full"),
        ("im2row_abt_ki", "full"),
        ("im2row_abt_ki", "channel"),
    ],
)
def test_an_epilogue_that_a_kernel_does_not_take(name, extent) -> None:
    with pytest.raises(UnsupportedOpError, match=f"{name}: its epilogue takes no operand of"):
        choose("compute", finished(extent), DEVICE, name)
    assert extent in choose("compute", finished(extent), DEVICE).epilogue.extents
    relu = OpSpec.create(Pool2d(), {"x": (1, 1, 4, 4)}, {}, Epilogue(call("relu", Arg(0))))
    with pytest.raises(UnsupportedOpError, match=r"planar, nhwc.*: it takes no epilogue"):
        choose("compute", relu, DEVICE)


def test_where_an_epilogues_operands_lie() -> None:
    """After the kernel's own, as long as there are storage blocks, one in the result's memory."""
    least, more = (replace(DEVICE, max_compute_shader_storage_blocks=n) for n in (4, 5))

    def bound(device: Capabilities, *extents: Extent) -> Bound:
        made = finished(*extents)
        implicit = choose("compute", made, device, "implicit_gemm")
        return bind(implicit, made, device, {})

    assert bound(least, "full") == Bound({"e1": 3})
    assert bound(least, "channel", "full") == Bound({"e1": 3}, "e2")
    assert bound(least, "full", "channel") == Bound({"e2": 3}, "e1")
    assert bound(more, "channel", "full") == Bound({"e1": 3, "e2": 4})
    assert bound(more, "full", "channel", "full") == Bound({"e1": 3, "e2": 4}, "e3")
    says = "its epilogue has 2 operands, of 4 storage blocks 3 are taken"
    for extents in (("channel", "one"), ("full", "channel", "full")):
        with pytest.raises(UnsupportedOpError, match=says.replace("2", str(len(extents)))):
            bound(least, *extents)
    few = replace(DEVICE, max_vertex_texture_image_units=3)
    assert choose("feedback", finished("full"), few, "feedback").name == "feedback"
    says = "its epilogue has 2 operands, of 3 vertex textures 2 are taken"
    with pytest.raises(UnsupportedOpError, match=says):
        choose("feedback", finished("full", "one"), few, "feedback")


def test_what_an_epilogue_asks_of_its_operands() -> None:
    with pytest.raises(ShapeError, match=r"conv2d: e1 must have shape \(4,\), got \(1, 4, 3, 3\)"):
        OpSpec.create(Conv2d(), {**SHAPES, "e1": FULL}, {}, BIASED)
    with pytest.raises(ShapeError, match=r"conv2d: e1 must have shape \(4,\), got nothing"):
        OpSpec.create(Conv2d(), SHAPES, {}, BIASED)
    with pytest.raises(ShapeError, match="expected operands"):
        OpSpec.create(Conv2d(), {**SHAPES, "e1": CHANNEL}, {})


def test_a_stage_that_cannot_run_is_named() -> None:
    device = replace(DEVICE, max_compute_work_group_count=(100, 100, 100))
    made = OpSpec.create(Conv2d(), {"x": (1, 4, 50, 50), "weight": (4, 4, 3, 3)}, {})
    assert choose("compute", made, device, "winograd_4").stages == "winograd"  # 144 tiles
    assert choose("compute", made, device, "winograd_2").defaults["PARTS"] == 2  # of 576 tiles
    device = replace(DEVICE, max_compute_work_group_count=(8, 8, 100))
    says = "winograd_2: tiles: winograd_input on .* tile_2: 144 workgroups in one dimension"
    with pytest.raises(LimitError, match=says):
        choose("compute", made, device, "winograd_2")


def test_every_reason_is_listed(offer) -> None:
    offer(
        kernel("wide", launch=launch(workgroup=[256])),
        kernel("hungry", launch=launch(shared_bytes=9999)),
    )
    with pytest.raises(UnsupportedOpError) as caught:
        choose("compute", spec(2, 2), DEVICE)
    assert str(caught.value) == (
        "pointwise on {'x0': (2, 2)} cannot run on compute: "
        "wide: a workgroup of 256 invocations, the device allows 128; "
        "hungry: 9999 bytes of shared memory, the device has 4096"
    )
    offer(*(kernel(name, launch=launch(shared_bytes=9999)) for name in ("one", "two", "three")))
    with pytest.raises(UnsupportedOpError, match="compute: one, two and three: 9999 bytes"):
        choose("compute", spec(2, 2), DEVICE)
    offer()
    with pytest.raises(UnsupportedOpError, match="compute: it has no kernel for it"):
        choose("compute", spec(2, 2), DEVICE)


def test_only_a_size_in_the_way_is_a_limit_error(offer) -> None:
    offer(kernel("wide", launch=launch(workgroup=[256])), kernel("small"))
    with pytest.raises(LimitError, match="compute: small: 104 workgroups"):
        choose("compute", spec(1, 101), DEVICE)


def test_an_unknown_kernel_is_named_beside_the_known(offer) -> None:
    offer(kernel("one"), kernel("two"))
    with pytest.raises(UnsupportedOpError, match=r"no kernel 'x' for pointwise; it has one, two"):
        choose("compute", spec(2, 2), DEVICE, "x")
    with pytest.raises(ShapeError, match="expected operands"):
        OpSpec.create(RELU, {"y": (2, 2)}, {})


LARGE = replace(
    DEVICE, max_compute_work_group_invocations=256, max_compute_work_group_size=(256, 256, 64)
)

H200 = replace(
    LARGE,
    vendor="NVIDIA Corporation",
    multiprocessors=132,
    max_compute_work_group_count=(65535, 65535, 65535),
    max_compute_shared_memory_size=49152,
    max_compute_shader_storage_blocks=16,
    max_shader_storage_block_size=1 << 27,
)


def tiles(name: str, side: int, rate: int, **values: object) -> Kernel:
    """Products by workgroups that compute `side` x `side` results, 256 invocations of them.

    rate: results that one of them computes at a time, on NVIDIA's devices.
    """
    across = {"workgroup": [16, 16], "grid": [f"n / {side // 16}", f"m / {side // 16}"]}
    text = {
        "summary": "",
        "operands": bound(x=0, weight=1, out=2),
        "launch": across,
        "architectures": {"NVIDIA": {"timing": {"start": 0, "term": side * side / rate}}}
        if rate
        else {},
        **values,
    }
    path = Path(f"shaders/matmul/{name}.comp")
    return Kernel.declared(path.with_suffix(".toml"), path, text)


@pytest.mark.parametrize(
    ("m", "n", "processors", "chosen"),
    [
        (128, 256, 8, "large"),  # 8 tiles for 8 processors
        (129, 256, 8, "small"),  # 12, so that 4 processors have two turns and 4 wait
        (448, 448, 8, "large"),  # 49 in 7 turns
        (448, 448, 0, "large"),  # nobody tells how many there are: 49 tiles, or 196 in four turns
        (128, 256, 0, "small"),  # 8 large ones keep as many busy for longer than 32 small ones
        (129, 256, 1, "large"),  # 12 turns of large tiles, or 40 of small ones, three times as fast
    ],
)
def test_tiles_that_leave_few_processors_idle_are_chosen(offer, m, n, processors, chosen) -> None:
    device = replace(LARGE, vendor="NVIDIA Corporation", multiprocessors=processors)
    offer(tiles("small", 32, 40), tiles("large", 64, 50), tiles("other", 32, 90, priority=-1))
    product = OpSpec.create(Matmul(), {"x": (m, 8), "weight": (n, 8)}, {})
    assert choose("compute", product, device).name == chosen


def test_a_kernel_without_a_timing_comes_after_those_that_have_one(offer) -> None:
    device = replace(LARGE, vendor="NVIDIA Corporation", multiprocessors=8)
    product = OpSpec.create(Matmul(), {"x": (129, 8), "weight": (256, 8)}, {})
    for kernels in (
        (tiles("own", 64, 0), tiles("timed", 64, 50)),
        (tiles("timed", 64, 50), tiles("own", 64, 0)),
    ):
        offer(*kernels)
        assert choose("compute", product, device).name == "timed"


def test_a_timing_counts_among_kernels_of_one_priority_only(offer) -> None:
    device = replace(LARGE, vendor="NVIDIA Corporation", multiprocessors=8)
    offer(tiles("large", 64, 50), tiles("small", 32, 40), tiles("first", 64, 0, priority=1))
    product = OpSpec.create(Matmul(), {"x": (129, 8), "weight": (256, 8)}, {})
    assert choose("compute", product, device).name == "first"


def test_the_greatest_priority_that_suits_is_chosen(offer) -> None:
    few = kernel("few", suits={"outputs": {"max": 16}}, priority=3)
    many = kernel("many", suits={"outputs": {"min": 64}}, priority=2)
    thin = kernel("thin", suits={"count": {"max": 24}}, priority=1)
    last = kernel("last")
    offer(last, thin, many, few)
    sizes = {(4, 4): "few", (4, 5): "thin", (4, 7): "last", (8, 8): "many"}
    assert {s: choose("compute", spec(*s), DEVICE).name for s in sizes} == sizes
    assert choose("compute", spec(8, 8), DEVICE, "few").name == "few"  # as asked for
    offer(few, many)  # neither is meant for 25 elements, but both can compute them
    assert choose("compute", spec(5, 5), DEVICE).name in ("few", "many")


def test_a_kernel_may_suit_what_is_bound_by_its_bytes(offer) -> None:
    """An unknown device has 50 GFLOP/s of products and 10 GB/s: 5 operations a byte."""
    offer(
        tiles("streamed", 64, 0, priority=1, suits={"memory_bound": {"min": 100}}),
        tiles("other", 64, 0),
    )
    device = replace(
        DEVICE,
        max_compute_work_group_invocations=256,
        max_compute_work_group_count=(65535, 65535, 65535),
        max_shader_storage_block_size=1 << 27,
    )
    for k, chosen in ((9, "streamed"), (10, "streamed"), (11, "other")):  # n k / (2 (n + k))
        product = OpSpec.create(Matmul(), {"x": (1 << 14, k), "weight": (1000, k)}, {})
        assert choose("compute", product, device).name == chosen, k


def reason(made: OpSpec, device: Capabilities, tuned: Tuned, name: str | None = None) -> str:
    """Return the reason that is given for the kernel that is chosen."""
    chosen = choose("compute", made, device, name, tuned)
    text = why_chosen(chosen, made, device, name, tuned)
    start = f"{chosen.name} {dict(chosen.defaults)}, priority {chosen.priority}: "
    assert text.startswith(start)
    return text.removeprefix(start)


def test_the_reason_of_a_choice_is_how_it_was_made(offer, tmp_path) -> None:
    tuned = Tuned.load(None, DEVICE, "1")
    (tmp_path / "pointwise").mkdir()
    (tmp_path / "pointwise" / "few.comp").write_text("")
    few = kernel("few", folder=str(tmp_path), suits={"outputs": {"max": 16}}, tune={"A": [1, 2]})
    last = kernel("last", priority=-1)
    offer(few, last, kernel("wide", launch=launch(workgroup=[256]), priority=9))
    assert reason(spec(4, 4), DEVICE, tuned) == "the first of those that suit"
    assert reason(spec(8, 8), DEVICE, tuned, "few") == "asked for by name"
    offer(few)
    assert reason(spec(8, 8), DEVICE, tuned) == "no better one can run it"
    offer(few, last)
    tuned.keep("compute", spec(4, 4), TunedChoice.from_kernel(few.with_parameters(A=2), 1e-3, None))
    assert reason(spec(4, 4), DEVICE, tuned) == "tuned"
    offer(replace(few, tune={"A": (1,)}), last)  # which has the tuned parameters no more
    assert reason(spec(4, 4), DEVICE, tuned) == "the first of those that suit"


def test_a_kernel_of_stages_is_chosen_by_prediction_whatever_its_priority(monkeypatch) -> None:
    tuned = Tuned.load(None, DEVICE, "1")
    device = replace(DEVICE, max_compute_work_group_count=(65535, 65535, 65535))
    made = OpSpec.create(Conv2d(), {"x": (1, 64, 30, 30), "weight": (64, 64, 3, 3)}, {})
    monkeypatch.setattr(selector, "GAIN", 1e9)
    assert choose("compute", made, device).stages == "winograd"
    assert reason(made, device, tuned) == "the fastest by prediction"
    monkeypatch.setattr(selector, "GAIN", 0)  # so that none is predicted to be fast enough
    chosen = choose("compute", made, device)
    assert not chosen.stages and chosen.priority < 50  # which winograd_4 has
    assert reason(made, device, tuned) == "the first of those that suit"


@pytest.mark.parametrize(
    ("start", "chosen"), [(0.0, "flash_split"), (1000.0, "flash"), (None, "flash")]
)
def test_a_kernel_of_stages_takes_as_long_as_they_do(monkeypatch, start, chosen) -> None:
    """Attention of one token, in parts that are joined at once, late, or nobody knows when."""
    timing = None if start is None else TimingModel(start=start, term=0)
    rows = Architectures({"NVIDIA": (TuningRow({}, timing),)})

    def timed(op: str, backend: str) -> list[Kernel]:
        known = kernels_for(op, backend)
        return [replace(k, architectures=rows) for k in known] if op == "attention_sum" else known

    monkeypatch.setattr(selector, "kernels_for", timed)
    heads, keys = 6, 1500
    views = (StridedView(head=64, token=384), *(StridedView(0, 0, 64, 384),) * 2)
    op = Attention(1, heads, 1, keys, 64, 64, views)
    shapes = {"q": (1, 384), "k": (keys, 384), "v": (keys, 384)}
    assert choose("compute", OpSpec.create(op, shapes, {}), H200).name == chosen


def test_a_documents_kernel_runs_only_where_it_is_named(offer) -> None:
    theirs = kernel("theirs", folder="shaders/documents")
    assert theirs.document
    offer(theirs, kernel("ours", launch=launch(workgroup=[256])))
    with pytest.raises(UnsupportedOpError, match=r"cannot run on compute: ours: a workgroup"):
        choose("compute", spec(2, 2), DEVICE)
    assert choose("compute", spec(2, 2), DEVICE, "theirs") == theirs


def test_sizes_may_have_to_be_at_least_so_great(offer) -> None:
    offer(kernel("large", suits={"count": {"min": 24}}, priority=1), kernel("plain"))
    assert choose("compute", spec(4, 6), DEVICE).name == "large"
    assert choose("compute", spec(4, 5), DEVICE).name == "plain"
    offer(kernel("strange", suits={"pixels": {"min": 1}}))
    with pytest.raises(ShaderError, match="suits: pointwise has no pixels"):
        choose("compute", spec(4, 5), DEVICE)


def test_a_kernel_for_other_devices_is_passed_over(offer) -> None:
    ours = {"NVIDIA": {}, "Bifrost": "suits", "others": "slow"}
    offer(kernel("theirs", architectures=ours, priority=9), kernel("ours"))
    assert choose("compute", spec(2, 2), DEVICE).name == "ours"
    assert choose("compute", spec(2, 2), replace(DEVICE, renderer="Mali-G52")).name == "theirs"


def test_parameters_come_from_the_architecture_then_from_what_is_admitted() -> None:
    made = kernel(
        launch=launch(workgroup=["A", "B"]),
        tune={"A": [64, 16], "B": [2, 4]},
        architectures={"V3D": {"A": 32}},
    )
    assert fitted(made, DEVICE) == made
    v3d = replace(DEVICE, renderer="V3D 4.2")
    found = fitted(made, v3d)
    assert found is not None and found.defaults == {"A": 32, "B": 2}
    found = fitted(made, replace(v3d, max_compute_work_group_invocations=32))
    assert found is not None and found.defaults == {"A": 16, "B": 2}
    assert fitted(made, replace(v3d, max_compute_work_group_invocations=31)) is None


@pytest.mark.parametrize(
    ("layout", "shape", "rows", "columns"),
    [
        ("R4", (3, 5), 3, 8),
        ("R4", (2, 3, 3), 2, 12),
        ("R", (3, 5), 3, 5),
        ("R", (2, 3, 3), 2, 9),
        ("R", (5,), 1, 8),
        ("R4", (), 1, 4),
    ],
)
def test_rows_and_columns_cover_the_buffer(layout, shape, rows, columns) -> None:
    places = bound(x0=0, out=1)
    operands = {name: {**place, "layout": layout} for name, place in places.items()}
    sizes = spec(*shape).sizes(kernel(operands=operands))
    assert (sizes["x0_rows"], sizes["x0_columns"], sizes["x0_row"]) == (rows, columns, columns)
    assert sizes["x0_size"] == -(-rows * columns // 4) * 4


@pytest.mark.parametrize(
    ("renderer", "expected"),
    [
        ("NVIDIA H200/PCIe/SSE2", "NVIDIA"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe"),
        ("Mali-T760 (Panfrost)", "Midgard"),
        ("Mali-T628", "Midgard"),
        ("Mali-G31 (Panfrost)", "Bifrost"),
        ("Mali-G52", "Bifrost"),
        ("Mali-G610 (Panfrost)", "Valhall"),
        ("Mali-G57", "Valhall"),
        ("V3D 4.2.14.0", "V3D"),
        ("Adreno (TM) 540", "Adreno"),
        ("Board", None),
    ],
)
def test_architectures(renderer, expected) -> None:
    assert architecture(replace(DEVICE, renderer=renderer)) == expected


def test_freedreno_is_known_by_its_vendor() -> None:
    assert architecture(replace(DEVICE, vendor="freedreno", renderer="FD630")) == "Adreno"


def test_a_kernel_that_is_slow_on_an_architecture_is_passed_over_there(offer) -> None:
    offer(kernel("quick", architectures={"V3D": "slow"}, priority=1), kernel("plain"))
    assert choose("compute", spec(2, 2), DEVICE).name == "quick"
    assert choose("compute", spec(2, 2), replace(DEVICE, renderer="V3D 4.2")).name == "plain"


@pytest.mark.parametrize(
    ("sizes", "weight", "name"),
    [
        ((1000, 8, 8, 8), None, "gemm_batched_small"),
        ((384, 7, 7, 32), "R", "gemm_batched_small"),
        ((64, 3, 129, 64), "C", "gemm_batched_few_rows"),
        ((7, 129, 13, 64), "C", "gemm_batched_few_columns"),
        ((1000, 3, 3, 3), "R", "gemm_unaligned"),
        ((64, 3, 129, 5), "R", "gemm_unaligned"),
        ((64, 3, 129, 5), None, "gemm_batched_few_rows"),  # packed once
        ((2, 33, 31, 64), "R", "gemm_tiled"),
        ((1, 8, 8, 8), None, "gemm_split_k_column_major"),
    ],
)
def test_stacks_of_small_matrices_share_workgroups(sizes, weight, name) -> None:
    """And those whose rows are no whole fours are taken as they lie."""
    batch, m, n, k = sizes
    stack = (batch, n, k) if batch > 1 else (n, k)
    layouts = {} if weight is None else {"x": "R", "weight": weight}
    found = OpSpec.create(Matmul(), {"x": (batch * m, k), "weight": stack}, layouts)
    nvidia = replace(DEVICE, vendor="NVIDIA", max_compute_work_group_count=(65535, 65535, 65535))
    assert choose("compute", found, nvidia).name == name


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((2048, 384), "columns_tall"),
        ((512, 384), "columns"),
        ((100_000, 384), "columns_two_stage"),
        ((2048, 8), "columns_two_stage"),
    ],
)
def test_tall_columns_take_one_launch_where_they_are_enough(shape, name) -> None:
    sums = OpSpec.create(Reduce("sum", (0,)), {"x0": shape}, {"x0": "R"})
    sizes = {"max_compute_work_group_invocations": 1024, "max_compute_shared_memory_size": 49152}
    sizes |= {f"max_compute_work_group_{n}": (1024, 1024, 64) for n in ("size", "count")}
    large = replace(DEVICE, max_shader_storage_block_size=1 << 31, **sizes)
    assert choose("compute", sums, replace(large, vendor="NVIDIA")).name == name
    assert choose("compute", sums, replace(large, vendor="ARM")).name != "columns_tall"


WIDE_H200 = replace(
    H200, max_compute_work_group_invocations=1024, max_compute_work_group_size=(1024, 1024, 64)
)


@pytest.mark.parametrize(
    ("op", "shape", "fast"),
    [
        # the kernel, lanes and the numbers that each keeps; what took at most 1.05 times the time
        # of the fastest that was measured on an H200, or is more exact (`groups`)
        (Softmax(), (16_000, 333), ("rows_middling", 32, 16)),
        (Softmax(), (65_536, 1024), ("rows_long", 128, 8)),
        (Softmax(), (1024, 4096), ("rows_long", 256, 16)),
        (Softmax(), (4096, 4096), ("rows_long", 256, 16)),
        (Softmax(), (8, 50_257), ("rows_long", 1024, 16)),
        (Softmax(), (64, 50_257), ("rows_long", 1024, 16)),
        (Softmax(), (512, 50_257), ("rows_long", 1024, 16)),
        (Normalize(1), (4096, 384), ("rows_middling", 32, 16)),
        (Normalize(1), (6304, 768), ("rows_middling", 32, 24)),
        (Normalize(groups=0), (8, 64, 128, 128), ("groups", 512, 32)),
        (Normalize(groups=0), (32, 64, 128, 128), ("groups", 512, 32)),
        (Normalize(groups=32), (8, 320, 64, 64), ("rows_long", 512, 16)),
        (Normalize(groups=32), (32, 320, 64, 64), ("rows_long", 512, 16)),
    ],
    ids=str,
)
def test_rows_are_shared_by_as_many_lanes_as_are_fast(op, shape, fast) -> None:
    taken = choose("compute", OpSpec.create(op, {"x": shape}, {}), WIDE_H200)
    assert (taken.name, taken.defaults["LANES"], taken.defaults["KEPT"]) == fast


def test_so_many_rows_that_workgroups_walk_several_are_not_kept() -> None:
    """On an H200 262,144 took 997 us by `rows`, and 1,848 by `rows_long`."""
    taken = choose("compute", OpSpec.create(Softmax(), {"x": (262_144, 1024)}, {}), WIDE_H200)
    assert taken.name == "rows"


@pytest.mark.parametrize(("numbers", "name"), [(16_384, "groups"), (16_388, "rows_long")])
def test_groups_are_normalised_by_the_more_exact_kernel_where_it_applies(numbers, name) -> None:
    for samples in (1, 8, 32):
        spec = OpSpec.create(Normalize(groups=0), {"x": (samples, 64, numbers // 4, 4)}, {})
        assert choose("compute", spec, WIDE_H200).name == name


@pytest.mark.parametrize("extent", [333, 1024, 50_257])
def test_boards_take_rows_for_long_rows(extent) -> None:
    board = replace(WIDE_H200, vendor="ARM", renderer="Mali-G52")
    for op in (Softmax(), Normalize(1)):
        taken = choose("compute", OpSpec.create(op, {"x": (8, extent)}, {}), board)
        assert taken.name == "rows"


def attention(sizes, masked=False, windows=None) -> OpSpec:
    """Attention of operands that lie one behind the other, each by itself."""
    batch, heads, queries, keys, width, columns = sizes
    images = 1 if windows is None else batch
    lengths = {"q": (queries, width), "k": (keys, width), "v": (keys, columns)}
    shapes = {name: (batch, heads, *numbers) for name, numbers in lengths.items()}
    views = [
        StridedView(0, heads * t * n // images, t * n // images, n) for t, n in lengths.values()
    ]
    if masked:
        shapes["mask"] = (queries, keys)
        views.append(StridedView(0, 0, 0, keys))
    return OpSpec.create(Attention(*sizes, tuple(views), windows=windows), shapes, {})


@pytest.mark.parametrize("processors", [0, 20, 132])
@pytest.mark.parametrize(
    ("sizes", "masked", "windows", "chosen"),
    [
        ((96, 1, 197, 197, 64, 64), False, None, "flash"),
        ((1, 12, 64, 64, 64, 64), True, None, "flash_masked"),
        ((8, 6, 1500, 1500, 64, 64), False, None, "flash"),
        ((1, 2, 300, 7, 33, 80), True, None, "flash_masked"),
        ((64, 3, 49, 49, 32, 32), True, Windows(8, 8, 7, 7, 3, 3), "flash_masked"),
        ((64, 3, 49, 49, 32, 32), False, Windows(8, 8, 7, 7), "flash"),
        ((1, 6, 1, 1500, 64, 64), False, None, "flash_split"),
        ((1, 6, 1, 1500, 64, 64), True, None, "flash_split_masked"),
        ((1, 6, 1, 1500, 63, 64), False, None, "flash"),  # keys that are no whole vec4
        ((1, 12, 4, 100, 64, 64), True, None, "flash_masked"),
        ((1, 12, 4, 100, 64, 32), False, None, "flash"),
    ],
    ids=str,
)
def test_attention_on_nvidia(sizes, masked, windows, chosen, processors) -> None:
    """With masks and without, though kernels without one cannot say how long one would take."""
    device = replace(H200, multiprocessors=processors)
    assert choose("compute", attention(sizes, masked, windows), device).name == chosen


@pytest.mark.parametrize(
    ("sizes", "fast"),
    [
        # invocations of a workgroup, the keys that it takes at a time, VN and its slices; what took
        # at most 1.05 times the time of the fastest row on an H200
        ((1, 12, 197, 197, 64, 64), {(512, 64, 1, 4)}),
        ((2, 12, 197, 197, 64, 64), {(128, 64, 1, 2)}),
        ((8, 12, 197, 197, 64, 64), {(128, 64, 2, 1), (64, 64, 2, 1)}),
        ((32, 12, 197, 197, 64, 64), {(128, 64, 2, 1), (64, 64, 2, 1)}),
        ((1, 12, 128, 128, 64, 64), {(128, 64, 1, 2)}),
        ((1, 6, 128, 128, 64, 64), {(128, 64, 1, 2), (128, 64, 1, 4)}),
        ((8, 6, 128, 128, 64, 64), {(128, 64, 1, 2)}),
        ((32, 6, 128, 128, 64, 64), {(128, 64, 2, 1)}),
        ((8, 6, 1500, 1500, 64, 64), {(128, 64, 2, 1)}),
        ((1, 12, 384, 384, 64, 64), {(128, 64, 1, 2)}),
        ((1, 12, 64, 64, 64, 64), {(128, 64, 1, 1)}),
        ((8, 12, 1, 512, 64, 64), {(256, 64, 1, 8)}),
        ((512, 3, 49, 49, 32, 32), {(64, 64, 1, 1)}),
        ((128, 6, 49, 49, 32, 32), {(64, 64, 1, 1)}),
    ],
    ids=str,
)
def test_attention_takes_rows_that_are_fast(sizes, fast) -> None:
    many = {"max_compute_work_group_invocations": 1024}
    device = replace(H200, max_compute_work_group_size=(1024, 1024, 64), **many)
    taken = choose("compute", attention(sizes), device).defaults
    lanes = taken["WG_X"] * taken["WG_Y"] * taken["SLICES"]
    assert (lanes, taken["WG_X"] * taken["TN"], taken["VN"], taken["SLICES"]) in fast


@pytest.mark.parametrize(
    ("samples", "units", "processors", "chosen"),
    [
        # microseconds of a step that an H200 took: 2.6 by dataflow and 8.0 by launches; 2.0, and
        # 4.2 by one workgroup for each sample
        (8, 256, 132, "dataflow"),
        (8, 256, 0, "wavefront_batched"),  # nobody tells how many workgroups run at once
        (1, 128, 132, "dataflow"),
        (64, 128, 132, "dataflow"),
        (128, 128, 132, "persistent"),  # all at once, where dataflow takes 4 turns
        (1, 16, 132, "persistent"),
    ],
)
def test_steps_of_recurrent_layers_go_by_predicted_time(samples, units, processors, chosen) -> None:
    device = replace(H200, multiprocessors=processors, max_compute_work_group_invocations=1024)
    device = replace(device, max_compute_work_group_size=(1024, 1024, 64))
    gates = [call("add", Arg(i), Arg(4 + i)) for i in range(4)]
    cell = call("add", call("mul", gates[2], Arg(9)), call("mul", gates[0], gates[3]))
    shapes = {
        "x": (1, 64, samples, 4, units),
        "weight": (1, 4, units, units),
        "state": (1, samples, units // 4, 2, 4),
    }
    spec = OpSpec.create(Recurrence((call("mul", gates[1], cell), cell)), shapes, {})
    assert choose("compute", spec, device).name == chosen
