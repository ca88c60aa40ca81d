"""How much a server's memory grows: python tests/server.py BACKEND REQUESTS

Every request is a thread of its own. Prints the MiB by which the resident memory grew after the
first requests, and what failed; fails where that is too much or anything.
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from glnn import InferenceSession, ops

WARM_UP = 40
MOST = 20.0  # MiB
CLIENTS = 3


def resident() -> float:
    """MiB of this process's memory."""
    kib = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text("ascii").splitlines()
        if line.startswith("VmRSS:")
    )
    return int(kib) / 1024


class Server:
    """Classifies a digit on `backend` in several ways: by a shared session, anew, by ops."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        generator = np.random.default_rng(0)
        self.x = {"input": generator.random((1, 1, 28, 28), np.float32)}
        self.a, self.b = (generator.random((20, 20), np.float32) for _ in range(2))
        self.right = InferenceSession("lenet", "cpu").run(None, self.x)[0]
        self.session = InferenceSession("lenet", backend)

    def answer(self, number: int) -> bool:
        """Whether the result of request `number` is right."""
        if number % 5 == 0:
            product = ops.matmul(self.a, self.b, backend=self.backend)
            return np.allclose(product, self.a @ self.b, rtol=1e-5)
        if number % 5 == 1:
            result = self.session.model(self.x["input"], self.backend)
        elif number % 5 == 2:
            result = InferenceSession("lenet", self.backend).run(None, self.x)[0]
        else:
            result = self.session.run(None, self.x)[0]
        return np.allclose(result, self.right, atol=1e-5)


def main(backend: str, requests: int) -> None:
    server = Server(backend)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                right = server.answer(int(self.path[1:]))
                said = "right" if right else "wrong"
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    said: dict[str, int] = {}

    def ask(numbers: range) -> None:
        for number in numbers:
            with urllib.request.urlopen(f"http://127.0.0.1:{http.server_port}/{number}") as reply:
                text = reply.read().decode()
            said[text] = said.get(text, 0) + 1

    def crowd(first: int, end: int) -> None:
        clients = [
            threading.Thread(target=ask, args=(range(first + i, end, CLIENTS),))
            for i in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    crowd(0, WARM_UP)
    before = resident()
    crowd(WARM_UP, WARM_UP + requests)
    wrong = {text: count for text, count in said.items() if text != "right"}
    grown = round(resident() - before, 1)
    print(json.dumps({"backend": backend, "requests": requests, "grown": grown, "wrong": wrong}))
    if wrong or grown >= MOST:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
