"""Sentences that follow from what was measured, each by a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from glnn.doctor.measured import (
    CHANNELS,
    CONV,
    GPU_BACKENDS,
    LENET,
    MATMUL,
    Contest,
    Speed,
    rate,
    size,
)
from glnn.span import duration

ALIKE = 1.1
"""Times that differ by less are alike: measures of the same differ as much."""
SLOW_BUS = 0.1
"""Of the device's own copies: a way to it below that is slow."""
SLOW_RATE = 1e9
"""Bytes a second: a way to the device below that is slow whatever its own copies do."""
LONG_LAUNCH = 20e-6
"""Seconds of a launch in a chain from which on many small steps cost more than they compute."""
LONG_WAIT = 10.0
"""How many times as long as in a chain a launch that is waited for may take, to be worth a word."""
LONG_COMPILE = 0.05
"""Seconds of a new shader from which on that is worth a word."""

BUSY = 1.25
"""Seconds of the clock for each that a thread computes from which on others keep it waiting."""

Rule = Callable[[Speed], Iterator[str]]


def advice(speed: Speed) -> tuple[str, ...]:
    """What follows from `speed`, in whole sentences, what matters most first."""
    return tuple(sentence for rule in RULES for sentence in rule(speed))


def software(speed: Speed) -> Iterator[str]:
    """What computes on the CPU is there for tests."""
    if speed.software:
        yield f"{speed.software} computes on the CPU: no GPU is used here."


def busy(speed: Speed) -> Iterator[str]:
    """What was measured beside others is worth little."""
    if speed.waiting > BUSY:
        yield (
            "Other programs keep the processors busy (what takes 1 s takes "
            f"{speed.waiting:.1f} s): measure again when they are done (glnn doctor)."
        )


def network(speed: Speed) -> Iterator[str]:
    """Where LeNet is to run, by images at once."""
    for one in speed.of(LENET):
        images = "one image" if one.size == 1 else f"{one.size} images at once"
        if one.in_all:
            yield f"For LeNet, {images}: {_places(one)}."


def _places(one: Contest) -> str:
    """Where it is the fastest, those that are as fast, and the times elsewhere."""
    first, *others = sorted(one.in_all, key=lambda name: one.in_all[name])
    least = one.in_all[first]
    alike = [name for name in others if one.in_all[name] < ALIKE * least]
    rest = ", ".join(f"{_called(name)} {duration(one.in_all[name])}" for name in others)
    named = " or ".join(_called(name) for name in [first, *alike])
    late = f"{' and '.join(map(_called, one.left_out))} would take too long"
    beside = "".join(f"; {text}" for text in (rest, late if one.left_out else "") if text)
    return f"{named} ({duration(least)}{beside})"


def products(speed: Speed) -> Iterator[str]:
    """From which size on the GPU is worth it."""
    contests = [one for one in speed.of(MATMUL) if one.gain is not None]
    if not contests:
        slow = [one for one in speed.of(MATMUL) if one.left_out and "cpu" in one.in_all]
        if slow:
            yield (
                f"The CPU is faster for products of n x n: those of n = {slow[0].size} would take "
                f"{' and '.join(slow[0].left_out)} too long to be measured."
            )
        return
    wins, gpu = _winning(contests), _gpu(speed, "The")
    what = "products of n x n, from host to host"
    largest, gain = contests[-1], contests[-1].gain or 1
    if not wins and gain > 1 / ALIKE:
        yield f"{gpu} and the CPU are alike for {what}, at n = {largest.size}."
    elif not wins:
        yield (
            f"The CPU is faster for {what}, up to n = {largest.size}, the largest that was measured"
            f" ({_times(1 / gain)} there)."
        )
    elif wins[0] is contests[0]:
        yield (
            f"{gpu} is faster for {what}, from n = {wins[0].size} on, the smallest that was "
            f"measured ({_times(gain)} at {largest.size})."
        )
    else:
        yield (
            f"The CPU is faster for {what}, or as fast, below n = {wins[0].size}; from there on "
            f"{_gpu(speed)} is faster ({_times(gain)} at {largest.size})."
        )


