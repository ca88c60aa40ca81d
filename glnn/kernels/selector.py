"""Kernel selection: the named kernel, else the tuned, predicted, suited or first usable one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from math import inf, prod

from glnn.core.layout import parse
from glnn.core.types import TensorType, widened
from glnn.errors import LimitError, UnsupportedOpError
from glnn.gl import Capabilities
from glnn.graph.compose.decompositions import Decomposition, Stage
from glnn.kernels.architecture import architecture
from glnn.kernels.binding import why_not_bound
from glnn.kernels.capability_check import fitted_rows, why_not_device, why_not_here, why_not_spec
from glnn.kernels.codegen.expression import is_long
from glnn.kernels.cost_model import (
    ChooseKernel,
    DeviceRates,
    device_rates,
    seconds,
    seconds_whole,
    stages_of,
)
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import kernels_for
from glnn.kernels.manifest import PREDICTED
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.tuned import Tuned
from glnn.kernels.verdicts import Verdicts

GAIN = 0.9  # stages are chosen where predicted to take less of the time of one kernel
MULTIPROCESSORS = 64  # assumed where the driver does not tell
KERNEL_SIZES = "accepts_layout", "memory_bound", "multiprocessors"
"""Sizes that `suits` may restrict besides those of an operator: 1 where the kernel accepts the
layout of the first input, else 0; `DeviceRates.memory_bound`; `Capabilities.multiprocessors`."""


def _check_stages(kernel: Kernel, spec: OpSpec, choose_kernel: ChooseKernel) -> None:
    """Raise UnsupportedOpError or LimitError where one of the stages of `kernel` cannot run."""
    lowered = spec.lowered(kernel)
    types, layouts = dict(spec.types), dict(spec.layouts)
    for name, derived in lowered.derived.items():
        types[name] = TensorType(derived.shape, types[derived.source].dtype)
        if derived.source not in layouts:
            continue
        if not derived.operator.view and not kernels_for(derived.operator.name, kernel.backend):
            raise UnsupportedOpError(
                f"{derived.source} is another in each run: {name} is the host's"
            )
        layouts[name] = "R"
    out_layouts: dict[object, str] = {}  # by stage, as many differ in a uniform alone
    for stage in lowered.stages:
        operands = {operand: types[name] for operand, name in stage.operands.items()}
        operand_layouts = {
            o: layouts[name] for o, name in stage.operands.items() if name in layouts
        }
        out = types[stage.name] = widened(stage.op.results(operands)[0])
        if stage.op.view:
            layout = parse(stage.op.view_layouts(operand_layouts.get("x", "R"))[1])
            layouts[stage.name] = layout.simplify(out.shape).name
            continue
        shapes = {operand: one.shape for operand, one in operands.items()}
        tables = operands, operand_layouts, stage.op.defines(shapes), stage.op.fixed_layouts()
        items = (tuple(table.items()) for table in tables)
        key = stage.op.name, stage.kernel, stage.finishes, out, *items
        if key not in out_layouts:
            finish = _epilogue_operands(spec, lowered) if stage.finishes else {}
            out_layouts[key] = _stage_layout(
                stage, operands, operand_layouts, spec, finish, choose_kernel
            )
        layouts[stage.name] = out_layouts[key]


def _epilogue_operands(
    spec: OpSpec, lowered: Decomposition
) -> dict[str, tuple[TensorType, str | None]]:
    """Return the type and the layout, None where unknown, of the operands of the epilogue of `spec`
    as the stage that finishes sees them.
    """
    operands: dict[str, tuple[TensorType, str | None]] = {}
    for name, extent in spec.extents.items():
        type, layout, view = spec.types[name], spec.layouts.get(name), lowered.epilogue_view
        if extent == "full" and view is not None:
            (type,) = view.results({"x": type})
            if layout is not None:
                layout = parse(view.view_layouts(layout)[1]).simplify(type.shape).name
        operands[name] = type, layout
    return operands


def _stage_layout(
    stage: Stage,
    operands: dict[str, TensorType],
    computed_layouts: dict[str, str],
    spec: OpSpec,
    epilogue_operands: Mapping[str, tuple[TensorType, str | None]],
    choose_kernel: ChooseKernel,
) -> str:
    """Return the layout of the result of `stage`, a stage of `spec`.

    Raises what `choose_kernel` raises.

    operands: the operands' types. computed_layouts: the layouts of those that are computed.
    epilogue_operands: the type and the layout of each, where the stage takes the epilogue.
    """
    epilogue = spec.epilogue if stage.finishes else None
    operands = {**operands, **{name: type for name, (type, _) in epilogue_operands.items()}}
    known = {name: layout for name, (_, layout) in epilogue_operands.items() if layout is not None}
    stage_spec = OpSpec.create(stage.op, operands, {**computed_layouts, **known}, epilogue)
    try:
        return stage_spec.chosen_layouts(choose_kernel(stage_spec, stage.kernel))["out"].name
    except (UnsupportedOpError, LimitError) as error:
        raise type(error)(f"{stage.name}: {error}") from None


def names_of(names: str) -> tuple[str, ...]:
    """Split the comma-separated kernel names in `names`."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def choose(
    backend: str,
    spec: OpSpec,
    device: Capabilities,
    name: str | None = None,
    tuned: Tuned | None = None,
    verdicts: Verdicts | None = None,
    choose_kernel: ChooseKernel | None = None,
) -> Kernel:
    """Choose the kernel of `backend` that runs `spec` on `device`, or the one called `name`.

    A tuned choice for such specs comes before the default; kernels whose results were wrong by
    `verdicts` are not chosen. choose_kernel: chooses the kernels of stages; None for this function.
    Raises UnsupportedOpError where no kernel can run it, with the reason of each, and LimitError
    where only the sizes stand in the way.
    """
    op = spec.op.name
    kernels = kernels_for(op, backend)
    if spec.is_open and choose_kernel is not None:
        for_hints = choose_kernel(spec.hinted, name)
        if result := _generalize(for_hints, spec, device, verdicts, choose_kernel):
            return result
    if name is None:
        kernels = tuple(k for k in kernels if not k.document)
    result = tuned.kernel(kernels, spec.hinted) if tuned and name is None else None
    if result:
        result = spec.adapted(result)
        if why_not(result, spec, device, verdicts) is None:
            return result
    if name is not None:
        names = [k.name for k in kernels]
        if name not in names:
            known = ", ".join(names) or "none"
            raise UnsupportedOpError(f"{backend} has no kernel {name!r} for {op}; it has {known}")
        kernels = tuple(k for k in kernels if k.name == name)
    reasons: dict[str, list[str]] = {}
    too_large: dict[str, list[str]] = {}
    for preferred in _preferred(kernels, spec, device, reasons):
        for kernel in preferred.versions:
            refusal = _refusal(kernel, spec, device, verdicts, choose_kernel)
            if refusal is None:
                return kernel
            if kernel is preferred:
                kind = too_large if isinstance(refusal, LimitError) else reasons
                refused = kind.setdefault(str(refusal), [])
                if kernel.name not in refused:  # once for all rows of its tuning
                    refused.append(kernel.name)
            if not isinstance(refusal, LimitError):
                break  # other parameters change sizes alone
    why = _join_reasons(too_large or reasons) or "it has no kernel for it"
    error = LimitError if too_large else UnsupportedOpError
    raise error(f"{op} on {dict(spec.shapes)} cannot run on {backend}: {why}")


