"""The passes that can be left out, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from glnn.errors import GlnnError, shown
from glnn.graph.graph import Graph, Value
from glnn.graph.passes.activations import with_activations
from glnn.graph.passes.common import with_common, with_numbers
from glnn.graph.passes.concats import with_shared_concats
from glnn.graph.passes.fold import fold
from glnn.graph.passes.fuse import fuse
from glnn.graph.passes.identities import without_dead, without_identities
from glnn.graph.passes.images import with_pads, with_pools
from glnn.graph.passes.moves import without_moves
from glnn.graph.passes.products import scaled_last
from glnn.graph.passes.recognise import with_layer_norms, with_rms_norms, with_softmaxes
from glnn.graph.passes.sink import sink
from glnn.types import TensorType


class Pass(Enum):
    """A pass that may be left out: what is computed stays the same but for rounding."""

    DEAD = "dead"
    """Nodes that no output needs go."""
    IDENTITIES = "identities"
    """What gives its operand as it is goes, as identities and dropouts do."""
    NUMBERS = "numbers"
    """Operands of one number that never changes go into expressions."""
    COMMON = "common"
    """What is computed twice is computed once."""
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
    FUSE = "fuse"
    """Pointwise work joins what it is done on."""
    CONCATS = "concats"
    """Concatenations share what they begin with."""
    GROUP = "group"
    """Updates of states that lie one behind the other in memory become one launch."""
    LEAVE = "leave"
    """Small work between steps of the host's is the host's, too."""
    HALVES = "halves"
    """With weights of float16, what is computed is stored so, too, where all who read it can."""

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
        """Those called `without` and, unless `fused`, those of FUSING. Raises GlnnError."""
        if type(fused) is not bool:
            raise GlnnError(f"fused must be True or False, got {shown(fused)}")
        return cls.named(without) | (frozenset() if fused else FUSING)


FUSING = frozenset(
    {
        *(Pass.LAYER_NORM, Pass.RMS_NORM, Pass.SOFTMAX, Pass.ACTIVATIONS),
        *(Pass.PADS, Pass.MOVES, Pass.FOLD, Pass.FUSE),
    }
)
"""Those that make one step of several in the model, as of a product, its bias and its ReLU."""

Types = dict[Value, TensorType]
_ORDER: tuple[tuple[Pass, Callable[[Graph, Types], Graph]], ...] = (
    (Pass.DEAD, lambda graph, _: without_dead(graph)),
    (Pass.IDENTITIES, without_identities),
    (Pass.NUMBERS, with_numbers),
    (Pass.COMMON, lambda graph, _: with_common(graph)),
    (Pass.LAYER_NORM, with_layer_norms),
    (Pass.RMS_NORM, with_rms_norms),
    (Pass.SOFTMAX, with_softmaxes),
    (Pass.ACTIVATIONS, with_activations),
    (Pass.PADS, with_pads),
    (Pass.POOLS, with_pools),
    (Pass.PRODUCTS, scaled_last),
    (Pass.SINK, sink),
    (Pass.MOVES, without_moves),
    (Pass.IDENTITIES, without_identities),
    (Pass.SINK, sink),
    (Pass.MOVES, without_moves),
    (Pass.IDENTITIES, without_identities),
    (Pass.COMMON, lambda graph, _: with_common(graph)),
    (Pass.FOLD, fold),
    (Pass.CONCATS, lambda graph, _: with_shared_concats(graph)),
)
"""Those that every backend is given; what joins what depends on how many operands it takes."""


def shortened(
    graph: Graph, types: Types, operands: int, without: frozenset[Pass] = frozenset()
) -> Graph:
    """`graph` computed in fewer steps, by all passes but those `without`.

    types: of every value, sizes known; those of new ones are added. operands: how many a pointwise
    node may come to have.
    """
    for one, change in _ORDER:
        if one not in without:
            graph = change(graph, types)
    return graph if Pass.FUSE in without else fuse(graph, types, operands)
