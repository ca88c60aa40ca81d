"""What kernels get that compute a step of a recurrent layer: the expressions of the new states."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operator import Operator
from glnn.graph.operators.recurrent_step import RecurrentStep
from glnn.kernels.generate.expression import fingerprint, function, types_on_gpu, uniforms
from glnn.kernels.generate.generated import Generated, Uniform
from glnn.layout import Layout
from glnn.types import DType, TensorType


def generate(
    op: Operator, types: Mapping[str, TensorType], layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """For the templates of shaders/recurrent_step."""
    if not isinstance(op, RecurrentStep):
        raise UnsupportedOpError(f"it computes steps of recurrent layers, no {op.name}")
    gates, inputs = types["weight"].shape[1], types["x"].shape[3]
    states = types["state"].shape[3]
    floats = [DType.float32] * (gates + inputs + states)
    values: dict[str, Uniform] = {}
    for r, expr in enumerate(op.exprs):
        types_on_gpu(expr, floats)
        values |= uniforms(expr, _prefix(r))
    defines = {
        "GATES": gates,
        "INPUTS": inputs,
        "STATES": states,
        "SUMMED": op.summed,
        "RESULTS": len(op.exprs),
    }
    names = [f"sums[{i}]" for i in range(gates)]
    names += [f"given[{i}]" for i in range(inputs)] + [f"before[{i}]" for i in range(states)]
    return Generated(
        ":".join([str(defines), *map(fingerprint, op.exprs)]),
        {"cell": lambda: _cell(op.exprs, floats, names)},
        defines,
        values,
    )


def _prefix(result: int) -> str:
    return f"number_{result}_"


def _cell(exprs: tuple[Expr, ...], floats: list[DType], names: list[str]) -> str:
    """A function of each new state, and one that gives the one that is asked for."""
    texts = [function(expr, floats, f"state_{r}", _prefix(r)) for r, expr in enumerate(exprs)]
    given = ", ".join(names)
    chosen = [f"    if (r == {r}) return state_{r}({given});" for r in range(1, len(exprs))]
    head = "float new_state(int r, float sums[GATES], float given[INPUTS], float before[STATES]) {"
    return "\n".join([*texts, head, *chosen, f"    return state_0({given});", "}"])


def examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Operators that have every way of the templates compiled."""

    def operands(gates: int, states: int) -> dict[str, TensorType]:
        shapes = {
            "x": (2, 3, 2, gates, 8),
            "weight": (2, gates, 8, 8),
            "state": (2, 2, 2, states, 4),
        }
        return {name: TensorType(shape) for name, shape in shapes.items()}

    one = call("tanh", call("add", Arg(0), Arg(1)))
    gates = [call("sigmoid", call("add", Arg(i), Arg(4 + i))) for i in range(4)]
    cell = call("add", call("mul", gates[2], Arg(9)), call("mul", gates[0], gates[3]))
    hidden = call("mul", gates[1], call("tanh", cell))
    return {
        "one": (RecurrentStep((one,), 1), operands(1, 1)),
        "two": (RecurrentStep((hidden, cell), 2, units=7), operands(4, 2)),
    }