def _generalize(
    kernel: Kernel,
    spec: OpSpec,
    device: Capabilities,
    verdicts: Verdicts | None,
    choose_kernel: ChooseKernel | None,
) -> Kernel | None:
    """Return `kernel`, chosen for the current sizes of `spec`, adapted to all sizes it guards.

    Returns None where it does not compute all of these in the same way.
    """
    if kernel.generate:
        declared = next(k for k in kernels_for(kernel.op, kernel.backend) if k.name == kernel.name)
        if declared.defaults != kernel.defaults:
            declared = declared.with_parameters(**kernel.defaults)
        try:
            kernel = spec.adapted(declared)
        except UnsupportedOpError:
            return None
    return kernel if _refusal(kernel, spec, device, verdicts, choose_kernel) is None else None


def why_chosen(
    kernel: Kernel, spec: OpSpec, device: Capabilities, requested: str | None, tuned: Tuned
) -> str:
    """Describe the kernel that `choose` gave for `spec` on `device`, and why it did.

    spec: of numbers, the hints of its open sizes. requested: the `name` argument of `choose`.
    """
    kernels = [k for k in kernels_for(spec.op.name, kernel.backend) if not k.document]
    best = tuned.kernel(kernels, spec)
    if requested is not None:
        why = "asked for by name"
    elif best is not None and (best.name, best.defaults) == (kernel.name, kernel.defaults):
        why = "tuned"
    else:
        groups = _ranked(kernels, spec, device, {})
        why = next(why for why, group in groups.items() if kernel.name in {k.name for k in group})
    return f"{kernel.name} {dict(kernel.defaults)}, priority {kernel.priority}: {why}"


