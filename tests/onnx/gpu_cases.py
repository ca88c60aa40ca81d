"""The cases of the ONNX backend test suite that the GPU must compute all of.

They follow from the schemas' operators and the tensors' types alone: every node is one of OPERATORS
or of AROUND, the first input is float32, float16, int32 or bool, and all others are such, or int64,
uint8 or int8, as indices, sizes and quantised numbers are; so is what is cast. Some input has
dimensions: of scalars alone sizes follow, and what has them is known before a run. Cases of
`failures.toml` are left out, since nothing computes what they expect. `gpu_cases.txt`
has their names: `python -m tests.onnx.gpu_cases` writes it anew, and a test holds it against the
rule.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto
from onnx.backend.test.loader import load_model_tests

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
FILE = Path(__file__).with_suffix(".txt")
FAILURES = Path(__file__).with_name("failures.toml")
OPERATORS = frozenset(
    """
    Conv ConvTranspose Gemm MatMul AveragePool MaxPool LpPool GlobalAveragePool GlobalMaxPool
    GlobalLpPool MaxUnpool BatchNormalization InstanceNormalization LayerNormalization
    GroupNormalization RMSNormalization LRN
    Add Sub Mul Div And Or Xor Equal Less Greater Pow LessOrEqual GreaterOrEqual BitwiseAnd
    BitwiseOr BitwiseXor BitwiseNot BitShift Mod Sum Max Min Mean Not Abs Acos Acosh Asin Asinh
    Atan Atanh Ceil Cos Cosh Erf Exp Floor HardSwish IsNaN Log Mish Neg Reciprocal Relu Round
    Sigmoid Sign Sin Sinh Softsign Sqrt Tan Tanh Elu Celu LeakyRelu ThresholdedRelu HardSigmoid
    Selu Softplus Swish Shrink PRelu IsInf Gelu Clip Where Cast CastLike
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare ArgMax ArgMin Softmax LogSoftmax Hardmax CumSum CumProd TopK DFT STFT
    Concat Split Slice Gather GatherND GatherElements Scatter ScatterElements ScatterND Pad Resize
    Upsample GridSample Transpose Reshape Flatten Squeeze Unsqueeze Expand Tile DepthToSpace
    SpaceToDepth Trilu Einsum OneHot LSTM GRU RNN Attention RotaryEmbedding LinearAttention
    CausalConvWithState NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss QuantizeLinear
    DequantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger DynamicQuantizeLinear
    """.split()  # noqa: SIM905
)
AROUND = frozenset(("Constant", "ConstantOfShape", "Shape", "Size", "Identity", "Dropout", "Range"))
"""Shape arithmetic, and what changes nothing."""
FIRST = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.BOOL)
OTHERS = (*FIRST, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT8)


def cases(kinds: Sequence[str] = KINDS, match: str = "") -> list[tuple[str, Any]]:
    """The cases of `kinds`, each with its kind, whose names the regular expression finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, as expected results are made
        found = [(kind, case) for kind in kinds for case in load_model_tests(kind=kind)]
    named = (pair for pair in found if re.search(match, pair[1].name))
    return sorted(named, key=lambda pair: (pair[0], pair[1].name))


def model_of(case: Any) -> onnx.ModelProto:
    """The model of a case."""
    return case.model or onnx.load(Path(case.model_dir) / "model.onnx")


def by_rule() -> Iterator[tuple[str, str]]:
    """Kind and name of each case that the rule has."""
    failures = tomllib.loads(FAILURES.read_text("utf-8"))
    for kind, case in cases():
        if case.name in failures.get(kind, ()):
            continue
        graph = model_of(case).graph
        operators = {node.op_type for node in graph.node} - AROUND
        weights = {one.name for one in graph.initializer}
        inputs = [one for one in graph.input if one.name not in weights]
        values = (*inputs, *graph.output)
        if not inputs or not operators or not operators <= OPERATORS:
            continue
        if any(one.type.WhichOneof("value") != "tensor_type" for one in values):
            continue
        if not any(one.type.tensor_type.shape.dim for one in inputs):
            continue
        casts = [a.i for node in graph.node for a in node.attribute if a.name == "to"]
        first, *others = (*(one.type.tensor_type.elem_type for one in values), *casts)
        if first in FIRST and all(one in OTHERS for one in others):
            yield kind, case.name


def frozen() -> list[tuple[str, str]]:
    """Those of the file."""
    lines = FILE.read_text("utf-8").splitlines()
    return [tuple(line.split(" ", 1)) for line in lines]  # type: ignore[misc]


if __name__ == "__main__":
    FILE.write_text("".join(f"{kind} {name}\n" for kind, name in by_rule()), "utf-8")
