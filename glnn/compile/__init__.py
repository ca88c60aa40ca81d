"""A graph made ready to run: kernels, layouts and memory, step by step."""

from glnn.compile.evaluate import evaluate, prepare
from glnn.compile.plan import Plan

__all__ = ["Plan", "evaluate", "prepare"]
