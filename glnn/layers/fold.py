"""Windows of images as columns, and columns as images."""

from __future__ import annotations

from typing import Any

from glnn.errors import ShapeError
from glnn.graph.compose import fold
from glnn.graph.compose.window import Window
from glnn.graph.graph import Value
from glnn.graph.operators import Identity
from glnn.layers.arguments import Ints, sizes
from glnn.layers.layer import Layer
from glnn.layers.scope import Scope


class Unfold(Layer):
    """The windows of x of shape (n, c, h, w): (n, c kh kw, windows).

    The numbers of a channel follow one another as they lie in a window, row by row, and windows as
    they lie in x. padding: zeros around x.
    """

    def __init__(
        self, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
    ) -> None:
        self.windows = _windows("Unfold", kernel_size, dilation, padding, stride)
        self.kernel_size, self.dilation = self.windows.kernel, self.windows.dilation
        self.padding, self.stride = self.windows.before, self.windows.stride
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        (x,) = inputs
        if len(x.type.dims) != 4:
            raise ShapeError(f"Unfold: x must have shape (n, c, h, w), got {x.type.dims}")
        return scope.named(fold.unfold(scope.add, x, self.windows))

    def config(self) -> dict[str, Any]:
        return _config(self.windows)


class Fold(Layer):
    """The sums of windows where they lie in an image of `output_size`: (n, c, oh, ow).

    x: (n, c kh kw, windows), as Unfold makes it. padding: around the image, and left out of it.
    """

    def __init__(
        self,
        output_size: Ints,
        kernel_size: Ints,
        dilation: Ints = 1,
        padding: Ints = 0,
        stride: Ints = 1,
    ) -> None:
        self.output_size = sizes("Fold output_size", output_size, 2)
        self.windows = _windows("Fold", kernel_size, dilation, padding, stride)
        self.kernel_size, self.dilation = self.windows.kernel, self.windows.dilation
        self.padding, self.stride = self.windows.before, self.windows.stride
        self.windows.outputs(self.output_size)
        super().__init__(Identity())

    def express(self, scope: Scope, *inputs: Value) -> Value:
        return scope.result(fold.Fold(self.windows, self.output_size), *inputs)

    def config(self) -> dict[str, Any]:
        return {"output_size": self.output_size, **_config(self.windows)}


def _windows(kind: str, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Window:
    around = sizes(f"{kind} padding", padding, 2, 0)
    return Window(
        sizes(f"{kind} kernel_size", kernel_size, 2),
        sizes(f"{kind} stride", stride, 2),
        sizes(f"{kind} dilation", dilation, 2),
        around,
        around,
    )


def _config(windows: Window) -> dict[str, Any]:
    return {
        "kernel_size": windows.kernel,
        "dilation": windows.dilation,
        "padding": windows.before,
        "stride": windows.stride,
    }
