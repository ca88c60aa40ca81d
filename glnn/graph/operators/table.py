"""Tables: operators without operands whose arrays follow from sizes, once these are known."""

from __future__ import annotations

from typing import ClassVar

from glnn.graph.operator import Cost, Types
from glnn.graph.operators.host import HostOperator


class Table(HostOperator):
    """An operator without operands, whose results are made of its attributes by NumPy."""

    table: ClassVar[bool] = True

    @property
    def reason(self) -> str:
        return "more numbers than a plan keeps of its own"

    def cost(self, types: Types) -> Cost:
        return Cost(0, sum(type.nbytes for type in self.infer(types)))
