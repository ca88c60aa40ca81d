"""Language models whose weights are larger than what a kernel of the device reads at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from glnn.backends import open_backend
from glnn.compiler.memory_budget import Outline
from glnn.core.types import TensorType
from glnn.errors import DeviceError, LimitError
from glnn.generation import engine as engine_module
from glnn.generation.architectures import ARCHITECTURES
from glnn.generation.engine import Engine
from glnn.generation.language_model import LanguageModel
from glnn.gl import Device
from glnn.graph.operators import QuantizedMatmul, QuantizedRows
from tests.generation import references
from tests.generation.gguf_files import CONTEXT, WORDS, small_model
from tests.generation.test_memory import Counter, planned, run_ranges, run_texts

pytestmark = pytest.mark.usefixtures("poisoned")
TOKENS = [0, 5, 9, 33, 2, 2, 64, 17, 44, 8, 3, 21]
BLOCK = 4 * CONTEXT * 64  # bytes: the caches of a sequence, no more


LIMITS = {
    "compute": {"max_shader_storage_block_size": BLOCK},
    "feedback": {
        "max_texture_size": BLOCK // 4,
        "max_array_texture_layers": 0,
        "max_texture_buffer_size": 0,
    },
}


def open_device(backend: str) -> Device:
    """A device whose kernels read as much as the small models' caches at once, and no more."""
    try:
        opened = Device()
    except DeviceError as error:
        pytest.skip(str(error))
    if backend == "compute" and (reason := opened.capabilities.why_no_compute()):
        opened.close()
        pytest.skip(reason)
    opened.capabilities = replace(opened.capabilities, **LIMITS[backend])
    return opened


@pytest.fixture
def device() -> Iterator[Device]:
    """That of `compute`."""
    with open_device("compute") as opened:
        yield opened


@pytest.mark.parametrize(("backend", "count"), [("compute", len(TOKENS)), ("feedback", 5)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_the_definition(tmp_path: Path, backend, count, architecture) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", architecture)
    assert tensors["token_embd.weight"].nbytes > BLOCK
    tokens = TOKENS[:count]
    with open_device(backend) as device:
        lm = LanguageModel(tmp_path / "m.gguf", backend=backend, device=device)
        found, expected = lm.logits(tokens), references.logits(metadata, tensors, tokens)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def test_logits_of_some_tokens_at_a_time(tmp_path: Path, backend, monkeypatch) -> None:
    metadata, tensors = small_model(tmp_path / "m.gguf", "gemma3")
    lm = LanguageModel(tmp_path / "m.gguf", backend=backend)
    monkeypatch.setattr(engine_module, "most_logits", lambda *_: 5)
    compute, counts = lm._engine.compute, list[int]()

    def counted(tokens, places, logit_rows, outputs):
        counts.append(len(logit_rows))
        return compute(tokens, places, logit_rows, outputs)

    monkeypatch.setattr(lm._engine, "compute", counted)
    found, expected = lm.logits(TOKENS), references.logits(metadata, tensors, TOKENS)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert counts == [5, 5, 2]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_texts_are_those_of_the_host(tmp_path: Path, device, temperature) -> None:
    small_model(tmp_path / "m.gguf", "gemma3", seed=4)
    host = LanguageModel(tmp_path / "m.gguf", backend="cpu")
    lm = LanguageModel(tmp_path / "m.gguf", backend="compute", device=device, sequences=1)
    for prompt in ([0, 64], TOKENS[:5], [3]):
        options = {"max_tokens": 12, "temperature": temperature, "seed": 3}
        assert lm.generate(prompt, **options) == host.generate(prompt, **options)


def test_the_table_is_on_the_device_once(tmp_path: Path, device) -> None:
    """Its parts are what logits are made by, too; each fits."""
    small_model(tmp_path / "m.gguf", "gemma3")
    lm = LanguageModel(tmp_path / "m.gguf", backend="compute", device=device)
    graph, backend = lm._engine._decoder.graph, lm._engine.backend
    caches = {name: tuple(shape) for name, shape in lm._engine._decoder.caches.items()}
    shapes = {"tokens": (3,), "places": (3,), "logit_rows": (1,), **caches}
    outline = backend.perform(lambda: Outline.create(graph, backend, shapes))
    packed = [one for one in outline.steps if isinstance(one.op, (QuantizedMatmul, QuantizedRows))]
    assert max(4 * one.shapes["weight"][0] for one in packed) <= BLOCK
    lookups = [one for one in packed if isinstance(one.op, QuantizedRows)]
    logits = [one for one in packed if one.layer == "logits"]
    assert [one.op.n for one in lookups] == [one.op.n for one in logits]
    assert sum(one.op.n for one in lookups) == len(WORDS) and len(lookups) == 2
    assert sum(one.nbytes[1] for one in lookups) == TensorType((len(WORDS), 32)).nbytes
    assert not any(one.nbytes[1] for one in logits)


def test_more_logits_than_a_block_are_refused(tmp_path: Path, device) -> None:
    small_model(tmp_path / "m.gguf", "llama")
    most = BLOCK // (4 * len(WORDS))
    says = f"at most {BLOCK} bytes .*: {most} sequences fit"
    with pytest.raises(LimitError, match=says):
        LanguageModel(tmp_path / "m.gguf", backend="compute", device=device, sequences=most + 1)
    with pytest.raises(LimitError, match=says):
        planned(tmp_path / "m.gguf", open_backend("compute", device), 4, most + 1)


def test_the_memory_of_parts_is_planned(tmp_path: Path, device, monkeypatch) -> None:
    """All plans of a model share them."""
    small_model(tmp_path / "m.gguf", "gemma3")
    context, backend = 8, open_backend("compute", device)
    graph, plan = planned(tmp_path / "m.gguf", backend, context, 1)
    counter = Counter(device.context, monkeypatch)
    engine = Engine(graph, context, 1, "compute", device, None)
    run_ranges(engine, plan)
    run_texts(engine, 1)
    assert counter.nbytes == pytest.approx(plan.peak, rel=0.05)
