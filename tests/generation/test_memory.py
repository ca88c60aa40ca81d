"""The memory of language models as it is planned, against what is allocated."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from glnn.backends import Backend, open_backend
from glnn.compiler import executor as executor_module
from glnn.errors import DeviceError
from glnn.generation import engine as engine_module
from glnn.generation import memory as memory_module
from glnn.generation.architectures import decoder
from glnn.generation.engine import Engine, GenerationRequest, longest_of
from glnn.generation.memory import MemoryPlan, plan_memory
from glnn.generation.model_file import is_language_model, open_model
from glnn.generation.sampling import Sampling
from tests.generation.gguf_files import small_model


class Counter:
    """Bytes of the buffers and textures of a device that were made since and are still there."""

    def __init__(self, context: Any, patch: pytest.MonkeyPatch) -> None:
        self.nbytes = 0
        for name in ("buffer", "texture", "texture_array"):
            patch.setattr(context, name, self._counted(getattr(context, name)))

    def _counted(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            made = make(*arguments, **options)
            size = made.size
            if not isinstance(size, int):
                size = int(made.dtype[1:]) * made.components * prod(size)
            self.nbytes += size
            weakref.finalize(made, self._drop, size)
            return made

        return counted

    def _drop(self, size: int) -> None:
        self.nbytes -= size


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that came four times have a plan of their own."""
    for module in (engine_module, executor_module):
        monkeypatch.setattr(module, "REPEATS", 3)


DRAWN = Sampling(temperature=1.0, seed=1)
PENALIZED = Sampling(repetition_penalty=1.1)  # which the host chooses


def go_on(engine: Engine, count: int, length: int, sampling: Sampling) -> None:
    """Have as many texts of so many tokens go on together as long as it takes to have a plan."""
    most = min(8, engine.context - length)
    requests = [
        GenerationRequest([2 + i] * length, most, frozenset(), sampling) for i in range(count)
    ]
    for request in requests:
        engine.add(request)
    while not all(request.done for request in requests):
        engine.step()


def run_ranges(engine: Engine, plan: MemoryPlan) -> None:
    """Run every kind of run that is of a range of sizes: each at its largest."""
    for run in plan.runs:
        if not run.exact:
            places = list(range(run.tokens))
            engine.compute([2] * run.tokens, places, places[: run.logits], ["next"])


def run_texts(engine: Engine, sequences: int) -> None:
    """Have texts go on of all kinds that a server may have."""
    shorter = longest_of(engine.context)[:-1] if engine.backend.device else []
    lengths = [3, *(one + 1 for one in shorter)]
    for count in range(1, sequences + 1):
        for length in lengths:
            for sampling in (Sampling(), DRAWN, PENALIZED):
                go_on(engine, count, length, sampling)


def planned(path: Path, backend: Backend, context: int, sequences: int) -> tuple[Any, MemoryPlan]:
    with open_model(path) as file:
        graph = decoder(file.config, file.weights, context, sequences)
    return graph, plan_memory(graph, backend, context, sequences)


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize(
    ("architecture", "form", "context", "sequences"),
    [("llama", "q4_0", 1200, 2), ("qwen3", "f16", 700, 1), ("gemma2", "q8_0", 40, 5)],
)
def test_what_a_device_allocates_is_planned(
    tmp_path: Path, monkeypatch, backend, architecture, form, context, sequences
) -> None:
    try:
        opened = open_backend(backend)
    except DeviceError as error:
        pytest.skip(str(error))
    more = {f"{architecture}.context_length": context}
    small_model(tmp_path / "m.gguf", architecture, form, **more)
    graph, plan = planned(tmp_path / "m.gguf", opened, context, sequences)
    counter = Counter(opened.device.context, monkeypatch)
    engine = Engine(graph, context, sequences, backend, opened.device, None)
    run_ranges(engine, plan)
    before = counter.nbytes
    run_texts(engine, sequences)
    exact = [run for run in plan.runs if run.exact]
    assert set(engine._followers) == {run.follower for run in exact} - {None}
    assert counter.nbytes - before == pytest.approx(sum(run.nbytes for run in exact), rel=0.1)
    assert counter.nbytes == pytest.approx(plan.peak, rel=0.05)
    copies, width = 1 if opened.in_place else 2, 4 * 2 * 32  # keys and values of two heads of 16
    assert plan.caches == pytest.approx(copies * 3 * context * sequences * width, rel=0.01)


def test_an_engine_keeps_the_followers_that_were_used_last(tmp_path: Path, monkeypatch) -> None:
    """Others give their memory back, which the plan counts on."""
    try:
        opened = open_backend("compute")
    except DeviceError as error:
        pytest.skip(str(error))
    for module in (engine_module, memory_module):
        monkeypatch.setattr(module, "MOST_FOLLOWERS", 3)
    small_model(tmp_path / "m.gguf", "llama", **{"llama.context_length": 60})
    graph, plan = planned(tmp_path / "m.gguf", opened, 60, 4)
    counter = Counter(opened.device.context, monkeypatch)
    engine = Engine(graph, 60, 4, "compute", opened.device, None)
    run_ranges(engine, plan)
    run_texts(engine, 4)
    go_on(engine, 2, 3, Sampling())
    assert list(engine._followers) == [(4, 60, False), (4, 60, True), (2, 60, False)]
    kinds = [run.follower for run in plan.runs if run.follower is not None]
    assert kinds == [(4, 60, True), (4, 60, False), (3, 60, True)]
    assert counter.nbytes == pytest.approx(plan.peak, rel=0.05)


def test_what_numpy_allocates_is_planned(tmp_path: Path) -> None:
    context, sequences = 6144, 3
    small_model(tmp_path / "m.gguf", "llama", **{"llama.context_length": context})
    graph, plan = planned(tmp_path / "m.gguf", open_backend("cpu"), context, sequences)
    tracemalloc.start()
    try:
        engine = Engine(graph, context, sequences, "cpu", None, None)
        run_ranges(engine, plan)
        run_texts(engine, sequences)
        assert tracemalloc.get_traced_memory()[0] == pytest.approx(plan.peak, rel=0.05)
    finally:
        tracemalloc.stop()


def test_matrices_are_what_each_token_reads(tmp_path: Path) -> None:
    """All weights but vectors, and the table of tokens where logits have a matrix of their own."""
    for architecture, tables in (("llama", 2), ("qwen3", 1)):
        _, tensors = small_model(tmp_path / "m.gguf", architecture)
        _, plan = planned(tmp_path / "m.gguf", open_backend("cpu"), 24, 1)
        matrices = sum(one.nbytes for one in tensors.values() if one.ndim == 2)
        unread = tensors["token_embd.weight"].nbytes if tables == 2 else 0
        assert plan.matrices == pytest.approx(matrices - unread, rel=0.01)
        assert matrices < plan.weights < 1.1 * matrices


def test_language_models_are_recognised(tmp_path: Path) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    (tmp_path / "m.gguf").rename(tmp_path / "model")
    assert is_language_model(tmp_path / "model") and is_language_model("missing.gguf")
    assert not is_language_model(tmp_path) and not is_language_model("lenet")
    (tmp_path / "config.json").write_text("{}")
    assert is_language_model(tmp_path)
    (tmp_path / "short").write_bytes(b"GG")
    assert not is_language_model(tmp_path / "short")
