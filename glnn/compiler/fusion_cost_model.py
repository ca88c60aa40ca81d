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
from glnn.kernels.cost_model import HOST, ChooseKernel, DeviceRates, device_rates, stages_of
from glnn.kernels.kernel import Kernel
from glnn.kernels.manifest import SUITS
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import names_of


@dataclass(frozen=True)
class Case:
    """A fused operator, or a candidate for one, and the kernel that would compute it.

    rates: of the architecture. choose_kernel: chooses a kernel for a spec, by name or by default.
    """

    spec: OpSpec
    kernel: Kernel
    rates: DeviceRates
    choose_kernel: ChooseKernel


Condition = Callable[[Case], bool]
NORMED_FLOPS = 10
"""Operations for each element of a row to compute mean and deviation and to normalise it, with the
time that each workgroup waits for that: measured by products of 64 to 2048 rows on an H200.
"""


def is_separable_profitable(case: Case) -> bool:
    """Return True where a fused separable convolution is faster.

    It recomputes the depthwise results in each workgroup along the channels, and spares a launch,
    and writing and reading these results.
    """
    spec, kernel, rates = case.spec, case.kernel, case.rates
    sizes, prologue = spec.sizes(kernel), spec.prologue
    groups = kernel.launch.groups(sizes, kernel.defaults)[0]
    taps = prod(spec.shape("depthwise")[2:]) * 2
    flops = taps if prologue is None else taps + prologue.expr.flops
    intermediates = sizes["pixels"] * sizes["c"]
    spared = rates.launch + 8 * intermediates / rates.bytes
    return (groups - 1) * intermediates * flops / rates.others <= spared


def is_pool_profitable(case: Case) -> bool:
    """Return True where the kernel takes x in its layout, and would be chosen without the pool."""
    spec = case.spec
    assert isinstance(spec.op, PooledConv2d)
    operands = dict(spec.operands), dict(spec.known_layouts)
    unfused = OpSpec.create(spec.op.convolution, *operands, spec.epilogue)
    return spec.is_accepted_by(case.kernel) and case.kernel.shares_declaration(
        case.choose_kernel(unfused, None)
    )


def is_perceptron_profitable(case: Case) -> bool:
    """Return True where running all layers in one workgroup per sample takes less time than the
    launches that it spares.

    Weights count as float32, as it is not known here whether they will be stored as float16.
    """
    spec, rates = case.spec, case.rates
    assert isinstance(spec.op, Perceptron)
    nbytes = 4 * prod(spec.shape("weights"))
    seconds = max(nbytes / rates.workgroup_share, spec.result_shape[0] * nbytes) / rates.bytes
    spared = (len(spec.op.widths) - 1) * rates.launch
    return seconds <= spared


