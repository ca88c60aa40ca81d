"""Each sentence follows from numbers that are made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glnn.doctor.report import advice
from glnn.doctor.speed import (
    BackendComparison,
    CompileTimes,
    LaunchTimes,
    MemoryCheck,
    Speed,
    TransferTimes,
)

QUIET = Speed(None, False, 4, (), (), (), (), None, 1.0)


def _products(*gains: float) -> Speed:
    """Products of 256, 512, ... for which the GPU is so many times as fast as the CPU."""
    contests = tuple(
        BackendComparison(
            "matmul", 256 << i, 2 << 24, {}, {"compute": 0.01, "feedback": 0.5, "cpu": x / 100}
        )
        for i, x in enumerate(gains)
    )
    return replace(QUIET, contests=contests)


def test_nothing_measured_says_nothing() -> None:
    assert advice(QUIET) == ()


def test_a_renderer_on_the_cpu_is_named() -> None:
    (said,) = advice(replace(QUIET, software="llvmpipe"))
    assert said == "llvmpipe computes on the CPU: no GPU is used here."


@pytest.mark.parametrize("waited, said", [(1.0, 0), (1.2, 0), (4.96, 1)])
def test_others_that_compute_are_told(waited, said) -> None:
    found = advice(replace(QUIET, waiting=waited))
    assert len(found) == said and all("takes 5.0 s" in one for one in found)


@pytest.mark.parametrize(
    "gains, said",
    [
        (
            (0.2, 0.5, 0.8),
            "The CPU is faster for products of n x n, from host to host, up to n = 1024, the "
            "largest that was measured (1.2 times as fast there).",
        ),
        (
            (0.5, 2.0, 8.0),
            "The CPU is faster for products of n x n, from host to host, or as fast, "
            "below n = 512; from there on the GPU is faster (8.0 times as fast at 1024).",
        ),
        (
            (3.0, 4.0, 5.0),
            "The GPU is faster for products of n x n, from host to host, from n = 256 on, the "
            "smallest that was measured (5.0 times as fast at 1024).",
        ),
        (
            (0.5, 0.7, 1.02),
            "The GPU and the CPU are alike for products of n x n, from host to host, at n = 1024.",
        ),
        (
            (2.0, 0.5, 3.0),  # a measure that was disturbed decides nothing
            "The CPU is faster for products of n x n, from host to host, or as fast, "
            "below n = 1024; from there on the GPU is faster (3.0 times as fast at 1024).",
        ),
    ],
)
def test_from_which_size_on_the_gpu_is_faster(gains, said) -> None:
    assert advice(_products(*gains)) == (said,)


def test_a_renderer_on_the_cpu_is_called_no_gpu() -> None:
    _, said = advice(replace(_products(2.0), software="llvmpipe"))
    assert said.startswith("llvmpipe is faster for products") and "GPU" not in said


def test_sizes_that_the_gpu_did_not_do_count_for_nothing() -> None:
    alone = BackendComparison("matmul", 2048, 1, {}, {"cpu": 1.0}, ("compute", "feedback"))
    speed = _products(0.5, 2.0)
    assert advice(replace(speed, contests=(*speed.contests, alone))) == advice(speed)


@pytest.mark.parametrize(
    "times, said",
    [
        (
            {"compute": 2e-3, "feedback": 3e-3, "cpu": 1e-3},
            "For LeNet, one image: CPU (1 ms; compute 2 ms, feedback 3 ms).",
        ),
        (
            {"compute": 2e-4, "cpu": 2.1e-4},
            "For LeNet, one image: compute or CPU (200 us; CPU 210 us).",
        ),
        ({"cpu": 1e-3}, "For LeNet, one image: CPU (1 ms)."),
    ],
)
def test_where_lenet_is_to_run(times, said) -> None:
    speed = replace(QUIET, contests=(BackendComparison("lenet", 1, 0, {}, times),))
    assert advice(speed) == (said,)


def test_images_at_once_are_counted() -> None:
    contest = BackendComparison("lenet", 100, 0, {}, {"compute": 1e-3, "cpu": 5e-3})
    (said,) = advice(replace(QUIET, contests=(contest,)))
    assert said == "For LeNet, 100 images at once: compute (1 ms; CPU 5 ms)."


def test_what_would_take_too_long_is_the_cpus() -> None:
    late = ("compute", "feedback")
    products = BackendComparison("matmul", 256, 1, {}, {"cpu": 0.01}, late)
    lenet = BackendComparison("lenet", 100, 1, {}, {"cpu": 0.01}, late)
    assert advice(replace(QUIET, contests=(products, lenet))) == (
        "For LeNet, 100 images at once: CPU (10 ms; compute and feedback would take too long).",
        "The CPU is faster for products of n x n: those of n = 256 would take compute and feedback "
        "too long to be measured.",
    )


@pytest.mark.parametrize(
    "gpu, said",
    [
        (1e-3, "feedback (1 ms; CPU 5 ms)"),
        (2e-2, "CPU (5 ms; feedback 20 ms)"),
        (5.2e-3, "CPU or feedback (5 ms; feedback 5.2 ms)"),
    ],
)
def test_convolutions(gpu, said) -> None:
    contest = BackendComparison("conv2d", 56, 1, {}, {"feedback": gpu, "cpu": 5e-3})
    (found,) = advice(replace(QUIET, contests=(contest,)))
    assert found == f"For a convolution of 64 channels of 56 x 56: {said}."
    assert advice(replace(QUIET, software="llvmpipe", contests=(contest,)))[1] == found


@pytest.mark.parametrize(
    "compute, feedback, said",
    [
        (1.0, 3.0, "feedback takes 3.0 times as long as compute for products of 512."),
        (3.0, 1.0, "compute takes 3.0 times as long as feedback for products of 512."),
        (1.0, 1.05, "compute and feedback are alike for products of 512."),
    ],
)
def test_backends_are_compared_by_the_largest_that_both_did(compute, feedback, said) -> None:
    contests = tuple(
        BackendComparison("matmul", size, 1, times, {})
        for size, times in (
            (256, {"compute": 1.0, "feedback": 9.0}),
            (1024, {"feedback": 1.0}),
            (512, {"compute": compute, "feedback": feedback}),
        )
    )
    assert advice(replace(QUIET, contests=contests)) == (said,)


@pytest.mark.parametrize(
    "up, down, slow",
    [
        (1.0, 1.0, []),  # a 16th of a GB each, in seconds of one way: 10 GB/s
        (10.5, 1.0, ["Uploads"]),  # below a GB/s
        (1.0, 10.5, ["Downloads"]),
    ],
)
def test_slow_ways_to_the_device(up, down, slow) -> None:
    nbytes, tenth = 1 << 26, (1 << 26) / 10e9
    moved = TransferTimes(nbytes, up * tenth, down * tenth, tenth)
    said = advice(replace(QUIET, transfers=(TransferTimes(4096, 1.0, 1.0, 1.0), moved)))
    assert [one.split()[0] for one in said] == slow


def test_ways_are_held_against_the_devices_own_copies() -> None:
    """3 GB/s is slow where the device copies 300 GB/s."""
    moved = TransferTimes(1 << 26, (1 << 26) / 3e9, (1 << 26) / 40e9, (1 << 26) / 300e9)
    (said,) = advice(replace(QUIET, transfers=(moved,)))
    assert said == (
        "Uploads are slow (3 GB/s for 64 MiB; the device copies 300 GB/s): keep inputs on the "
        "device, and give it bytes rather than floats."
    )


@pytest.mark.parametrize(
    "alone, chained, words",
    [
        (1e-5, 5e-6, []),
        (1e-4, 5e-5, ["A launch by compute costs 50 us"]),
        (3e-4, 5e-6, ["Waiting for compute costs 300 us"]),
        (3e-3, 5e-5, ["A launch by compute costs 50 us", "Waiting for compute costs 3 ms"]),
    ],
)
def test_launches(alone, chained, words) -> None:
    said = advice(replace(QUIET, launches=(LaunchTimes("compute", alone, chained, 100),)))
    assert [one.split(":")[0] for one in said] == words


def test_compiling() -> None:
    fast, slow = CompileTimes("compute", 1e-3, 1e-3), CompileTimes("feedback", 2e-2, 0.1)
    (said,) = advice(replace(QUIET, compiling=(fast, slow)))
    assert said == "A new shader takes feedback 120 ms: run a model once before it is needed."
    (said,) = advice(replace(QUIET, compiling=(fast, slow), keeps=False))
    assert "let glnn keep programs (GLNN_CACHE" in said


def test_memory_that_is_not_there() -> None:
    assert advice(replace(QUIET, room=MemoryCheck(1 << 30, 1 << 28, 1 << 28))) == ()
    (said,) = advice(
        replace(QUIET, room=MemoryCheck(1 << 30, 1 << 28, 1 << 26, "GL_OUT_OF_MEMORY"))
    )
    assert said == (
        "Only 64 MiB of memory could be used, of 1 GiB that are free as the system tells: "
        "GL_OUT_OF_MEMORY."
    )
