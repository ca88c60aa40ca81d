"""A graph made ready to run: kernels, layouts and memory, step by step."""

from glnn.compiler.evaluate import evaluate, prepare
from glnn.compiler.executor import Executor, run
from glnn.compiler.plan import Plan

__all__ = ["Executor", "Plan", "evaluate", "prepare", "run"]
