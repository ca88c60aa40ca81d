"""10,000 short generations leave nothing behind: python -m tests.generation.many_generations

One small seeded model lives through all of them, up to three texts at a time: prompts, lengths and
samplings change, a part of the texts is closed or dropped in the middle, a part is refused. After
each two hundred another model is opened for eight generations and dropped. A warm-up goes before
it, in which each kind of run has its first and caches of choices are filled. Fails where the
process's memory has grown by MOST_MIB since, where GL has more objects or bytes of buffers, or
where a greedy text is another than at first. Prints one JSON object for each look at memory, and
one for the whole.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from glnn.errors import ModelError
from glnn.generation.generation import Generation
from glnn.generation.language_model import LanguageModel
from glnn.gl import Device
from tests.generation.gguf_files import WORDS, small_model
from tests.test_stress import MEGABYTE, objects, resident

MOST_MIB = 8.0
"""That the process may grow by: less than 1 KiB for each of 10,000 generations."""
CONTEXT, SEQUENCES = 96, 3
WARM, WARM_MODELS = 2000, 60
"""Generations and other models of the warm-up."""
LOOKS = 50
"""How often memory is looked at afterwards."""
GL_COPY_READ_BUFFER, GL_BUFFER_SIZE = 0x8F36, 0x8764
LETTERS = "".join(word for word in WORDS if len(word) == 1 and word.isalpha())


def draw_options(draw: random.Random) -> dict[str, Any]:
    """Options of a generation."""
    options: dict[str, Any] = {"max_tokens": draw.choice((1, 2, 5, 9, 20, 200))}
    if draw.random() < 0.6:
        options |= {
            "temperature": draw.choice((0.0, 0.3, 1.0, 2.5)),
            "top_k": draw.choice((0, 1, 5)),
            "top_p": draw.choice((0.5, 0.95, 1.0)),
            "min_p": draw.choice((0.0, 0.0, 0.1)),
            "repetition_penalty": draw.choice((1.0, 1.0, 1.3)),
            "seed": draw.choice((None, 7)),
        }
    if draw.random() < 0.2:
        options["stop"] = draw.sample(LETTERS, 2)
    return options


@dataclass(frozen=True)
class Text:
    """A text under way.

    prompt: what it continues. most: pieces after which it is left; None for all.
    """

    prompt: str
    greedy: bool
    generation: Generation
    most: int | None


class Generations:
    """Generations of a model, drawn at random; greedy texts are held against the first time."""

    def __init__(self, model: LanguageModel, seed: int) -> None:
        self.model, self.draw = model, random.Random(seed)
        self.prompts = [
            "".join(self.draw.choices(LETTERS, k=length)) for length in range(1, CONTEXT - 1, 2)
        ]
        self.texts: dict[str, str] = {}
        """Of greedy ones, by their prompts."""
        self.done = self.left = self.refused = self.wrong = 0

    def run(self, number: int) -> None:
        """Run so many more, as many at a time as the model has sequences, or one less or more."""
        until = self.done + number
        while self.done < until:
            together = self.draw.randint(1, self.model.sequences + 1)
            texts = [self._start() for _ in range(min(together, until - self.done))]
            self.done += len(texts)
            self._read([text for text in texts if text is not None])

    def _start(self) -> Text | None:
        """Begin one; None where it is refused."""
        prompt = self.draw.choice(self.prompts)
        greedy, options = self.draw.random() < 0.3, draw_options(self.draw)
        if greedy:
            options = {"max_tokens": 12}
        elif self.draw.random() < 0.02:
            prompt *= CONTEXT
        try:
            generation = self.model.start(prompt, **options)
        except ModelError:
            self.refused += 1
            return None
        most = self.draw.randint(0, 4) if not greedy and self.draw.random() < 0.2 else None
        return Text(prompt, greedy, generation, most)

    def _read(self, texts: Sequence[Text]) -> None:
        """Read `texts` a piece at a time in turn."""
        reading = list(texts)
        for round in count():
            if not reading:
                break
            for text in list(reading):
                if text.most == round:
                    self.left += 1
                    if self.draw.random() < 0.5:
                        text.generation.close()
                    reading.remove(text)
                elif next(text.generation, None) is None:
                    reading.remove(text)
        for text in texts:
            found = text.generation.text
            if text.greedy and found != self.texts.setdefault(text.prompt, found):
                self.wrong += 1


def buffer_bytes(device: Device) -> int:
    """Bytes of all buffers that GL holds, by asking for each name."""
    device.activate()
    exists = device.load("glIsBuffer", ctypes.c_ubyte, ctypes.c_uint)
    bind = device.load("glBindBuffer", None, ctypes.c_uint, ctypes.c_uint)
    size_of = device.load(
        "glGetBufferParameteri64v", None, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p
    )
    total, size = 0, ctypes.c_int64()
    for name in range(1, 4096):
        if exists(name):
            bind(GL_COPY_READ_BUFFER, name)
            size_of(GL_COPY_READ_BUFFER, GL_BUFFER_SIZE, ctypes.addressof(size))
            total += size.value
    bind(GL_COPY_READ_BUFFER, 0)
    return total


def device_counts(device: Device) -> dict[str, int]:
    """GL's objects of each kind, and the bytes of buffers."""
    return {**objects(device), "buffer bytes": buffer_bytes(device)}


