"""Common base of the two GL backends: choice of kernels, cached programs, buffers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from glnn.backends.backend import Alternative, Choice, Launch, Memory, Transfer
from glnn.backends.backend_choice_cache import BackendChoiceCache
from glnn.backends.launch import GlLaunch, bind_launches
from glnn.backends.programs import Programs
from glnn.core.cached_property import cached_property
from glnn.core.layout import Layout
from glnn.core.settings import Settings
from glnn.core.symint import greatest
from glnn.core.types import DType, Shape, TensorType
from glnn.errors import DeviceError
from glnn.gl import Buffer, BufferBlock, DataTexture, Device, Fence
from glnn.gl.block_pool import available
from glnn.gl.buffer import MEMORIES, MIN_WORDS
from glnn.gl.command_buffer import TextureView
from glnn.gl.command_encoder import BufferPart, TextureOperand
from glnn.gl.probe import moves_mapped_buffers
from glnn.kernels.architecture import PATIENT, architecture
from glnn.kernels.binding import textures
from glnn.kernels.codegen.expression import names_of
from glnn.kernels.cost_model import device_rates, predicted
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared, revision
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import alternatives, choose, suits, why_chosen, why_not
from glnn.kernels.tuned import Tuned
from glnn.kernels.verdicts import SLOWEST, Verdicts, work
from glnn.runtime.store import Store, T
from glnn.version import VERSION

LOG = logging.getLogger(__name__)
MOST_CHOICES = 1024  # in the cache of `choose`
SMALL = 1 << 16  # bytes up to which the host keeps a weight's array
LONGEST = 0.1  # seconds of a launch: Panfrost ends jobs of half a second
LONGEST_LOW = 0.01  # of a device of low priority: others wait no longer for their turn
# Bytes from which on transfers of a GPU with dedicated memory go by way of mapped staging memory.
# Smaller uploads are faster by GL: on an H200 runs of mobilenet_v2 that upload 1.2, 4.8 and 6.0 MB
# are 93, 94 and 102 us shorter by it, steps of an MLP that upload 6.4 MB are as long. For downloads
# the device copies to staging memory: NVIDIA's driver (580) moves a buffer that GL reads back to
# the host's memory, and waits for all commands to read it. An H200's convolution that wrote 1.9 MB
# to such a buffer took 957 us, not 17.
STAGED = {Transfer.TO_DEVICE: 6 << 20, Transfer.TO_HOST: 1 << 16}


class GlBackend(Programs):
    """Kernels of one kind on one device."""

    shares: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def __init__(self, device: Device) -> None:
        if reason := self.why_not_device(device):
            raise DeviceError(f"the {self.name} backend cannot run: {reason}")
        super().__init__(device)
        settings = Settings.from_environment()
        offers, cache = device.capabilities, settings.cache
        self.tuned = Tuned.load(cache, offers, VERSION)
        self.verdicts = Verdicts.load(cache, offers, VERSION)
        self.trusts_kernels = settings.trust
        """True where kernels are used without a comparison with NumPy."""
        self._choices: dict[tuple[OpSpec, str | None], Kernel] = {}
        self._choices_revisions = (0, 0, revision())  # of the tuning, the verdicts, the kernels
        self._textures: WeakKeyDictionary[Buffer, dict[tuple[str, str], DataTexture]]
        self._textures = WeakKeyDictionary()
        longest = 0.0 if architecture(offers) in PATIENT else LONGEST
        if device.low_priority:
            longest = LONGEST_LOW
        self._longest_launch = longest if settings.launch is None else settings.launch
        """The most seconds of a launch; 0 without a limit."""

    @cached_property
    def choice_cache(self) -> BackendChoiceCache:
        """The stored choices of the fastest backend for each model on this device."""
        settings = Settings.from_environment()
        return BackendChoiceCache.load(settings.cache, self.device.capabilities, VERSION)

    @classmethod
    def why_not_device(cls, device: Device) -> str | None:
        """Return why this backend cannot run on `device`; None where it can."""
        raise NotImplementedError

    def choose(self, spec: OpSpec, kernel: str | None = None) -> Kernel:
        revisions = self.tuned.revision, self.verdicts.revision, revision()
        if revisions != self._choices_revisions or len(self._choices) > MOST_CHOICES:
            self._choices.clear()
            self._choices_revisions = revisions
        result = self._choices.get((spec, kernel))
        if result is None:
            offers = self.device.capabilities
            result = choose(self.name, spec, offers, kernel, self.tuned, self.verdicts, self.choose)
            self._choices[spec, kernel] = result
            if LOG.isEnabledFor(logging.DEBUG):
                why = why_chosen(result, spec.hinted, offers, kernel, self.tuned)
                LOG.debug("%s of %s: %s", spec.op.name, dict(spec.hinted.shapes), why)
        return result

    def suits(self, spec: OpSpec, kernel: str | None = None) -> bool:
        if self.why_not(spec, kernel) is not None:
            return False
        spec = spec.hinted
        chosen = self.choose(spec, kernel)
        return kernel is not None or suits(chosen, spec, self.device.capabilities, self.tuned)

    def takes(self, choice: Choice, spec: OpSpec) -> bool:
        assert isinstance(choice, Kernel)
        return why_not(choice, spec, self.device.capabilities, self.verdicts) is None

    def alternatives(self, choice: Choice, spec: OpSpec) -> list[Alternative]:
        assert isinstance(choice, Kernel)
        offers = self.device.capabilities
        others = alternatives(self.name, spec, offers, choice, self.verdicts, self.choose)
        rates = device_rates(architecture(offers))
        return [Alternative(k, predicted(spec.hinted, k, rates)) for k in (choice, *others)]

    def unset_uniforms(self, launch: Launch) -> tuple[str, ...]:
        """Return the uniforms of the program of `launch` that it does not set."""
        return launch.unset_uniforms if isinstance(launch, GlLaunch) else ()

    def measures(self, choice: Choice, spec: OpSpec) -> tuple[int, ...]:
        assert isinstance(choice, Kernel)
        depth = spec.op.depth(spec.op_shapes)
        return () if self.trusts_kernels else (*self.launch_size(choice, spec), depth)

    @property
    def watched(self) -> bool:
        return self._longest_launch > 0

    @property
    def takes_bytes(self) -> bool:
        return any(kernel.int8_operands for kernel in declared() if kernel.backend == self.name)

    def launches(self, kernel: Kernel, spec: OpSpec) -> int:
        """Return the number of launches that share the work of `spec`."""
        return 1

    def part(self, kernel: Kernel, spec: OpSpec) -> int | None:
        verdict = self.verdicts.find(kernel, spec.at_hints, self.device.capabilities)
        if verdict.part is None and not self.watched:
            return None
        bounds = [] if verdict.part is None else [verdict.part]
        size = greatest(prod(self.launch_size(kernel, spec)))
        if self.watched:
            units = greatest(work(spec)) / self.launches(kernel, spec)
            seconds = units / (verdict.pace or SLOWEST)
            if seconds > self._longest_launch:
                bounds.append(max(int(size * self._longest_launch / seconds), 1))
        most = min(bounds, default=size)
        return most if most < size else None

    def layouts(self, choice: Choice, spec: OpSpec) -> Mapping[str, Layout]:
        assert isinstance(choice, Kernel)
        return spec.chosen_layouts(choice)

    def capacity(self, floats: int) -> int:
        return max(floats, MIN_WORDS)

    def _samplers(self, kernel: Kernel, spec: OpSpec) -> dict[str, str]:
        """Return the sampler type of each operand that `kernel` fetches. Raises LimitError."""
        spec = spec.origin
        offers, layouts = self.device.capabilities, self.layouts(kernel, spec)
        return {
            name: kernel.sampler(texel, layouts[name].words(spec.types[name]), offers)
            for name, texel in textures(kernel, spec.epilogue, spec.fp16_operands).items()
            if name in spec.shapes
        }

    def copies(self, choice: Choice, spec: OpSpec) -> Mapping[str, int]:
        assert isinstance(choice, Kernel)
        texels = textures(choice, spec.epilogue, spec.fp16_operands)
        layouts = self.layouts(choice, spec)
        sizes = {
            k: DataTexture.bytes_for(layouts[k].words(spec.types[k]), texels[k], sampler)
            for k, sampler in self._samplers(choice, spec).items()
        }
        return {name: nbytes for name, nbytes in sizes.items() if nbytes}

    def reads(self, choice: Choice, spec: OpSpec) -> Mapping[str, str]:
        assert isinstance(choice, Kernel)
        fused = (*names_of(spec.prologue), *spec.extents)
        kinds = dict.fromkeys((*choice.bindings, *fused), "buffer")
        kinds |= {choice.in_place: "buffer"} if choice.in_place else {}
        kinds |= dict.fromkeys(choice.attributes, "attribute")
        kinds |= self._samplers(choice, spec)
        return {k: kinds[k] for k in spec.shapes if k in kinds}

    def texture_operands(
        self, spec: OpSpec, kernel: Kernel, buffers: Mapping[str, BufferPart]
    ) -> dict[str, TextureOperand]:
        """Return the operands of `spec` in `buffers` that `kernel` fetches from textures."""
        texels = textures(kernel, spec.epilogue, spec.fp16_operands)
        result: dict[str, TextureOperand] = {}
        for name, sampler in self._samplers(kernel, spec).items():
            buffer = buffers[name]
            fixed = name in spec.op.parameters and not buffer.shared
            changes = not (fixed or buffer.fixed)
            result[name] = TextureOperand(buffer, texels[name], sampler, changes)
            if buffer.fixed and result[name].copied and isinstance(buffer, Buffer):
                view = TextureView(0, buffer.first, buffer.words, texels[name], sampler)
                self.texture(buffer, view)  # now, to free the buffer before the next is allocated
        return result

    def texture(self, buffer: Buffer, view: TextureView) -> DataTexture:
        """Return a texture of `buffer`; kernels share that of a buffer that never changes."""
        if not buffer.fixed:
            result = DataTexture(self.device, buffer.words, view.texel, view.sampler)
            result.copy_from(buffer.push(self.device), buffer.first)
            return result
        textures, key = self._textures.setdefault(buffer, {}), (view.texel, view.sampler)
        if key not in textures:
            textures[key] = DataTexture(self.device, buffer.words, *key)
            textures[key].copy_from(buffer.push(self.device), buffer.first)
            if textures[key].copied:  # the buffer is not needed any more
                buffer.release()
        return textures[key]

    def allocate(
        self,
        shape: Shape,
        layout: Layout,
        memory: Memory | None = None,
        dtype: DType = DType.float32,
        offset: int | None = None,
    ) -> Buffer:
        assert memory is None or isinstance(memory, BufferBlock)
        floats = self.capacity(layout.words(TensorType(shape, dtype)))
        buffer = Buffer(shape, layout, capacity=floats, memory=memory, dtype=dtype, offset=offset)
        buffer.push(self.device)
        return buffer

    def holds(self, dtype: DType) -> bool:
        return dtype.on_gpu

    def memory(self, floats: int, transfer: Transfer | None = None) -> BufferBlock:
        return MEMORIES[self.memory_kind(floats, transfer)](floats, self.device)

    def memory_kind(self, floats: int, transfer: Transfer | None = None) -> str:
        offers = self.device.capabilities
        if transfer is not None and offers.buffer_storage and not moves_mapped_buffers(self.device):
            if offers.dedicated_memory and 4 * floats >= STAGED[transfer]:
                return "staged"
            if (transfer is Transfer.TO_HOST or not offers.dedicated_memory) and self.mappable():
                return "mapped"
        return "shared"

    def mappable(self) -> bool:
        """Return True where kernels may write to buffers that stay mapped."""
        return self.device.capabilities.buffer_storage

    def available(self) -> int | None:
        return available(self.device)

    def keep(
        self, array: NDArray[Any], layout: Layout, words: NDArray[Any] | None = None
    ) -> Buffer:
        type = TensorType.from_array(array)
        floats = self.capacity(layout.words(type))
        buffer = Buffer(array.shape, layout, capacity=floats, dtype=type.dtype)
        buffer.set(array)
        buffer.push(self.device, words)
        if 4 * buffer.words > SMALL:
            buffer.mark_written()  # the host's array is not needed any more
        buffer.fixed = True
        return buffer

    def renew(self, store: Store, array: NDArray[Any]) -> None:
        assert isinstance(store, Buffer)
        store.set(array)
        buffer = store.push(self.device)
        for texture in self._textures.get(store, {}).values():
            texture.copy_from(buffer)
            if texture.copied:
                store.release()
        if 4 * store.words > SMALL:
            store.mark_written()

    def upload(self, store: Store) -> None:
        if isinstance(store, Buffer):
            store.push(self.device)

    def wait_before_write(self) -> None:
        if self.device.capabilities.reorders_writes:
            self.device.wait()

    def copy(self, source: Store, target: Store, row: int | None = None) -> None:
        if not (isinstance(source, Buffer) and isinstance(target, Buffer)):
            super().copy(source, target, row)  # int64 is with the host
        elif row is None:
            target.copy_from(source, self.device)
        else:
            target.copy_row(row, source, self.device)

    def perform(self, work: Callable[[], T]) -> T:
        return self.device.perform(work)

    def activate(self) -> None:
        self.device.activate()

    def combine(self, launches: Sequence[Launch]) -> Launch:
        return bind_launches(self, launches)

    def finish(self) -> None:
        self.device.finish()

    def fence(self) -> Fence:
        fence = self.device.fence()
        self.device.flush()  # nobody may wait for a while
        return fence
