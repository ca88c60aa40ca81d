"""Reverse-mode differentiation: for each kind of operator a rule that adds its gradients to a
graph.
"""
