"""Models, sessions, trainers and histories say what they are in a few lines."""

from __future__ import annotations

import pickle

import numpy as np

import glnn
from glnn.training import SGD, CrossEntropyLoss, Trainer


def test_a_model_shows_its_layers_and_no_weights() -> None:
    model = glnn.load("lenet")
    assert repr(model) == str(model) and repr(model).startswith("lenet: input (N, 1, 28, 28) -> ")
    assert len(repr(model)) < 2000


def test_a_session_shows_the_model_the_backend_and_the_ends() -> None:
    session = glnn.InferenceSession("lenet", backend="cpu")
    shown = repr(session)
    assert shown.startswith("InferenceSession(lenet on cpu: input tensor(float) (N, 1, 28, 28)")
    assert "softmax tensor(float) (N, 10)" in shown
    unused = pickle.loads(pickle.dumps(session))
    assert repr(unused) == "InferenceSession(unpickled, not used yet)"
    unused.get_inputs()
    assert repr(unused) == shown


def test_a_trainer_and_a_history() -> None:
    trainer = Trainer(glnn.load("lenet"), CrossEntropyLoss(), SGD(lr=0.5), backend="cpu")
    assert "lenet on cpu" in repr(trainer) and "SGD(lr=0.5" in repr(trainer)
    assert "0 steps" in repr(trainer)
    images = np.zeros((4, 1, 28, 28), np.float32)
    history = trainer.fit(images, np.arange(4), progress=False)
    assert "1 step)" in repr(trainer)
    assert repr(history) == str(history)
