"""What a backend does: choose a kernel for an op, and make the op ready to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from glnn.device import Device, Fence
from glnn.device.command_encoder import BlockPart
from glnn.errors import LimitError, UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.kernels.predict import Prediction
from glnn.kernels.problem import Problem
from glnn.layout import Layout
from glnn.runtime.store import Store, T
from glnn.types import DType, Shape

Operand = Store | BlockPart
"""A tensor that is there, or the part of a block that it will have."""
Launch = Callable[[], None]
"""An op made ready: calling it computes the op once. No shape logic is left in it."""


class Way(Enum):
    """How the content of a tensor goes in each run, if not only from launch to launch."""

    TO_DEVICE = "the host writes it before the run"
    TO_HOST = "the host reads it after the run"


class Memory(Protocol):
    """Room that several tensors share, one after the other."""

    @property
    def nbytes(self) -> int: ...


class Choice(Protocol):
    """The kernel chosen for an op."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Alternative:
    """A kernel that may compute a problem, and what it is predicted to take."""

    choice: Choice
    takes: Prediction


class Backend(ABC):
    """A way to run ops. `device` is None where no GL is involved."""

    name: ClassVar[str]
    operands: ClassVar[int] = 16  # what a vertex shader has textures for
    """Of work that was joined: where that is too much it is taken apart again."""
    joins: ClassVar[int] = 16
    """How many tensors a concatenation joins at once."""
    shares: ClassVar[bool] = False
    """Whether tensors may share memory (see `memory`)."""
    strips: ClassVar[bool] = False
    """Whether kernels take and give some channels of wider images (`layout/strip.py`)."""
    packs: ClassVar[bool] = False
    """Whether what is kept is packed as its layout says, by `device.copying.packed`."""
    in_place: ClassVar[bool] = False
    """Whether a launch may write memory that it reads at the same place."""
    device: Device | None

    @property
    def binds(self) -> int:
        """How many operands a kernel can be bound to at least."""
        return self.operands

    @property
    def takes_bytes(self) -> bool:
        """Whether kernels of it take weights of int8, four in a word."""
        return False

    @property
    def adjoining(self) -> int:
        """Bytes of tensors that may lie one behind the other to be one to a launch; 0 for none."""
        return 0

    @abstractmethod
    def choose(self, problem: Problem, kernel: str | None = None) -> Choice:
        """The kernel that is to compute `problem`, or the one called `kernel`.

        Raises UnsupportedOpError or LimitError with the reason where there is none.
        """

    def alternatives(self, choice: Choice, problem: Problem) -> list[Alternative]:
        """The kernels that `problem` may be given, `choice` first; none where there is but one."""
        return []

    def suits(self, problem: Problem, kernel: str | None = None) -> bool:
        """Whether a kernel is meant for problems such as `problem`, here.

        kernel: the one asked for, which then only has to be able to.
        """
        return False

    def takes(self, choice: Choice, problem: Problem) -> bool:
        """Whether `choice`, with its parameters as they are, can compute `problem` here.

        Raises UnsupportedOpError where it is no problem for it at all.
        """
        return True

    @abstractmethod
    def layouts(self, choice: Choice, problem: Problem) -> Mapping[str, Layout]:
        """The layout in which `choice` wants each operand and leaves `out`."""

    def view_layouts(self, op: Operator, given: str) -> tuple[str, str]:
        """How the view `op` wants its input, which lies in `given`, and how its result lies."""
        return op.view_layouts(given)

    def holds(self, dtype: DType) -> bool:
        """Whether its memory has numbers of `dtype`; tensors of others stay in the host's."""
        return True

    def capacity(self, floats: int) -> int:
        """Floats to allocate for a tensor of `floats`."""
        return floats

    def copies(self, choice: Choice, problem: Problem) -> Mapping[str, int]:
        """The operands of which `choice` takes a copy, in a texture, and its bytes.

        A parameter that is copied is not kept besides.
        """
        return {}

    def reads(self, choice: Choice, problem: Problem) -> Mapping[str, str]:
        """By what `choice` reads each operand: "buffer", "attribute", or GLSL's name of a sampler.

        Empty where there is but one way.
        """
        return {}

    def stored(self, dtype: DType) -> DType:
        """The type as which weights of `dtype` are kept here."""
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
        """Room for a tensor: filled with zeros, or that of `memory` as it is.

        offset: the word of `memory` that it begins at, where others lie beside it.
        """

    @abstractmethod
    def prepare(
        self,
        choice: Choice,
        problem: Problem,
        operands: Mapping[str, Operand],
        out: Operand,
        own: bool = False,
    ) -> Launch:
        """Return `problem` made ready to be computed by `choice`, from `operands` to `out`.

        Where these are not there yet, it can be written down, and not be called. own: whether a
        program of its own is worth its while, as the host has more to do than the device where
        launches are small.
        """

    def examine(self, asked: Iterable[tuple[Choice, Problem]]) -> bool:
        """See whether kernels compute such problems right here, where that is not known.

        Returns whether some are not: they are chosen no more, so that others must be.
        """
        return False

    def measures(self, choice: Choice, problem: Problem) -> tuple[int, ...]:
        """How large the launch is by which `choice` computes it, and how long its sums are.

        What was seen of these says all of smaller ones; none where nothing need be seen.
        """
        return ()

    def right(self, asked: Iterable[tuple[Choice, Problem]]) -> bool:
        """Return True where kernels were seen to be right, as they were launched for other sizes.

        They are looked at where nothing is known.
        """
        return True

    def why_not(self, problem: Problem, kernel: str | None = None) -> str | None:
        """Why `problem` cannot be computed here; None when it can."""
        try:
            self.choose(problem, kernel)
        except (UnsupportedOpError, LimitError) as error:
            return str(error)
        return None

    def memory(self, floats: int, way: Way | None = None) -> Memory | None:
        """Room of `floats` for tensors to share; None where each is to have its own.

        way: that what it holds goes in every run, None if none.
        """
        return None

    def memory_kind(self, floats: int, way: Way | None = None) -> str:
        """Which of `device.memory.MEMORIES` such room is."""
        return "shared"

    def available(self) -> int | None:
        """Bytes of device memory that are free; None where nobody knows."""
        return None

    def perform(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, called where the device may be used. From any thread."""
        return work()

    def activate(self) -> None:
        """Make this backend's device current in the thread that opened it, or inside `perform`."""

    def upload(self, store: Store) -> None:
        """Move what `store` was set to to the device."""

    def copy(self, source: Store, target: Store, row: int | None = None) -> None:
        """Have `target` hold what `source` does, or its place `row` along its first dimension.

        Both are row major and have as many numbers, of one dtype.
        """
        array = source.pull()
        if row is None:
            target.set(array.reshape(target.shape))
        else:
            target.pull()[row] = array.reshape(target.shape[1:])

    def keep(self, array: NDArray[Any], layout: Layout, words: NDArray[Any] | None = None) -> Store:
        """A store that holds `array` for good: it may be on the device only.

        words: `array` in `layout`, where that is known (see `packs`). Its numbers are of the type
        that is `stored` for those of `array`.
        """
        store = self.allocate(array.shape, layout, dtype=DType.of(array))
        store.set(array)
        return store

    def renew(self, store: Store, array: NDArray[Any]) -> None:
        """Have `store`, which `keep` gave, hold `array` from now on."""
        store.set(array)

    def together(self, launches: Sequence[Launch], *, apart: bool = False) -> Launch:
        """All of `launches`, one after the other, with the least that this takes.

        apart: whether those that do not wait for one another may change places, so that a device is
        at them at once. Their results are seen where `wrote` is called of their stores.
        """

        def perform() -> None:
            for launch in launches:
                launch()

        return perform

    def finish(self) -> None:
        """Wait until all that was asked is done."""

    def fence(self) -> Fence | None:
        """What waits for all that was asked so far; None where a call returns when it is done."""
        return None
