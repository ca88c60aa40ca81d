"""The passes that can be left out, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from glnn.core.types import TensorType
from glnn.errors import GlnnError, shown
from glnn.graph.graph import Graph, Value
from glnn.graph.passes.attention_fusion import fuse_attention
from glnn.graph.passes.batch_norm_fusion import fuse_batch_norms
from glnn.graph.passes.channel_sums_fusion import fuse_channel_sums
from glnn.graph.passes.common_subexpressions import (
    eliminate_common_subexpressions,
    share_concat_prefixes,
)
from glnn.graph.passes.concat_padding import pad_concats
from glnn.graph.passes.contraction_fusion import (
    fuse_conv_pool,
    fuse_pads,
    fuse_perceptrons,
    fuse_separable_convs,
    recognize_global_pools,
)
from glnn.graph.passes.decoder_fusion import fuse_cache_updates, fuse_normed_products
from glnn.graph.passes.graph_rewriter import FusionCheck
from glnn.graph.passes.horizontal_fusion import fuse_siblings
from glnn.graph.passes.idiom_recognition import (
    recognize_activations,
    recognize_layer_norms,
    recognize_rms_norms,
    recognize_softmaxes,
)
from glnn.graph.passes.move_merging import merge_moves
from glnn.graph.passes.pointwise_fusion import fuse_pointwise, fuse_prologues
from glnn.graph.passes.recurrence_fusion import JoinCheck, fuse_recurrences
from glnn.graph.passes.rotary_recognition import recognize_rotary
from glnn.graph.passes.scale_folding import fold_scales, sink_scalar_factors
from glnn.graph.passes.simplification import inline_scalars, prune_dead_nodes, remove_identities
from glnn.graph.passes.slice_hoisting import hoist_slices
from glnn.graph.passes.sliced_moves import recognize_sliced_moves
from glnn.graph.passes.transpose_sinking import sink_transposes
from glnn.graph.passes.weight_packing import pack_weights
from glnn.graph.passes.weight_splitting import split_weights
from glnn.graph.passes.window_attention import fuse_windows


class Pass(Enum):
    """A pass that may be left out: results stay the same but for rounding."""

    DEAD = "dead"
    """Remove nodes that no output needs."""
    IDENTITIES = "identities"
    """Remove nodes that return their operand unchanged, as identities and dropouts."""
    NUMBERS = "numbers"
    """Move constant operands of a single number into expressions."""
    COMMON = "common"
    """Compute common subexpressions once."""
    PACKED = "packed"
    """Keep weights quantised by blocks packed for the products and row lookups that read them, and
    int8 weights for convolutions.
    """
    PARTS = "parts"
    """Split packed weights that are larger than a kernel can read into parts of some rows."""
    RECURRENCES = "recurrences"
    """Fuse the steps of a recurrent layer, and recurrent layers on one another, into one operator.
    """
    LAYER_NORM = "layer_norm"
    """Recognise layer normalisations written in small pieces as one operator."""
    RMS_NORM = "rms_norm"
    """Recognise RMS normalisations likewise."""
    ROTARY = "rotary"
    """Recognise rotary embeddings likewise."""
    SOFTMAX = "softmax"
    """Recognise softmaxes likewise."""
    ACTIVATIONS = "activations"
    """Recognise GELU, SiLU, hardswish and mish written in small pieces as functions."""
    PADS = "pads"
    """Fuse pads of zeros into convolutions and pooling."""
    POOLS = "pools"
    """Recognise means and maxima of whole images as pooling."""
    PRODUCTS = "products"
    """Move scalar factors from the operands of a product to its result."""
    SINK = "sink"
    """Move views and transpositions behind pointwise work."""
    MOVES = "moves"
    """Merge successive moves into one, or none."""
    FOLD = "fold"
    """Fold batch normalisations into weights."""
    ATTENTION = "attention"
    """Fuse attention written in pieces into one operator, where that pays on the backend."""
    SLICES = "slices"
    """Do work on rows only for the rows that a slice takes, where nothing reads the others."""
    BATCH_NORM = "batch_norm"
    """Fuse the sums into the batch normalisations of training and into their gradients, where that
    pays on the backend."""
    CHANNEL_SUMS = "channel_sums"
    """Fuse the two reductions of a batch normalisation, or of its gradient, into one, where that
    pays on the backend."""
    FUSE = "fuse"
    """Fuse pointwise work into the producers of its operands."""
    PERCEPTRON = "perceptron"
    """Fuse small products that follow one another into one operator, where that pays on the
    backend."""
    PROLOGUE = "prologue"
    """Fuse pointwise work into the product or convolution that is its only consumer."""
    POOLED = "pooled"
    """Fuse pools over windows of 2 x 2 into the convolution before."""
    SEPARABLE = "separable"
    """Fuse a depthwise convolution and the pointwise one behind it into one operator, where that
    pays on the backend."""
    CONCATS = "concats"
    """Share the common beginning of concatenations."""
    GROUP = "group"
    """Group updates of states that are adjacent in memory into one launch."""
    CONSUMERS = "consumers"
    """In training, fuse pointwise work into the producer of its operand although others read that,
    too: an optimiser's updates, the gradient of a loss."""
    STACK = "stack"
    """Fuse convolutions, or products, of the same operand into one whose slices they are."""
    NORMED = "normed"
    """Fuse normalisations of rows into the products of few rows that read them, and the two
    products of a gate into one."""
    CACHES = "caches"
    """Let the operator that appends a token to a cache read the token where it was computed, and
    rotate it."""
    SUBVIEWS = "subviews"
    """Make concatenations and slices of channels subviews in memory; operands whose channels are
    no multiple of 4 are padded to one."""
    LEAVE = "leave"
    """Compute small work between steps of the host on the host, too."""
    HALVES = "halves"
    """With weights of float16, store intermediates as float16, too, where all consumers can read
    it."""
    ROWS = "rows"
    """Rearrange outputs to row-major by a launch, where NumPy would take longer."""

    @classmethod
    def named(cls, names: Iterable[str | Pass]) -> frozenset[Pass]:
        """Return the passes called `names`. Raises GlnnError for a name that no pass has."""
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise GlnnError(f"without must be names of passes, got {shown(names)}")
        by_name = {each.value: each for each in cls}
        passes: set[Pass] = set()
        for name in names:
            found = name if isinstance(name, Pass) else None
            if isinstance(name, str):
                found = by_name.get(name)
            if found is None:
                raise GlnnError(f"without has {shown(name)}, which is none of {', '.join(by_name)}")
            passes.add(found)
        return frozenset(passes)

    @classmethod
    def left_out(cls, without: Iterable[str | Pass], fused: bool) -> frozenset[Pass]:
        """Return the passes named in `without` and, unless `fused`, those of FUSING. Raises
        GlnnError.
        """
        if type(fused) is not bool:
            raise GlnnError(f"fused must be True or False, got {shown(fused)}")
        return cls.named(without) | (frozenset() if fused else FUSING)


