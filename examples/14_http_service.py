"""Digits classified by a plain HTTP service: two processes at one port, each with a session.

Needs `pip install bottle`. The system gives each connection to one of the processes that listen at
the port (SO_REUSEPORT, Linux). Where there are NVIDIA GPUs, worker N has the Nth of them.
Without arguments it starts the workers, asks them, and stops them; `--worker 0` is one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import numpy as np

import glnn
from glnn.data import digits

try:
    import bottle
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install bottle") from None

WORKERS, REQUESTS = 2, 200


class Server(WSGIServer):
    """One that others may share its port with."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


class Quiet(WSGIRequestHandler):
    """Does not log requests."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def work(number: int, port: int) -> None:
    """Answer requests until the process is ended."""
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if gpus:
        os.environ.setdefault("GLNN_GPU", f"cuda:{number % gpus}")
    session = glnn.InferenceSession("lenet")
    session.run(None, {"input": np.zeros((1, 1, 28, 28), np.float32)})  # all is made ready
    service = bottle.Bottle()

    def classify() -> dict[str, int]:
        image = np.frombuffer(bottle.request.body.read(), np.uint8).reshape(1, 1, 28, 28)
        (scores,) = session.run(None, {"input": image.astype(np.float32) / np.float32(255)})
        return {"digit": int(scores.argmax()), "worker": number}

    service.post("/digits", callback=classify)
    make_server("127.0.0.1", port, service, Server, Quiet).serve_forever()


def ask(port: int, image: Any) -> dict[str, int]:
    """The answer for one image; until a worker listens it is asked again."""
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/digits", image.tobytes(), timeout=60) as answer:
                found: dict[str, int] = json.load(answer)
            return found
        except URLError:
            time.sleep(0.1)
    raise TimeoutError(f"nobody answers at port {port}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", type=int, help="be this worker")
    parser.add_argument("--port", type=int, default=8124)
    asked = parser.parse_args()
    if asked.worker is not None:
        work(asked.worker, asked.port)

    images, _ = digits()
    x = images[:REQUESTS, None].astype(np.float32) / np.float32(255)
    (alone,) = glnn.InferenceSession("lenet").run(None, {"input": x})
    command = [sys.executable, __file__, "--port", str(asked.port), "--worker"]
    workers = [subprocess.Popen([*command, str(number)]) for number in range(WORKERS)]
    try:
        seen: set[int] = set()
        while len(seen) < WORKERS and all(worker.poll() is None for worker in workers):
            seen.add(ask(asked.port, images[0])["worker"])  # until all of them listen
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda image: ask(asked.port, image), images[:REQUESTS]))
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()

    counts = np.bincount([answer["worker"] for answer in answers], minlength=WORKERS)
    print(f"bottle {bottle.__version__}: {counts.tolist()} requests answered by the workers")
    same = [answer["digit"] for answer in answers] == alone.argmax(1).tolist()
    print("the same as by one process" if same else "one process says something else")
    return 0 if same and (counts > 0).all() else 1


if __name__ == "__main__":
    sys.exit(main())
