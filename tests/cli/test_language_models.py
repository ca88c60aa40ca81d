"""`glnn bench` and `glnn plan` of language models."""

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


def test_rates_of_each_backend(cli: Glnn, model: Path) -> None:
    options = ["--prompt-tokens", 20, "--tokens", 8, "--sequences", 2, "--repeat", 1]
    found = cli("bench", model, *options, "--json").json
    asked = (found[name] for name in ("prompt_tokens", "tokens", "sequences", "repeat"))
    assert (*asked, found["model"]) == (20, 8, 2, 1, "m.gguf")
    assert {*found["backends"], *found["closed"]} == {"compute", "feedback", "cpu"}
    for row in found["backends"].values():
        rates = ("prompt_tokens_per_s", "tokens_per_s", "copy_bytes_per_s", "first_s")
        assert all(row[name] > 0 for name in rates)
        read = row["bytes_per_token"] * row["tokens_per_s"]
        assert row["bandwidth_share"] == pytest.approx(read / row["copy_bytes_per_s"])
        weights = 3 * (96 * 3 + 64 + 2 * 32 + 64) * 32 * 18 / 32  # of three layers, in Q4_0
        cached = 2 * 3 * 64 * 4 * 24
        assert 2 * row["bytes_per_token"] == pytest.approx(weights + cached, rel=0.1)
    shown = cli("bench", model, *options, "--backend", "cpu").out
    assert "prompt tokens/s" in shown and "share of it" in shown


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
        (["bench", "MODEL", "--batch", 2], "--batch is not for language models"),
        (["bench", "MODEL", "x.npy"], "INPUTS is not for language models"),
        (["bench", "lenet", "--tokens", 2], "--tokens is not for networks"),
        (["bench", "MODEL", "--tokens", 200], "its context has 128 tokens, --prompt-tokens and"),
        (["plan", "MODEL", "--precision", "float16"], "--precision is not for language models"),
        (["plan", "MODEL", "--context", 129], "context must be an integer from 1 to 128, got 129"),
        (["plan", "lenet", "--sequences", 2], "--sequences is not for networks"),
        (["plan", "missing.gguf"], "missing.gguf"),
        (["run", "MODEL", "x.npy"], "is a language model, which glnn chat, generate, serve, plan"),
        (["info", "MODEL"], "m.gguf: is a language model, which glnn chat"),
        (["view", "MODEL"], "m.gguf: is a language model, which glnn chat"),
        (["run", "missing.gguf"], "missing.gguf: no such file"),
    ],
)
def test_options_that_do_not_fit(cli: Glnn, model: Path, words, says) -> None:
    done = cli(*(model if word == "MODEL" else word for word in words))
    assert done.code == 2 and says in done.err