def suits(kernel: Kernel, spec: OpSpec, device: Capabilities, tuned: Tuned) -> bool:
    """Return True where the chosen `kernel` suits `spec`, by its declaration or by tuning."""
    choice = tuned.find(kernel.backend, spec)
    best = choice is not None and choice.kernel == kernel.name
    return best or kernel.is_suited(_sizes(spec, kernel, device), architecture(device))


def alternatives(
    backend: str,
    spec: OpSpec,
    device: Capabilities,
    chosen: Kernel,
    verdicts: Verdicts | None = None,
    choose_kernel: ChooseKernel | None = None,
) -> Iterator[Kernel]:
    """Yield kernels that can run `spec` instead of `chosen` and use memory differently.

    They are the kernels of stages that suit it, with each combination of their parameters, and, if
    `chosen` has stages, the most preferred kernel without.
    """
    kernels = [k for k in kernels_for(spec.op.name, backend) if not k.document]
    has_shader = not chosen.stages
    for kernel in _preferred(kernels, spec, device, {}):
        sizes = _sizes(spec.hinted, kernel, device)
        if kernel.stages and not kernel.is_suited(sizes, architecture(device)):
            continue
        for version in kernel.versions if kernel.stages or not has_shader else ():
            refusal = _refusal(version, spec, device, verdicts, choose_kernel)
            if refusal is None:
                has_shader = has_shader or not kernel.stages
                if version != chosen:
                    yield version
            elif not isinstance(refusal, LimitError):
                break


def _preferred(
    kernels: Iterable[Kernel],
    spec: OpSpec,
    device: Capabilities,
    reasons: dict[str, list[str]],
) -> Iterator[Kernel]:
    """Return `kernels` in the order in which to try them: see `_ranked`."""
    return chain.from_iterable(_ranked(kernels, spec, device, reasons).values())


def _ranked(
    kernels: Iterable[Kernel],
    spec: OpSpec,
    device: Capabilities,
    reasons: dict[str, list[str]],
) -> dict[str, list[Kernel]]:
    """Return groups of `kernels` by the reason for choosing one, all in the order of trial.

    First come kernels predicted to be fast, the fastest first. Next come those that suit, sorted by
    the number of computed weights that they reorder or derive others from in each run, then by
    descending priority, then those that accept the layout of the first input, then by the time that
    their `timing` predicts. Last come all others, in the opposite order. reasons: filled with why
    kernels in no group cannot be tried.
    """
    candidates: list[Kernel] = []
    sizes = (*spec.suits_sizes, *KERNEL_SIZES)
    for declared in kernels:
        # Checked before all else, so that a misspelt name is an error on every device:
        declared.check_names("suits", declared.suits, sizes)
        try:
            adapted = spec.adapted(declared)
        except UnsupportedOpError as unfit:
            reasons.setdefault(str(unfit), []).append(declared.name)
        else:
            candidates += fitted_rows(adapted, device) or [adapted]
    gpu, spec = architecture(device), spec.hinted

    def order(k: Kernel) -> tuple[int, int, bool]:
        return _reordered(k, spec), -k.priority, not spec.is_accepted_by(k)

    if len(candidates) > 1:
        candidates.sort(key=order)
    suited = [k for k in candidates if k.is_suited(_sizes(spec, k, device), gpu)]
    predicted = [k for k in suited if k.architectures.fit(gpu) == PREDICTED]
    fast = _fast(predicted, spec, device_rates(gpu))
    by_order: list[Kernel] = []
    for _, group in groupby((k for k in suited if k not in predicted), order):
        equals = list(group)
        if len(equals) > 1:
            equals.sort(key=lambda k: _predicted_time(k, spec, device))
        by_order += equals
    better = {id(kernel) for kernel in (*fast, *by_order)}
    return {
        "the fastest by prediction": fast,
        "the first of those that suit": by_order,
        "no better one can run it": [k for k in reversed(candidates) if id(k) not in better],
    }


def _reordered(kernel: Kernel, spec: OpSpec) -> int:
    """Return the number of computed weights that each run reorders, or derives others from."""
    reordered, layouts = (
        spec.operand_layouts.reordered_weights(kernel),
        spec.operand_layouts.layouts,
    )
    computed = layouts.keys() & set(spec.op.parameters)
    if not kernel.stages or not computed or why_not_spec(kernel, spec) is not None:
        return reordered
    derived = spec.lowered(kernel).derived.values()
    return reordered + sum(one.moves and one.source in computed for one in derived)


