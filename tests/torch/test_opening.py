"""GL and what PyTorch loads late, in one process: `make check-torch` has torch."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

pytest.importorskip("torch", reason="torch: make check-torch has it")

OPEN = """
import glnn, numpy as np
x = np.ones((2, 4), np.float32)
y = glnn.layers.Linear(4, 4)(x, backend="compute")
"""
USED = """
net = torch.nn.Linear(4, 4)
torch.optim.Adam(net.parameters())
with torch.no_grad():
    right = net(torch.tensor(x)).numpy()
    assert abs(torch.compile(net, backend="glnn")(torch.tensor(x)).numpy() - right).max() < 1e-5
"""
EXPORTED = """
model = glnn.Model.from_torch(torch.nn.Linear(4, 4), torch.zeros(1, 4))
assert model(x, backend="compute").shape == (2, 4)
"""


@pytest.mark.parametrize(
    "code",
    ["import torch" + OPEN + USED + EXPORTED, OPEN + "import torch" + EXPORTED + USED],
    ids=["torch before GL", "torch after GL"],
)
def test_gl_is_open_before_pytorch_loads_the_rest(
    python: Callable[..., CompletedProcess[str]], code: str
) -> None:
    done = python(code)  # -11, a segmentation fault, where Triton finds Mesa's LLVM
    assert done.returncode == 0, done.stderr
