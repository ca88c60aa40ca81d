"""One network by ONNX Runtime, in a process of its own (see `benchmarks.network_process`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from benchmarks.network_process import Asked, Found, answer, peak_mib


def main(asked: Asked) -> Found:
    """How it starts and runs by the provider that is asked for."""
    x = asked.input

    def load() -> Callable[[], NDArray[Any]]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(asked.path, options, providers=[asked.how])
        if session.get_providers()[0] != asked.how:
            raise SystemExit(f"{asked.how} does not open")
        feeds = {session.get_inputs()[0].name: x}

        def run() -> NDArray[Any]:
            result: NDArray[Any] = session.run(None, feeds)[0]
            return result

        return run

    found, run = asked.start(load)
    version = onnxruntime.__version__
    return {**found, **asked.timed(run), "version": version, "host_mib": peak_mib()}


if __name__ == "__main__":
    answer(main(Asked.from_arguments()))
