"""Models: layers in a graph, the files they come from, and what runs them."""

from glnn.core.tensor_info import TensorInfo
from glnn.model.load import load
from glnn.model.model import Model
from glnn.model.node import Node

__all__ = ["Model", "Node", "TensorInfo", "load"]
