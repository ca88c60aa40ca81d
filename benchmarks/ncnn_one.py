"""What `benchmarks.ncnn_vulkan` has each library run: prints JSON, all in milliseconds.

It uses nothing of glnn but what all versions have. Arguments: the library, the .onnx file, the
folder of ncnn's files, seconds to run for, and a file for the outputs.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

LEAST, WARM = 5, 2  # runs


def by_glnn(path: Path, feed: Any, backend: str) -> Callable[[], Any]:
    import glnn

    session = glnn.InferenceSession(str(path), backend=backend)
    feeds = {session.get_inputs()[0].name: feed}
    return lambda: session.run(None, feeds)[0]


def by_onnxruntime(path: Path, feed: Any) -> Callable[[], Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: feed}
    return lambda: session.run(None, feeds)[0]


def by_ncnn(param: Path, feed: Any) -> Callable[[], Any]:
    """Its Vulkan in float32, all else as it is by default."""
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    for name in dir(net.opt):
        if name.startswith(("use_fp16", "use_bf16", "use_int8")):
            setattr(net.opt, name, False)
    if net.load_param(str(param)) or net.load_model(str(param.with_suffix(".bin"))):
        raise SystemExit(f"ncnn cannot read {param}")
    source, target = net.input_names()[0], net.output_names()[0]

    def run() -> Any:
        extractor = net.create_extractor()
        extractor.input(source, ncnn.Mat(feed[0]))
        code, found = extractor.extract(target)
        if code:
            raise SystemExit(f"ncnn: {param}: {code}")
        return np.array(found).reshape(1, -1)

    return run


def prepared(library: str, path: Path, folder: Path, feed: Any) -> Callable[[], Any]:
    if library == "ncnn":
        return by_ncnn(folder / f"{path.stem}.param", feed)
    if library == "onnxruntime":
        return by_onnxruntime(path, feed)
    return by_glnn(path, feed, library)


def main(library: str, path: Path, folder: Path, seconds: float, out: Path) -> dict[str, float]:
    feed = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    start = perf_counter()
    run = prepared(library, path, folder, feed)
    np.save(out, run())
    first = perf_counter() - start
    for _ in range(WARM):
        run()
    clock: list[float] = []
    cpu: list[float] = []
    start = perf_counter()
    while len(clock) < LEAST or perf_counter() - start < seconds:
        before, busy = perf_counter(), process_time()
        run()
        clock.append(perf_counter() - before)
        cpu.append(process_time() - busy)
    found = {"least": min(clock), "median": float(np.median(clock)), "cpu": min(cpu)}
    return {name: 1e3 * value for name, value in {**found, "first": first}.items()}


if __name__ == "__main__":
    library, path, folder, seconds, out = sys.argv[1:]
    print(json.dumps(main(library, Path(path), Path(folder), float(seconds), Path(out))))
