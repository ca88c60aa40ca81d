"""Cost model that decides whether fusing operators into one step pays on a backend and device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from glnn.backends.backend import Backend, Choice
from glnn.compiler.scheduled_op import Tensor, can_reorder
from glnn.core.layout.layout import CHANNELS_LAST, DENSE
from glnn.core.symint import hint
from glnn.core.types import DType
from glnn.graph.handwritten_operator import prologue_of
from glnn.graph.operator import Operands, Operator
from glnn.graph.operators import (
    Attention,
    BatchNormalize,
    BatchNormalizeGradient,
    CacheAppend,
    ChannelSums,
    Concat,
    Conv2d,
    Matmul,
    Normalize,
    NormedMatmul,
    Perceptron,
    Pool2d,
    PooledConv2d,
    Recurrence,
    Reduce,
    SeparableConv2d,
)
from glnn.graph.passes.recurrence_fusion import JoinCheck
from glnn.kernels import kernels_for
from glnn.kernels.architecture import architecture
from glnn.kernels.codegen.recurrent import reloaded_bytes, waves_per_launch
from glnn.kernels.cost_model import HOST, Ask, Pace, pace, stages_of
from glnn.kernels.kernel import Kernel
from glnn.kernels.manifest import SUITS
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import names_of


@dataclass(frozen=True)
class Case:
    """An operator that is made of several, or may be, and the kernel that would compute it.

    of: the architecture's pace. ask: chooses for what it would be otherwise.
    """

    spec: OpSpec
    kernel: Kernel
    of: Pace
    ask: Ask


Condition = Callable[[Case], bool]
NORMED_FLOPS = 10
"""Operations that a number of a row takes to find mean and deviation, and to be normalised, with
what each workgroup waits for it: by products of 64 to 2048 rows on an H200.
"""


def is_separable_profitable(case: Case) -> bool:
    """Return True where a fused separable convolution is faster: where recomputing depthwise
    results in each workgroup along the channels takes less time than a launch of their own, and
    writing and reading them.
    """
    spec, kernel, of = case.spec, case.kernel, case.of
    sizes, functions = spec.sizes(kernel), spec.prologue
    across = kernel.launch.groups(sizes, kernel.defaults)[0]
    taps = prod(spec.shape("depthwise")[2:]) * 2
    flops = taps if functions is None else taps + functions.expr.flops
    between = sizes["pixels"] * sizes["c"]
    spared = of.launch + 8 * between / of.bytes
    return (across - 1) * between * flops / of.others <= spared


def is_pool_profitable(case: Case) -> bool:
    """Return True where the kernel takes x in its layout, and would convolve unpooled, too."""
    spec = case.spec
    assert isinstance(spec.op, PooledConv2d)
    operands = dict(spec.operands), dict(spec.given)
    alone = OpSpec.create(spec.op.convolution, *operands, spec.epilogue)
    return spec.is_accepted_by(case.kernel) and case.kernel.shares_declaration(
        case.ask(alone, None)
    )


def is_perceptron_profitable(case: Case) -> bool:
    """Return True where running all layers in one workgroup per sample takes less time than the
    launches that it saves.

    Weights count as float32, as it is not known here whether they will be stored as halves.
    """
    spec, of = case.spec, case.of
    assert isinstance(spec.op, Perceptron)
    nbytes = 4 * prod(spec.shape("weights"))
    time = max(nbytes / of.lone, spec.result_shape[0] * nbytes) / of.bytes
    spared = (len(spec.op.widths) - 1) * of.launch
    return time <= spared


def are_channel_sums_profitable(case: Case) -> bool:
    """Return True where one launch, whose few workgroups do not reach the device's whole
    bandwidth, takes less time than two, and reordering and reading the images twice.
    """
    spec, kernel, of = case.spec, case.kernel, case.of
    nbytes = sum(4 * prod(spec.shape(name)) for name in spec.shapes)
    groups = prod(kernel.launch.groups(spec.sizes(kernel), kernel.defaults))
    useful = max(min(groups, groups * spec.shape("x")[1] // spec.result_shape[1]), 1)
    together = nbytes / of.bytes / min(useful * of.lone, 1.0)
    return together <= of.launch + 3 * nbytes / of.bytes


def is_batch_normalize_profitable(case: Case) -> bool:
    """Return True where one launch, whose few workgroups read images twice, takes less time than
    one that waits for another's sums.

    The workgroups are those of the kernel for channels last, as convolutions leave images: how they
    lie is not known yet, and the kernel that is chosen without that has more workgroups.
    """
    spec, of = case.spec, case.of
    layouts = {name: CHANNELS_LAST for name in ("x", "dy") if name in spec.shapes}
    kernel = case.ask(OpSpec.create(spec.op, dict(spec.operands), layouts), None)
    result = 4 * prod(spec.result_shape)
    nbytes = sum(4 * prod(spec.shape(name)) for name in spec.shapes)
    groups = prod(kernel.launch.groups(spec.sizes(kernel), kernel.defaults))
    together = (2 * nbytes + result) / of.bytes / min(groups * of.lone, 1.0)
    return together <= of.launch + (nbytes + result) / of.bytes


def accepts_layout(case: Case) -> bool:
    """Return True where the kernel takes x in its layout."""
    return case.spec.is_accepted_by(case.kernel)


def is_prologue_profitable(case: Case) -> bool:
    """Return True where the kernel takes x in its layout, and recomputing the prologue at each read
    of x takes less time than a launch of its own, which reads x and writes as much.

    Its functions are counted as the additions of a product are: what is read waits for them. It
    does not where another kernel would be taken without it.
    """
    spec, of = case.spec, case.of
    if spec.prologue is None:
        return True
    if not spec.is_accepted_by(case.kernel):
        return False
    inner = _multiplied(case)
    for one in (case, inner):
        if not one.kernel.shares_declaration(case.ask(_without_prologue(one.spec), None)):
            return False
    flops, x = spec.prologue.expr.flops, prod(spec.shape("x"))
    alone = of.launch + 8 * x / of.bytes + flops * x / of.others
    op, shapes, sizes = inner.spec.op, inner.spec.op_shapes, inner.spec.sizes(inner.kernel)
    rows, _ = op.product(shapes) or (1, 1)
    reads = rows * op.depth(shapes) * sizes.get("groups", 1)
    parameters = inner.kernel.defaults
    times = (along.invocations(sizes, parameters) for along in inner.kernel.prologue or ())
    return 2 * flops * reads * prod(times) / of.products <= alone


def is_normed_product_profitable(case: Case) -> bool:
    """Return True where finding the mean and the deviation of a row anew in each workgroup along
    the columns takes less time than a launch of their own, which reads x and writes as much.

    Not by a kernel of products where another one would multiply rows that are normalised before.
    The squares of rows that are not centred are found on the way: there it is up to the kernel's
    `suits`.
    """
    spec, of = case.spec, case.of
    assert isinstance(spec.op, NormedMatmul)
    if not spec.op.centred:
        return True
    operands = {name: spec.types[name] for name in ("x", "weight")}
    kernel, plain = case.kernel, case.ask(OpSpec.create(Matmul(), operands, {}), None)
    of_products = any(map(kernel.shares_declaration, kernels_for(Matmul.name, kernel.backend)))
    if of_products and not kernel.shares_declaration(plain):
        return False
    groups = kernel.launch.groups(spec.sizes(kernel), kernel.defaults)
    grid = zip(groups, kernel.launch.grid, strict=False)
    across = prod(count for count, along in grid if all(one.size != "m" for one in along))
    x = prod(spec.shape("x"))
    return across * NORMED_FLOPS * x / of.others <= of.launch + 8 * x / of.bytes


def _multiplied(case: Case) -> Case:
    """Return the case that computes the prologue: `case` itself, or a stage of its kernel."""
    for stage, operands, _ in stages_of(case.spec, case.kernel):
        if prologue_of(stage.op) is not None:
            stage_spec = OpSpec.create(stage.op, operands, {})
            return _multiplied(
                replace(case, spec=stage_spec, kernel=case.ask(stage_spec, stage.kernel))
            )
    return case


def _without_prologue(spec: OpSpec) -> OpSpec:
    """The same of an x that nothing is done to."""
    assert isinstance(spec.op, Conv2d | Matmul)
    beside = spec.op.prologue_operands
    types = {name: one for name, one in spec.operands if name not in beside}
    layouts = {name: layout for name, layout in spec.given if name not in beside}
    return OpSpec.create(replace(spec.op, prologue=None), types, layouts, spec.epilogue)


@dataclass(frozen=True)
class FusionRule:
    """Conditions under which several operators are fused into one.

    instead: the ops whose place it takes: where a kernel is asked for one of these, it is not made.
    made: whether to make it where a kernel is meant for it. kept: whether it is left so, once it
    is known how its operands lie. None: always. host: whether NumPy gains by it, too.
    """

    instead: tuple[str, ...] = ()
    made: Condition | None = None
    kept: Condition | None = None
    host: bool = True


FUSION_RULES: Mapping[str, FusionRule] = {
    Attention.name: FusionRule(),
    BatchNormalize.name: FusionRule((Reduce.name,), is_batch_normalize_profitable, host=False),
    BatchNormalizeGradient.name: FusionRule(
        (Reduce.name,), is_batch_normalize_profitable, host=False
    ),
    ChannelSums.name: FusionRule((Reduce.name,), are_channel_sums_profitable, host=False),
    SeparableConv2d.name: FusionRule((Conv2d.name,), made=is_separable_profitable),
    PooledConv2d.name: FusionRule((Conv2d.name, Pool2d.name), kept=is_pool_profitable),
    NormedMatmul.name: FusionRule(
        (Normalize.name, Matmul.name), is_normed_product_profitable, host=False
    ),
    CacheAppend.name: FusionRule((Concat.name,), host=False),
    Perceptron.name: FusionRule(
        (Conv2d.name, Matmul.name), is_perceptron_profitable, accepts_layout, host=False
    ),
    Conv2d.name: FusionRule(kept=is_prologue_profitable),
    Matmul.name: FusionRule(kept=is_prologue_profitable),
}
"""By the operator's name; convolutions and products are of several where they have a prologue."""


