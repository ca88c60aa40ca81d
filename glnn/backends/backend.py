"""The interface of backends: choose a kernel for an op, and prepare the op to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from glnn.core.layout import Layout
from glnn.core.types import DType, Shape
from glnn.errors import LimitError, UnsupportedOpError
from glnn.gl import Device, Fence
from glnn.gl.command_encoder import BlockPart
from glnn.graph.operator import Operator
from glnn.kernels.cost_model import Prediction
from glnn.kernels.op_spec import OpSpec
from glnn.runtime.store import Store, T

Operand = Store | BlockPart
"""An allocated tensor, or the part of a memory block that the tensor will have."""
Launch = Callable[[], None]
"""A prepared op: calling it computes the op once, without any shape logic."""


class Transfer(Enum):
    """Direction of a tensor's transfer between host and device in each run."""

    TO_DEVICE = "the host writes it before the run"
    TO_HOST = "the host reads it after the run"


class Memory(Protocol):
    """A memory allocation that several tensors share, one after the other."""

    @property
    def nbytes(self) -> int: ...


class Choice(Protocol):
    """The kernel chosen for an op."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Alternative:
    """A kernel that may compute a spec, with its predicted cost."""

    choice: Choice
    takes: Prediction


class Backend(ABC):
    """A way to run ops. `device` is None where no GL is involved."""

    name: ClassVar[str]
    operands: ClassVar[int] = 16  # the textures that every vertex shader can have
    """The most operands of a fused op; a fusion with more is undone."""
    joins: ClassVar[int] = 16
    """The most tensors that one concatenation joins."""
    shares: ClassVar[bool] = False
    """True where tensors may share memory (see `memory`)."""
    subviews: ClassVar[bool] = False
    """True where kernels read and write channel ranges of wider images (`core/layout/strip.py`)."""
    packs: ClassVar[bool] = False
    """True where constants are packed into their layout by `gl.transfer.pack_words`."""
    in_place: ClassVar[bool] = False
    """True where a launch may overwrite memory that it reads, at the same place."""
    device: Device | None

    @property
    def binds(self) -> int:
        """The number of operands that a kernel can always bind."""
        return self.operands

    @property
    def takes_bytes(self) -> bool:
        """Return True where some kernels accept int8 weights, four in a word."""
        return False

    @property
    def adjoining(self) -> int:
        """The most bytes of adjacent tensors that a launch can bind as one; 0 for none."""
        return 0

    @property
    def operand_bytes(self) -> int:
        """Return the most bytes of an operand that a kernel reads at once; 0 without a limit."""
        return 0

    @abstractmethod
    def choose(self, spec: OpSpec, kernel: str | None = None) -> Choice:
        """Choose the kernel that computes `spec`, or the one called `kernel`.

        Raises UnsupportedOpError or LimitError with the reason where there is none.
        """

    def alternatives(self, choice: Choice, spec: OpSpec) -> list[Alternative]:
        """Return the kernels that could compute `spec`, `choice` first; empty without others."""
        return []

    def suits(self, spec: OpSpec, kernel: str | None = None) -> bool:
        """Return True where a kernel of this backend is meant for specs like `spec`.

        kernel: the name of a requested kernel, which only has to be able to compute it.
        """
        return False

    def takes(self, choice: Choice, spec: OpSpec) -> bool:
        """Return True where `choice`, with its parameters, can compute `spec` here.

        Raises UnsupportedOpError where `choice` cannot take such a spec at all.
        """
        return True

    def operand_in_result(self, choice: Choice, spec: OpSpec) -> str | None:
        """Return the operand that a launch reads in the result's memory, where it is copied to."""
        return None

    @abstractmethod
    def layouts(self, choice: Choice, spec: OpSpec) -> Mapping[str, Layout]:
        """Return the layout in which `choice` wants each operand and leaves `out`."""

    def view_layouts(self, op: Operator, layout: str) -> tuple[str, str]:
        """Return the layouts of the input, now in `layout`, and of the result of the view `op`."""
        return op.view_layouts(layout)

    def holds(self, dtype: DType) -> bool:
        """Return True where its memory stores `dtype`; other tensors stay in host memory."""
        return True

    def capacity(self, floats: int) -> int:
        """Return the floats to allocate for a tensor of `floats`."""
        return floats

    def copies(self, choice: Choice, spec: OpSpec) -> Mapping[str, int]:
        """Return the bytes of each operand that `choice` copies to a texture, by name.

        The original of a copied parameter is not kept.
        """
        return {}

    def reads(self, choice: Choice, spec: OpSpec) -> Mapping[str, str]:
        """Return the access of each operand: "buffer", "attribute", or a GLSL sampler type.

        Empty for a backend with a single kind of access.
        """
        return {}

    def stored(self, dtype: DType) -> DType:
        """Return the type in which weights of `dtype` are stored here."""
        return dtype

    @abstractmethod
    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> Store:
        """Allocate a tensor: filled with zeros, or within `memory`, uninitialized.

        offset: the word of `memory` at which it begins, where other tensors lie beside it.
        """

    @abstractmethod
    def prepare(
        self,
        choice: Choice,
        spec: OpSpec,
        operands: Mapping[str, Operand],
        out: Operand,
        fixed_uniforms: bool = False,
    ) -> Launch:
        """Prepare `choice` to compute `spec` from `operands` into `out`; return the launch.

        Where these are not allocated yet, the launch can be recorded but not called.
        fixed_uniforms: True to build a program for this spec's uniforms alone, which need not be
        set in each run: it saves host time where launches are small.
        """

    def measures(self, choice: Choice, spec: OpSpec) -> tuple[int, ...]:
        """Return the launch size by which `choice` computes `spec`, and the depth of its sums.

        A verdict on these covers all smaller ones. Empty where no comparison is needed.
        """
        return ()

    def why_not(self, spec: OpSpec, kernel: str | None = None) -> str | None:
        """Return why `spec` cannot be computed here; None where it can."""
        try:
            self.choose(spec, kernel)
        except (UnsupportedOpError, LimitError) as error:
            return str(error)
        return None

    def memory(self, floats: int, transfer: Transfer | None = None) -> Memory | None:
        """Allocate `floats` for tensors to share; None where each tensor has its own memory.

        transfer: the direction in which its content is transferred in every run; None without one.
        """
        return None

    def memory_kind(self, floats: int, transfer: Transfer | None = None) -> str:
        """Return the key in `gl.buffer.MEMORIES` of the memory that `memory` allocates."""
        return "shared"

    def available(self) -> int | None:
        """Return the free bytes of device memory; None where unknown."""
        return None

    def perform(self, work: Callable[[], T]) -> T:
        """Run `work` in the device's thread and return its result; callable from any thread."""
        return work()

    def activate(self) -> None:
        """Make this backend's device current in the thread that opened it, or inside `perform`."""

    def upload(self, store: Store) -> None:
        """Copy the array that `store` was set to from the host to the device."""

    def wait_before_write(self) -> None:
        """Wait until it is safe to write what commands of the run under way may still read."""

    def copy(self, source: Store, target: Store, row: int | None = None) -> None:
        """Copy `source` to `target`, or to its entry `row` along the first dimension.

        Both are row major and have the same number of elements and the same dtype.
        """
        array = source.pull()
        if row is None:
            target.set(array.reshape(target.shape))
        else:
            target.pull()[row] = array.reshape(target.shape[1:])

    def keep(self, array: NDArray[Any], layout: Layout, words: NDArray[Any] | None = None) -> Store:
        """Store the constant `array`, possibly on the device only.

        words: `array` packed in `layout`, where already known (see `packs`). The stored type is
        that given by `stored`.
        """
        store = self.allocate(array.shape, layout, dtype=DType.from_array(array))
        store.set(array)
        return store

    def renew(self, store: Store, array: NDArray[Any]) -> None:
        """Replace the content of `store`, which `keep` returned, by `array`."""
        store.set(array)

    def combine(self, launches: Sequence[Launch]) -> Launch:
        """Return one launch that runs all `launches` in order, with the least overhead.

        The caller must call `mark_written` of their stores for the results to be seen.
        """

        def run() -> None:
            for launch in launches:
                launch()

        return run

    def finish(self) -> None:
        """Wait until all submitted work is done."""

    def fence(self) -> Fence | None:
        """Return a fence behind all submitted work; None where calls are synchronous."""
        return None
