"""Tensors that stay on a device from run to run, shared by the plans that read and update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

import numpy as np

from glnn.backends import Backend
from glnn.backends.backend import Memory, Transfer
from glnn.core.layout.layout import DENSE, aligned
from glnn.core.process import process_lock
from glnn.core.settings import Settings
from glnn.core.types import Array, DType, TensorType
from glnn.errors import LimitError, ModelError, ShapeError, shown
from glnn.runtime.store import Store

STATE_DTYPES = (DType.float32, DType.int32)
"""The types that a state may have."""
SMALL = 1 << 16  # bytes of a state up to which the buffer for reading it is kept


class State:
    """The type and memory of one state in `States`.

    Where a launch cannot write what it reads, it is double-buffered: a run reads one memory and
    writes the other.
    """

    def __init__(
        self,
        backend: Backend,
        type: TensorType,
        memory: Memory | None = None,
        offset: int | None = None,
        readable: bool = False,
    ) -> None:
        """memory: the memory that it shares, from the word `offset` on; None allocates its own.
        readable: see `States.add`.
        """
        self.type, self._backend, self.readable = type, backend, readable
        self.words = backend.capacity(DENSE.words(type))
        """The words of one of its memories."""
        self.offset = offset
        """The word of its memory that it begins at; None where that is its own."""
        self.memories: list[Memory | None] = []
        self._stores: list[Store] = []
        self._staging: Store | None = None
        """The buffer through which the state is read, where it is kept."""
        self.current = 0
        """The index of the memory that has the content."""
        self._add(self._allocate() if memory is None else memory)

    def _allocate(self) -> Memory | None:
        transfer = Transfer.TO_HOST if self.readable else None
        return self._backend.memory(self.words, transfer)

    def _add(self, memory: Memory | None) -> None:
        store = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype, self.offset)
        self.memories.append(memory)
        self._stores.append(store)

    def reserve(self) -> None:
        """Allocate the second memory unless there is one."""
        if len(self.memories) < 2:
            self._add(self._allocate())

    def swap(self) -> None:
        """Swap its two memories: the other one has the content now."""
        self.current = 1 - self.current

    @property
    def nbytes(self) -> int:
        """Bytes of its memories."""
        words = self.words if self.offset is None else aligned(self.words)
        return 4 * words * len(self.memories)

    def set(self, array: Array) -> None:
        """Write `array`, which must not change any more. Only inside `perform`, as what follows."""
        store = self._stores[self.current]
        store.put(array)
        store.mark_written()  # releases the host's array

    def copy_from(self, source: State) -> None:
        """Copy the content of `source`, of the same type, on the device."""
        if source._backend.device is None:  # the host may update its arrays in place
            self.set(np.array(source.get()))
        else:
            self._backend.copy(source._stores[source.current], self._stores[self.current])

    def get(self) -> Array:
        """Return the content, on a backend without a device, without a copy."""
        return self._stores[self.current].pull()

    def read(self) -> Array:
        """Return a copy of the content."""
        store = self._stores[self.current]
        if self._backend.device is None:
            return store.fetch()
        # Through another buffer: drivers may move a buffer that is read to the host's memory.
        staging = self._staging
        if staging is None:
            memory = self._backend.memory(self.words, Transfer.TO_HOST)
            staging = self._backend.allocate(self.type.shape, DENSE, memory, self.type.dtype)
            self._staging = staging if 4 * self.words <= SMALL else None
        self._backend.copy(store, staging)
        return staging.fetch()


class States:
    """Tensors of one backend that stay on its device from run to run, by name.

    Plans read and update them (see `Plan`). They are float32 or int32, row major, in memory that
    only the device accesses. Any thread may use them. After the device was lost every use raises
    DeviceError: their content was lost with it.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.lock = process_lock()
        """The lock that runs hold while they use the states."""
        self._states: dict[str, State] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which the states were added."""
        return tuple(self._states)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that they take."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def group_offsets(self) -> dict[str, tuple[str, int]]:
        """Return for each state in a shared memory the first state of that memory, and its word
        offset.
        """
        firsts: dict[int, str] = {}
        result: dict[str, tuple[str, int]] = {}
        for name, state in self._states.items():
            if state.offset is not None:
                first = firsts.setdefault(id(state.memories[0]), name)
                result[name] = first, state.offset
        return result

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def __getitem__(self, name: str) -> State:
        if name not in self._states:
            raise ModelError(f"there is no state {name!r}, there are {list(self._states)}")
        return self._states[name]

    def add(self, name: str, array: Array, *, readable: bool = False) -> None:
        """Add a state `name` with a copy of `array`, which is float32 or int32.

        readable: True to let runs return the output that updates it. Then its memory is visible to
        the host, and it is double-buffered, so that the host can read the content that one run
        wrote while the next run is computed. Raises ModelError where the name is taken, ShapeError
        for another type, and LimitError where the device has too little memory.
        """
        self._check(name, array)
        self.backend.perform(lambda: self._add(name, array, readable))

    def copy(self) -> States:
        """Return States with these states, not copies of them, to which others can be added."""
        copied = States(self.backend)
        copied.lock, copied._states = self.lock, dict(self._states)
        return copied

    def add_together(self, arrays: Mapping[str, Array]) -> None:
        """Add states as `add` does, one behind the other in memory where possible.

        Then plans that update them all in the same way do so in one launch.
        """
        for name, array in arrays.items():
            self._check(name, array)
        self.backend.perform(lambda: self._add_together(arrays))

    def _check(self, name: str, array: Array) -> None:
        if name in self._states:
            raise ModelError(f"there is a state {name!r} already")
        on_host = self.backend.device is None
        dtypes = (*STATE_DTYPES, DType.int64) if on_host else STATE_DTYPES
        if not isinstance(array, np.ndarray) or DType.from_array(array) not in dtypes:
            got = f"{array.dtype} array" if isinstance(array, np.ndarray) else shown(array)
            raise ShapeError(f"state {name!r} must be a float32 or int32 array, got {got}")

    def _add(self, name: str, array: Array, readable: bool = False) -> None:
        self._check_free(name, 4 * self._words(array))
        self._set(name, State(self.backend, TensorType.from_array(array), readable=readable), array)

    def _add_together(self, arrays: Mapping[str, Array]) -> None:
        for names in _group(arrays, self._words, self.backend.adjoining // 4):
            if len(names) == 1:
                self._add(names[0], arrays[names[0]])
                continue
            words = [aligned(self._words(arrays[name])) for name in names]
            self._check_free(names[0], 4 * sum(words))
            memory = self.backend.memory(sum(words))
            for name, offset in zip(names, accumulate(words, initial=0)):
                type = TensorType.from_array(arrays[name])
                self._set(name, State(self.backend, type, memory, offset), arrays[name])

    def _words(self, array: Array) -> int:
        return self.backend.capacity(DENSE.words(TensorType.from_array(array)))

    def _check_free(self, name: str, nbytes: int) -> None:
        """Raise LimitError where fewer than `nbytes` are free."""
        free = self.available()
        if free is not None and nbytes > free:
            raise LimitError(
                f"state {name!r} needs {nbytes} bytes of device memory, {free} are free"
            )

    def _set(self, name: str, state: State, array: Array) -> None:
        state.set(np.array(array))
        self._states[name] = state

    def available(self) -> int | None:
        """Return the bytes of device memory that are free beside them; None where unknown."""
        free = self.backend.available()
        if free is None or Settings.from_environment().memory is None:
            return free
        return free - self.nbytes  # GLNN_MEMORY includes the states

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Return copies of the states `names`, None for all, as the last run left them.

        Waits for the device. Raises ModelError for an unknown name.
        """
        states = {name: self[name] for name in (self.names if names is None else names)}
        with self.lock:
            return self.backend.perform(lambda: {k: state.read() for k, state in states.items()})

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write copies of `arrays`, by name, to the states.

        Raises ModelError for an unknown name, ShapeError for another shape or dtype.
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


def _group(
    arrays: Mapping[str, Array], words: Callable[[Array], int], most: int
) -> list[list[str]]:
    """Group the names of `arrays`, in their order, into memories of at most `most` words."""
    result: list[list[str]] = []
    left = 0
    for name, array in arrays.items():
        size = aligned(words(array))
        fits = array.dtype == np.float32 and array.size and size <= left
        if not fits:
            result.append([])
            left = most if array.dtype == np.float32 and array.size else 0
        result[-1].append(name)
        left -= size
    return result
