"""Generator of kernels that order numbers, which differ by the numbers' type alone."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.core.layout import Layout
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.operator import Operator
from glnn.graph.operators.top_k import MergeTopK, TopK
from glnn.kernels.codegen.generated import Generated
from glnn.kernels.codegen.move import on_gpu


def generate_top_k(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate the macros of kernels of `top_k` and `merge_top_k`: see `Generator.make`."""
    if not isinstance(op, TopK | MergeTopK):
        raise UnsupportedOpError(f"it puts numbers in order, no {op.name}")
    on_gpu(types)
    defines = {"FLOATS": int(types["x"].dtype is DType.float32), "LARGEST": int(op.largest)}
    return Generated(str(defines), {}, defines)


def top_k_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover every variant of the templates of `top_k`."""
    x, whole = TensorType((3, 517)), TensorType((3, 517), DType.int32)
    places = TensorType((3, 300), DType.int32)
    return {
        "floats": (TopK(7), {"x": x}),
        "integers": (TopK(7, largest=False), {"x": whole}),
        "short": (TopK(7), {"x": TensorType((3, 51))}),
        "many": (TopK(100), {"x": x}),
        "places": (TopK(7), {"x": x, "places": places}),
    }


def merge_top_k_examples() -> Mapping[str, tuple[Operator, Mapping[str, TensorType]]]:
    """Return operators that cover every variant of the templates of `merge_top_k`."""
    x, whole = TensorType((3, 517)), TensorType((3, 517), DType.int32)
    places = TensorType((3, 517), DType.int32)
    return {
        "floats": (MergeTopK(7, True, 4), {"x": x, "places": places}),
        "integers": (MergeTopK(7, False, 4), {"x": whole, "places": places}),
        "single": (MergeTopK(7, True, 1), {"x": x}),
    }
