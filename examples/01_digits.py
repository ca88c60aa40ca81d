"""Handwritten digits through every backend that opens here: the library's main job, end to end.

Prints each backend's accuracy on the bundled 1,000 MNIST digits and checks that all of them
predict the same. Run it with `make demo`, or `python examples/01_digits.py`.
"""

from __future__ import annotations

import sys

import numpy as np

import glnn
from glnn.backends import NAMES
from glnn.data import digits
from glnn.errors import DeviceError

LEAST_ACCURACY = 0.98


def main() -> int:
    images, labels = digits()
    x = images[:, None].astype(np.float32) / np.float32(255)  # (1000, 1, 28, 28)
    model = glnn.load("lenet")
    predictions = {}
    for name in NAMES:
        try:
            session = glnn.InferenceSession(model, backend=name)
        except DeviceError as error:
            print(f"{name:9} does not open: {error}")
            continue
        batches = [x[i : i + 100] for i in range(0, len(x), 100)]
        scores = np.concatenate([session.run(None, {"input": batch})[0] for batch in batches])
        predictions[name] = scores.argmax(axis=1)
        device = session.backend.device
        where = device.capabilities.renderer if device else "NumPy"
        accuracy = (predictions[name] == labels).mean()
        print(f"{name:9} {100 * accuracy:.2f}% of {len(x)} digits right   {where}")
        if accuracy < LEAST_ACCURACY:
            print(f"expected at least {100 * LEAST_ACCURACY:.0f}%")
            return 1
    if any(not np.array_equal(p, predictions["cpu"]) for p in predictions.values()):
        print("the backends' predictions differ")
        return 1
    print(f"the same predictions on {', '.join(predictions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
