"""Comparison of kernels with NumPy before their first use, as drivers miscompile silently.

A kernel computes few results with sums of full depth, with NaN, infinities and the ends of exp
among its operands; and as many results as its largest launch will have. Where only large launches
are wrong, a size that is right is searched for; where all are wrong, the kernel is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from math import prod
from time import perf_counter

from glnn.backends.backend import Choice
from glnn.backends.examined import Examined
from glnn.backends.known import PERIOD, spoilable
from glnn.backends.trial import Tell, Trial
from glnn.graph.operator import upper
from glnn.kernels.capability_check import why_not_here, why_not_spec
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import (
    Launched,
    Verdict,
    program_key,
    sizes_key,
    verdict_key,
    within,
)
from glnn.types import Shape

LOG = logging.getLogger(__name__)
LEAST_PART = 64  # vertices or workgroups: below, launches cost more than what they compute
SHORT = 64  # numbers a sum: what large launches are seen with, and tiles are no longer
SEEDS = 1, 2, 3, 4  # of the operands of a second look, of which the best are taken
MORE = 64  # samples of a second look, where a kernel is seen with few
WRITTEN = 1.0  # seconds after which what was found is written: a process may be ended
CONFIRMED = 1 << 16  # numbers of a spec of which all samples may differ then


def examine(
    backend: Examined, asked: Iterable[tuple[Choice, OpSpec]], tell: Tell | None = None
) -> bool:
    """Compare kernels with NumPy where no verdict covers launches as large as these specs'.

    The verdicts are stored. tell: callback for wrong results. Returns True where some kernels must
    not be used, so that others must be chosen.
    """
    offers, verdicts = backend.device.capabilities, backend.verdicts
    wrong, new, written = False, dict[str, Verdict](), perf_counter()
    wide = dict[str, Verdict]()
    try:
        for kernel, spec in asked:
            assert isinstance(kernel, Kernel)
            launch = backend.launched(kernel, spec)
            known = verdicts.find(kernel, spec, offers)
            if known.covers(launch):
                continue
            found = _verdict(backend, kernel, spec, launch, known, wide, tell)
            name = f"{kernel.op}/{kernel.name}"
            LOG.info("examined %s in a launch of %s: %s", name, launch[:3], found.outcome)
            # One that is wrong is so at these sizes: others are looked at by themselves.
            key = sizes_key if found.wrong is not None else verdict_key
            one = {key(kernel, spec, offers): found}
            verdicts.take(one)
            new |= one
            wrong |= found.wrong is not None
            if found.wrong is not None or perf_counter() - written > WRITTEN:
                verdicts.keep(new)
                new, written = {}, perf_counter()
    finally:
        if new:
            verdicts.keep(new)
    return wrong


def _verdict(
    backend: Examined,
    kernel: Kernel,
    spec: OpSpec,
    launch: Launched,
    known: Verdict,
    wide: dict[str, Verdict],
    tell: Tell | None,
) -> Verdict:
    """Return the verdict on `kernel`, extending `known`. Raises what preparing it raises.

    wide: the launches, by program, whose results were right, for sums of any depth.
    """
    program = program_key(kernel, spec, backend.device.capabilities)
    where, part = backend.device.capabilities.renderer, known.part
    covered = not backend.watched and wide.get(program, Verdict()).covers(launch)
    wrong = f"its results on {where} are wrong, off by"
    try:
        trial: Trial | None = None
        for seen, spoiled in _seen(backend, kernel, spec, launch, known):
            if covered and part is None and (trial or known.right):
                break  # sums of this length were seen
            trial = None  # its memory is free for the next
            trial = Trial(backend, kernel, seen, spoiled=spoiled)
            error, right = trial.look(part, known.pace)
            if right is not None:
                fault = trial.fault
                trial = None
                again = wrong_again(backend, kernel, seen, spoiled, part, known.pace)
                trial = Trial(backend, kernel, seen, spoiled=spoiled)
                error, right = trial.look(part, known.pace)
                if not again:  # by chance, as its terms cancel, or in some few numbers
                    right = None
                elif tell and fault:
                    tell(kernel, spec, fault)
            while right is not None:
                most = trial.sent
                if most <= LEAST_PART:
                    return Verdict(wrong=f"{wrong} {error:.1e}")
                part = max(min(right or most, most // 2), LEAST_PART)
                error, right = trial.look(part, known.pace)
            sent = trial.sent
            if backend.watched and trial.size > 1:  # in parts another program may compute it
                error, right = trial.look(max(sent // 2, 1), known.pace)
                if right is not None:
                    return Verdict(wrong=f"{wrong} {error:.1e} in launches of {max(sent // 2, 1)}")
        pace = None
        if trial and backend.watched:
            pace = trial.pace()
            if trial.look(part, pace)[1] is not None:  # as long as may be now
                part, pace = sent, None
    except Exception:  # of a lost device anything may be raised
        if backend.device.lost is not None:
            key = verdict_key(kernel, spec, backend.device.capabilities)
            backend.verdicts.keep({key: Verdict(wrong=f"{where} was reset while it ran")})
        raise
    if part is None:
        wide[program] = wide.get(program, Verdict()).and_right(launch)
    return Verdict(known.right, part, pace).and_right(launch)


def wrong_again(
    backend: Examined,
    kernel: Kernel,
    spec: OpSpec,
    spoiled: bool,
    part: int | None,
    pace: float | None,
) -> bool:
    """Return True where a kernel that was wrong once is wrong with other operands, too.

    It is tried on as many operands, then on more. Of several random sets the one with the least
    cancellation in its results is taken.
    """
    small = sum(map(prod, spec.shapes.values())) + prod(spec.output) <= CONFIRMED
    looks = [spec]
    if small and spec.op.sample_operands(spec.own):
        few = spec.output[0]
        more = spec.of_samples(max(2 * few, min(CONFIRMED // prod(spec.output[1:]), MORE)))
        offers = backend.device.capabilities
        fault = why_not_spec(kernel, more) or why_not_here(kernel, more, offers)
        if fault is None and verdict_key(kernel, more, offers) == verdict_key(kernel, spec, offers):
            looks.append(more)
    for look in looks:
        trial = Trial(backend, kernel, look, spoiled=spoiled, whole=small, seeds=SEEDS)
        if trial.look(part, pace)[1] is not None:
            return True
    return False


def _seen(
    backend: Examined, kernel: Kernel, spec: OpSpec, launch: Launched, known: Verdict
) -> Iterator[tuple[OpSpec, bool]]:
    """Yield the specs to try `kernel` on, each with True for special values in the operands.

    First few results of full-depth sums, with special values, where `known` has no right launch;
    then a launch as large as `launch`, of short sums, without special values.
    """
    offers = backend.device.capabilities
    program = program_key(kernel, spec, offers)

    def fits(other: OpSpec) -> bool:
        """Return True where the same program can compute `other` here."""
        fault = why_not_spec(kernel, other) or why_not_here(kernel, other, offers)
        return fault is None and program_key(kernel, other, offers) == program

    def enough(other: OpSpec) -> bool:
        """Return True where it does so in a launch at least as large as `launch`."""
        return fits(other) and within(launch, backend.launched(kernel, other))

    whole, own = spec.op.whole_problem(spec.own)
    if whole is not spec.op and enough(one := replace(spec, op=whole).resized(own)):
        spec = one
    op, shapes = spec.op, spec.own
    depth = op.depth(shapes)
    large = spec.resized(op.of_depth(shapes, min(depth, SHORT)))
    large = large if large is spec or enough(large) else spec
    if known.right:
        yield large, False
        return
    few: dict[str, Shape] = dict(shapes)
    if spec.output[:1] > (PERIOD,):
        few |= {name: (PERIOD, *shapes[name][1:]) for name in op.sample_operands(shapes)}
    deep = [op.of_depth(few, one, few=True) for one in (upper(depth), depth)]
    small = next(filter(fits, map(spec.resized, chain(map(op.shrink, deep), deep))), spec)
    if spoilable(spec) or (op.has_depth and small != large):  # else it would tell nothing more
        yield small, True
    yield large, False
