"""`glnn info`, and what all verbs have in common."""

from __future__ import annotations

import pytest

import glnn
from glnn.backends import NAMES
from tests.cli.conftest import Glnn
