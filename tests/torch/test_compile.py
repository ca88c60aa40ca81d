"""`torch.compile(backend="glnn")` against PyTorch itself: `make check-torch` has torch."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: make check-torch has it")
nn, functional = torch.nn, torch.nn.functional

from glnn.errors import GlnnError  # noqa: E402
from glnn.torch import LeftToPyTorch, compile  # noqa: E402

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test's; no gradients; no graph is left to PyTorch unseen."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", LeftToPyTorch)
        yield


def compiled(function: Function, **options: Any) -> Function:
    return torch.compile(function, backend="glnn", options={"backend": "compute", **options})


def flat(value: Any) -> list[Any]:
    """The tensors in what a model gives."""
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in flat(one)] if isinstance(value, (tuple, list)) else [value]


def check(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Of the same structure, types and shapes, and as close as float32 is."""
    assert type(found) is type(expected)
    for got, right in zip(flat(found), flat(expected), strict=True):
        if not isinstance(right, torch.Tensor):
            assert got == right and type(got) is type(right)
            continue
        assert (got.dtype, got.shape) == (right.dtype, right.shape)
        torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def like(function: Function, *inputs: Any, caplog: Any = None, graphs: int = 1) -> Function:
    """`function` compiled, which gives the same for `inputs`, by `graphs` sessions of glnn's."""
    ours = compiled(function)
    caplog.set_level(logging.INFO, "glnn.torch")
    found = ours(*inputs)
    assert sum("runs on compute" in record.message for record in caplog.records) == graphs
    check(found, function(*inputs))
    return ours


class Block(nn.Module):
    """A residual block, which works in place."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norms[0](self.first(x)), inplace=True)
        y = self.norms[1](self.second(y))
        y += self.short(x)
        return functional.relu_(y)


class Tagger(nn.Module):
    """Words to tags, and the states."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.memory = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(24, 5)

    def forward(self, words: Any) -> Any:
        y, (h, c) = self.memory(self.words(words))
        return {"tags": self.tags(y), "states": (h, c)}


def mlp() -> Any:
    return nn.Sequential(nn.Linear(20, 30), nn.GELU(), nn.Linear(30, 4), nn.Softmax(-1)).eval()


def lenet() -> Any:
    convolutions = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
    images = [m for conv in convolutions for m in (conv, nn.Tanh(), nn.AvgPool2d(2))]
    dense = nn.Linear(400, 120), nn.Tanh(), nn.Dropout(), nn.Linear(120, 10)
    return nn.Sequential(*images, nn.Flatten(), *dense).eval()


def test_any_number_of_samples_is_one_more_graph(caplog) -> None:
    model = mlp()
    ours = like(model, torch.randn(4, 20), caplog=caplog)
    for samples in (7, 9, 5):
        x = torch.randn(samples, 20)
        check(ours(x), model(x))
    assert sum("runs on compute" in record.message for record in caplog.records) == 2


def test_lenet_in_inference_mode(caplog) -> None:
    with torch.inference_mode():
        ours = like(lenet(), torch.randn(3, 1, 28, 28), caplog=caplog)
        assert ours(torch.randn(3, 1, 28, 28)).is_inference()


def test_residual_blocks_that_work_in_place(caplog) -> None:
    blocks = [Block(8, 8, 1), Block(8, 16, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    model = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), *blocks, *head).eval()
    x = torch.randn(2, 3, 32, 32)
    before = x.clone()
    like(model, x, caplog=caplog)
    assert torch.equal(x, before)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(norm_first: bool, caplog) -> None:
    options: dict[str, Any] = {"batch_first": True, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", **options)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    ours = like(model, torch.randn(2, 7, 32), caplog=caplog)
    x = torch.randn(3, 9, 32)
    check(ours(x), model(x))


def test_attention_with_masks(caplog) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Any, hidden: Any) -> Any:
            return self.attention(x, x, x, key_padding_mask=hidden)

    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    like(Model().eval(), torch.randn(2, 5, 16), hidden, caplog=caplog)


def test_lstm_over_embeddings(caplog) -> None:
    model = Tagger().eval()
    with torch._dynamo.config.patch(allow_rnn=True):  # else PyTorch leaves these out of graphs
        like(model, torch.randint(0, 50, (2, 7)), caplog=caplog)


