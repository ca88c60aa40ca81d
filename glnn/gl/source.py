"""A shader's text, and where each line of it came from."""

from __future__ import annotations

import re
from dataclasses import dataclass

# "0:12(5): error", "0(12) : error", "ERROR: 0:12: ..."
POSITION = re.compile(r"(?:ERROR: |WARNING: )?\b\d+(?::(\d+)(?:\(\d+\))?|\((\d+)\)) ?: ?(.*)")


@dataclass(frozen=True)
class Source:
    """A shader's complete text, and the file and line that each of its lines came from."""

    name: str
    text: str
    origin: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if len(self.text.splitlines()) != len(self.origin):
            raise ValueError(f"{self.name}: a line without an origin")

    def explain(self, message: str) -> str:
        """The driver's `message` with each position as file and line, and that line's text."""
        lines = self.text.splitlines()
        explained: list[str] = []
        for line in message.splitlines():
            match = POSITION.match(line.strip())
            number = int(match[1] or match[2]) if match else 0
            if match and 1 <= number <= len(lines):
                file, at = self.origin[number - 1]
                explained += [f"{file}:{at}: {match[3]}", f"    {lines[number - 1].strip()}"]
            elif line.strip():
                explained.append(line.strip())
        return "\n".join(explained)
