"""What it saves to keep states on the device: a step with them kept, and one that feeds them back.

    python -m benchmarks.kept_states [--backend compute] [--model silero_vad.onnx]

Without a model it is attention over caches that a token is written to in each step: 4 layers, 8
heads, room for 1,024 tokens, 16 MB. Says medians of rounds in turn, wall and CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

import glnn

LAYERS, HEADS, ROOM, WIDTH = 4, 8, 1024, 64
ROUNDS, STEPS = 7, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="compute")
    parser.add_argument("--model", help="silero_vad.onnx")
    asked = parser.parse_args()
    generator = np.random.default_rng(0)
    feeds: dict[str, Any]
    if asked.model:
        pairs, wanted = {"state": "stateN"}, "output"
        initial = {"state": np.zeros((2, 1, 128), np.float32)}
        x = generator.standard_normal((1, 576)).astype(np.float32)
        feeds = {"input": x, "sr": np.array(16000, np.int64)}
    else:
        asked.model, initial = attention()
        pairs, wanted = {name: name.replace("past", "present") for name in initial}, "y"
        x = generator.standard_normal((1, HEADS, 1, WIDTH)).astype(np.float32)
        feeds = {"x": x, "pos": np.array([3], np.int64)}
    session = glnn.InferenceSession(asked.model, asked.backend)
    states = session.make_states(pairs, initial)
    fed = dict(initial)

    def keep() -> None:
        session.run(None, feeds, states=states)

    def feed() -> None:
        names = [wanted, *pairs.values()]
        _, *after = session.run(names, {**feeds, **fed})
        fed.update(zip(pairs, after, strict=True))

    for _ in range(3):
        keep()
        feed()
    rounds = [(timed(keep), timed(feed)) for _ in range(ROUNDS)]
    megabytes = sum(array.nbytes for array in initial.values()) / 1e6
    for i, what in enumerate(("wall", "CPU")):
        kept, again = (median(one[j][i] for one in rounds) for j in (0, 1))
        ratio = median(one[0][i] / one[1][i] for one in rounds)
        print(
            f"{asked.backend}, {megabytes:.3f} MB of states, {what} time a step: "
            f"{kept:.2f} ms kept, {again:.2f} ms fed again, {ratio:.2f} of that"
        )


def timed(step: Callable[[], None]) -> tuple[float, float]:
    """Wall and CPU milliseconds of a step."""
    wall, own = perf_counter(), process_time()
    for _ in range(STEPS):
        step()
    return 1e3 * (perf_counter() - wall) / STEPS, 1e3 * (process_time() - own) / STEPS


def attention() -> tuple[bytes, dict[str, np.ndarray]]:
    """A model of attention over caches, and these."""
    from onnx import parser

    cache = f"float[1, {HEADS}, {ROOM}, {WIDTH}]"
    inputs, outputs, body = [], [], []
    before = "x"
    for i in range(LAYERS):
        key, value = f"{i}_key", f"{i}_value"
        inputs += [f"{cache} past_{key}", f"{cache} past_{value}"]
        outputs += [f"{cache} present_{key}", f"{cache} present_{value}"]
        after = "y" if i == LAYERS - 1 else f"x{i}"
        body += [
            f"present_{key} = Where(here, {before}, past_{key})",
            f"present_{value} = Where(here, {before}, past_{value})",
            f"turned{i} = Transpose<perm = [0, 1, 3, 2]>(present_{key})",
            f"scores{i} = MatMul({before}, turned{i})",
            f"weights{i} = Softmax(scores{i})",
            f"{after} = MatMul(weights{i}, present_{value})",
        ]
    row = f"float[1, {HEADS}, 1, {WIDTH}]"
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    attention ({row} x, int64[1] pos, {", ".join(inputs)}) => ({row} y, {", ".join(outputs)}) {{
      places = Constant<value_ints = [{", ".join(map(str, range(ROOM)))}]>()
      column = Constant<value_ints = [1, 1, {ROOM}, 1]>()
      rows = Reshape(places, column)
      here = Equal(rows, pos)
      {" ".join(body)}
    }}"""
    names = [one.rpartition(" ")[2] for one in inputs]
    zeros = {name: np.zeros((1, HEADS, ROOM, WIDTH), np.float32) for name in names}
    return parser.parse_model(text).SerializeToString(), zeros


if __name__ == "__main__":
    main()
