"""Runs that nobody waits for at once: their order, their errors, their end; batches joined."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from glnn.backends import NAMES, open_backend
from glnn.compile import requests
from glnn.device import Device
from glnn.device.window import WindowContext
from glnn.errors import DeviceError, GlnnError, LimitError, ModelError, ShapeError
from glnn.graph.builder import Builder
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from glnn.layers import BatchNorm2d, Conv2d, Flatten, Layer, Linear, ReLU, Softmax
from glnn.layers.scope import Scope
from glnn.model import Model, Node, TensorInfo
from glnn.session import InferenceSession
from tests.models.test_threads import GL, available, in_threads

Array = NDArray[Any]
