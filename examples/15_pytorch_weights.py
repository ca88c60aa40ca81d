"""A network that PyTorch trained, run by glnn: the same layers, and its weights by a file.

Where PyTorch is installed, it goes on training the bundled LeNet for some steps and saves its state
dict; without, the weights are those of the bundled .npz file. Writes lenet.pt or nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

import glnn
from glnn.data import digits, model

BUNDLED = model("lenet").with_suffix(".npz")


def network(of: Any) -> Any:
    """LeNet's layers by name. of: `torch.nn` or `glnn.layers`, which call them alike."""
    return OrderedDict(
        c1=of.Conv2d(1, 6, 5, padding=2),
        sigmoid1=of.Sigmoid(),
        s2=of.AvgPool2d(2),
        c3=of.Conv2d(6, 16, 5),
        sigmoid3=of.Sigmoid(),
        s4=of.AvgPool2d(2),
        flatten=of.Flatten(),
        c5=of.Linear(400, 120),
        sigmoid5=of.Sigmoid(),
        f6=of.Linear(120, 84),
        sigmoid6=of.Sigmoid(),
        out=of.Linear(84, 10),
    )


def trained(x: Any, labels: Any) -> tuple[Path, Any]:
    """The file with the weights, and PyTorch's scores for `x`: None where it is not installed."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: the weights are the bundled ones")
        return BUNDLED, None
    net = torch.nn.Sequential(network(torch.nn))
    start = glnn.load_weights(BUNDLED)
    net.load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    images, right = torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), right)
        loss.backward()
        optimizer.step()
    print(f"PyTorch {torch.__version__} trained it: the loss is {loss.item():.3f}")
    torch.save(net.state_dict(), "lenet.pt")
    with torch.no_grad():
        return Path("lenet.pt"), net(images).numpy()


def main() -> None:
    images, labels = (array[:200] for array in digits())
    x = images[:, None].astype(np.float32) / np.float32(255)
    path, expected = trained(x, labels)

    lenet = glnn.Model.sequential(network(glnn.layers), (1, 28, 28))
    lenet.load_state_dict(path)
    session = glnn.InferenceSession(lenet)
    (scores,) = session.run(None, {"input": x})

    right = (scores.argmax(axis=1) == labels).mean()
    print(f"{100 * right:.1f}% of {len(x)} digits are right on {session.backend.name}")
    if expected is not None:
        print(f"PyTorch finds the same to within {np.abs(scores - expected).max():.0e}")


if __name__ == "__main__":
    main()
