"""Shared base of operators that only the host computes."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from glnn.graph.operator import Operator


class HostOperator(Operator):
    """An operator that no GPU computes, of any number of operands x0, x1, ..."""

    variadic: ClassVar[bool] = True

    @property
    def required(self) -> tuple[str, ...]:
        return ()  # it says itself what is missing

    @property
    @abstractmethod
    def called(self) -> str:
        """Name of the operator for people."""

    @property
    def label(self) -> str:
        return self.called

    @property
    @abstractmethod
    def reason(self) -> str:
        """Return the reason why the host computes the operator."""

    def __str__(self) -> str:
        return self.called
