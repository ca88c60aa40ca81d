"""The kernels: their declarations, sources and selection."""

from glnn.kernels.kernel import Kernel
from glnn.kernels.library import kernels_for, library, reload
from glnn.kernels.report import export, table

__all__ = ["Kernel", "export", "kernels_for", "library", "reload", "table"]
