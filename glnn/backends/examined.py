"""What a backend offers to those who see its kernels at work."""

from __future__ import annotations

from abc import abstractmethod

from glnn.backends.backend import Backend, Memory
from glnn.device import Buffer, Device
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.verdicts import Launched, LaunchSize, Verdicts
from glnn.layout import Layout
from glnn.types import Array, DType, Shape


class Examined(Backend):
    """A backend whose kernels can be seen at work, in launches of any size, on its device.

    verdicts: what was found of them so far.
    """

    device: Device
    verdicts: Verdicts

    @property
    @abstractmethod
    def watched(self) -> bool:
        """Whether launches are not to take long."""

    @abstractmethod
    def launch_size(self, kernel: Kernel, problem: Problem) -> LaunchSize:
        """The largest launch by which `kernel` computes `problem`, if none is made in parts."""

    @abstractmethod
    def cut_axes(self, kernel: Kernel, problem: Problem) -> int:
        """Return a bit for each axis along which the last group of that launch has less to do."""

    def launched(self, kernel: Kernel, problem: Problem) -> Launched:
        """Return that launch, as verdicts have it."""
        key = "launched", kernel, self.device.capabilities
        if key not in problem.memo:
            problem.memo[key] = (
                *self.launch_size(kernel, problem),
                self.cut_axes(kernel, problem),
            )
        found: Launched = problem.memo[key]
        return found

    @abstractmethod
    def part(self, kernel: Kernel, problem: Problem) -> int | None:
        """The most that one launch of `kernel` may be here; None where nothing stands in its way.

        Either larger ones were seen to be wrong, or they would take too long.
        """

    def right_until(self, kernel: Kernel, problem: Problem, first: int) -> int:
        """What part of a launch is right, of which floats from `first` on are wrong; 0: unknown."""
        return 0

    @abstractmethod
    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> Buffer: ...

    @abstractmethod
    def keep(self, array: Array, layout: Layout, words: Array | None = None) -> Buffer: ...
