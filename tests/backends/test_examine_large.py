"""Large launches, of whose results some are looked at: what is wrong with them is found.

The fakes write into a result's memory behind the launch, as a driver that is wrong would.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import moderngl
import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.backends.launch import GlLaunch
from glnn.core.layout import parse
from glnn.core.types import DType
from glnn.gl import Buffer
from glnn.gl.buffer import gather, repeat
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Matmul, Pointwise
from glnn.graph.operators.winograd import WinogradInput
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import verdict_key
from glnn.validation.examination import examine_choices
from glnn.validation.reference_case import MOST, STRETCHES
from tests.backends.harness import BACKENDS

pytestmark = pytest.mark.usefixtures("by_methods")

SIGMOID = Pointwise(call("sigmoid", Arg(0)))
ROWS, COLUMNS = 41_001, 123
SIZE = ROWS * COLUMNS  # more than is looked at
Spoil = Callable[[np.ndarray], None]
"""Changes what a launch made."""


@pytest.fixture
def examined(backend, monkeypatch, tmp_path) -> GlBackend:
    """A backend that has seen no kernel yet."""
    monkeypatch.setenv("GLNN_TRUST", "0")
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    return BACKENDS[backend.name](backend.device)


def _spoiled(monkeypatch, spoil: Spoil) -> None:
    """Have `spoil` done to each large result that one launch made, not several of its parts."""
    perform = GlLaunch.__call__

    def performed(self):
        perform(self)
        launches = getattr(self, "_draws", None) or self._dispatches
        if self.out.words > MOST and len(launches) == 1:
            copy = self.out.push(self.out._device)
            numbers = np.empty(self.out.words, np.float32)
            copy.read_into(numbers, size=numbers.nbytes, offset=self.out.first)
            spoil(numbers)
            self.out._device.write_buffer(copy, numbers, self.out.first)

    monkeypatch.setattr(GlLaunch, "__call__", performed)


def _last(numbers: np.ndarray) -> None:
    numbers[SIZE - 1] += 0.5


def _first(numbers: np.ndarray) -> None:
    numbers[0] += 0.5


def _last_sample(numbers: np.ndarray) -> None:
    numbers[SIZE - COLUMNS : SIZE] *= 1.01


def _tail(numbers: np.ndarray) -> None:
    numbers[SIZE - 64 :] = np.nan


def _unwritten(numbers: np.ndarray) -> None:
    numbers[SIZE // 3 : SIZE // 3 + 2 * SIZE // STRETCHES] = np.nan


def _wrapped(numbers: np.ndarray) -> None:
    half = 1 << 21
    numbers[: SIZE - half] = numbers[half:SIZE].copy()
    numbers[half:] = np.nan


def _landed_early(numbers: np.ndarray) -> None:
    """The results of the last samples are where those of the first ones should be, too."""
    numbers[: 4 * COLUMNS] = numbers[SIZE - 4 * COLUMNS : SIZE].copy()


def _at_a_power_of_two(numbers: np.ndarray) -> None:
    numbers[1 << 22] = 0


def _every_column_after(numbers: np.ndarray) -> None:
    numbers[:SIZE].reshape(ROWS, COLUMNS)[:, 100:] *= 1.01


FAULTS = [
    *(_first, _last, _last_sample, _tail, _unwritten, _wrapped, _landed_early),
    *(_at_a_power_of_two, _every_column_after),
]


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda f: f.__name__.strip("_"))
def test_what_is_wrong_with_a_large_result_is_found(examined, monkeypatch, spoil) -> None:
    """Launches in parts are right: that is what is made of it from then on."""
    spec = OpSpec.create(SIGMOID, {"x0": (ROWS, COLUMNS)}, {})
    chosen = examined.choose(spec)
    key = verdict_key(chosen, spec, examined.device.capabilities)
    assert not examine_choices(examined, [(chosen, spec)])
    assert examined.verdicts.found.pop(key).part is None, "it is right before"
    _spoiled(monkeypatch, spoil)
    assert not examine_choices(examined, [(chosen, spec)])
    assert examined.verdicts.found[key].part is not None


@pytest.mark.parametrize("first", [1_500_017, 2_700_003, 4_900_000])
def test_where_large_results_begin_to_be_wrong(examined, monkeypatch, first) -> None:
    """Launches in parts are right: the largest that is right is found, where the backend knows."""

    def spoil(numbers: np.ndarray) -> None:
        numbers[first:] = -7

    spec = OpSpec.create(SIGMOID, {"x0": (ROWS, COLUMNS)}, {})
    chosen = examined.choose(spec)
    _spoiled(monkeypatch, spoil)
    assert not examine_choices(examined, [(chosen, spec)])
    verdict = examined.verdicts.found[verdict_key(chosen, spec, examined.device.capabilities)]
    size = max(examined.launch_size(chosen, spec))
    known = first * size // SIZE if examined.name == "feedback" else size // 2
    assert verdict.part == pytest.approx(min(known, size // 2), abs=2)


def test_a_stack_of_large_matrices(examined, rng, monkeypatch) -> None:
    """Of each matrix few rows are known: what is wrong in one of them is found."""
    if examined.name == "feedback" and examined.device.capabilities.software == "softpipe":
        pytest.skip("its draws of more than 4,096 vertices are wrong before, too")
    spec = OpSpec.create(Matmul(), {"x": (36 * 2000, 20), "weight": (36, 64, 20)}, {})
    chosen = examined.choose(spec)
    key = verdict_key(chosen, spec, examined.device.capabilities)
    assert not examine_choices(examined, [(chosen, spec)])
    assert examined.verdicts.found.pop(key).part is None, "it is right before"

    def spoil(numbers: np.ndarray) -> None:
        rows = numbers[: 36 * 2000 * 64].reshape(36, 2000, 64)
        rows[20] = rows[19].copy()

    _spoiled(monkeypatch, spoil)
    assert not examine_choices(examined, [(chosen, spec)])
    assert examined.verdicts.found[key].part is not None


def test_winograd_of_many_images(examined, monkeypatch) -> None:
    if examined.name == "feedback":
        pytest.skip("it has kernels of its own, of the same op")
    op = WinogradInput(4, (1, 1, 1, 1))
    spec = OpSpec.create(op, {"x": (40, 8, 56, 56)}, {"x": "nhwC4c"})
    chosen = examined.choose(spec)
    reference = WinogradInput.compute
    images: list[int] = []

    def computed(self, operands):
        images.append(len(operands["x"]))
        return reference(self, operands)

    monkeypatch.setattr(WinogradInput, "compute", computed)
    assert not examine_choices(examined, [(chosen, spec)])
    assert 0 < max(images) <= 7, "NumPy computed more than few"


@pytest.mark.parametrize("rows", [2 * ROWS, 8 * ROWS])
def test_little_is_read_and_little_memory_taken(examined, monkeypatch, rows) -> None:
    """However large the result; the zeros that memory begins with are the host's one copy."""
    read = 0
    read_into = moderngl.Buffer.read_into

    def counted(self, buffer, size=-1, **more):
        nonlocal read
        read += self.size if size < 0 else size
        return read_into(self, buffer, size, **more)

    monkeypatch.setattr(moderngl.Buffer, "read_into", counted)
    spec = OpSpec.create(SIGMOID, {"x0": (rows, COLUMNS)}, {})
    chosen = examined.choose(spec)
    tracemalloc.start()
    try:
        assert not examine_choices(examined, [(chosen, spec)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    looks = 4 if examined.watched else 2
    assert 0 < read <= looks * 4 * (MOST + (1 << 17))
    assert peak < 4 * rows * COLUMNS + (80 << 20)


def test_repeating_and_gathering(backend) -> None:
    device = backend.device
    buffer = Buffer((1000, 5), parse("R"))
    numbers = np.arange(35, dtype=np.float32)
    buffer.push(device)
    repeat(device, buffer, (0, 4 * 4999), numbers)
    repeat(device, buffer, (4 * 100, 4 * 103), numbers[:2])
    buffer.mark_written()
    expected = np.resize(numbers, 5000)
    expected[100:103] = 0, 1, 0
    expected[4999] = 0
    found = gather(device, buffer, [(3, 9), (99, 104), (4990, 5000)])
    np.testing.assert_array_equal(
        found, np.concatenate([expected[3:9], expected[99:104], expected[4990:]])
    )
    np.testing.assert_array_equal(buffer.pull().reshape(-1), expected)


@pytest.mark.parametrize("name", ["R", "packed"])
def test_repeating_and_gathering_bytes(backend, name) -> None:
    """Also at places that are no whole words."""
    device, layout = backend.device, parse(name)
    buffer = Buffer((101,), layout, dtype=DType.uint8)
    buffer.push(device)
    numbers = layout.pack(np.arange(12, dtype=np.uint8))[:11]
    repeat(device, buffer, (0, 101 * numbers.itemsize), numbers)
    buffer.mark_written()
    found = gather(device, buffer, [(1, 4), (22, 27), (98, 101)])
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, [1, 2, 3, 0, 1, 2, 3, 4, 10, 0, 1])
    np.testing.assert_array_equal(buffer.pull(), np.resize(np.arange(11), 101))
