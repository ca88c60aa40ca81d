"""Types of a session's inputs and outputs, and bindings of torch's tensors.

torch is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from glnn.core.types import Array
from glnn.onnxruntime.capi.node_arg import NUMBERS, dtype_of
from glnn.onnxruntime.capi.onnxruntime_inference_collection import IOBinding


class TypeHelper:
    """Conversions of types between ONNX Runtime, NumPy, torch and ONNX.

    All methods raise ValueError for an unknown name or type.
    """

    @staticmethod
    def get_input_type(ort_session: Any, name: str) -> str:
        """Return the type of an input, as `tensor(float)`."""
        return _type(ort_session.get_inputs(), name, "input")

    @staticmethod
    def get_output_type(ort_session: Any, name: str) -> str:
        """Return the type of an output, as `tensor(float)`."""
        return _type(ort_session.get_outputs(), name, "output")

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> type[Any]:
        """Return NumPy's type for `tensor(float)`; Python's bool for `tensor(bool)`."""
        _check_number_type(ort_type)
        dtype = dtype_of(ort_type)
        return bool if dtype == np.bool_ else dtype.type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """Return torch's dtype for ONNX Runtime's type."""
        _check_number_type(ort_type)
        return _torch(dtype_of(ort_type).name)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """Return ONNX's number for ONNX Runtime's type."""
        _check_number_type(ort_type)
        return NUMBERS[ort_type]

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """Return torch's dtype for NumPy's."""
        return _torch(np.dtype(numpy_type).name)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> type[Any]:
        """Return NumPy's type for torch's dtype."""
        name = str(torch_type).removeprefix("torch.")
        try:
            dtype = dtype_of(name)
        except RuntimeError:
            raise ValueError(f"{torch_type} not found in map") from None
        return bool if dtype == np.bool_ else dtype.type

    @staticmethod
    def get_io_onnx_type_map(ort_session: Any) -> dict[str, int]:
        """Return ONNX's number for each input and output."""
        return {one.name: TypeHelper.ort_type_to_onnx_type(one.type) for one in _all(ort_session)}

    @staticmethod
    def get_io_numpy_type_map(ort_session: Any) -> dict[str, type[Any]]:
        """Return NumPy's type for each input and output."""
        return {one.name: TypeHelper.ort_type_to_numpy_type(one.type) for one in _all(ort_session)}

    @staticmethod
    def get_io_torch_type_map(ort_session: Any) -> dict[str, Any]:
        """Return torch's dtype for each input and output."""
        return {one.name: TypeHelper.ort_type_to_torch_type(one.type) for one in _all(ort_session)}


class IOBindingHelper:
    """Binds torch's tensors in the host's memory to a session's inputs and outputs."""

    @staticmethod
    def get_output_buffers(
        ort_session: Any, output_shapes: Mapping[str, Sequence[int]], device: Any
    ) -> dict[str, Any]:
        """Return for each output a tensor of one dimension with the elements of its shape."""
        torch = import_module("torch")
        types = TypeHelper.get_io_torch_type_map(ort_session)
        return {
            name: torch.empty(int(np.prod(shape)), dtype=types[name], device=device)
            for name, shape in output_shapes.items()
        }

    @staticmethod
    def prepare_io_binding(
        ort_session: Any,
        input_ids: Any,
        position_ids: Any,
        attention_mask: Any,
        past: Sequence[Any] | None,
        output_buffers: Mapping[str, Any],
        output_shapes: Mapping[str, Sequence[int]],
        name_to_onnx_type: Mapping[str, int] | None = None,
    ) -> IOBinding:
        """Return a binding of the inputs that are not None and of all outputs.

        past: the inputs past_0, past_1 and so on. All tensors must be contiguous.
        """
        types = name_to_onnx_type or TypeHelper.get_io_onnx_type_map(ort_session)
        binding: IOBinding = ort_session.io_binding()
        tensors = {"input_ids": input_ids}
        tensors |= {f"past_{i}": one for i, one in enumerate(past or ())}
        tensors |= {"attention_mask": attention_mask, "position_ids": position_ids}
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if not tensor.is_contiguous():
                raise ValueError(f"the tensor for input {name!r} is not contiguous")
            shape, pointer = list(tensor.size()), tensor.data_ptr()
            binding.bind_input(name, tensor.device.type, 0, types[name], shape, pointer)
        for output in ort_session.get_outputs():
            name = output.name
            buffer, shape = output_buffers[name], list(output_shapes[name])
            pointer = buffer.data_ptr()
            binding.bind_output(name, buffer.device.type, 0, types[name], shape, pointer)
        return binding

    @staticmethod
    def get_outputs_from_io_binding_buffer(
        ort_session: Any,
        output_buffers: Mapping[str, Any],
        output_shapes: Mapping[str, Sequence[int]],
        return_numpy: bool = True,
    ) -> list[Any]:
        """Return copies of a run's outputs from their buffers: arrays, or tensors."""
        result: list[Array | Any] = []
        for output in ort_session.get_outputs():
            shape = list(output_shapes[output.name])
            buffer = output_buffers[output.name][: int(np.prod(shape))]
            tensor = buffer.reshape(shape).clone().detach()
            result.append(tensor.numpy() if return_numpy else tensor)
        return result


def _all(session: Any) -> list[Any]:
    return [*session.get_inputs(), *session.get_outputs()]


def _type(infos: Sequence[Any], name: str, what: str) -> str:
    for info in infos:
        if info.name == name:
            return str(info.type)
    raise ValueError(f"{what} name {name} not found")


def _check_number_type(ort_type: str) -> None:
    if ort_type not in NUMBERS:
        raise ValueError(f"{ort_type} not found in map")


def _torch(name: str) -> Any:
    """Return torch's dtype by NumPy's name."""
    result = getattr(import_module("torch"), name, None)
    if result is None:
        raise ValueError(f"{name} not found in map")
    return result
