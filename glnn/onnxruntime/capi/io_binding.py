"""Inputs and outputs of a run that are bound before it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glnn.onnxruntime.capi.devices import KINDS, host_only
from glnn.onnxruntime.capi.faults import Fault
from glnn.onnxruntime.capi.feeds import check
from glnn.onnxruntime.capi.ort_value import OrtValue, OrtValueVector, values
from glnn.onnxruntime.capi.types import dtype_of, type_of
from glnn.types import Array

if TYPE_CHECKING:
    from glnn.onnxruntime.capi.core import Core


class IOBinding:
    """Bound inputs and outputs, which a session's next runs by `run_with_iobinding` read and write.

    session: an InferenceSession. Arrays are bound as they lie: who writes to one changes what the
    next run reads. All memory is the host's.
    """

    def __init__(self, session: Any) -> None:
        self._session: Core = session._sess
        self._known = {info.name: info for info in self._session.inputs_meta}
        self._bound_inputs: dict[str, Any] = {}
        self._bound_outputs: dict[str, Array | None] = {}
        self._results: list[Any] = []

    @property
    def _iobinding(self) -> IOBinding:
        return self

    def _input(self, name: str, value: Any) -> None:
        if name not in self._known:
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
        """Read it from the host's memory at `buffer_ptr`, which must last as long as the binding.

        element_type: NumPy's dtype or ONNX's number. Raises RuntimeError for an unknown name, or
        other memory than the host's.
        """
        host_only(device_type, f"input {name!r}")
        self._input(name, _at(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read it from a value. Raises RuntimeError for an unknown name."""
        self._input(name, ortvalue._content)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Compute the output called `name`, and write it to `buffer_ptr` where that is given.

        Raises ValueError where that comes without type or shape, RuntimeError for other memory than
        the host's.
        """
        host_only(device_type, f"output {name!r}")
        target = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise ValueError(
                    "`element_type` and `shape` are to be provided if pre-allocated memory is "
                    "provided"
                )
            target = _at(buffer_ptr, element_type, shape)
        self._bound_outputs[name] = target

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Compute it and write it to a tensor."""
        self._bound_outputs[name] = ortvalue.numpy()

    def synchronize_inputs(self) -> None:
        """Do nothing: a run waits for what it reads."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run has written its results when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return values(self._results)

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """The same."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The same as arrays."""
        return list(self._results)

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._bound_inputs = {}

    def clear_binding_outputs(self) -> None:
        """Forget the outputs, and what the last run gave."""
        self._bound_outputs, self._results = {}, []

    def _run(self, options: Any) -> None:
        """Run the session. Raises RuntimeError, as ONNX Runtime does, whatever is wrong."""
        names = list(self._bound_outputs)
        if not names:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        try:
            for name, array in self._bound_outputs.items():
                self._fits(name, array)
            results = self._session.run(names, self._bound_inputs, options)
            self._results = [
                self._write_output(name, result)
                for name, result in zip(names, results, strict=True)
            ]
        except (Fault, ValueError) as error:
            text = str(error)
            said = text.split(" : ", 3)[-1] if isinstance(error, Fault) else text
            raise RuntimeError(f"Error in execution: {said}") from None

    def _fits(self, name: str, array: Array | None) -> None:
        """Raise InvalidArgument where an output cannot be written to `array`."""
        info = next((one for one in self._session.outputs_meta if one.name == name), None)
        if array is None or info is None:  # the run names an unknown one
            return
        actual = type_of(array.dtype)
        if actual != info.type:
            raise RuntimeError(
                "Error in execution: Unexpected output data type. "
                f"Actual: ({actual}) , expected: ({info.type})"
            )
        if info.shape:
            check(f"output: {name}", array.shape, info.shape)

    def _write_output(self, name: str, result: Any) -> Any:
        target = self._bound_outputs[name]
        if target is None:
            return result
        check(f"output: {name}", target.shape, result.shape)
        np.copyto(target, result)
        return target


def _at(pointer: int, element_type: Any, shape: Sequence[int]) -> Array:
    """The host's memory at `pointer` as an array."""
    dtype = dtype_of(element_type)
    sizes = tuple(int(n) for n in shape)
    nbytes = dtype.itemsize * int(np.prod(sizes, dtype=np.int64))
    if not nbytes:
        return np.empty(sizes, dtype)
    memory = (ctypes.c_char * nbytes).from_address(int(pointer))
    found: Array = np.ndarray(sizes, dtype, memoryview(memory))
    return found


def device_number(device_type: str) -> int:
    """The number of a kind of device. Raises Exception for an unknown name."""
    if device_type not in KINDS:
        raise Exception(f"Unsupported device type: {device_type}")
    return KINDS[device_type]