def _winning(contests: list[Contest]) -> list[Contest]:
    """The largest of `contests`, down to the last size at which the GPU is not yet faster."""
    for i in reversed(range(len(contests))):
        if (contests[i].gain or 0) < ALIKE:
            return contests[i + 1 :]
    return contests


def convolutions(speed: Speed) -> Iterator[str]:
    """Where a convolution is to run."""
    for one in speed.of(CONV):
        if one.gain is not None:
            what = f"{CHANNELS} channels of {one.size} x {one.size}"
            yield f"For a convolution of {what}: {_places(one)}."


def backends(speed: Speed) -> Iterator[str]:
    """How the two backends compare, by the largest product that both did."""
    both = [one for one in speed.of(MATMUL) if set(GPU_BACKENDS) <= set(one.on_device)]
    if not both:
        return
    first, second = (both[-1].on_device[name] for name in GPU_BACKENDS)
    if max(first, second) < ALIKE * min(first, second):
        yield f"compute and feedback are alike for products of {both[-1].size}."
        return
    fast, slow = GPU_BACKENDS if first < second else reversed(GPU_BACKENDS)
    times = max(first, second) / min(first, second)
    yield f"{slow} takes {times:.1f} times as long as {fast} for products of {both[-1].size}."


def transfers(speed: Speed) -> Iterator[str]:
    """Whether the ways between host and device are slow."""
    if not speed.transfers:
        return
    largest = speed.transfers[-1]
    copies = largest.rate("copy")
    for way, said, so in (
        ("up", "Uploads", "keep inputs on the device, and give it bytes rather than floats"),
        ("down", "Downloads", "ask for no more outputs than are needed"),
    ):
        found = largest.rate(way)
        if found < SLOW_RATE or found < SLOW_BUS * copies:
            yield (
                f"{said} are slow ({rate(found)} for {size(largest.nbytes)}; the device copies "
                f"{rate(copies)}): {so}."
            )


def launches(speed: Speed) -> Iterator[str]:
    """Whether launches cost much, in a chain or waited for."""
    for one in speed.launches:
        if one.chained > LONG_LAUNCH:
            yield (
                f"A launch by {one.backend} costs {duration(one.chained)}: few large steps, and "
                "several samples at once, are better than many small ones."
            )
        if one.alone > LONG_WAIT * one.chained:
            yield (
                f"Waiting for {one.backend} costs {duration(one.alone)}: let several requests be "
                "under way (run_async)."
            )


def compiling(speed: Speed) -> Iterator[str]:
    """Whether shaders take long to compile."""
    keep = "" if speed.keeps else "let glnn keep programs (GLNN_CACHE names a folder), and "
    for one in speed.compiling:
        if one.compiled + one.first > LONG_COMPILE:
            took = duration(one.compiled + one.first)
            yield (
                f"A new shader takes {one.backend} {took}: {keep}run a model once before it is "
                "needed."
            )


def memory(speed: Speed) -> Iterator[str]:
    """Whether the memory is what the system says."""
    room = speed.room
    if room is None or room.fault is None:
        return
    told = "" if room.told is None else f", of {size(room.told)} that are free as the system tells"
    yield f"Only {size(room.confirmed)} of memory could be used{told}: {room.fault}."


RULES: tuple[Rule, ...] = (
    busy,
    software,
    memory,
    network,
    products,
    convolutions,
    backends,
    transfers,
    launches,
    compiling,
)


def _gpu(speed: Speed, article: str = "the") -> str:
    """What the device is called in sentences: a renderer on the CPU is no GPU."""
    return speed.software or f"{article} GPU"


def _called(name: str) -> str:
    return "CPU" if name == "cpu" else name


def _times(gain: float) -> str:
    return f"{gain:.1f} times as fast"
