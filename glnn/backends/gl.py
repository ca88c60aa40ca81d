"""What the two GL backends share: choosing kernels, programs compiled once, buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from glnn import __version__
from glnn.backends.backend import Backend, Choice, Memory, Store
from glnn.device import Buffer, DataTexture, Device, Program, SharedMemory, Source
from glnn.device.buffer import LEAST
from glnn.errors import DeviceError
from glnn.kernels.kernel import Kernel
from glnn.kernels.select import Problem, choose
from glnn.kernels.source import assemble
from glnn.kernels.tuned import Tuned
from glnn.layout import Layout
from glnn.ops.op import Op, Shape, Shapes
from glnn.settings import Settings


class Fetched:
    """An operand that a shader fetches from a texture.

    changes: whether it may be another one in every run. What does not is copied here, and its
    buffer is not needed any more.
    """

    def __init__(self, device: Device, buffer: Buffer, texture: DataTexture, changes: bool) -> None:
        self._device, self._texture = device, texture
        self._buffer = buffer if changes else None
        texture.copy_from(buffer.push(device))

    def bind(self, unit: int) -> None:
        """Make it the texture of `unit`."""
        self._texture.bind(unit)

    def refresh(self) -> None:
        """Bring the texture up to date."""
        if self._buffer is not None:
            self._texture.copy_from(self._buffer.push(self._device))


class GlBackend(Backend):
    """Kernels of one kind on one device."""

    shares: ClassVar[bool] = True
    texture_buffers: ClassVar[bool] = False
    """Whether a shader may fetch from a buffer itself, where the device can."""
    device: Device

    def __init__(self, device: Device) -> None:
        if reason := self.why_not_device(device):
            raise DeviceError(f"the {self.name} backend cannot run: {reason}")
        self.device = device
        cache = Settings.from_environment().cache
        self.tuned = Tuned.load(cache, device.capabilities, __version__)

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        """Why this backend cannot run on `device`; None when it can."""
        raise NotImplementedError

    def choose(
        self, op: Op, shapes: Shapes, layouts: Mapping[str, str], kernel: str | None = None
    ) -> Kernel:
        problem = Problem.of(op, shapes, layouts)
        return choose(self.name, problem, self.device.capabilities, kernel, self.tuned)

    def layouts(
        self, choice: Choice, op: Op, shapes: Shapes, layouts: Mapping[str, str]
    ) -> Mapping[str, Layout]:
        assert isinstance(choice, Kernel)
        return Problem.of(op, shapes, layouts).chosen_layouts(choice)

    def capacity(self, floats: int) -> int:
        return max(floats, LEAST)

    def samplers(self, kernel: Kernel, floats: Mapping[str, int]) -> dict[str, str]:
        """What each operand that `kernel` fetches is to the shader: buffer, texture or layers.

        floats: the floats of memory that each operand takes. Raises LimitError.
        """
        offers, buffers = self.device.capabilities, self.texture_buffers
        return {
            name: DataTexture.sampler_for(offers, floats[name], texel, buffers)
            for name, texel in kernel.textures.items()
            if name in floats
        }

    def _samplers(
        self, kernel: Kernel, shapes: Shapes, layouts: Mapping[str, Layout]
    ) -> dict[str, str]:
        return self.samplers(kernel, {k: layouts[k].size(shape) for k, shape in shapes.items()})

    def copies(
        self, choice: Choice, shapes: Shapes, layouts: Mapping[str, Layout]
    ) -> Mapping[str, int]:
        assert isinstance(choice, Kernel)
        found = {
            k: DataTexture.bytes_for(layouts[k].size(shapes[k]), choice.textures[k], sampler)
            for k, sampler in self._samplers(choice, shapes, layouts).items()
        }
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    def reads(
        self, choice: Choice, shapes: Shapes, layouts: Mapping[str, Layout]
    ) -> Mapping[str, str]:
        assert isinstance(choice, Kernel)
        found = dict.fromkeys(choice.bindings, "buffer")
        found |= {choice.in_place: "buffer"} if choice.in_place else {}
        found |= dict.fromkeys(choice.attributes, "attribute")
        found |= self._samplers(choice, shapes, layouts)
        return {k: found[k] for k in shapes if k in found}

    def fetched(
        self, op: Op, kernel: Kernel, samplers: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> dict[str, Fetched]:
        """The textures by which `kernel` reads operands of `op`, which lie in `buffers`."""
        found: dict[str, Fetched] = {}
        for name, sampler in samplers.items():
            buffer = buffers[name]
            floats = buffer.layout.size(buffer.shape)
            texture = DataTexture(self.device, floats, kernel.textures[name], sampler)
            changes = not buffer.fixed and (name in op.inputs or buffer.shared)
            found[name] = Fetched(self.device, buffer, texture, changes)
        return found

    def allocate(self, shape: Shape, layout: Layout, memory: Memory | None = None) -> Buffer:
        assert memory is None or isinstance(memory, SharedMemory)
        floats = self.capacity(layout.size(shape))
        buffer = Buffer(shape, layout, capacity=floats, memory=memory)
        buffer.push(self.device)
        return buffer

    def memory(self, floats: int) -> SharedMemory:
        return SharedMemory(floats, self.device)

    def available(self) -> int | None:
        allowed = Settings.from_environment().memory
        return self.device.memory_available() if allowed is None else allowed

    def keep(self, array: NDArray[Any], layout: Layout) -> Buffer:
        buffer = Buffer(array.shape, layout, capacity=self.capacity(layout.size(array.shape)))
        buffer.set(array)
        buffer.push(self.device)
        buffer.wrote()  # the host's array is not needed any more
        buffer.fixed = True
        return buffer

    def wrote(self, store: Store) -> None:
        assert isinstance(store, Buffer)
        store.wrote()

    def upload(self, store: Store) -> None:
        assert isinstance(store, Buffer)
        store.push(self.device)

    def activate(self) -> None:
        self.device.activate()

    def flush(self) -> None:
        self.device.flush()

    def finish(self) -> None:
        self.device.finish()

    def source(self, kernel: Kernel, defines: Mapping[str, int | str]) -> Source:
        """The complete source of `kernel` for this device."""
        header = self.device.capabilities.header(self.name)
        return assemble(kernel, header, {**kernel.defaults, **defines})

    def program(
        self, kernel: Kernel, defines: Mapping[str, int], samplers: Mapping[str, str]
    ) -> Program:
        """The program of `kernel` under `defines`, compiled the first time only."""
        named = {f"{name.upper()}_SAMPLER": sampler for name, sampler in samplers.items()}
        source = self.source(kernel, {**defines, **named})
        programs = self.device.programs
        if source.text not in programs:
            programs[source.text] = self.compile(source)
        return programs[source.text]

    def compile(self, source: Source) -> Program:
        """`source` compiled and linked. Raises ShaderError with the driver's message."""
        raise NotImplementedError

    @staticmethod
    def uniforms(
        program: Program, kernel: Kernel, problem: Problem, units: Mapping[str, int]
    ) -> dict[str, int | float]:
        """The value of every uniform that `program` has."""
        known = {**problem.uniforms(kernel), **units}
        return {name: known[name] for name in program.uniforms}
