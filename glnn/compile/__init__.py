"""A graph made ready to run: kernels, layouts and memory, step by step."""

from glnn.compile.evaluate import evaluate, prepare
from glnn.compile.executor import Executor, run
from glnn.compile.plan import Plan

__all__ = ["Executor", "Plan", "evaluate", "prepare", "run"]
