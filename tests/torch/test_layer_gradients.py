"""What one step of training makes of layers' parameters, against PyTorch's own step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from glnn import layers as nn  # noqa: E402  # after what may not be there
from glnn.model import Model  # noqa: E402
from glnn.training import SGD, MSELoss, Trainer  # noqa: E402

SEQUENCES: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 2}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {"bias": False}),
    ("RNN", {"bidirectional": True}),
    ("RNN", {"nonlinearity": "relu", "num_layers": 2}),
]


@pytest.mark.parametrize(("name", "named"), SEQUENCES)
@pytest.mark.parametrize("backend", ["cpu", "compute"])
def test_through_time(name: str, named: dict[str, Any], backend: str) -> None:
    torch.manual_seed(3)
    theirs = getattr(torch.nn, name)(3, 4, batch_first=True, **named)
    ours = getattr(nn, name)(3, 4, batch_first=True, **named)
    for key, tensor in theirs.state_dict().items():
        setattr(ours, key, tensor.numpy())
    x = torch.randn(2, 5, 3)
    (y, _), target = theirs(x), torch.randn(2, 5, theirs(x)[0].shape[2])
    torch.nn.MSELoss(reduction="sum")(y, target).backward()
    trainer = Trainer(
        Model.sequential([ours], (5, 3)), MSELoss(reduction="sum"), SGD(lr=0.1), backend=backend
    )
    trainer.step(x.numpy(), target.numpy())
    (node,) = trainer.model.nodes
    for key, parameter in theirs.named_parameters():
        wanted = (parameter - 0.1 * parameter.grad).detach().numpy()
        assert parameter.grad.abs().max() > 1e-3  # else there would be nothing to see
        found = getattr(node.layer, key)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=key)
