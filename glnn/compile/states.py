"""Tensors that stay on a device from run to run, shared by the plans that read and update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

import numpy as np

from glnn.backends import Backend
from glnn.backends.backend import Memory, Way
from glnn.errors import LimitError, ModelError, ShapeError, shown
from glnn.layout.layout import DENSE
from glnn.process import ProcessLock
from glnn.runtime.store import Store
from glnn.settings import Settings
from glnn.types import Array, DType, TensorType

HELD = (DType.float32, DType.int32)
"""The types that a state may have."""
ALIGNMENT = 64  # words: no device asks for more than 256 bytes where a part of a buffer is bound
SMALL = 1 << 16  # bytes of a state for which room to read it by is kept


def aligned(words: int) -> int:
    """The words after which another tensor may begin in the same memory."""
    return -(-words // ALIGNMENT) * ALIGNMENT


class State:
    """One of `States`: its type, and the memory that has its content.

    Where a launch cannot write what it reads, there are two that take turns: a run reads the one
    and writes the other.
    """

    def __init__(
        self,
        backend: Backend,
        type: TensorType,
        memory: Memory | None = None,
        offset: int | None = None,
    ) -> None:
        """memory: where it is to lie from the word `offset` on, for good; None has its own."""
        self.type, self._backend = type, backend
        self.words = backend.capacity(DENSE.words(type))
        """Of one of its memories."""
        self.offset = offset
        """The word of its memory that it begins at; None where that is its own."""
        self.memories: list[Memory | None] = []
        self._stores: list[Store] = []
        self._way: Store | None = None
        self.current = 0
        """Which of the memories has the content."""
        self._add(self._backend.memory(self.words) if memory is None else memory)

    def _add(self, memory: Memory | None) -> None:
        store = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype, self.offset)
        self.memories.append(memory)
        self._stores.append(store)

    def reserve(self) -> None:
        """Have a second memory."""
        if len(self.memories) < 2:
            self._add(self._backend.memory(self.words))

    def turn(self) -> None:
        """Have the content be in the other memory."""
        self.current = 1 - self.current

    @property
    def nbytes(self) -> int:
        """Bytes of its memories."""
        words = self.words if self.offset is None else aligned(self.words)
        return 4 * words * len(self.memories)

    def set(self, array: Array) -> None:
        """Take `array`, which nobody changes any more. Only inside `perform`, as what follows."""
        store = self._stores[self.current]
        store.put(array)
        store.wrote()  # the host's array is not needed any more

    def copy_from(self, other: State) -> None:
        """Take the content of `other`, of the same type, on the device."""
        if other._backend.device is None:  # in place the host may change its arrays
            self.set(np.array(other.get()))
        else:
            self._backend.copy(other._stores[other.current], self._stores[self.current])

    def get(self) -> Array:
        """The content as the host has it, on a backend without a device."""
        return self._stores[self.current].pull()

    def read(self) -> Array:
        """A copy of the content."""
        store = self._stores[self.current]
        if self._backend.device is None:
            return store.fetch()
        # By way of another buffer: drivers may move to the host's memory what was read there.
        way = self._way
        if way is None:
            memory = self._backend.memory(self.words, Way.TO_HOST)
            way = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype)
            self._way = way if 4 * self.words <= SMALL else None
        self._backend.copy(store, way)
        return way.fetch()


class States:
    """Tensors of one backend that stay where they are from run to run, by name.

    Plans that are given them read and update them (see `Plan`). They are float32 or int32, and lie
    row major in memory that only the device sees. Any thread may use them. What is done after the
    device was lost raises DeviceError: their content went with it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock = ProcessLock()
        """Held by runs on a backend whose runs do not take turns by themselves."""
        self._states: dict[str, State] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were added."""
        return tuple(self._states)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that they take."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Of those that lie in a memory with others: the first of these, and the word at which."""
        firsts: dict[int, str] = {}
        found: dict[str, tuple[str, int]] = {}
        for name, state in self._states.items():
            if state.offset is not None:
                first = firsts.setdefault(id(state.memories[0]), name)
                found[name] = first, state.offset
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def __getitem__(self, name: str) -> State:
        if name not in self._states:
            raise ModelError(f"there is no state {name!r}, there are {list(self._states)}")
        return self._states[name]

    def add(self, name: str, array: Array) -> None:
        """A new state called `name` that holds a copy of `array`, which is float32 or int32.

        Raises ModelError where there is one of that name, ShapeError on another type, and
        LimitError where the device has too little memory.
        """
        self._check(name, array)
        self.backend.perform(lambda: self._add(name, array))

    def add_together(self, arrays: Mapping[str, Array]) -> None:
        """New states, as by `add`, which lie one behind the other in memory where that can be.

        Then plans that update them all in the same way do so in one launch.
        """
        for name, array in arrays.items():
            self._check(name, array)
        self.backend.perform(lambda: self._add_together(arrays))

    def _check(self, name: str, array: Array) -> None:
        if name in self._states:
            raise ModelError(f"there is a state {name!r} already")
        held = (*HELD, DType.int64) if self.backend.device is None else HELD
        if not isinstance(array, np.ndarray) or DType.of(array) not in held:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else shown(array)
            raise ShapeError(f"state {name!r} must be a float32 or int32 array, got {got}")

    def _add(self, name: str, array: Array) -> None:
        self._need(name, 4 * self._words(array))
        self._set(name, State(self.backend, TensorType.of(array)), array)

    def _add_together(self, arrays: Mapping[str, Array]) -> None:
        for names in _shared(arrays, self._words, self.backend.adjoining // 4):
            if len(names) == 1:
                self._add(names[0], arrays[names[0]])
                continue
            words = [aligned(self._words(arrays[name])) for name in names]
            self._need(names[0], 4 * sum(words))
            memory = self.backend.memory(sum(words))
            for name, offset in zip(names, accumulate(words, initial=0)):
                type = TensorType.of(arrays[name])
                self._set(name, State(self.backend, type, memory, offset), arrays[name])

    def _words(self, array: Array) -> int:
        return self.backend.capacity(DENSE.words(TensorType.of(array)))

    def _need(self, name: str, nbytes: int) -> None:
        """Raise LimitError where so many bytes are not free."""
        free = self.available()
        if free is not None and nbytes > free:
            raise LimitError(
                f"state {name!r} needs {nbytes} bytes of device memory, {free} are free"
            )

    def _set(self, name: str, state: State, array: Array) -> None:
        state.set(np.array(array))
        self._states[name] = state

    def available(self) -> int | None:
        """Bytes of device memory that are free beside them; None where nobody knows."""
        free = self.backend.available()
        if free is None or Settings.from_environment().memory is None:
            return free
        return free - self.nbytes  # what GLNN_MEMORY allows is for all together

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Copies of the states so called, None for all, as the last run left them.

        Waits for the device. Raises ModelError where there is none of a name.
        """
        found = {name: self[name] for name in (self.names if names is None else names)}
        with self.lock:
            return self.backend.perform(lambda: {k: state.read() for k, state in found.items()})

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Have the states so called hold copies of `arrays`, of their shapes and dtypes.

        Raises ModelError where there is none of a name, ShapeError on another type.
        """
        for name, array in arrays.items():
            wanted = self[name].type
            like = isinstance(array, np.ndarray) and array.dtype == wanted.dtype.numpy
            if not like or array.shape != wanted.shape:
                got = shown(array)
                if isinstance(array, np.ndarray):
                    got = f"a {array.dtype} array of shape {array.shape}"
                raise ShapeError(f"state {name!r} is {wanted}, got {got}")

        def write() -> None:
            for name, array in arrays.items():
                self[name].set(np.array(array))

        with self.lock:
            self.backend.perform(write)


def _shared(
    arrays: Mapping[str, Array], words: Callable[[Array], int], most: int
) -> list[list[str]]:
    """Which of `arrays` share a memory of at most so many words, in their order."""
    found: list[list[str]] = []
    left = 0
    for name, array in arrays.items():
        size = aligned(words(array))
        fits = array.dtype == np.float32 and array.size and size <= left
        if not fits:
            found.append([])
            left = most if array.dtype == np.float32 and array.size else 0
        found[-1].append(name)
        left -= size
    return found