FUSING = frozenset(
    {
        *(Pass.LAYER_NORM, Pass.RMS_NORM, Pass.ROTARY, Pass.SOFTMAX, Pass.ACTIVATIONS),
        *(Pass.PADS, Pass.MOVES, Pass.FOLD, Pass.ATTENTION, Pass.BATCH_NORM),
        *(Pass.CHANNEL_SUMS, Pass.FUSE, Pass.PERCEPTRON, Pass.PROLOGUE),
        *(Pass.POOLED, Pass.SEPARABLE, Pass.NORMED, Pass.CACHES),
    }
)
"""Passes that fuse several steps of a model into one, as a product, its bias and its ReLU."""

Types = dict[Value, TensorType]


@dataclass(frozen=True)
class BackendTraits:
    """Properties of the backend that a graph is optimised for."""

    operands: int
    """Most operands of a pointwise node."""
    subviews: bool = False
    """True where kernels read slices of channels in place."""
    saves_time: JoinCheck | None = None
    """Predicate of launches saved and operations slowed; None where no kernel runs recurrences."""
    is_profitable: FusionCheck | None = None
    """Predicate that is True where fusing several operators into a given one pays; None: never."""
    operand_bytes: int = 0
    """Most bytes of an operand that a kernel can read; 0 without a limit, where NumPy computes."""
    phased: bool = False
    """True where recurrent layers whose steps have two phases are fused into one operator, too."""


PassFunction = Callable[[Graph, Types, BackendTraits], Graph]


def _graph_pass(change: Callable[[Graph], Graph]) -> PassFunction:
    return lambda graph, types, traits: change(graph)


def _typed_pass(change: Callable[[Graph, Types], Graph]) -> PassFunction:
    return lambda graph, types, traits: change(graph, types)


