"""Kernels held against NumPy before their first result is used: drivers are wrong in silence.

A kernel computes few results, of sums as long as it will be asked for, with NaN, infinities and the
ends of exp among its operands; and as many as the largest launch that it will be asked for has.
Where only large launches are wrong, ones that are right are found; where all are, the kernel is not
used.
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
from glnn.kernels.admit import why_not_here, why_not_problem
from glnn.kernels.kernel import Kernel
from glnn.kernels.problem import Problem
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
CONFIRMED = 1 << 16  # numbers of a problem of which all samples may differ then


def examine(
    backend: Examined, asked: Iterable[tuple[Choice, Problem]], tell: Tell | None = None
) -> bool:
    """Look at the kernels that were not seen yet with launches as large as such problems take.

    What is found is kept. tell: hears of results that were wrong. Returns whether some kernels are
    not to be used: others must be chosen then.
    """
    offers, verdicts = backend.device.capabilities, backend.verdicts
    wrong, new, written = False, dict[str, Verdict](), perf_counter()
    wide = dict[str, Verdict]()
    try:
        for kernel, problem in asked:
            assert isinstance(kernel, Kernel)
            launch = backend.launched(kernel, problem)
            known = verdicts.find(kernel, problem, offers)
            if known.covers(launch):
                continue
            found = _verdict(backend, kernel, problem, launch, known, wide, tell)
            name = f"{kernel.op}/{kernel.name}"
            LOG.info("examined %s in a launch of %s: %s", name, launch[:3], found.outcome)
            # One that is wrong is so at these sizes: others are looked at by themselves.
            key = sizes_key if found.wrong is not None else verdict_key
            one = {key(kernel, problem, offers): found}
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
    problem: Problem,
    launch: Launched,
    known: Verdict,
    wide: dict[str, Verdict],
    tell: Tell | None,
) -> Verdict:
    """What is found of `kernel`, of which `known` is known. Raises what preparing it raises.

    wide: by program, the launches in which its results were right, for sums of any length.
    """
    program = program_key(kernel, problem, backend.device.capabilities)
    where, part = backend.device.capabilities.renderer, known.part
    covered = not backend.watched and wide.get(program, Verdict()).covers(launch)
    wrong = f"its results on {where} are wrong, off by"
    try:
        trial: Trial | None = None
        for seen, spoiled in _seen(backend, kernel, problem, launch, known):
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
                    tell(kernel, problem, fault)
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
            key = verdict_key(kernel, problem, backend.device.capabilities)
            backend.verdicts.keep({key: Verdict(wrong=f"{where} was reset while it ran")})
        raise
    if part is None:
        wide[program] = wide.get(program, Verdict()).and_right(launch)
    return Verdict(known.right, part, pace).and_right(launch)


def wrong_again(
    backend: Examined,
    kernel: Kernel,
    problem: Problem,
    spoiled: bool,
    part: int | None,
    pace: float | None,
) -> bool:
    """Whether a kernel that was wrong once is so with other operands, too: as many, then more.

    Of several sets of random operands those whose results are least the differences of large
    numbers are taken.
    """
    small = sum(map(prod, problem.shapes.values())) + prod(problem.output) <= CONFIRMED
    looks = [problem]
    if small and problem.op.along(problem.own):
        few = problem.output[0]
        more = problem.of_samples(max(2 * few, min(CONFIRMED // prod(problem.output[1:]), MORE)))
        offers = backend.device.capabilities
        fault = why_not_problem(kernel, more) or why_not_here(kernel, more, offers)
        if fault is None and verdict_key(kernel, more, offers) == verdict_key(
            kernel, problem, offers
        ):
            looks.append(more)
    for look in looks:
        trial = Trial(backend, kernel, look, spoiled=spoiled, whole=small, seeds=SEEDS)
        if trial.look(part, pace)[1] is not None:
            return True
    return False


def _seen(
    backend: Examined, kernel: Kernel, problem: Problem, launch: Launched, known: Verdict
) -> Iterator[tuple[Problem, bool]]:
    """The problems that `kernel` is seen with, and whether special values are among the operands:
    few results of whole sums, with such, where `known` has none that were right; and a launch as
    large as asked, of short sums, without.
    """
    offers = backend.device.capabilities
    program = program_key(kernel, problem, offers)

    def fits(other: Problem) -> bool:
        """Whether the same program can compute it here."""
        fault = why_not_problem(kernel, other) or why_not_here(kernel, other, offers)
        return fault is None and program_key(kernel, other, offers) == program

    def enough(other: Problem) -> bool:
        """Whether it does, in a launch as large as asked."""
        return fits(other) and within(launch, backend.launched(kernel, other))

    whole, own = problem.op.undivided(problem.own)
    if whole is not problem.op and enough(one := replace(problem, op=whole).resized(own)):
        problem = one
    op, shapes = problem.op, problem.own
    depth = op.depth(shapes)
    large = problem.resized(op.of_depth(shapes, min(depth, SHORT)))
    large = large if large is problem or enough(large) else problem
    if known.right:
        yield large, False
        return
    few: dict[str, Shape] = dict(shapes)
    if problem.output[:1] > (PERIOD,):
        few |= {name: (PERIOD, *shapes[name][1:]) for name in op.along(shapes)}
    deep = [op.of_depth(few, one, few=True) for one in (upper(depth), depth)]
    small = next(filter(fits, map(problem.resized, chain(map(op.smaller, deep), deep))), problem)
    if spoilable(problem) or (op.deepens and small != large):  # else it would tell nothing more
        yield small, True
    yield large, False
