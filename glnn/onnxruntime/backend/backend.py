"""ONNX's backend interface, as ONNX Runtime has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glnn.onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
from glnn.onnxruntime.capi.options import OptionAttribute, RunOptions, SessionOptions


class OnnxRuntimeBackendRep:
    """A session that takes inputs in order."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Run the model; return the outputs in the model's order.

        inputs: a list of arrays in the order of the inputs, a dict, or the array of the only input.
        kwargs: attributes of RunOptions. Raises what a session's `run` raises.
        """
        options = RunOptions()
        _set(options, kwargs)
        names = [info.name for info in self._session.get_inputs()]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        elif isinstance(inputs, list):
            feeds = dict(zip(names, inputs))
        elif len(names) == 1:
            feeds = {names[0]: inputs}
        else:
            raise RuntimeError(f"Model expect {len(names)} inputs")
        return self._session.run(None, feeds, options)


class OnnxRuntimeBackend:
    """ONNX's backend for models, as class methods."""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Return True where a model can be run on `device`."""
        return device is None or cls.supports_device(device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True for "CPU": arrays are in the host's memory."""
        return device == "CPU"

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Load `model`, a ModelProto, a path, its content or a session.

        kwargs: attributes of SessionOptions. Raises RuntimeError for another device, and what a
        session raises.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected {device!r}, got 'CPU'")
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        options = SessionOptions()
        _set(options, kwargs)
        return OnnxRuntimeBackendRep(InferenceSession(model, options))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Load and run `model`; return the outputs. kwargs: of SessionOptions and RunOptions."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Raise NotImplementedError: single nodes are not run here."""
        raise NotImplementedError("a single node is not run here; glnn.onnx_backend.run_node does")


def _set(options: Any, values: Mapping[str, Any]) -> None:
    """Set the attributes that `options` have; other values are ignored."""
    for name, value in values.items():
        if isinstance(getattr(type(options), name, None), OptionAttribute):
            setattr(options, name, value)
