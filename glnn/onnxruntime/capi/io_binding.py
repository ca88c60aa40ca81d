"""IOBinding: inputs and outputs that the next runs of a session read and write."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from glnn.core.types import Array
from glnn.onnxruntime.capi.declarations import OrtException
from glnn.onnxruntime.capi.node_arg import dtype_of, type_of
from glnn.onnxruntime.capi.ort_value import (
    DeviceMemory,
    OrtValue,
    OrtValueVector,
    check_shape,
    is_on_device,
    lock_memories,
    values,
)
from glnn.runtime.device_array import DeviceArray

Target = Array | DeviceMemory | type[DeviceArray] | None
"""Target of an output: memory, DeviceArray for a new value on the device, None for a host array."""


class IOBinding:
    """Inputs and outputs that are bound to memory, for runs by `run_with_iobinding`.

    session: an InferenceSession. Arrays and OrtValues are not copied: writing to one changes what
    the next run reads. Memory is the host's or that of glnn's device, DEVICE, where bound values
    stay from run to run.
    """

    def __init__(self, session: Any) -> None:
        self._session = session._sess
        self._inputs = {info.name: info for info in self._session.inputs_meta}
        self._outputs = {info.name: info for info in self._session.outputs_meta}
        self._bound_inputs: dict[str, Any] = {}
        self._bound_outputs: dict[str, Target] = {}
        self._results: list[Any] = []

    @property
    def _iobinding(self) -> IOBinding:
        return self

    def _input(self, name: str, value: Any) -> None:
        if name not in self._inputs:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._bound_inputs[name] = value

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Read the input called `name` from an array.

        Raises RuntimeError for an unknown name, or what is no array.
        """
        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError("Unable to create OrtValue from the given python object")
        self._input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read the input from memory at `buffer_ptr`, which must outlive the binding.

        For DEVICE the pointer is `data_ptr()` of an OrtValue there. element_type: NumPy's dtype or
        ONNX's number. Raises RuntimeError for an unknown name, or other memory.
        """
        self._input(
            name, _memory_at(f"input {name!r}", device_type, buffer_ptr, element_type, shape)
        )

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read the input from `ortvalue`. Raises RuntimeError for an unknown name, TypeError for
        anything but an OrtValue.
        """
        self._input(name, _require_ort_value("input", name, ortvalue)._content)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Compute the output called `name`, and write it to memory at `buffer_ptr`, if given.

        On DEVICE without `buffer_ptr` each run gives a new OrtValue, to whose memory no other run
        writes. Raises ValueError for a `buffer_ptr` without type or shape, RuntimeError for memory
        that is neither the host's nor DEVICE's.
        """
        on_device = is_on_device(device_type, f"output {name!r}")
        target: Target = DeviceArray if on_device else None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise ValueError(
                    "`element_type` and `shape` are to be provided if pre-allocated memory is "
                    "provided"
                )
            what = f"output {name!r}"
            target = _memory_at(what, device_type, buffer_ptr, element_type, shape)
        self._bound_outputs[name] = target

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Compute the output and write it to a tensor, which may be bound to an input, too.

        On DEVICE it is written even by a run that raises because another output's memory does not
        fit. Raises RuntimeError for an OrtValue that is no tensor, TypeError for anything else.
        """
        self._bound_outputs[name] = _require_ort_value("output", name, ortvalue)._tensor()

    def synchronize_inputs(self) -> None:
        """Do nothing: a run waits for what it reads."""

    def synchronize_outputs(self) -> None:
        """Wait for the outputs on the device; those of the host are complete when a run returns."""
        for result in self._results:
            if isinstance(result, DeviceMemory):
                result.wait()

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order of binding."""
        return values(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return the outputs of the last run as a vector."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last run as arrays, copied from the device if necessary."""
        return [one.numpy() if isinstance(one, DeviceMemory) else one for one in self._results]

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self._bound_inputs = {}

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs, and drop the results of the last run."""
        self._bound_outputs, self._results = {}, []

    def _run(self, options: Any) -> None:
        """Run the session. Raises RuntimeError for every fault, as ONNX Runtime does."""
        with lock_memories((*self._bound_inputs.values(), *self._bound_outputs.values())):
            self._run_locked(options)

    def _run_locked(self, options: Any) -> None:
        names = list(self._bound_outputs)
        if not names:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        on_device: dict[str, DeviceArray | type[DeviceArray]] = {}
        memories: dict[str, Array | DeviceMemory] = {}
        for name, target in self._bound_outputs.items():
            if isinstance(target, (np.ndarray, DeviceMemory)):
                memories[name] = target
            if isinstance(target, DeviceMemory):
                on_device[name] = self._donated_content(target)
            elif target is DeviceArray:
                on_device[name] = DeviceArray
        try:
            for name, memory in memories.items():
                self._check_target(name, memory)
            arrays = self._session.run_locked(names, self._bound_inputs, options, on_device)
            results = dict(zip(names, arrays, strict=True))
            # First, even if other outputs do not fit: the run may have overwritten old contents.
            for name, memory in memories.items():
                if isinstance(memory, DeviceMemory) and memory.shape == results[name].shape:
                    memory.replace(results[name])
            for name, memory in memories.items():
                check_shape(f"output: {name}", memory.shape, results[name].shape)
            for name, memory in memories.items():
                if isinstance(memory, np.ndarray):
                    np.copyto(memory, results[name])
            self._results = [
                memories[name] if name in memories else _as_content(result)
                for name, result in results.items()
            ]
        except (OrtException, ValueError) as error:
            text = str(error)
            message = text.split(" : ", 3)[-1] if isinstance(error, OrtException) else text
            raise RuntimeError(f"Error in execution: {message}") from None

    def _donated_content(self, target: DeviceMemory) -> DeviceArray | type[DeviceArray]:
        """Return the content of an output's memory if the run may overwrite it, else DeviceArray.

        It may where the content is also an input's, and no other output or OrtValue has it.
        """
        if target.is_shared:
            return DeviceArray
        bound = [one for one in self._bound_outputs.values() if one is target]
        if bound[1:]:
            return DeviceArray
        read = any(one is target for one in self._bound_inputs.values())
        return target.content if read else DeviceArray

    def _check_target(self, name: str, target: Array | DeviceMemory) -> None:
        """Raise RuntimeError where `target` has another dtype than the output, InvalidArgument for
        another shape.
        """
        info = self._outputs.get(name)
        if info is None:
            return  # the run refuses an unknown output
        actual = type_of(target.dtype)
        if actual != info.type:
            raise RuntimeError(
                "Error in execution: Unexpected output data type. "
                f"Actual: ({actual}) , expected: ({info.type})"
            )
        if info.shape:
            check_shape(f"output: {name}", target.shape, info.shape)


def _as_content(result: Any) -> Any:
    """Return a result as the content of an OrtValue."""
    return DeviceMemory(result) if isinstance(result, DeviceArray) else result


def _require_ort_value(what: str, name: str, value: object) -> OrtValue:
    """Return `value`. Raises TypeError unless it is an OrtValue of glnn.

    what: "input" or "output", for the error.
    """
    if not isinstance(value, OrtValue):
        kind = type(value)
        raise TypeError(
            f"{what} {name!r} must be an OrtValue of glnn.onnxruntime, got "
            f"{kind.__module__}.{kind.__name__}"
        )
    return value


def _memory_at(
    what: str, device_type: str, pointer: int, element_type: Any, shape: Sequence[int]
) -> Any:
    """Return the host's memory at `pointer` as an array, DEVICE's as a DeviceMemory.

    what: the input or output, for errors. Raises RuntimeError for unknown memory of DEVICE, and for
    another dtype or shape.
    """
    if not is_on_device(device_type, what):
        return _array_at(pointer, element_type, shape)
    memory, dtype, sizes = (
        DeviceMemory.from_address(pointer, what),
        dtype_of(element_type),
        tuple(shape),
    )
    if (memory.dtype, memory.shape) != (dtype, sizes):
        raise RuntimeError(
            f"{what} of {dtype} {sizes}: the OrtValue at {pointer} is {memory.dtype} {memory.shape}"
        )
    return memory


def _array_at(pointer: int, element_type: Any, shape: Sequence[int]) -> Array:
    """Return the host's memory at `pointer` as an array."""
    dtype = dtype_of(element_type)
    sizes = tuple(int(n) for n in shape)
    nbytes = dtype.itemsize * int(np.prod(sizes, dtype=np.int64))
    if not nbytes:
        return np.empty(sizes, dtype)
    memory = (ctypes.c_char * nbytes).from_address(int(pointer))
    result: Array = np.ndarray(sizes, dtype, memoryview(memory))
    return result