def are_channel_sums_profitable(case: Case) -> bool:
    """Return True where one launch takes less time than two, which reorder the images and read
    them twice.

    The few workgroups of the one launch do not reach the device's whole bandwidth.
    """
    spec, kernel, rates = case.spec, case.kernel, case.rates
    nbytes = sum(4 * prod(spec.shape(name)) for name in spec.shapes)
    groups = prod(kernel.launch.groups(spec.sizes(kernel), kernel.defaults))
    useful = max(min(groups, groups * spec.shape("x")[1] // spec.result_shape[1]), 1)
    fused = nbytes / rates.bytes / min(useful * rates.workgroup_share, 1.0)
    return fused <= rates.launch + 3 * nbytes / rates.bytes


def is_batch_normalize_profitable(case: Case) -> bool:
    """Return True where one launch, whose few workgroups read images twice, takes less time than
    two, the second of which waits for sums of the first.

    The workgroups are those of the kernel for channels last, the layout of convolutions' results:
    the layout is not known yet, and the kernel chosen without one has more workgroups.
    """
    spec, rates = case.spec, case.rates
    layouts = {name: CHANNELS_LAST for name in ("x", "dy") if name in spec.shapes}
    kernel = case.choose_kernel(OpSpec.create(spec.op, dict(spec.operands), layouts), None)
    result = 4 * prod(spec.result_shape)
    nbytes = sum(4 * prod(spec.shape(name)) for name in spec.shapes)
    groups = prod(kernel.launch.groups(spec.sizes(kernel), kernel.defaults))
    fused = (2 * nbytes + result) / rates.bytes / min(groups * rates.workgroup_share, 1.0)
    return fused <= rates.launch + (nbytes + result) / rates.bytes


def accepts_layout(case: Case) -> bool:
    """Return True where the kernel takes x in its layout."""
    return case.spec.is_accepted_by(case.kernel)


def is_prologue_profitable(case: Case) -> bool:
    """Return True where computing the prologue at each read of x takes less time than a launch of
    its own, which reads x and writes as much.

    The kernel must take x in its layout, and be the one that is chosen without a prologue. The
    prologue's functions count as the additions of a product do: each read of x waits for them.
    """
    spec, rates = case.spec, case.rates
    if spec.prologue is None:
        return True
    if not spec.is_accepted_by(case.kernel):
        return False
    inner = _prologue_case(case)
    for one in (case, inner):
        if not one.kernel.shares_declaration(case.choose_kernel(_without_prologue(one.spec), None)):
            return False
    flops, x = spec.prologue.expr.flops, prod(spec.shape("x"))
    own_launch = rates.launch + 8 * x / rates.bytes + flops * x / rates.others
    op, shapes, sizes = inner.spec.op, inner.spec.op_shapes, inner.spec.sizes(inner.kernel)
    rows, _ = op.product(shapes) or (1, 1)
    reads = rows * op.depth(shapes) * sizes.get("groups", 1)
    parameters = inner.kernel.defaults
    times = (along.invocations(sizes, parameters) for along in inner.kernel.prologue or ())
    return 2 * flops * reads * prod(times) / rates.products <= own_launch


def is_normed_product_profitable(case: Case) -> bool:
    """Return True where computing the mean and deviation of a row in each workgroup along the
    columns takes less time than a launch of its own, which reads x and writes as much.

    A kernel of products must be the one that is chosen for rows normalised before. Of rows that are
    not centred, the sum of squares is computed along with the product: then the kernel's `suits`
    decides.
    """
    spec, rates = case.spec, case.rates
    assert isinstance(spec.op, NormedMatmul)
    if not spec.op.centred:
        return True
    operands = {name: spec.types[name] for name in ("x", "weight")}
    kernel, plain = case.kernel, case.choose_kernel(OpSpec.create(Matmul(), operands, {}), None)
    of_products = any(map(kernel.shares_declaration, kernels_for(Matmul.name, kernel.backend)))
    if of_products and not kernel.shares_declaration(plain):
        return False
    groups = kernel.launch.groups(spec.sizes(kernel), kernel.defaults)
    grid = zip(groups, kernel.launch.grid, strict=False)
    repeats = prod(count for count, along in grid if all(one.size != "m" for one in along))
    x = prod(spec.shape("x"))
    return repeats * NORMED_FLOPS * x / rates.others <= rates.launch + 8 * x / rates.bytes


def _prologue_case(case: Case) -> Case:
    """Return the case that computes the prologue: `case` itself, or a stage of its kernel."""
    for stage, operands, _ in stages_of(case.spec, case.kernel):
        if prologue_of(stage.op) is not None:
            stage_spec = OpSpec.create(stage.op, operands, {})
            return _prologue_case(
                replace(case, spec=stage_spec, kernel=case.choose_kernel(stage_spec, stage.kernel))
            )
    return case


def _without_prologue(spec: OpSpec) -> OpSpec:
    """Return `spec` without its prologue."""
    assert isinstance(spec.op, Conv2d | Matmul)
    removed = spec.op.prologue_operands
    types = {name: one for name, one in spec.operands if name not in removed}
    layouts = {name: layout for name, layout in spec.known_layouts if name not in removed}
    return OpSpec.create(replace(spec.op, prologue=None), types, layouts, spec.epilogue)


@dataclass(frozen=True)
class FusionRule:
    """Conditions under which several operators are fused into one; None holds always.

    replaces: the ops that it replaces: where a kernel is requested for one of these, nothing is
    fused. fuse: the condition for fusing, where a kernel suits the fused operator. keep: the
    condition for leaving it fused, once the layouts of its operands are known. host: True where
    NumPy is faster with it, too.
    """

    replaces: tuple[str, ...] = ()
    fuse: Condition | None = None
    keep: Condition | None = None
    host: bool = True


FUSION_RULES: Mapping[str, FusionRule] = {
    Attention.name: FusionRule(),
    BatchNormalize.name: FusionRule((Reduce.name,), is_batch_normalize_profitable, host=False),
    BatchNormalizeGradient.name: FusionRule(
        (Reduce.name,), is_batch_normalize_profitable, host=False
    ),
    ChannelSums.name: FusionRule((Reduce.name,), are_channel_sums_profitable, host=False),
    SeparableConv2d.name: FusionRule((Conv2d.name,), fuse=is_separable_profitable),
    PooledConv2d.name: FusionRule((Conv2d.name, Pool2d.name), keep=is_pool_profitable),
    NormedMatmul.name: FusionRule(
        (Normalize.name, Matmul.name), is_normed_product_profitable, host=False
    ),
    CacheAppend.name: FusionRule((Concat.name,), host=False),
    Perceptron.name: FusionRule(
        (Conv2d.name, Matmul.name), is_perceptron_profitable, accepts_layout, host=False
    ),
    Conv2d.name: FusionRule(keep=is_prologue_profitable),
    Matmul.name: FusionRule(keep=is_prologue_profitable),
}
"""By the operator's name; convolutions and products are fused where they have a prologue."""


def is_profitable(
    backend: Backend, kernels: Mapping[str, str], operator: Operator, types: Operands
) -> bool:
    """Return True where a pass is to make the fused `operator`: a kernel is requested for it, or
    suits it and its rule holds, and none is requested for the operators that it replaces.

    kernels: the requested kernels, by the name of the op. types: of its operands, by name.
    """
    spec = OpSpec.create(operator, types, {}).hinted
    requested = names_of(kernels.get(operator.name, ""))
    rule = FUSION_RULES[operator.name]
    if requested:
        decided_later = rule.fuse is None and rule.keep is not None  # by `stays_fused`
        return decided_later or any(backend.suits(spec, kernel) for kernel in requested)
    if backend.device is None and not rule.host:
        return False
    if kernels.keys() & rule.replaces or not backend.suits(spec):
        return False
    return _holds(rule.fuse, backend, spec, backend.choose(spec))


def stays_fused(backend: Backend, kernels: Mapping[str, str], spec: OpSpec, choice: Choice) -> bool:
    """Return True where a fused operator stays fused when `choice` computes it.

    It does where its rule holds, or where its kernel was requested by name and it has no prologue.
    """
    rule = FUSION_RULES.get(spec.op.name, FusionRule())
    requested = spec.op.name in kernels and spec.prologue is None
    return requested or _holds(rule.keep, backend, spec, choice)


def _holds(condition: Condition | None, backend: Backend, spec: OpSpec, choice: Choice) -> bool:
    """Return True where `condition` holds for `choice` on `spec`, or there is none."""
    if condition is None or backend.device is None or not isinstance(choice, Kernel):
        return True

    def choose_kernel(spec: OpSpec, name: str | None) -> Kernel:
        kernel = backend.choose(spec, name)
        assert isinstance(kernel, Kernel)
        return kernel

    rates = device_rates(architecture(backend.device.capabilities))
    return condition(Case(spec.hinted, choice, rates, choose_kernel))


def device_reorders(backend: Backend, tensor: Tensor) -> bool:
    """Return True where a launch reorders `tensor` to rows faster than NumPy does on the host.

    Never for devices that share the host's memory: they take as long as NumPy to write single
    elements, llvmpipe longer, and a copy takes memory that is short there.
    """
    if backend.device is None or not backend.device.capabilities.dedicated_memory:
        return False
    if tensor.layout.in_rows or tensor.type.dtype is not DType.float32:
        return False
    rates, moved = (
        device_rates(architecture(backend.device.capabilities)),
        8 * hint(prod(tensor.shape)),
    )
    is_faster = rates.launch + moved / rates.bytes < moved / HOST.bytes
    return is_faster and can_reorder(backend, tensor.type, tensor.layout, DENSE)


def join_check(backend: Backend) -> JoinCheck | None:
    """Return a function that tells whether a recurrent layer should join the operator of the layers
    below it; None where the backend has no kernel for recurrences.

    The function takes the number of layers below, steps, samples, gates and units. In one operator
    the upper layer's sums over the lower layer's outputs are no matrix product over all steps any
    more. Where workgroups run through all steps (`Launch.resident`), a step takes as many turns as
    each processor has workgroups, and the time to load the weights that these do not keep; else a
    step is a launch, which reads the weights for each sample. On the host all steps of a layer are
    one operator, and layers are never joined.
    """
    if backend.device is None:
        return lambda layers, steps, samples, gates, units: False
    kernels = kernels_for(Recurrence.name, backend.name)
    if not kernels:
        return None
    offers = backend.device.capabilities
    arch = architecture(offers)
    rates = device_rates(arch)

    def saves_launches(layers: int, steps: int, samples: int, gates: int, units: int) -> bool:
        products = steps * samples * gates * units**2
        slower = 1 / rates.others - 1 / rates.products
        # Each sample reads each weight, of 4 bytes, again in each step: 4 bytes a multiplication.
        return (steps - 1) * rates.launch > 2 * products * slower + 4 * products / rates.bytes

    resident = [k for k in kernels if k.launch.resident and k.architectures.fit(arch) == SUITS]
    if not resident or not offers.multiprocessors:
        return saves_launches
    (row, *_), processors = resident[0].rows_for(arch), offers.multiprocessors

    def saves_steps(layers: int, steps: int, samples: int, gates: int, units: int) -> bool:
        def seconds(layers: int) -> float:
            sizes = {"chains": layers, "quads": units // 4, "batch": samples}
            turns = -(-prod(row.launch.groups(sizes, row.defaults)) // processors)
            assert row.timing is not None
            turn = 1e-6 * row.timing.microseconds(1, min(layers, 2) * units, 1)
            loaded = reloaded_bytes(row.defaults, layers, samples, gates, units, processors)
            waves, weights = steps + layers - 1, (2 * layers - 1) * gates * units**2
            launches = 2 + -(-waves // waves_per_launch(samples, weights))
            return launches * rates.launch + waves * (turns * turn + loaded / rates.bytes)

        product = rates.launch + 2 * steps * samples * gates * units**2 / rates.products
        return seconds(layers + 1) < seconds(layers) + seconds(1) + product

    return saves_steps
