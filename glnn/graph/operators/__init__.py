"""The operators, one a file."""

from glnn.graph.operators.arange import Arange
from glnn.graph.operators.arg_reduce import ArgReduce
from glnn.graph.operators.attention import Attention
from glnn.graph.operators.branch import If
from glnn.graph.operators.concat import Concat
from glnn.graph.operators.conv2d import Conv2d
from glnn.graph.operators.conv2d_input_gradient import Conv2dInputGradient
from glnn.graph.operators.conv2d_weight_gradient import Conv2dWeightGradient
from glnn.graph.operators.cum_sum import CumSum
from glnn.graph.operators.gather import Gather, GatherElements, GatherND
from glnn.graph.operators.identity import Detached, Identity, Within
from glnn.graph.operators.im2row import Im2row
from glnn.graph.operators.local_response_norm import LocalResponseNorm
from glnn.graph.operators.loop import Loop
from glnn.graph.operators.matmul import Matmul
from glnn.graph.operators.matmul_parts import MatmulParts
from glnn.graph.operators.matmul_sum import MatmulSum
from glnn.graph.operators.move import Expand, Flip, Slice, Transpose
from glnn.graph.operators.normalize import Normalize
from glnn.graph.operators.pack import Pack
from glnn.graph.operators.pad import Pad, Roll, Tile
from glnn.graph.operators.perceptron import Perceptron
from glnn.graph.operators.phased_recurrence import PhasedRecurrence
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.pool2d import Pool2d
from glnn.graph.operators.pool2d_gradient import Pool2dGradient
from glnn.graph.operators.pooled_conv2d import PooledConv2d
from glnn.graph.operators.rearrange import Rearrange
from glnn.graph.operators.recurrence import Recurrence
from glnn.graph.operators.recurrent_step import RecurrentStep
from glnn.graph.operators.reduce import Reduce
from glnn.graph.operators.reorder import Reorder
from glnn.graph.operators.resample import Resample
from glnn.graph.operators.reshape import Flatten, Reshape, Squeeze, Unflatten, Unsqueeze
from glnn.graph.operators.rows import Images, Rows
from glnn.graph.operators.scatter import ScatterElements, ScatterND
from glnn.graph.operators.separable_conv2d import SeparableConv2d
from glnn.graph.operators.shift_add import ShiftAdd
from glnn.graph.operators.sobel import Sobel
from glnn.graph.operators.softmax import Softmax
from glnn.graph.operators.split import Split
from glnn.graph.operators.subsample import Subsample
from glnn.graph.operators.winograd_input import WinogradInput
from glnn.graph.operators.winograd_output import WinogradOutput
from glnn.graph.operators.zero import Zero

__all__ = [
    "Arange",
    "ArgReduce",
    "Attention",
    "Concat",
    "Conv2d",
    "Conv2dInputGradient",
    "Conv2dWeightGradient",
    "CumSum",
    "Detached",
    "Expand",
    "Flatten",
    "Flip",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "If",
    "Im2row",
    "Images",
    "LocalResponseNorm",
    "Loop",
    "Matmul",
    "MatmulParts",
    "MatmulSum",
    "Normalize",
    "Pack",
    "Pad",
    "Perceptron",
    "PhasedRecurrence",
    "Pointwise",
    "Pool2d",
    "Pool2dGradient",
    "PooledConv2d",
    "Rearrange",
    "Recurrence",
    "RecurrentStep",
    "Reduce",
    "Reorder",
    "Resample",
    "Reshape",
    "Roll",
    "Rows",
    "ScatterElements",
    "ScatterND",
    "SeparableConv2d",
    "ShiftAdd",
    "Slice",
    "Sobel",
    "Softmax",
    "Split",
    "Squeeze",
    "Subsample",
    "Tile",
    "Transpose",
    "Unflatten",
    "Unsqueeze",
    "WinogradInput",
    "WinogradOutput",
    "Within",
    "Zero",
]
