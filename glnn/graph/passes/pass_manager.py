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
    """A pass that may be left out: what is computed stays the same but for rounding."""

    DEAD = "dead"
    """Nodes that no output needs go."""
    IDENTITIES = "identities"
    """Nodes that return their operand unchanged are removed, as identities and dropouts."""
    NUMBERS = "numbers"
    """Operands of one number that never changes go into expressions."""
    COMMON = "common"
    """Common subexpressions are computed once."""
    PACKED = "packed"
    """Products and lookups of rows read weights that are quantised by blocks as they are packed,
    and convolutions int8.
    """
    PARTS = "parts"
    """Packed weights that are larger than what a kernel reads are read in parts of some rows."""
    RECURRENCES = "recurrences"
    """Steps of recurrent layers become one operator, layers one on another too."""
    LAYER_NORM = "layer_norm"
    """Layer normalisations in small pieces become one operator."""
    RMS_NORM = "rms_norm"
    """RMS normalisations likewise."""
    ROTARY = "rotary"
    """Rotary embeddings likewise."""
    SOFTMAX = "softmax"
    """Softmaxes likewise."""
    ACTIVATIONS = "activations"
    """GELU, SiLU, hardswish and mish in small pieces become functions."""
    PADS = "pads"
    """Pads of zeros go into convolutions and pooling."""
    POOLS = "pools"
    """Means and maxima of whole images become pooling."""
    PRODUCTS = "products"
    """Numbers that factors of a product are multiplied by are multiplied behind it."""
    SINK = "sink"
    """Views and transpositions go behind pointwise work."""
    MOVES = "moves"
    """Moves that follow one another become one, or none."""
    FOLD = "fold"
    """Batch normalisations go into weights."""
    ATTENTION = "attention"
    """Attention in pieces becomes one operator, where the backend gains by that."""
    SLICES = "slices"
    """Work on rows is done for those alone that a slice takes, where nothing reads others."""
    BATCH_NORM = "batch_norm"
    """Batch normalisations in training, and their gradients, take their sums themselves, where the
    backend gains by that."""
    CHANNEL_SUMS = "channel_sums"
    """The two reductions of a batch normalisation, or of its gradient, become one, where the
    backend gains by that."""
    FUSE = "fuse"
    """Pointwise work joins what it is done on."""
    PERCEPTRON = "perceptron"
    """Small products one after the other become one operator, where the backend gains by that."""
    PROLOGUE = "prologue"
    """Pointwise work joins the one product or convolution that reads what it makes."""
    POOLED = "pooled"
    """Pools over windows of 2 x 2 join the convolution before."""
    SEPARABLE = "separable"
    """A depthwise convolution and a pointwise one behind it become one operator, where the backend
    gains by that."""
    CONCATS = "concats"
    """Concatenations share what they begin with."""
    GROUP = "group"
    """Updates of states that lie one behind the other in memory become one launch."""
    CONSUMERS = "consumers"
    """In training, pointwise work joins the kernel that makes what it and others read: an
    optimiser's updates, the gradient of a loss."""
    STACK = "stack"
    """Convolutions and products of the same operand become one, of which they are slices."""
    NORMED = "normed"
    """Normalisations of rows go into the products of few rows that read them, and the two products
    of a gate become one."""
    CACHES = "caches"
    """A cache that grows by a token takes it where it was computed, and rotates it."""
    SUBVIEWS = "subviews"
    """Concatenations and slices of channels are only placed in memory, once parts of no whole vec4
    of channels are padded to these."""
    LEAVE = "leave"
    """Small work between steps of the host's is the host's, too."""
    HALVES = "halves"
    """With weights of float16, what is computed is stored so, too, where all who read it can."""
    ROWS = "rows"
    """A launch has outputs in rows that lie otherwise, where the host would take longer."""

    @classmethod
    def named(cls, names: Iterable[str | Pass]) -> frozenset[Pass]:
        """The passes so called. Raises GlnnError for a name that none has."""
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise GlnnError(f"without must be names of passes, got {shown(names)}")
        known = {one.value: one for one in cls}
        passes: set[Pass] = set()
        for name in names:
            one = (
                name if isinstance(name, Pass) else known.get(name if isinstance(name, str) else "")
            )
            if one is None:
                raise GlnnError(f"without has {shown(name)}, which is none of {', '.join(known)}")
            passes.add(one)
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
    """Most bytes of an operand that a kernel reads; 0 without a limit, where NumPy computes."""
    phased: bool = False
    """True where all steps of a recurrent layer are one operator also where each has two phases."""


PassFunction = Callable[[Graph, Types, BackendTraits], Graph]


def _graph_pass(change: Callable[[Graph], Graph]) -> PassFunction:
    return lambda graph, types, traits: change(graph)


def _typed_pass(change: Callable[[Graph, Types], Graph]) -> PassFunction:
    return lambda graph, types, traits: change(graph, types)


def _profitable_pass(change: Callable[[Graph, Types, FusionCheck], Graph]) -> PassFunction:
    def changed(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
        return graph if traits.is_profitable is None else change(graph, types, traits.is_profitable)

    return changed


def _fuse_recurrences(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    if traits.saves_time is None:
        return graph
    return fuse_recurrences(graph, types, traits.saves_time, phased=traits.phased)


def _pack_weights(graph: Graph, types: Types, traits: BackendTraits) -> Graph:
    # NumPy would unpack each in every run.
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
"""In the order in which they are done, some of them again."""


def optimize(
    graph: Graph, types: Types, traits: BackendTraits, without: frozenset[Pass] = frozenset()
) -> Graph:
    """Return `graph` optimised to fewer steps, by all passes but those `without`.

    types: of every value, sizes known; those of new ones are added.
    """
    if Pass.FUSE in without:
        # These make pointwise work behind their operators, which FUSE puts into epilogues.
        without |= {Pass.STACK, Pass.NORMED, Pass.SUBVIEWS}
    for one, change in _PIPELINE:
        if one not in without:
            graph = change(graph, types, traits)
    return graph
