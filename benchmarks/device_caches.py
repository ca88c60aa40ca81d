"""What it saves to keep a growing cache on the device: tokens with it there, and by the host.

    python -m benchmarks.device_caches model.onnx [--backend compute] [--context 512]

The model is a decoder as Optimum exports it: input_ids, attention_mask, perhaps position_ids, and
caches past_key_values.… with outputs present.…. Says medians of rounds in turn, wall and CPU time.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

import glnn

ROUNDS, TOKENS = 7, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--backend", default="compute")
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache at first")
    asked = parser.parse_args()
    session = glnn.InferenceSession(asked.model, asked.backend)
    caches = [one for one in session.get_inputs() if one.name.startswith("past")]
    generator = np.random.default_rng(0)
    start = {
        one.name: generator.standard_normal(shape_of(one, asked.context), np.float32)
        for one in caches
    }
    rounds = []
    for _ in range(ROUNDS + 1):  # the first is not counted: plans are made in it
        rounds.append([decode(session, start, asked.context, there) for there in (True, False)])
    megabytes = sum(array.nbytes for array in start.values()) / 1e6
    for i, what in enumerate(("wall", "CPU")):
        kept, fed = (median(one[j][i] for one in rounds[1:]) for j in (0, 1))
        ratio = median(one[0][i] / one[1][i] for one in rounds[1:])
        print(
            f"{asked.backend}, {megabytes:.1f} MB of caches, {what} time a token: "
            f"{kept:.2f} ms on the device, {fed:.2f} ms by the host, {ratio:.2f} of that"
        )


def shape_of(cache: Any, context: int) -> tuple[int, ...]:
    """The shape of a cache of (batch, heads, tokens, width) for one text of `context` tokens."""
    _, heads, _, width = cache.shape
    return 1, heads, context, width


def decode(
    session: glnn.InferenceSession, start: dict[str, Any], length: int, there: bool
) -> tuple[float, float]:
    """Wall and CPU milliseconds of a token. there: whether the caches are on the device."""
    taken = {one.name for one in session.get_inputs()}
    names = ["logits", *(name.replace("past_key_values", "present") for name in start)]
    past: dict[str, Any] = start
    if there:
        past = {name: glnn.DeviceArray(array) for name, array in start.items()}
    out = dict.fromkeys(names[1:], glnn.DeviceArray) if there else None
    token, took = np.array([[5]]), []
    for step in range(TOKENS):
        feeds = {
            "input_ids": token,
            "attention_mask": np.ones((1, length + 1), np.int64),
            "position_ids": np.array([[length]]),
        }
        feeds = {name: array for name, array in feeds.items() if name in taken}
        wall, own = perf_counter(), process_time()
        logits, *after = session.run(names, {**feeds, **past}, out=out)
        if step:  # the first takes the caches to the device
            took.append((perf_counter() - wall, process_time() - own))
        past, length = dict(zip(start, after, strict=True)), length + 1
        token = logits[:, -1:].argmax(-1)
    return 1e3 * median(one[0] for one in took), 1e3 * median(one[1] for one in took)


if __name__ == "__main__":
    main()
