"""Drivers that state more than they have: doctor finds what holds, and nothing wrong follows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import glnn.ops
from glnn.backends.compute import Compute
from glnn.doctor import limit_probes, limits
from glnn.doctor.limit_probes import probes
from glnn.doctor.limits import probe_limits
from glnn.doctor.scratch_program import count_from, scatter
from glnn.gl import Device, Program, Source
from glnn.gl.device_info import Capabilities
from glnn.gl.limit_overrides import BrokenLimit, LimitOverrides

GROUPS = 300  # that a fake driver runs at the most, along y
WRAPS = 1 << 18  # words at which another fake begins a storage block anew


@pytest.fixture
def cached(monkeypatch, tmp_path):
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def own(cached) -> Iterator[Device]:
    """A device that a test may lower."""
    with Device() as opened:
        if not opened.capabilities.compute:
            pytest.skip(opened.capabilities.why_no_compute() or "")
        yield opened


def _only(monkeypatch, *names: str) -> None:
    """Let these limits alone be tried."""
    chosen = tuple(one for one in probes() if one.limit in names)
    assert chosen
    monkeypatch.setattr(limits, "probes", lambda: chosen)


def _claim(monkeypatch, **claimed) -> None:
    """Let every device that opens state these limits."""
    ask = Capabilities.query.__func__
    monkeypatch.setattr(
        Capabilities,
        "query",
        classmethod(lambda cls, context: replace(ask(cls, context), **claimed)),
    )


@pytest.fixture
def few_groups(monkeypatch) -> None:
    """A driver that leaves out the workgroups from the 300th on along y, and says nothing."""
    dispatch_call = Program.dispatch_call

    def fewer(self, groups):
        function, (x, y, z) = dispatch_call(self, groups)
        return function, (x, min(y, GROUPS), z)

    monkeypatch.setattr(Program, "dispatch_call", fewer)


def test_an_honest_device_is_believed(own, cached, monkeypatch) -> None:
    monkeypatch.setattr(limits, "CAP", 8 << 20)  # `make check-doctor` goes to the end
    stated = own.capabilities
    found = probe_limits(own)
    assert found.ok and not found.sentences and own.capabilities == stated
    assert not (cached / "limits").exists()
    names = {one.limit for one in found.findings}
    relied = set(stated.limits()) - {"max_transform_feedback_separate_attribs"}
    assert names == {name for name in relied if np.any(getattr(stated, name))}
    for one in found.findings:
        assert one.holds == one.said or one.note
    assert json.loads(json.dumps(found.to_json()))["ok"] is True
    assert len(found.lines()) == len(found.findings)


def test_what_a_driver_refuses_is_found_by_halving(own, cached, monkeypatch) -> None:
    """It compiles no such workgroups, or links no such memory."""
    true = own.capabilities
    names = "max_compute_work_group_invocations", "max_compute_shared_memory_size"
    _only(monkeypatch, *names)
    own.capabilities = replace(true, **{name: 4 * getattr(true, name) for name in names})
    found = probe_limits(own)
    assert [one.limit for one in found.wrong] == list(names)
    assert [one.holds for one in found.wrong] == [getattr(true, name) for name in names]
    assert all("the driver refuses the shader" in one.why for one in found.wrong)
    assert own.capabilities == true  # lowered at once
    with Device() as again:
        assert again.capabilities == true
    for one, sentence in zip(found.wrong, found.sentences, strict=True):
        assert str(one.said) in sentence and str(one.holds) in sentence


def test_groups_that_are_left_out_are_found_and_no_longer_asked_for(
    own, cached, monkeypatch, few_groups
) -> None:
    monkeypatch.setenv("GLNN_TRUST", "1")  # nothing but the limit keeps numbers right
    _only(monkeypatch, "max_compute_work_group_count")
    x = np.linspace(-1, 1, 1 << 19, dtype=np.float32).reshape(-1, 8)
    w = np.linspace(1, 2, 16, dtype=np.float32).reshape(8, 2)
    expected = x.astype(np.float64) @ w
    stated = own.capabilities.max_compute_work_group_count
    assert np.abs(glnn.ops.matmul(x, w, backend=Compute(own)) - expected).max() > 0.1
    found = probe_limits(own)
    assert [(one.axis, one.holds) for one in found.wrong] == [(1, GROUPS)]
    assert "were never written" in found.wrong[0].why
    with Device() as believed:
        most = believed.capabilities.max_compute_work_group_count
        assert most == (stated[0], GROUPS, stated[2])
        right = glnn.ops.matmul(x, w, backend=Compute(believed))
    assert np.abs(right - expected).max() < 1e-5


def test_a_block_that_begins_anew_is_found(own, cached, monkeypatch) -> None:
    compute = Program.compute.__func__

    def wrapped(cls, device, source):
        text = source.text.replace("result[i]", f"result[i % {WRAPS}u]")
        return compute(cls, device, Source(source.name, text, source.origin))

    monkeypatch.setattr(Program, "compute", classmethod(wrapped))
    _only(monkeypatch, "max_shader_storage_block_size")
    own.capabilities = replace(own.capabilities, max_shader_storage_block_size=8 * WRAPS)
    found = probe_limits(own)
    assert [one.holds for one in found.wrong] == [4 * WRAPS]
    assert own.capabilities.max_shader_storage_block_size == 4 * WRAPS


def test_an_alignment_that_is_too_fine_becomes_coarser(own, cached, monkeypatch) -> None:
    """A fake that binds from the 64th byte below on."""
    aligned = limit_probes.alignment
    fake = replace(
        next(one for one in probes() if "alignment" in one.limit),
        work=lambda ground, n: aligned(ground, n) or ("begins elsewhere" if n % 64 else None),
    )
    monkeypatch.setattr(limits, "probes", lambda: (fake,))
    own.capabilities = replace(own.capabilities, shader_storage_buffer_offset_alignment=16)
    found = probe_limits(own)
    assert [(one.said, one.holds) for one in found.wrong] == [(16, 64)]
    assert "right from 64 on only" in found.sentences[0]
    assert own.capabilities.shader_storage_buffer_offset_alignment == 64
    with Device(limits="es31-minimum") as lowest:
        assert lowest.capabilities.shader_storage_buffer_offset_alignment == 256


@pytest.mark.parametrize("said", (12, 63))
def test_textures_that_show_others_are_found(own, cached, monkeypatch, said) -> None:
    """A driver that knows ten textures: the eleventh is the first again."""
    capture = Program.feedback.__func__

    def fewer(cls, device, source, varyings):
        text = source.text
        for unit in range(99, 9, -1):
            text = text.replace(f"texelFetch(data{unit},", "texelFetch(data0,")
        return capture(cls, device, Source(source.name, text, source.origin), varyings)

    monkeypatch.setattr(Program, "feedback", classmethod(fewer))
    _only(monkeypatch, "max_vertex_texture_image_units")
    own.capabilities = replace(own.capabilities, max_vertex_texture_image_units=said)
    assert [one.holds for one in probe_limits(own).wrong] == [10]


def test_no_memory_says_nothing_of_a_limit(own, cached, monkeypatch) -> None:
    from glnn.doctor.scratch_program import ScratchSpace
    from glnn.errors import NoRoomError

    memory = ScratchSpace.memory

    def little(self, words, content=None):
        if words > 1000:
            raise NoRoomError("no memory")
        return memory(self, words, content)

    monkeypatch.setattr(ScratchSpace, "memory", little)
    _only(monkeypatch, "max_compute_work_group_count")
    found = probe_limits(own)
    assert found.ok
    assert all(one.note and 500 < one.holds <= 1000 for one in found.findings)


def test_what_was_found_lowers_every_device_that_opens(cached, monkeypatch) -> None:
    with Device() as plain:
        stated = plain.capabilities
    kept = LimitOverrides.load(cached, stated)
    kept.add({"max_texture_size": BrokenLimit(stated.max_texture_size, 1024, "seen")})
    kept.add({"max_texture_size": BrokenLimit(1024, 4096, "seen later, and less strictly")})
    for limits_ in (None, "es31-minimum"):
        with Device(limits=limits_) as lowered:
            assert lowered.capabilities.max_texture_size == 1024
    with Device() as lowered:
        assert lowered.capabilities == replace(stated, max_texture_size=1024)
        LimitOverrides.load(cached, lowered.capabilities).forget()
    with Device() as again:
        assert again.capabilities == stated
    _claim(monkeypatch, version_text="OpenGL ES 3.2 another driver")
    kept.add({})
    with Device() as other:
        assert other.capabilities.max_texture_size == stated.max_texture_size


@pytest.mark.parametrize(
    "damage",
    (
        "{",
        '{"max_texture_size": {"said": 1, "holds": -5, "why": ""}}',
        '{"max_texture_size": {"said": 1, "holds": [1, 2, 3], "why": ""}}',
        '{"max_texture_size": {"said": 1, "holds": "9", "why": ""}}',
    ),
)
def test_a_damaged_file_is_passed_over_with_a_warning(cached, damage) -> None:
    with Device() as plain:
        stated = plain.capabilities
    file = LimitOverrides.load(cached, stated).file
    file.write({})
    text = file.path.read_text().replace('"limits": {}', f'"limits": {damage}')
    file.path.write_text(text)
    with pytest.warns(UserWarning, match="damaged"), Device() as opened:
        assert opened.capabilities == stated


def test_numbers_are_scattered_as_shaders_do(own) -> None:
    """By integers of any length, and no two alike close by."""
    for place in (0, 1, 2, 12345, 2**20, 2**31, 2**32 - 1):
        i = ((place ^ (place >> 16)) * 0x7FEB352D) % 2**32
        i = (((i ^ (i >> 15)) * 0x846CA68B) % 2**32) >> 8
        assert scatter(np.array([place], np.uint32))[0] == i
    some = scatter(count_from(0, 1 << 16))
    for step in (1, 2, 1 << 8, 1 << 15):
        assert np.count_nonzero(some[step:] == some[:-step]) < 4


def test_a_context_that_is_reset_goes_no_further(own, cached, monkeypatch) -> None:
    """The driver resets it for more than 20 storage blocks; the rest is tried on a new device."""

    def reset(ground, count):
        if count > 20:
            raise ground.device._lose("dispatch doctor", "guilty")
        return None

    blocks = next(one for one in probes() if one.limit == "max_compute_shader_storage_blocks")
    groups = next(one for one in probes() if one.limit == "max_compute_work_group_count")
    fakes = replace(blocks, work=reset), replace(groups, most=100)
    monkeypatch.setattr(limits, "probes", lambda: fakes)
    own.capabilities = replace(own.capabilities, max_compute_shader_storage_blocks=50)
    found = probe_limits(own)
    assert own.lost is not None and [one.holds for one in found.wrong] == [20]
    assert "was reset by its driver" in found.wrong[0].why
    assert found.findings[1].ok
    with own.reopen() as again:
        assert again.capabilities.max_compute_shader_storage_blocks <= 20


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("no"), AssertionError()], ids=repr)
def test_a_limit_whose_try_raises_does_not_end_the_doctor(own, monkeypatch, error) -> None:
    _only(monkeypatch, "max_compute_shared_memory_size")

    def raising(*given):
        raise error

    monkeypatch.setattr(limits._LimitSearch, "_run_probe", raising)
    (found,) = probe_limits(own).findings
    assert not found.ok and type(error).__name__ in (found.why or "")
