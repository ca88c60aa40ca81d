"""The progress bar of a notebook: an output of the cell that is replaced as work goes on.

rich's own bar needs ipywidgets, which neither notebooks nor glnn need for anything else. IPython
shows rich's tables as HTML.
"""

from __future__ import annotations

from typing import Any

from rich.progress import Progress


class NotebookBar(Progress):
    """A bar that IPython displays below the running cell, and that disappears at the end."""

    _handle: Any = None

    def start(self) -> None:
        """Display the bar, if it is not hidden."""
        if self.disable:
            return
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._handle.display(self._table())

    def stop(self) -> None:
        """Replace the bar by nothing."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
            self._handle = None

    def refresh(self) -> None:
        """Draw the bar anew."""
        if self._handle is not None:
            self._handle.update(self._table())

    def _table(self) -> Any:
        """Return the tasks as a table, which IPython shows as HTML."""
        return self.make_tasks_table(self.tasks)