def look(model: LanguageModel) -> dict[str, Any]:
    """What the process and the device hold."""
    gc.collect()
    backend = model._engine.backend
    held: Mapping[str, int] = {}
    if (device := backend.device) is not None:
        held = backend.perform(lambda: device_counts(device))
    return {"mib": round(resident() / MEGABYTE, 2), "device": dict(held)}


class Check:
    """A model that lives through all generations, and others that are opened and dropped."""

    def __init__(self, folder: Path, backend: str, seed: int) -> None:
        self.folder, self.backend, self.seed = folder, backend, seed
        for architecture, form in (("llama", "q4_0"), ("qwen3", "q8_0"), ("gemma2", "f16")):
            path, key = self._path(architecture), f"{architecture}.context_length"
            small_model(path, architecture, form, **{key: CONTEXT})
        self.model = LanguageModel(self._path("llama"), backend=backend, sequences=SEQUENCES)
        self.generations = Generations(self.model, seed)
        self.opened = self.wrong_elsewhere = 0

    def _path(self, architecture: str) -> Path:
        return self.folder / f"{architecture}.gguf"

    def run(self, number: int, models: int) -> None:
        """Run so many generations, and open so many other models, evenly among them."""
        begun = self.generations.done, self.opened
        while (done := self.generations.done - begun[0]) < number:
            self.generations.run(min(20, number - done))
            while self.opened - begun[1] < models * (done + 1) / number:
                self._open_another()

    def _open_another(self) -> None:
        """Open a model of another architecture, run some generations of it, and drop it."""
        path, sequences = self._path(("qwen3", "gemma2")[self.opened % 2]), 1 + self.opened % 4
        other = LanguageModel(path, backend=self.backend, sequences=sequences)
        generations = Generations(other, self.seed + self.opened)
        generations.run(8)
        self.opened += 1
        self.wrong_elsewhere += generations.wrong

    @property
    def wrong(self) -> int:
        """Greedy texts that were others than at first."""
        return self.generations.wrong + self.wrong_elsewhere


def check(backend: str, number: int, seed: int) -> dict[str, Any]:
    """Run `number` generations after a warm-up, and return what was seen."""
    with tempfile.TemporaryDirectory() as name:
        made = Check(Path(name), backend, seed)
        made.run(WARM, WARM_MODELS)
        before, begun = look(made.model), monotonic()
        print(json.dumps({"done": 0, **before}), flush=True)
        for i in range(LOOKS):
            part = number * (i + 1) // LOOKS - number * i // LOOKS
            made.run(part, part // 200)
            after = look(made.model)
            done = made.generations.done - WARM
            seconds = round(monotonic() - begun, 1)
            print(json.dumps({"done": done, "s": seconds, **after}), flush=True)
    grown = round(after["mib"] - before["mib"], 2)
    held = before["device"]
    more = {key: one - held[key] for key, one in after["device"].items() if one > held[key]}
    generations = made.generations
    return {
        "backend": backend, "generations": number, "left": generations.left,
        "refused": generations.refused, "opened": made.opened, "wrong": made.wrong,
        "grown_mib": grown, "most_mib": MOST_MIB, "device_grown": more, "seconds": seconds,
        "right": not made.wrong and not more and grown < MOST_MIB,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where nothing was left behind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="cpu", help="cpu, compute or feedback")
    parser.add_argument("--count", type=int, default=10000, help="how many generations")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    found = check(asked.backend, asked.count, asked.seed)
    print(json.dumps(found))
    return 0 if found["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
