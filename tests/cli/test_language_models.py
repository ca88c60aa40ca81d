"""`glnn plan` of language models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Glnn
from tests.generation.gguf_files import small_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    small_model(path, "llama", "q4_0", **{"llama.context_length": 128})
    return path


def test_memory(cli: Glnn, model: Path) -> None:
    options = ["--context", 100, "--sequences", 3, "--backend", "cpu"]
    found = cli("plan", model, *options, "--json").json
    assert (found["context"], found["sequences"], found["backend"]) == (100, 3, "cpu")
    parts = ("weight_bytes", "cache_bytes", "activation_bytes")
    assert found["peak_bytes"] == sum(found[part] for part in parts)
    assert found["cache_bytes"] == 3 * 3 * 100 * 64 * 4
    assert found["activation_bytes"] == sum(run["nbytes"] for run in found["runs"])
    assert max(run["tokens"] for run in found["runs"]) == 300
    assert "predicted peak" in cli("plan", model, *options).out
    usual = cli("plan", model, "--backend", "cpu", "--json").json
    assert (usual["context"], usual["sequences"]) == (128, 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "MODEL", "--precision", "float16"], "--precision is not for language models"),
        (["plan", "MODEL", "--context", 129], "context must be an integer from 1 to 128, got 129"),
        (["plan", "lenet", "--sequences", 2], "--sequences is not for networks"),
        (["plan", "missing.gguf"], "missing.gguf"),
    ],
)
def test_options_that_do_not_fit(cli: Glnn, model: Path, words, says) -> None:
    done = cli(*(model if word == "MODEL" else word for word in words))
    assert done.code == 2 and says in done.err
