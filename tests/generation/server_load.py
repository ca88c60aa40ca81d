"""Eight clients of one server for a while: python -m tests.generation.server_load [--help]

Each client asks for texts, whole and in pieces, chats and embeddings in turn, and goes away in the
middle of some. Fails for any error, an answer that is another than when it was asked for alone,
a client that was answered less than half as often as the mean, or memory that grows. Prints one
JSON object: answers, those of each client, seconds to an answer, MiB that the server grew by.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from tests.generation.gguf_files import WORDS, small_model

CLIENTS, SEQUENCES = 8, 3
MOST_MIB = 20.0
TEXT, CHAT, EMBED = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}a"
WARM_UP = 0.1  # of the time, before memory is looked at


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Those that clients draw from: short and long, greedy, so that answers are always the same."""
    found: list[tuple[str, dict[str, Any]]] = []
    for i in range(24):
        text = "".join(chr(97 + (i * 7 + j * j) % 26) for j in range(3 + 17 * (i % 5)))
        options = {"max_tokens": 5 + 20 * (i % 4), "temperature": 0, "stream": i % 3 == 0}
        if i % 6 == 5:
            found.append((EMBED, {"input": [text, text[::-1]]}))
        elif i % 2:
            messages = [{"role": "user", "content": text}]
            found.append((CHAT, {"messages": messages, **options}))
        else:
            found.append((TEXT, {"prompt": text, **options}))
    return found


def send(address: str, path: str, body: dict[str, Any]) -> HTTPConnection:
    connection = HTTPConnection(address, timeout=120)
    connection.request("POST", path, json.dumps(body))
    return connection


def ask(address: str, path: str, body: dict[str, Any]) -> Any:
    """The answer's text, or its vectors."""
    connection = send(address, path, body)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {raw[:200]!r}")
    if body.get("stream"):
        events = raw.split(b"\n\n")
        if events[-2:] != [b"data: [DONE]", b""]:
            raise RuntimeError(f"{path}: it ends with {events[-2][:200]!r}")
        chunks = [json.loads(one.removeprefix(b"data: ")) for one in events[:-2]]
        choices = [chunk["choices"][0] for chunk in chunks]
        return "".join(
            one["delta"].get("content", "") if path == CHAT else one["text"] for one in choices
        )
    found = json.loads(raw)
    if path == EMBED:
        return [one["embedding"] for one in found["data"]]
    choice = found["choices"][0]
    return choice["message"]["content"] if path == CHAT else choice["text"]


def go_away(address: str, path: str, body: dict[str, Any]) -> None:
    """Ask for a long text, read the beginning and hang up."""
    connection = send(address, path, {**body, "max_tokens": 500, "stream": True})
    answer = connection.getresponse()
    answer.readline()
    answer.close()
    connection.close()


def alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        return bool(found == expected)
    pairs = (pair for two in zip(found, expected, strict=True) for pair in zip(*two, strict=True))
    return all(abs(a - b) < 1e-4 for a, b in pairs)


def resident(pid: int) -> float:
    """MiB of a process's memory."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


class Load:
    """Clients that ask until the time is over, and what they saw."""

    def __init__(self, address: str, seconds: float) -> None:
        self.address, self.end = address, monotonic() + seconds
        self.warm = monotonic() + WARM_UP * seconds
        self.known = [(path, body, ask(address, path, body)) for path, body in requests()]
        self.answers, self.gone = [0] * CLIENTS, 0
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def client(self, number: int) -> None:
        draw = random.Random(number)
        while monotonic() < self.end:
            path, body, expected = draw.choice(self.known)
            begun = monotonic()
            try:
                if path != EMBED and draw.random() < 0.1:
                    go_away(self.address, path, body)
                    self.gone += 1
                    continue
                found = ask(self.address, path, body)
            except Exception as error:
                self.wrong.append(f"client {number}: {type(error).__name__}: {error}")
                continue
            with self.lock:
                self.seconds.append(monotonic() - begun)
            self.answers[number] += 1
            if not alike(found, expected):
                self.wrong.append(f"client {number}: {path} {body}: {found!r:.100}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--backend", default="cpu")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "m.gguf")
        more = {"tokenizer.chat_template": TEMPLATE, "llama.context_length": 1024}
        small_model(model, "llama", seed=4, **more, **{"tokenizer.ggml.eos_token_id": len(WORDS)})
        words = ["--backend", asked.backend, "--sequences", SEQUENCES, "--port", 0, "--json"]
        command = [sys.executable, "-m", "glnn", "serve", str(model), *map(str, words)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "}\n")
            address = json.loads("".join(lines) + "}")["url"].removeprefix("http://")
            load = Load(address, asked.seconds)
            with ThreadPoolExecutor(CLIENTS) as pool:
                clients = [pool.submit(load.client, number) for number in range(CLIENTS)]
                threading.Event().wait(max(0.0, load.warm - monotonic()))
                before = resident(server.pid)
                for client in clients:
                    client.result()
            grown = round(resident(server.pid) - before, 1)
        finally:
            server.terminate()
            code = server.wait()
    fair = min(load.answers) > 0.5 * sum(load.answers) / CLIENTS
    print(json.dumps({
        "backend": asked.backend, "seconds": asked.seconds, "answers": sum(load.answers),
        "of_each": load.answers, "gone": load.gone, "wrong": load.wrong[:10],
        "median_s": round(median(load.seconds), 4), "longest_s": round(max(load.seconds), 4),
        "grown_mib": grown, "server_exit": code,
    }))  # fmt: skip
    return 0 if fair and not load.wrong and grown < MOST_MIB and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
