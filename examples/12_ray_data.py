"""Digits classified by Ray Data: two actors, each with a session, and a GPU where there are two.

Needs `pip install 'ray[data]'`. Actors come from a class: its constructor opens the session, and a
call classifies a batch. On more machines it is the same program: `ray.init("auto")`.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import numpy as np

import glnn
from glnn.data import digits

try:
    import ray
    import ray.data
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install 'ray[data]'") from None

WORKERS = 2


class Classifier:
    """One actor."""

    def __init__(self) -> None:
        given = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        self.session = glnn.InferenceSession("lenet", gpu=f"cuda:{given[0]}" if given else None)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        (scores,) = self.session.run(None, {"input": batch["image"]})
        worker = np.full(len(scores), os.getpid())
        return {"digit": scores.argmax(1), "label": batch["label"], "worker": worker}


def main() -> int:
    images, labels = digits()
    x = images[:, None].astype(np.float32) / np.float32(255)  # (1000, 1, 28, 28)
    (alone,) = glnn.InferenceSession("lenet").run(None, {"input": x})

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    gpus = 1 if ray.cluster_resources().get("GPU", 0) >= WORKERS else 0
    items = [{"image": image, "label": label} for image, label in zip(x, labels.tolist())]
    data = ray.data.from_items(items, override_num_blocks=20)
    done = data.map_batches(Classifier, batch_size=50, concurrency=WORKERS, num_gpus=gpus)
    rows = done.to_pandas()
    ray.shutdown()

    right = (rows["digit"] == rows["label"]).mean()
    workers = rows["worker"].nunique()
    print(
        f"Ray {ray.__version__}: {len(rows)} digits by {workers} workers, {100 * right:.1f}% right"
    )
    same = sorted(zip(rows["label"], rows["digit"])) == sorted(zip(labels, alone.argmax(1)))
    print("the same as by one process" if same else "one process says something else")
    return 0 if same and workers == WORKERS else 1


if __name__ == "__main__":
    sys.exit(main())
