"""Whether kernels of plans for open sizes compute all that the guards admit, asked with numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator

from glnn.backends import Backend
from glnn.compiler.plan import Plan
from glnn.compiler.scheduled_op import ScheduledOp
from glnn.core.symint import Substitution
from glnn.kernels.kernel import Kernel


def faults(plan: Plan, draw: random.Random, count: int) -> Iterator[str]:
    """What kernels of `plan` would refuse or do otherwise at up to `count` sizes that it admits."""
    symbols = plan.executable.symbols
    for _ in range(count):
        sizes = {one.name: draw.randint(one.low, one.high) for one in symbols}
        if not all(guard.holds(sizes) for guard in plan.executable.guards):
            continue
        for entry in plan.outline.schedule.entries:
            if isinstance(entry.choice, Kernel) and not entry.host and entry.spec.is_open:
                for fault in _faults_of(plan.backend, entry, entry.choice, sizes):
                    yield f"{sizes}: {entry.lowered.name} by {entry.choice.name}: {fault}"


def _faults_of(
    backend: Backend, entry: ScheduledOp, kernel: Kernel, sizes: dict[str, int]
) -> Iterator[str]:
    spec, change = entry.spec, Substitution.by_sizes(sizes)
    there = spec.substituted(change)
    if there.results != change(spec.results):
        yield f"it gives {there.results}, not {change(spec.results)}"
        return
    if kernel.generate:
        if (reason := backend.why_not(there, kernel.name)) is not None:
            yield reason
        return
    if not backend.takes(kernel, there):
        yield "it cannot compute it"
        return
    found, wanted = backend.layouts(kernel, there), backend.layouts(kernel, spec)
    for name, layout in wanted.items():
        shape = there.shape(name)
        if layout.simplify(shape) != found[name].simplify(shape):
            yield f"{name} lies in {layout.name}, not in {found[name].name}"
    open_groups = kernel.launch.groups(spec.sizes(kernel), kernel.defaults)
    groups = kernel.launch.groups(there.sizes(kernel), kernel.defaults)
    if change(open_groups) != groups:
        yield f"its grid is {change(open_groups)}, not {groups}"
