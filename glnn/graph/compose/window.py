"""Sliding windows of convolutions and pooling, of any number of dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.errors import ShapeError
from glnn.graph.operators.windows import output

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Windows: a number of each for every spatial dimension."""

    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    before: Sizes
    """Places added before the first."""
    after: Sizes
    """Places added behind the last."""
    ceil: bool = False
    """True where the last window may reach over the end."""

    @property
    def sides(self) -> Sizes:
        """Padding before each dimension, then behind each."""
        return (*self.before, *self.after)

    def outputs(self, sizes: Sizes, least: int = 1) -> Sizes:
        """Return the number of windows along each dimension.

        least: 1, which makes an image too small for a window a ShapeError, or 0: it has none.
        """
        sides, steps = zip(self.before, self.after), zip(self.stride, self.dilation)
        found = tuple(
            output(size, *side, kernel, *step, self.ceil)
            for size, side, kernel, step in zip(sizes, sides, self.kernel, steps, strict=True)
        )
        if least == 0:
            return tuple(max(count, 0) for count in found)
        if any(count < least for count in found):
            raise ShapeError(f"the window {self.kernel} is larger than the padded {sizes}")
        return found

    def part(self, start: int, stop: int) -> Window:
        """The windows along some of the dimensions."""
        cut = slice(start, stop)
        before, after = self.before[cut], self.after[cut]
        return Window(
            self.kernel[cut], self.stride[cut], self.dilation[cut], before, after, self.ceil
        )

    def with_rows(self) -> Window:
        """The same of one more dimension, of size 1, before the others."""
        kernel, stride, dilation = (
            (1, *each) for each in (self.kernel, self.stride, self.dilation)
        )
        return Window(kernel, stride, dilation, (0, *self.before), (0, *self.after), self.ceil)

    def with_columns(self) -> Window:
        """The same of one more dimension, of any size, behind the others."""
        kernel, stride, dilation = (
            (*each, 1) for each in (self.kernel, self.stride, self.dilation)
        )
        return Window(kernel, stride, dilation, (*self.before, 0), (*self.after, 0), self.ceil)
