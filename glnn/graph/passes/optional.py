"""The passes that can be left out, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from glnn.errors import GlnnError, shown
from glnn.graph.graph import Graph, Value
from glnn.graph.passes.activations import with_activations
from glnn.graph.passes.attention import with_attention
from glnn.graph.passes.common import with_common, with_numbers
from glnn.graph.passes.concats import with_shared_concats
from glnn.graph.passes.fold import fold
from glnn.graph.passes.fuse import fuse
from glnn.graph.passes.identities import without_dead, without_identities
from glnn.graph.passes.images import with_pads, with_pools
from glnn.graph.passes.moves import without_moves
from glnn.graph.passes.perceptrons import with_perceptrons
from glnn.graph.passes.pooled import with_pooled
from glnn.graph.passes.products import scaled_last
from glnn.graph.passes.prologues import with_prologues
from glnn.graph.passes.recognise import with_layer_norms, with_rms_norms, with_softmaxes
from glnn.graph.passes.recurrences import Worth, with_recurrences
from glnn.graph.passes.rewriting import Pays
from glnn.graph.passes.separable import with_separable
from glnn.graph.passes.sink import sink
from glnn.graph.passes.stack import with_stacked
from glnn.types import TensorType


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
    RECURRENCES = "recurrences"
    """Steps of recurrent layers become one operator, layers one on another too."""
    LAYER_NORM = "layer_norm"
    """Layer normalisations in small pieces become one operator."""
    RMS_NORM = "rms_norm"
    """RMS normalisations likewise."""
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
    STACK = "stack"
    """Convolutions and products of the same operand become one, of which they are slices."""
    STRIPS = "strips"
    """Concatenations and slices of channels are only placed in memory."""
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
        found: set[Pass] = set()
        for name in names:
            one = (
                name if isinstance(name, Pass) else known.get(name if isinstance(name, str) else "")
            )
            if one is None:
                raise GlnnError(f"without has {shown(name)}, which is none of {', '.join(known)}")
            found.add(one)
        return frozenset(found)

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
        *(Pass.LAYER_NORM, Pass.RMS_NORM, Pass.SOFTMAX, Pass.ACTIVATIONS),
        *(Pass.PADS, Pass.MOVES, Pass.FOLD, Pass.ATTENTION, Pass.FUSE),
        *(Pass.PERCEPTRON, Pass.PROLOGUE, Pass.POOLED, Pass.SEPARABLE),
    }
)
"""Passes that fuse several steps of a model into one, as a product, its bias and its ReLU."""

Types = dict[Value, TensorType]


@dataclass(frozen=True)
class Offers:
    """Properties of the backend that a graph is optimised for."""

    operands: int
    """Most operands of a pointwise node."""
    strips: bool = False
    """True where kernels read slices of channels in place."""
    worth: Worth | None = None
    """Predicate of launches saved and operations slowed; None where no kernel runs recurrences."""
    pays: Pays | None = None
    """Predicate that is True where fusing several operators into a given one pays; None: never."""
    phased: bool = False
    """True where all steps of a recurrent layer are one operator also where each has two phases."""


Change = Callable[[Graph, Types, Offers], Graph]


def _of_graph(change: Callable[[Graph], Graph]) -> Change:
    return lambda graph, types, offers: change(graph)


def _of_types(change: Callable[[Graph, Types], Graph]) -> Change:
    return lambda graph, types, offers: change(graph, types)


def _paying(change: Callable[[Graph, Types, Pays], Graph]) -> Change:
    def changed(graph: Graph, types: Types, offers: Offers) -> Graph:
        return graph if offers.pays is None else change(graph, types, offers.pays)

    return changed


def _recurrences(graph: Graph, types: Types, offers: Offers) -> Graph:
    if offers.worth is None:
        return graph
    return with_recurrences(graph, types, offers.worth, phased=offers.phased)


def _fuse(graph: Graph, types: Types, offers: Offers) -> Graph:
    return fuse(graph, types, offers.operands)


def _stack(graph: Graph, types: Types, offers: Offers) -> Graph:
    stacked = with_stacked(graph, types) if offers.strips else graph
    return graph if stacked is graph else _fuse(without_moves(stacked, types), types, offers)


_ORDER: tuple[tuple[Pass, Change], ...] = (
    (Pass.DEAD, _of_graph(without_dead)),
    (Pass.IDENTITIES, _of_types(without_identities)),
    (Pass.NUMBERS, _of_types(with_numbers)),
    (Pass.COMMON, _of_graph(with_common)),
    (Pass.RECURRENCES, _recurrences),
    (Pass.LAYER_NORM, _of_types(with_layer_norms)),
    (Pass.RMS_NORM, _of_types(with_rms_norms)),
    (Pass.SOFTMAX, _of_types(with_softmaxes)),
    (Pass.ACTIVATIONS, _of_types(with_activations)),
    (Pass.PADS, _of_types(with_pads)),
    (Pass.POOLS, _of_types(with_pools)),
    (Pass.PRODUCTS, _of_types(scaled_last)),
    (Pass.SINK, _of_types(sink)),
    (Pass.MOVES, _of_types(without_moves)),
    (Pass.IDENTITIES, _of_types(without_identities)),
    (Pass.SINK, _of_types(sink)),
    (Pass.MOVES, _of_types(without_moves)),
    (Pass.IDENTITIES, _of_types(without_identities)),
    (Pass.COMMON, _of_graph(with_common)),
    (Pass.FOLD, _of_types(fold)),
    (Pass.CONCATS, _of_graph(with_shared_concats)),
    (Pass.ATTENTION, _paying(with_attention)),
    (Pass.FUSE, _fuse),
    (Pass.PERCEPTRON, _paying(with_perceptrons)),
    (Pass.STACK, _stack),
    (Pass.PROLOGUE, _of_types(with_prologues)),
    (Pass.POOLED, _paying(with_pooled)),
    (Pass.SEPARABLE, _paying(with_separable)),
)
"""In the order in which they are done, some of them again."""


def shortened(
    graph: Graph, types: Types, offers: Offers, without: frozenset[Pass] = frozenset()
) -> Graph:
    """Return `graph` optimised to fewer steps, by all passes but those `without`.

    types: of every value, sizes known; those of new ones are added.
    """
    if Pass.FUSE in without:
        without |= {Pass.STACK}  # what is fused is stacked
    for one, change in _ORDER:
        if one not in without:
            graph = change(graph, types, offers)
    return graph