def test_floats_of_a_module_are_constants_where_sizes_are_free(caplog) -> None:
    """With `dynamic=True` the compiler hands them over as float64 tensors."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.factor = nn.Embedding(20, 8), 0.3

        def forward(self, ids: Any) -> Any:
            return self.table(ids) * self.factor

    module = Scaled().eval()
    ours = torch.compile(module, backend=compile, dynamic=True, options={"backend": "compute"})
    for factor in (0.3, -2.0):  # another number is another model
        module.factor = factor
        for length in (3, 5, 7):
            ids = torch.arange(length)
            check(ours(ids), module(ids))


def test_a_branch_by_numbers_makes_several_graphs(caplog) -> None:
    def function(x: Any) -> Any:
        y = torch.relu(x) * 2
        return y @ y.T if y.sum() > 3 else y - 1

    x = torch.rand(4, 4) + 1
    ours = like(function, x, caplog=caplog, graphs=2)
    check(ours(-x), function(-x))


def test_outputs_that_are_no_results(caplog) -> None:
    """Inputs and views of them share memory with the inputs, as in PyTorch; results do not."""

    def function(x: Any) -> Any:
        return x, x.view(-1), x * 2, x.t(), x.shape[0], None

    x = torch.randn(3, 4)
    ours = like(function, x, caplog=caplog)
    found = ours(x)
    twice = found[2].clone()
    x.fill_(7)
    assert found[0] is x and (found[1] == 7).all() and (found[3] == 7).all()
    assert torch.equal(found[2], twice)
    wide = torch.randn(5, 4)
    check(ours(wide), function(wide))


def test_results_are_the_callers(caplog) -> None:
    """Whatever is written to one, the next call gives it anew: also what no input changes."""
    held = nn.BatchNorm1d(4).eval()

    def function(x: Any) -> Any:
        return held.running_var * 2, x + 1, torch.arange(3), x * 1

    x = torch.randn(2, 4)
    ours = like(function, x, caplog=caplog)
    for result in ours(x):
        result.fill_(77)
    check(ours(x), function(x))


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8", "int8", "bool", "float16"])
def test_types(kind: str, caplog) -> None:
    x = torch.tensor([0, 1, 2, 5]).to(getattr(torch, kind))
    if kind == "bool":
        like(lambda x: (~x, x ^ True), x, caplog=caplog)
    else:
        like(lambda x: (x + x, x > 1, x.argmax()), x, caplog=caplog)


def test_inputs_that_are_not_contiguous(caplog) -> None:
    x = torch.randn(4, 6).t()[::2]
    ours = like(lambda x, y: x @ y + x.sum(), x, torch.randn(4, 5).flip(0)[:, ::2], caplog=caplog)
    assert ours(x, torch.randn(4, 3)).is_contiguous()
    spread = torch.randn(1, 4).expand(3, 4)
    check(compiled(torch.exp)(spread), torch.exp(spread))


def test_changed_weights_are_seen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()
    ours, x = compiled(model), torch.randn(2, 3)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval()

    def fresh_array() -> None:
        model[0].weight.data = torch.randn(4, 3)

    def fresh_parameter() -> None:
        model[0].weight = nn.Parameter(torch.randn(4, 3))

    def by_numpy() -> None:
        model[0].bias.numpy()[:] = 9

    changes = (
        lambda: None,
        lambda: model[0].weight.add_(1),
        lambda: model[0].weight.data.mul_(2),
        lambda: model[1].running_mean.fill_(3),
        lambda: model.load_state_dict(other.state_dict()),
        *(fresh_array, fresh_parameter, by_numpy),
    )
    for change in changes:
        change()
        for _ in range(2):
            check(ours(x), model(x))


def test_weights_that_change_in_each_call_are_inputs(caplog) -> None:
    model = nn.Linear(3, 4)
    ours, x = like(model, torch.randn(2, 3), caplog=caplog), torch.randn(2, 3)
    for _ in range(6):
        model.bias.add_(1)
        check(ours(x), model(x))
    made = [record.message for record in caplog.records if "runs on compute" in record.message]
    assert 1 < len(made) < 6


def test_an_optimizer_s_steps_are_seen() -> None:
    model = mlp()
    ours, x = compiled(model), torch.randn(2, 20)
    check(ours(x), model(x))
    with torch.enable_grad():
        model(x).square().sum().backward()
    torch.optim.SGD(model.parameters(), 0.5).step()
    check(ours(x), model(x))


def test_modules_that_share_a_graph_have_their_own_weights() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.linear(x))

    layers = [Layer() for _ in range(3)]
    ours, x = [compiled(layer) for layer in layers], torch.randn(2, 3)
    for _ in range(2):
        for layer, one in zip(layers, ours, strict=True):
            check(one(x), layer(x))


def left(function: Function, *inputs: Any) -> Any:
    """What `function` gives, compiled, where PyTorch is left to do it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", LeftToPyTorch)
        found = compiled(function)(*inputs)
    (said,) = [str(w.message) for w in seen if w.category is LeftToPyTorch]
    return found, said


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (lambda x: torch.linalg.inv(x), torch.eye(3), "does not have aten.linalg_inv_ex.default"),
        (lambda x: torch.special.bessel_j0(x), torch.ones(3), "does not have prims.bessel_j0"),
        (lambda x: x.add_(1) * 2, torch.ones(3), "changes l_x_ in place"),
        (lambda x: x * 2, torch.ones(3).double(), "l_x_ of (3,) is torch.float64"),
        (lambda x: x * 2, torch.ones(3).bfloat16(), "l_x_ of (3,) is torch.bfloat16"),
        (lambda x: x.bfloat16() * 2, torch.ones(3), "computes in torch.bfloat16"),
        (lambda x: x * 2, torch.ones(3).to(torch.complex64), "is torch.complex64"),
    ],
)
def test_what_is_left_to_pytorch(function: Function, x: Any, reason: str) -> None:
    theirs = function(x.clone())
    found, said = left(function, x.clone())
    check(found, theirs)
    assert reason in said and "test_compile.py" in said


