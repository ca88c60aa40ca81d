"""The interface of backends whose kernels are compared with NumPy before use."""

from __future__ import annotations

from abc import abstractmethod

from glnn.backends.backend import Backend, Memory
from glnn.gl import Buffer, Device
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import Launched, LaunchSize, Verdicts
from glnn.layout import Layout
from glnn.types import Array, DType, Shape


class ExaminedBackend(Backend):
    """A backend whose kernels can be tried in launches of any size on its device.

    verdicts: the outcomes of comparisons so far.
    """

    device: Device
    verdicts: Verdicts

    @property
    @abstractmethod
    def watched(self) -> bool:
        """Return True where the duration of a launch is limited."""

    @abstractmethod
    def launch_size(self, kernel: Kernel, spec: OpSpec) -> LaunchSize:
        """Return the largest launch by which `kernel` computes `spec`, if not made in parts."""

    @abstractmethod
    def cut_axes(self, kernel: Kernel, spec: OpSpec) -> int:
        """Return a bit for each axis along which that launch's last group has less to do."""

    def launched(self, kernel: Kernel, spec: OpSpec) -> Launched:
        """Return the launch size and cut axes of `spec`, in the form of `Verdict.right`."""
        key = "launched", kernel, self.device.capabilities
        if key not in spec.memo:
            spec.memo[key] = (
                *self.launch_size(kernel, spec),
                self.cut_axes(kernel, spec),
            )
        found: Launched = spec.memo[key]
        return found

    @abstractmethod
    def part(self, kernel: Kernel, spec: OpSpec) -> int | None:
        """Return the largest allowed launch of `kernel`; None where it is not limited.

        Larger launches either gave wrong results or would take too long.
        """

    def right_until(self, kernel: Kernel, spec: OpSpec, first: int) -> int:
        """Return the launch size with right results, where floats from `first` on are wrong.

        Returns 0 where unknown.
        """
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
