"""Generators of kernels of recurrent layers: state expressions, and launches of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from glnn.core.layout import Layout
from glnn.core.symint import as_constant
from glnn.core.types import DType, TensorType
from glnn.errors import UnsupportedOpError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operator import Operator
from glnn.graph.operators.recurrence import Recurrence, RecurrentStep
from glnn.kernels.codegen.expression import fingerprint, function, types_on_gpu, uniforms
from glnn.kernels.codegen.generated import Generated, OneLaunch, Uniform

Types = Mapping[str, TensorType]
STEPS_PER_LAUNCH = 64
"""Steps of a launch of recurrence/persistent: drivers end launches that take long."""
MOST_WAVES_PER_LAUNCH = 256
"""Waves of a launch of recurrence/dataflow, where these read few weights."""
MOST_BYTES_PER_LAUNCH = 1 << 31
"""Bytes of weights that a launch of recurrence/dataflow reads, where a wave reads less."""
CACHED_QUADS = 8
"""Fours of units whose weights a lane of recurrence/dataflow keeps in registers: as many as
`EACH_CACHED` writes out there.
"""


def generate(op: Operator, types: Types, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for the templates of shaders/recurrent_step: see `Generator.make`."""
    if not isinstance(op, RecurrentStep):
        raise UnsupportedOpError(f"it computes a step of a recurrent layer, no {op.name}")
    return _generated(op, types)


def wavefront(op: Operator, types: Types, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for recurrence/wavefront: a launch a step, each upper layer one step behind."""
    if not isinstance(op, Recurrence):
        raise UnsupportedOpError(f"it computes all steps of recurrent layers, no {op.name}")
    steps, chains, active = types["x"].shape[1], types["state"].shape[0], []
    for now in range(steps + op.layers - 1):
        first, last = max(now - steps + 1, 0), min(now + 1, op.layers)
        active.append((first, last - first) if op.layers > 1 else (0, chains))
    launches = tuple(
        OneLaunch({"now": now, "first_chain": first, "active_chains": count}, after=now > 0)
        for now, (first, count) in enumerate(active)
    )
    most = max(count for _, count in active)
    uniforms: dict[str, Uniform] = {"now": 0, "first_chain": 0, "active_chains": most}
    return _with(_generated(op, types), launches, uniforms)


def persistent(
    op: Operator, types: Types, layouts: Mapping[str, Layout], backend: str
) -> Generated:
    """Generate for recurrence/persistent: a launch for each `STEPS_PER_LAUNCH` steps."""
    if not isinstance(op, Recurrence):
        raise UnsupportedOpError(f"it computes all steps of recurrent layers, no {op.name}")
    count = as_constant(-(-types["x"].shape[1] // STEPS_PER_LAUNCH))
    launches = tuple(OneLaunch({"now": now}, after=now > 0) for now in range(count))
    return _with(_generated(op, types), launches, {"now": 0, "most_steps": STEPS_PER_LAUNCH})


def dataflow(op: Operator, types: Types, layouts: Mapping[str, Layout], backend: str) -> Generated:
    """Generate for recurrence/dataflow: launches to mark the result, compute waves, and finish."""
    if not isinstance(op, Recurrence):
        raise UnsupportedOpError(f"it computes all steps of recurrent layers, no {op.name}")
    samples, weights = types["x"].shape[2], prod(types["weight"].shape)
    most = as_constant(waves_per_launch(samples, weights))
    count = as_constant(-(-(types["x"].shape[1] + op.layers - 1) // most))
    launches = tuple(
        OneLaunch({"now": now}, after=now > 0, brief=not 1 <= now <= count)
        for now in range(count + 2)
    )
    made = _with(_generated(op, types), launches, {"now": 0, "most_waves": most})
    quads = as_constant(types["x"].shape[4]) // 4
    return replace(made, defines={**made.defines, "SUMMED_QUADS": quads})


def waves_per_launch(samples: int, weights: int) -> int:
    """Return how many waves of so many samples and weights dataflow makes in a launch."""
    return min(max(MOST_BYTES_PER_LAUNCH // (4 * samples * weights), 1), MOST_WAVES_PER_LAUNCH)


def reloaded_bytes(
    parameters: Mapping[str, int],
    layers: int,
    samples: int,
    gates: int,
    units: int,
    workgroups: int,
) -> int:
    """Return the bytes of weights that all workgroups of recurrence/dataflow load in each wave.

    0 where each keeps them in registers: where a lane holds all of its own, and a workgroup
    takes turns at no others than samples of the same units. parameters: of the kernel. layers:
    one on another, of so many units each.
    """
    lanes, quads = parameters["LANES_PER_SUM"] // (2 if layers > 1 else 1), units // 4
    blocks, tiles = -(-quads // parameters["QUADS"]), -(-samples // parameters["ROWS"])
    tasks = layers * blocks * tiles
    each = -(-tasks // workgroups)
    if quads > lanes * CACHED_QUADS:
        loads = tasks
    else:
        spans = [(i // tiles, (min(i + each, tasks) - 1) // tiles) for i in range(0, tasks, each)]
        loads = sum(last - first + 1 for first, last in spans if first < last)
    nbytes = 4 * (2 * layers - 1) * gates * units**2  # of all blocks of all layers
    return loads * nbytes // (layers * blocks)


def _with(
    made: Generated, launches: tuple[OneLaunch, ...], uniforms: Mapping[str, Uniform]
) -> Generated:
    return replace(made, launches=launches, uniforms={**made.uniforms, **uniforms})


def _generated(op: RecurrentStep | Recurrence, types: Types) -> Generated:
    """Generate the states' expressions, common to a step and a recurrence."""
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
    names += [f"inputs[{i}]" for i in range(inputs)] + [f"before[{i}]" for i in range(states)]
    return Generated(
        ":".join([str(defines), *map(fingerprint, op.exprs)]),
        {"cell": lambda: _cell(op.exprs, floats, names)},
        defines,
        values,
    )


def _prefix(result: int) -> str:
    return f"number_{result}_"


def _cell(exprs: tuple[Expr, ...], floats: list[DType], names: list[str]) -> str:
    """Return a GLSL function for each new state, and `new_state`, which selects one by index."""
    texts = [function(expr, floats, f"state_{r}", _prefix(r)) for r, expr in enumerate(exprs)]
    arguments = ", ".join(names)
    chosen = [f"    if (r == {r}) return state_{r}({arguments});" for r in range(1, len(exprs))]
    head = "float new_state(int r, float sums[GATES], float inputs[INPUTS], float before[STATES]) {"
    return "\n".join([*texts, head, *chosen, f"    return state_0({arguments});", "}"])


def examples() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return operators that cover every variant of the templates."""

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


def recurrences() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return recurrences over all steps: in two directions, and in stacked layers."""
    result: dict[str, tuple[Operator, dict[str, TensorType]]] = {}
    for name, (step, types) in examples().items():
        assert isinstance(step, RecurrentStep)
        op = Recurrence(step.exprs, units=step.units)
        result[name] = op, types
        _, gates, h, _ = types["weight"].shape
        shapes = {
            "x": (1, 3, 2, gates, h),
            "weight": (3, gates, h, h),
            "state": types["state"].shape,
        }
        stacked = {key: TensorType(shape) for key, shape in shapes.items()}
        result[f"{name}-stacked"] = replace(op, layers=2), stacked
    return result


def single_recurrences() -> Mapping[str, tuple[Operator, dict[str, TensorType]]]:
    """Return the recurrences without stacked layers."""
    return {k: v for k, v in recurrences().items() if not k.endswith("-stacked")}
