"""Every operator has a rule for its gradients, or a reason why not."""

from __future__ import annotations

import numpy as np
import pytest

import glnn.graph.operators
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.builder import Builder, constant
from glnn.graph.compose.control_flow import loop
from glnn.graph.expression import Arg, call, formula
from glnn.graph.gradients.differentiation import NOT_DIFFERENTIABLE, RULES, differentiate
from glnn.graph.graph import Graph
from glnn.graph.operator import Operator
from glnn.graph.operators import Detached, Im2row, Pointwise, Reduce
from tests.gradients.cases import CASES

OPERATORS = [getattr(glnn.graph.operators, name) for name in glnn.graph.operators.__all__]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_a_rule_or_a_reason(operator: type[Operator]) -> None:
    tables = [operator in RULES, operator in NOT_DIFFERENTIABLE]
    name = operator.__name__
    assert tables != [False, False], f"{name}: add a rule, or why it has none to NOT_DIFFERENTIABLE"
    assert tables != [True, True], f"{name} has a rule and a reason for none"


def test_every_rule_has_a_case() -> None:
    """But what is made of others, which `test_models.py` has, and what is taken as fixed."""
    alone = {operator for operator in RULES if not operator.composite} - {Detached}
    names = {operator.__name__ for operator in alone - {type(case.operator) for case in CASES}}
    assert not names, f"no case in tests/gradients/cases for {', '.join(sorted(names))}"
    assert {type(case.operator) for case in CASES} <= alone


def test_an_error_says_why_there_is_none() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((2, 4, 7, 5)))
    (rows,) = builder.add(Im2row((3, 3)), x, name="rows")
    (total,) = builder.add(Reduce("sum", (0, 1)), rows, name="total")
    graph = builder.graph([total])
    with pytest.raises(
        UnsupportedOpError, match="layer 'rows': Im2row has no gradient: it is made"
    ):
        differentiate(graph, total, [x])


def test_none_goes_through_a_loop() -> None:
    builder = Builder()
    x = builder.input("x", TensorType(()))
    body = builder.body("more")
    body.input("i", TensorType((), DType.int32))
    body.input("going", TensorType((), DType.bool))
    y = body.input("y", TensorType(()))
    (new,) = body.add(Pointwise(call("mul", Arg(0), 2.0)), y, name="new")
    (again,) = body.add(Pointwise(call("less", Arg(0), 9.0)), new, name="again")
    start = constant(np.array(True))
    (result,) = loop(builder, (body, [again, new]), x, condition=start, name="loop")
    graph = builder.graph([result])
    with pytest.raises(UnsupportedOpError, match="layer 'loop': Loop has no gradient: gradients"):
        differentiate(graph, result, [x])


def test_what_is_detached_is_taken_as_fixed() -> None:
    builder = Builder()
    x = builder.input("x", TensorType((3,)))
    (fixed,) = builder.add(Detached(), x, name="fixed")
    (total,) = builder.add(Reduce("sum", (0,), False, formula("a * b")), x, fixed, name="total")
    made, (found,) = differentiate(builder.graph([total]), total, [x])
    numbers = np.array([1, 2, 3], np.float32)
    (gradient,) = Graph(made.nodes, made.inputs, (found,)).reference(numbers)
    assert np.array_equal(gradient, numbers)
