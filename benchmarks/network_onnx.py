"""One network by ONNX Runtime, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from benchmarks.network_process import REFERENCE, Asked, Found, Rows, serve


def load(asked: Asked) -> Rows:
    """Open a session of the provider that is asked for."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(asked.path, options, providers=[asked.how])
    if session.get_providers()[0] != asked.how:
        raise SystemExit(f"{asked.how} does not open")
    (given,) = (one.name for one in session.get_inputs())

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Found]:
        feeds = {given: asked.network.input(batch)}

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, feeds)[0]
            return result

        for name in names:
            times = {} if name == REFERENCE else asked.timed(run)
            yield {**asked.saved(batch, name, run()), **times, "version": onnxruntime.__version__}

    return rows


if __name__ == "__main__":
    serve(load)
