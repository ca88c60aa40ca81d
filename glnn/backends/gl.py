"""What the two GL backends share: choosing kernels, programs compiled once, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from numpy.typing import NDArray

from glnn import __version__
from glnn.backends.backend import Backend, Choice, Memory, Store, T
from glnn.backends.examine import SLOWEST, examine
from glnn.device import Buffer, DataTexture, Device, Program, SharedMemory, Source
from glnn.device.buffer import LEAST
from glnn.errors import DeviceError
from glnn.graph.operator import Operands, Operator, Shapes
from glnn.kernels.family import PATIENT, family
from glnn.kernels.generate.generated import Uniform
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
from glnn.kernels.select import choose
from glnn.kernels.source import assemble
from glnn.kernels.tuned import Tuned
from glnn.kernels.verdicts import Launch, Verdicts, work
from glnn.layout import Layout
from glnn.settings import Settings
from glnn.types import DType, Shape

PLACES = ("first_group", "all_groups", "first_instance")  # uniforms of a launch, not of a problem
LONGEST = 0.1  # seconds of a launch: Panfrost ends jobs of half a second


class Fetched:
    """An operand that a shader fetches from a texture.

    sampler: what it is to the shader. changes: whether it may be another one in every run. What
    does not is copied here, and its buffer is not needed any more.
    """

    def __init__(
        self, device: Device, buffer: Buffer, texel: str, sampler: str, changes: bool
    ) -> None:
        self.sampler = sampler
        floats = buffer.layout.size(buffer.shape)
        self._device, self._texture = device, DataTexture(device, floats, texel, sampler)
        self._buffer = buffer if changes else None
        self._texture.copy_from(buffer.push(device))

    @staticmethod
    def bind(all_of: Sequence[Fetched]) -> None:
        """Bring these up to date and make them the textures of the units from 0 on."""
        for one in all_of:
            if one._buffer is not None:
                one._texture.copy_from(one._buffer.push(one._device))
        for unit, one in enumerate(all_of):  # only now: a copy goes by way of unit 0
            one._texture.bind(unit)


class GlBackend(Backend):
    """Kernels of one kind on one device."""

    shares: ClassVar[bool] = True
    device: Device

    def __init__(self, device: Device) -> None:
        if reason := self.why_not_device(device):
            raise DeviceError(f"the {self.name} backend cannot run: {reason}")
        self.device = device
        settings = Settings.from_environment()
        offers, cache = device.capabilities, settings.cache
        self.tuned = Tuned.load(cache, offers, __version__)
        self.verdicts = Verdicts.load(cache, offers, __version__)
        self._trusts = settings.trust
        longest = 0.0 if family(offers) in PATIENT else LONGEST
        self._longest = longest if settings.launch is None else settings.launch

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        """Why this backend cannot run on `device`; None when it can."""
        raise NotImplementedError

    def choose(
        self, op: Operator, shapes: Operands, layouts: Mapping[str, str], kernel: str | None = None
    ) -> Kernel:
        problem = Problem.of(op, shapes, layouts)
        offers = self.device.capabilities
        return choose(self.name, problem, offers, kernel, self.tuned, self.verdicts)

    def examine(self, asked: Iterable[tuple[Choice, Problem]]) -> bool:
        return not self._trusts and examine(self, asked)

    @property
    def watched(self) -> bool:
        """Whether launches are not to take long."""
        return self._longest > 0

    def launch(self, kernel: Kernel, problem: Problem) -> Launch:
        """The largest launch by which `kernel` computes `problem`, if none is made in parts."""
        raise NotImplementedError

    def launches(self, kernel: Kernel, problem: Problem) -> int:
        """How many such launches that takes."""
        return 1

    def right_until(self, kernel: Kernel, problem: Problem, first: int) -> int:
        """What part of a launch is right where the result is wrong from its float `first` on.

        0 where that cannot be told.
        """
        return 0

    def part(self, kernel: Kernel, problem: Problem) -> int | None:
        """The most that one launch of `kernel` may be here; None where nothing stands in its way.

        Either larger ones were seen to be wrong, or they would take too long.
        """
        verdict = self.verdicts.find(kernel, problem, self.device.capabilities)
        if verdict.part is None and not self.watched:
            return None
        bounds = [] if verdict.part is None else [verdict.part]
        size = prod(self.launch(kernel, problem))
        if self.watched:
            units = work(problem) / self.launches(kernel, problem)
            seconds = units / (verdict.pace or SLOWEST)
            if seconds > self._longest:
                bounds.append(max(int(size * self._longest / seconds), 1))
        most = min(bounds, default=size)
        return most if most < size else None

    def layouts(
        self, choice: Choice, op: Operator, shapes: Operands, layouts: Mapping[str, str]
    ) -> Mapping[str, Layout]:
        assert isinstance(choice, Kernel)
        return Problem.of(op, shapes, layouts).chosen_layouts(choice)

    def capacity(self, floats: int) -> int:
        return max(floats, LEAST)

    def _samplers(
        self, kernel: Kernel, shapes: Shapes, layouts: Mapping[str, Layout]
    ) -> dict[str, str]:
        """What each operand that `kernel` fetches is to the shader. Raises LimitError."""
        offers = self.device.capabilities
        return {
            name: kernel.sampler(name, layouts[name].size(shapes[name]), offers)
            for name in kernel.textures
            if name in shapes
        }

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
        self, op: Operator, kernel: Kernel, buffers: Mapping[str, Buffer]
    ) -> dict[str, Fetched]:
        """The textures by which `kernel` reads operands of `op`, which lie in `buffers`."""
        shapes = {name: buffer.shape for name, buffer in buffers.items()}
        layouts = {name: buffer.layout for name, buffer in buffers.items()}
        found: dict[str, Fetched] = {}
        for name, sampler in self._samplers(kernel, shapes, layouts).items():
            buffer = buffers[name]
            changes = not buffer.fixed and (name not in op.parameters or buffer.shared)
            texel = kernel.textures[name]
            found[name] = Fetched(self.device, buffer, texel, sampler, changes)
        return found

    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
    ) -> Buffer:
        assert memory is None or isinstance(memory, SharedMemory)
        floats = self.capacity(layout.size(shape))
        buffer = Buffer(shape, layout, capacity=floats, memory=memory, dtype=dtype)
        buffer.push(self.device)
        return buffer

    def memory(self, floats: int) -> SharedMemory:
        return SharedMemory(floats, self.device)

    def available(self) -> int | None:
        allowed = Settings.from_environment().memory
        return self.device.memory_available() if allowed is None else allowed

    def keep(self, array: NDArray[Any], layout: Layout) -> Buffer:
        floats, dtype = self.capacity(layout.size(array.shape)), DType.of(array)
        buffer = Buffer(array.shape, layout, capacity=floats, dtype=dtype)
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

    def perform(self, work: Callable[[], T]) -> T:
        return self.device.perform(work)

    def activate(self) -> None:
        self.device.activate()

    def flush(self) -> None:
        self.device.flush()

    def finish(self) -> None:
        self.device.finish()

    def program(
        self,
        kernel: Kernel,
        problem: Problem,
        defines: Mapping[str, int],
        fetched: Mapping[str, Fetched],
    ) -> Program:
        """The program of `kernel` under `defines`, compiled the first time only.

        Problems share it; on a device that confuses their sizes each set of sizes has its own.
        """
        header = self.device.capabilities.header(self.name)
        samplers = {name: one.sampler for name, one in fetched.items()}
        made = problem.generated(kernel)
        texts = {} if made is None else made.texts
        source = assemble(kernel, header, {**kernel.defaults, **defines}, samplers, texts)
        values = sorted(problem.uniforms(kernel).items()) if self.confuses_values() else ()
        programs, key = self.device.programs, (source.text, *values)
        if key not in programs:
            programs[key] = self.compile(source)
        return programs[key]

    def confuses_values(self) -> bool:
        """Whether the device may run a program with the uniforms of an earlier run."""
        return False

    def compile(self, source: Source) -> Program:
        """`source` compiled and linked. Raises ShaderError with the driver's message."""
        raise NotImplementedError

    @staticmethod
    def uniforms(
        program: Program, kernel: Kernel, problem: Problem, fetched: Iterable[str]
    ) -> dict[str, Uniform]:
        """The value of every uniform that `program` has; the textures have the units from 0 on."""
        units = {name: unit for unit, name in enumerate(fetched)}
        known: dict[str, Uniform] = {
            **problem.uniforms(kernel),
            **units,
            **dict.fromkeys(PLACES, 0),
        }
        return {name: known[name] for name in program.uniforms}
