"""The operators: a file for each family, whose classes are imported from here."""

from glnn.graph.operators.attention import Attention, PartialAttention
from glnn.graph.operators.batch_normalize import BatchNormalize, BatchNormalizeGradient
from glnn.graph.operators.cache_append import CacheAppend
from glnn.graph.operators.cache_update import CacheUpdate
from glnn.graph.operators.cached_attention import AttentionParts, AttentionSum, CachedAttention
from glnn.graph.operators.channel_sums import ChannelSums, MergeChannelSums
from glnn.graph.operators.concat import Concat, Split
from glnn.graph.operators.control_flow import If, Loop
from glnn.graph.operators.conv2d import Conv2d, PooledConv2d, SeparableConv2d
from glnn.graph.operators.conv2d_gradients import Conv2dInputGradient, Conv2dWeightGradient
from glnn.graph.operators.conv2d_lowering import Im2row, Images, Rows, ShiftAdd, Zero
from glnn.graph.operators.fourier import Fourier
from glnn.graph.operators.gather import Gather, GatherElements, GatherND
from glnn.graph.operators.host import Arange
from glnn.graph.operators.matmul import Matmul, MatmulParts, MatmulSum, Perceptron
from glnn.graph.operators.move import Expand, Flip, Pad, Rearrange, Roll, Slice, Tile, Transpose
from glnn.graph.operators.normalization import (
    LocalResponseNorm,
    Normalize,
    NormalizeGradient,
    Softmax,
    SoftmaxGradient,
)
from glnn.graph.operators.normed_matmul import NormedMatmul
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.pool2d import Pool2d, Pool2dGradient, Subsample
from glnn.graph.operators.quantized_matmul import QuantizedMatmul
from glnn.graph.operators.quantized_rows import QuantizedRows
from glnn.graph.operators.recurrence import PhasedRecurrence, Recurrence, RecurrentStep
from glnn.graph.operators.reductions import ArgReduce, CumSum, Reduce
from glnn.graph.operators.reorder import Pack, Reorder
from glnn.graph.operators.resample import Resample
from glnn.graph.operators.rotary import Rotary
from glnn.graph.operators.sample import Sample
from glnn.graph.operators.scatter import ScatterElements, ScatterND
from glnn.graph.operators.sobel import Sobel
from glnn.graph.operators.top_k import MergeTopK, TopK
from glnn.graph.operators.views import (
    Detached,
    Flatten,
    Identity,
    Reshape,
    Squeeze,
    Unflatten,
    Unsqueeze,
    Within,
)
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput

__all__ = [
    "Arange",
    "ArgReduce",
    "Attention",
    "AttentionParts",
    "AttentionSum",
    "BatchNormalize",
    "BatchNormalizeGradient",
    "CacheAppend",
    "CacheUpdate",
    "CachedAttention",
    "ChannelSums",
    "Concat",
    "Conv2d",
    "Conv2dInputGradient",
    "Conv2dWeightGradient",
    "CumSum",
    "Detached",
    "Expand",
    "Flatten",
    "Flip",
    "Fourier",
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
    "MergeChannelSums",
    "MergeTopK",
    "Normalize",
    "NormalizeGradient",
    "NormedMatmul",
    "Pack",
    "Pad",
    "PartialAttention",
    "Perceptron",
    "PhasedRecurrence",
    "Pointwise",
    "Pool2d",
    "Pool2dGradient",
    "PooledConv2d",
    "QuantizedMatmul",
    "QuantizedRows",
    "Rearrange",
    "Recurrence",
    "RecurrentStep",
    "Reduce",
    "Reorder",
    "Resample",
    "Reshape",
    "Roll",
    "Rotary",
    "Rows",
    "Sample",
    "ScatterElements",
    "ScatterND",
    "SeparableConv2d",
    "ShiftAdd",
    "Slice",
    "Sobel",
    "Softmax",
    "SoftmaxGradient",
    "Split",
    "Squeeze",
    "Subsample",
    "Tile",
    "TopK",
    "Transpose",
    "Unflatten",
    "Unsqueeze",
    "WinogradInput",
    "WinogradOutput",
    "Within",
    "Zero",
]
