"""Softmax and normalisations."""

from __future__ import annotations

from glnn.graph.operators import LocalResponseNorm, Normalize, Softmax
from tests.gradients.case import Case

CASES = [
    Case("softmax", Softmax(), ((3, 7),), torch=lambda t, x: x.softmax(-1)),
    Case("softmax 1", Softmax(1), ((2, 13, 5),), torch=lambda t, x: x.softmax(1)),
    Case("softmax of one", Softmax(0), ((1, 3),)),
    Case("log softmax", Softmax(log=True), ((3, 7),), torch=lambda t, x: x.log_softmax(-1)),
    Case("log softmax 0", Softmax(0, True), ((11, 3),)),
    Case("softmax 129", Softmax(), ((5, 129),), large=True),
    Case("softmax of nothing", Softmax(), ((0, 3),)),
    Case(
        "layer norm",
        Normalize(dims=2),
        ((3, 5, 7), (5, 7), (5, 7)),
        torch=lambda t, x, w, b: t.nn.functional.layer_norm(x, (5, 7), w, b),
    ),
    Case("layer norm alone", Normalize(dims=1, eps=0.1), ((2, 3, 129),)),
    Case("layer norm of all", Normalize(dims=2), ((3, 5), None, (3, 5))),
    Case(
        "group norm",
        Normalize(groups=2),
        ((3, 6, 5, 1), (6,), (6,)),
        torch=lambda t, x, w, b: t.nn.functional.group_norm(x, 2, w, b),
    ),
    Case(
        "instance norm",
        Normalize(groups=0, eps=1e-3),
        ((2, 3, 7), (3,), (3,)),
        torch=lambda t, x, w, b: t.nn.functional.instance_norm(x, None, None, w, b, eps=1e-3),
    ),
    Case("group norm weighted", Normalize(groups=1), ((2, 3, 5, 2), (3,))),
    Case(
        "RMS norm",
        Normalize(dims=1, centred=False, eps=1e-6),
        ((3, 7), (7,)),
        torch=lambda t, x, w: t.nn.functional.rms_norm(x, (7,), w, 1e-6),
    ),
    Case("norm of nothing", Normalize(dims=1), ((0, 7), (7,), (7,))),
    Case(
        "local response norm",
        LocalResponseNorm(5, 0.3, 0.75, 2.0),
        ((2, 7, 3, 2),),
        torch=lambda t, x: t.nn.functional.local_response_norm(x, 5, 0.3, 0.75, 2.0),
    ),
    Case("local response norm, even", LocalResponseNorm(4, 2.0, 0.5, 1.0), ((1, 3, 5),)),
    Case("local response norm, wide", LocalResponseNorm(99, 2.0), ((1, 3),)),
]
