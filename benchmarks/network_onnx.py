"""One network by ONNX Runtime, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from benchmarks.network_process import REFERENCE, MeasureRows, NetworkRequest, Row, serve


def load(request: NetworkRequest) -> MeasureRows:
    """Open a session with the requested execution provider."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(request.path, options, providers=[request.engine])
    if session.get_providers()[0] != request.engine:
        raise SystemExit(f"{request.engine} does not open")
    (input_name,) = (one.name for one in session.get_inputs())

    def rows(batch: int, names: tuple[str, ...]) -> Iterator[Row]:
        feeds = {input_name: request.network.input(batch)}

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, feeds)[0]
            return result

        for name in names:
            times = {} if name == REFERENCE else request.time_work(run)
            result = request.save_result(batch, name, run())
            yield {**result, **times, "version": onnxruntime.__version__}

    return rows


if __name__ == "__main__":
    serve(load)
