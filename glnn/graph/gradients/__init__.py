"""Derivatives of operators: for each kind a rule that puts its gradients into a graph."""

from glnn.graph.gradients.backward import Backward, Rule
from glnn.graph.gradients.none import NONE
from glnn.graph.gradients.table import RULES

__all__ = ["NONE", "RULES", "Backward", "Rule"]