def _predicted_time(kernel: Kernel, spec: OpSpec, device: Capabilities) -> float:
    """Return the microseconds for `spec` that the timing of `kernel` predicts.

    For a kernel of stages it is the sum over the fastest kernel of each stage. Returns inf without
    a timing, and where `kernel` cannot compute `spec`.
    """
    if why_not_spec(kernel, spec) is not None:
        return inf
    if kernel.stages:
        return sum(
            _least_time(OpSpec.create(stage.op, operands, {}), kernel.backend, device)
            for stage, operands, _ in stages_of(spec, kernel)
            if not stage.op.view
        )
    if kernel.timing is None:
        return inf
    workgroups = prod(kernel.launch.groups(spec.sizes(kernel), kernel.defaults))
    terms = spec.op.depth({name: spec.shape(name) for name in spec.op_shapes})
    long = spec.epilogue is not None and is_long(spec.epilogue)
    processors = device.multiprocessors or MULTIPROCESSORS
    return kernel.timing.microseconds(workgroups, terms, processors, long)


def _least_time(spec: OpSpec, backend: str, device: Capabilities) -> float:
    """Return the least time that any kernel's `timing` predicts for `spec`, in microseconds."""
    least = inf
    for kernel in kernels_for(spec.op.name, backend):
        rows = [row for row in fitted_rows(kernel, device) if row.timing]
        if kernel.document or not rows:
            continue
        try:  # generated code gets its sizes here
            rows = [spec.adapted(row) for row in rows]
        except UnsupportedOpError:
            continue
        least = min(least, *(_predicted_time(row, spec, device) for row in rows))
    return least


def _sizes(spec: OpSpec, kernel: Kernel, device: Capabilities) -> dict[str, int]:
    """Return the sizes that `suits` may restrict: those of `spec`, and `KERNEL_SIZES`."""
    bound = device_rates(architecture(device)).memory_bound(spec.cost)
    values = int(spec.is_accepted_by(kernel)), bound, device.multiprocessors
    return {**spec.suits_sizes, **dict(zip(KERNEL_SIZES, values, strict=True))}


def _fast(kernels: Iterable[Kernel], spec: OpSpec, rates: DeviceRates) -> list[Kernel]:
    """Return the `kernels` that are predicted to beat a kernel without stages, fastest first."""
    candidates = [kernel for kernel in kernels if why_not_spec(kernel, spec) is None]
    if not candidates:
        return []
    limit = GAIN * seconds_whole(spec, rates)
    times = {kernel: seconds(spec, kernel, rates) for kernel in candidates}
    return sorted((k for k in candidates if times[k] < limit), key=lambda kernel: times[kernel])


def _join_reasons(reasons: Mapping[str, list[str]]) -> str:
    """Join the reasons into one text, each after the names of the kernels that it rules out."""
    return "; ".join(
        f"{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}: {reason}"
        for reason, names in reasons.items()
    )


def why_not(
    kernel: Kernel, spec: OpSpec, device: Capabilities, verdicts: Verdicts | None = None
) -> str | None:
    """Return why `kernel`, with its parameters, cannot compute `spec`; None where it can."""
    refusal = _refusal(kernel, spec, device, verdicts)
    return None if refusal is None else str(refusal)


def _refusal(
    kernel: Kernel,
    spec: OpSpec,
    device: Capabilities,
    verdicts: Verdicts | None,
    choose_kernel: ChooseKernel | None = None,
) -> UnsupportedOpError | LimitError | None:
    """Return why `kernel` cannot be chosen, as a LimitError where only the sizes prevent it.

    Comparisons of open sizes become guards, where the kernel can be chosen for the current sizes.
    """
    if spec.is_open and (refusal := _refusal(kernel, spec.hinted, device, verdicts)):
        return refusal
    if reason := why_not_device(kernel, device) or why_not_spec(kernel, spec):
        return UnsupportedOpError(reason)
    if reason := why_not_bound(kernel, spec, device):
        return UnsupportedOpError(reason)
    if kernel.stages:
        if verdicts and (reason := verdicts.of_kernel(kernel).wrong):
            return UnsupportedOpError(reason)

        def choose_stage(stage: OpSpec, name: str | None) -> Kernel:
            return choose(kernel.backend, stage, device, name, verdicts=verdicts)

        try:
            _check_stages(kernel, spec, choose_kernel or choose_stage)
        except (UnsupportedOpError, LimitError) as error:
            return error
        return None
    if reason := why_not_here(kernel, spec, device):
        return LimitError(reason)
    if verdicts and (reason := verdicts.why_not(kernel, spec.at_hints, device)):
        return UnsupportedOpError(reason)
    return None