def is_profitable(
    backend: Backend, kernels: Mapping[str, str], operator: Operator, types: Operands
) -> bool:
    """Return True where a pass is to make the fused `operator`, with operands of these types by
    name: a kernel is requested or suited for it, and none is requested for the operators that it
    replaces.

    kernels: those asked for, by the name of the op.
    """
    spec, asked = (
        OpSpec.create(operator, types, {}).hinted,
        names_of(kernels.get(operator.name, "")),
    )
    rule = FUSION_RULES[operator.name]
    if asked:
        later = rule.made is None and rule.kept is not None  # `stays_fused` decides
        return later or any(backend.suits(spec, kernel) for kernel in asked)
    if backend.device is None and not rule.host:
        return False
    if kernels.keys() & rule.instead or not backend.suits(spec):
        return False
    return _holds(rule.made, backend, spec, backend.choose(spec))


def stays_fused(backend: Backend, kernels: Mapping[str, str], spec: OpSpec, choice: Choice) -> bool:
    """Return True where a fused operator stays fused when `choice` computes it: its kernel was
    requested by name, other than for a convolution or a product with a prologue, or its
    condition holds.
    """
    rule = FUSION_RULES.get(spec.op.name, FusionRule())
    asked = spec.op.name in kernels and spec.prologue is None
    return asked or _holds(rule.kept, backend, spec, choice)


