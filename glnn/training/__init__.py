"""Training: losses, optimisers, schedules, and the graph that a training step is."""

from glnn.training.callbacks import Callback, Checkpoint, EarlyStopping
from glnn.training.dataset import Dataset, read_dataset
from glnn.training.history import History, Row
from glnn.training.losses import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    Loss,
    MSELoss,
)
from glnn.training.optimizers import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    ConstantLR,
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    Optimizer,
    RMSprop,
    StepLR,
)
from glnn.training.step_graph import StepGraph, accumulating, applying, evaluating, training_step
from glnn.training.step_runner import Evaluation
from glnn.training.trainer import Trainer

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "BCEWithLogitsLoss",
    "Callback",
    "Checkpoint",
    "ConstantLR",
    "CosineAnnealingLR",
    "CrossEntropyLoss",
    "Dataset",
    "EarlyStopping",
    "Evaluation",
    "History",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LRScheduler",
    "LinearLR",
    "Loss",
    "MSELoss",
    "OneCycleLR",
    "Optimizer",
    "RMSprop",
    "Row",
    "StepGraph",
    "StepLR",
    "Trainer",
    "accumulating",
    "applying",
    "evaluating",
    "read_dataset",
    "training_step",
]
