"""Digits classified by Ray Serve over HTTP: two replicas, each with a session of its own.

Needs `pip install 'ray[serve]'`. A replica takes the 784 bytes of an image and answers with JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import numpy as np

import glnn
from glnn.data import digits

try:
    import ray
    from ray import serve
    from starlette.requests import Request
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install 'ray[serve]'") from None

WORKERS, REQUESTS = 2, 200
PORT = 8123


class Classifier:
    """One replica."""

    def __init__(self) -> None:
        given = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        self.session = glnn.InferenceSession("lenet", gpu=f"cuda:{given[0]}" if given else None)

    async def __call__(self, request: Request) -> dict[str, int]:
        image = np.frombuffer(await request.body(), np.uint8).reshape(1, 1, 28, 28)
        (scores,) = self.session.run(None, {"input": image.astype(np.float32) / np.float32(255)})
        return {"digit": int(scores.argmax()), "worker": os.getpid()}


def main() -> int:
    images, _ = digits()
    x = images[:REQUESTS, None].astype(np.float32) / np.float32(255)
    (alone,) = glnn.InferenceSession("lenet").run(None, {"input": x})

    ray.init(
        num_cpus=WORKERS + 1, include_dashboard=False, logging_level="ERROR", log_to_driver=False
    )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= WORKERS else 0
    serve.start(http_options={"port": PORT}, logging_config={"log_level": "ERROR"})
    options = {"num_cpus": 1, "num_gpus": gpus}
    replicas = serve.deployment(Classifier, num_replicas=WORKERS, ray_actor_options=options)
    serve.run(replicas.bind(), name="digits", route_prefix="/digits")
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(ask, images[:REQUESTS]))
    serve.shutdown()
    ray.shutdown()

    workers = len({answer["worker"] for answer in answers})
    print(f"Ray {ray.__version__}: {len(answers)} requests answered by {workers} replicas")
    same = [answer["digit"] for answer in answers] == alone.argmax(1).tolist()
    print("the same as by one process" if same else "one process says something else")
    return 0 if same and workers == WORKERS else 1


def ask(image: Any) -> dict[str, int]:
    with urlopen(f"http://127.0.0.1:{PORT}/digits", image.tobytes(), timeout=60) as answer:
        found: dict[str, int] = json.load(answer)
    return found


if __name__ == "__main__":
    sys.exit(main())