def test_random_numbers_are_pytorch_s() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    torch.manual_seed(1)
    theirs = model(torch.ones(2, 4))
    torch.manual_seed(1)
    found, said = left(model, torch.ones(2, 4))
    check(found, theirs)
    assert "dropout.default draws random numbers" in said


def test_statistics_of_training_are_pytorch_s() -> None:
    model = nn.BatchNorm1d(4).train()
    _, said = left(model, torch.randn(3, 4))
    assert "in place" in said and model.num_batches_tracked == 1


def test_gradients_are_pytorch_s() -> None:
    model = nn.Linear(3, 3)
    with torch.enable_grad():
        found, said = left(model, torch.randn(2, 3))
        found.sum().backward()
    assert "needs gradients; call it inside torch.no_grad()" in said
    assert model.weight.grad is not None


def test_no_gradients_inside_a_graph(caplog) -> None:
    model = nn.Linear(3, 3)

    def function(x: Any) -> Any:
        with torch.no_grad():
            y = model(x)
        return y * 2

    with torch.enable_grad():
        like(function, torch.randn(2, 3), caplog=caplog)


def test_a_session_that_refuses_leaves_the_call_to_pytorch(monkeypatch) -> None:
    import glnn.torch.running as running

    def refuses(*_: Any, **__: Any) -> None:
        raise running.GlnnError.__subclasses__()[0]("no more memory")

    monkeypatch.setattr(running.InferenceSession, "run", refuses)
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)
    found, said = left(model, x)
    check(found, model(x))
    assert "no more memory" in said


def test_a_wrong_result_is_not_given(monkeypatch) -> None:
    import glnn.torch.running as running

    run = running.InferenceSession.run
    wrong = lambda self, names, feeds: [2 * one for one in run(self, names, feeds)]  # noqa: E731
    monkeypatch.setattr(running.InferenceSession, "run", wrong)
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    found, said = left(model, x)
    check(found, model(x))
    assert "output 0 is not PyTorch's: off by" in said


def test_options() -> None:
    graph, x = torch.fx.symbolic_trace(nn.ReLU()), torch.randn(2, 3)
    with pytest.raises(GlnnError, match="unknown option 'bogus': glnn has backend, "):
        compile(graph, [x], options={"bogus": 1})
    with pytest.raises(GlnnError, match="option 'check' must be a bool, got 3"):
        compile(graph, [x], options={"check": 3})
    with pytest.raises(GlnnError, match="unknown backend 'cuda'"):
        compiled(nn.Linear(3, 3), backend="cuda")(x)
    half = compiled(nn.Linear(3, 3), precision="float16", check=False)(x)
    assert half.dtype == torch.float32


def test_threads() -> None:
    """That call what was called once before: PyTorch's exporter is for one thread alone."""
    model = mlp()
    ours, xs = compiled(model), [torch.randn(4, 20) for _ in range(8)]
    ours(xs[0])
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        with torch.no_grad():
            found[i] = [ours(xs[i]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(xs):
        for one in found[i]:
            np.testing.assert_allclose(one, model(x), rtol=1e-5, atol=1e-6)