def _holds(condition: Condition | None, backend: Backend, spec: OpSpec, choice: Choice) -> bool:
    """Return True where `condition` holds for `choice` on `spec`, or there is none."""
    if condition is None or backend.device is None or not isinstance(choice, Kernel):
        return True

    def ask(spec: OpSpec, name: str | None) -> Kernel:
        taken = backend.choose(spec, name)
        assert isinstance(taken, Kernel)
        return taken

    of = pace(architecture(backend.device.capabilities))
    return condition(Case(spec.hinted, choice, of, ask))


def device_reorders(backend: Backend, tensor: Tensor) -> bool:
    """Return True where a launch reorders `tensor` to rows faster than NumPy, by which the host
    would reorder it.

    Only of devices with memory of their own: what others write number by number takes as long as
    NumPy does, on llvmpipe longer, and memory that they share with the host is short.
    """
    if backend.device is None or not backend.device.capabilities.dedicated_memory:
        return False
    if tensor.layout.in_rows or tensor.type.dtype is not DType.float32:
        return False
    of, moved = pace(architecture(backend.device.capabilities)), 8 * hint(prod(tensor.shape))
    sooner = of.launch + moved / of.bytes < moved / HOST.bytes
    return sooner and can_reorder(backend, tensor.type, tensor.layout, DENSE)


def join_check(backend: Backend) -> JoinCheck | None:
    """Return a function that tells whether a recurrent layer takes less time in one operator with
    so many layers below it, of so many steps, samples, gates and units, than by itself; None where
    the backend has no kernel for recurrences.

    What the upper layer sums over the lower one is then no matrix product over all steps. Where
    workgroups run through all steps (`Launch.resident`), a step takes as many turns as they have
    parts of it, and the time to load the weights that they do not keep; else it is a launch, which
    reads the weights for each sample. On the host all steps of a layer are one operator, and layers
    stay apart.
    """
    if backend.device is None:
        return lambda layers, steps, samples, gates, units: False
    kernels = kernels_for(Recurrence.name, backend.name)
    if not kernels:
        return None
    offers = backend.device.capabilities
    here, of = architecture(offers), pace(architecture(offers))

    def saves_launches(layers: int, steps: int, samples: int, gates: int, units: int) -> bool:
        products = steps * samples * gates * units**2
        slower = 1 / of.others - 1 / of.products
        # Each sample reads each weight, of 4 bytes, again in each step: 4 bytes a multiplication.
        return (steps - 1) * of.launch > 2 * products * slower + 4 * products / of.bytes

    resident = [k for k in kernels if k.launch.resident and k.architectures.fit(here) == SUITS]
    if not resident or not offers.multiprocessors:
        return saves_launches
    (row, *_), processors = resident[0].rows_for(here), offers.multiprocessors

    def saves_steps(layers: int, steps: int, samples: int, gates: int, units: int) -> bool:
        def seconds(layers: int) -> float:
            sizes = {"chains": layers, "quads": units // 4, "batch": samples}
            turns = -(-prod(row.launch.groups(sizes, row.defaults)) // processors)
            assert row.timing is not None
            turn = 1e-6 * row.timing.microseconds(1, min(layers, 2) * units, 1)
            loaded = reloaded_bytes(row.defaults, layers, samples, gates, units, processors)
            waves, weights = steps + layers - 1, (2 * layers - 1) * gates * units**2
            launches = 2 + -(-waves // waves_per_launch(samples, weights))
            return launches * of.launch + waves * (turns * turn + loaded / of.bytes)

        product = of.launch + 2 * steps * samples * gates * units**2 / of.products
        return seconds(layers + 1) < seconds(layers) + seconds(1) + product

    return saves_steps