def _profitable_pass(change: Callable[[Graph, Types, FusionCheck], Graph]) -> PassFunction:
    def apply(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
        return graph if traits.is_profitable is None else change(graph, types, traits.is_profitable)

    return apply


def _fuse_recurrences(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    if traits.saves_time is None:
        return graph
    return fuse_recurrences(graph, types, traits.saves_time, phased=traits.phased)


def _pack_weights(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    # NumPy would unpack the weights in every run.
    return pack_weights(graph, types) if traits.operand_bytes else graph


def _split_weights(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    return split_weights(graph, types, traits.operand_bytes) if traits.operand_bytes else graph


def _fuse_pointwise(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    return fuse_pointwise(graph, types, traits.operands)


def _fuse_siblings(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    stacked = fuse_siblings(graph, types) if traits.subviews else graph
    if stacked is graph:
        return graph
    return _fuse_pointwise(_merge_moves(stacked, types, traits), types, traits)


def _pad_concats(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    padded = pad_concats(graph, types) if traits.subviews else graph
    return graph if padded is graph else _fuse_pointwise(padded, types, traits)


def _merge_moves(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    return merge_moves(graph, types, subviews=traits.subviews)


def _fuse_normed_products(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    if traits.is_profitable is None:
        return graph
    fused = fuse_normed_products(graph, types, traits.is_profitable)
    return graph if fused is graph else _fuse_pointwise(fused, types, traits)


_PIPELINE: tuple[tuple[Pass, PassFunction], ...] = (
    (Pass.DEAD, _graph_pass(prune_dead_nodes)),
    (Pass.IDENTITIES, _typed_pass(remove_identities)),
    (Pass.NUMBERS, _typed_pass(inline_scalars)),
    (Pass.COMMON, _graph_pass(eliminate_common_subexpressions)),
    (Pass.PACKED, _pack_weights),
    (Pass.PARTS, _split_weights),
    (Pass.RECURRENCES, _fuse_recurrences),
    (Pass.LAYER_NORM, _typed_pass(recognize_layer_norms)),
    (Pass.RMS_NORM, _typed_pass(recognize_rms_norms)),
    (Pass.ROTARY, _typed_pass(recognize_rotary)),
    (Pass.SOFTMAX, _typed_pass(recognize_softmaxes)),
    (Pass.ACTIVATIONS, _typed_pass(recognize_activations)),
    (Pass.PADS, _typed_pass(fuse_pads)),
    (Pass.POOLS, _typed_pass(recognize_global_pools)),
    (Pass.MOVES, _typed_pass(recognize_sliced_moves)),
    (Pass.PRODUCTS, _typed_pass(sink_scalar_factors)),
    (Pass.SINK, _typed_pass(sink_transposes)),
    (Pass.MOVES, _merge_moves),
    (Pass.IDENTITIES, _typed_pass(remove_identities)),
    (Pass.SINK, _typed_pass(sink_transposes)),
    (Pass.MOVES, _merge_moves),
    (Pass.IDENTITIES, _typed_pass(remove_identities)),
    (Pass.COMMON, _graph_pass(eliminate_common_subexpressions)),
    (Pass.FOLD, _typed_pass(fold_scales)),
    (Pass.CONCATS, _graph_pass(share_concat_prefixes)),
    (Pass.ATTENTION, _profitable_pass(fuse_attention)),
    (Pass.ATTENTION, _profitable_pass(fuse_windows)),
    (Pass.SLICES, _typed_pass(hoist_slices)),
    (Pass.IDENTITIES, _typed_pass(remove_identities)),
    (Pass.BATCH_NORM, _profitable_pass(fuse_batch_norms)),
    (Pass.CHANNEL_SUMS, _profitable_pass(fuse_channel_sums)),
    (Pass.FUSE, _fuse_pointwise),
    (Pass.PERCEPTRON, _profitable_pass(fuse_perceptrons)),
    (Pass.SUBVIEWS, _pad_concats),
    (Pass.STACK, _fuse_siblings),
    (Pass.NORMED, _fuse_normed_products),
    (Pass.CACHES, _profitable_pass(fuse_cache_updates)),
    (Pass.PROLOGUE, _typed_pass(fuse_prologues)),
    (Pass.POOLED, _profitable_pass(fuse_conv_pool)),
    (Pass.SEPARABLE, _profitable_pass(fuse_separable_convs)),
)
"""The passes in order; some are done more than once."""


def optimize(
    graph: Graph, types: Types, traits: BackendTraits, without: frozenset[Pass] = frozenset()
) -> Graph:
    """Return `graph` optimised to fewer steps, by all passes but those in `without`.

    types: of every value, sizes known; types of new values are added.
    """
    if Pass.FUSE in without:
        # These passes add pointwise nodes that only FUSE puts into epilogues.
        without |= {Pass.STACK, Pass.NORMED, Pass.SUBVIEWS}
    for entry, change in _PIPELINE:
        if entry not in without:
            graph = change(graph, types, traits)
    return graph
