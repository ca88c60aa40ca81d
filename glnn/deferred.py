"""Deferred: the model of a session, loaded on first use, and its backend, opened likewise.

The modules that read and plan models take several times as long to import as those that run a
stored plan: they are imported here, by `import_module`, when the model is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glnn.errors import ModelError
from glnn.process import ProcessLock
from glnn.runtime.options import Options
from glnn.runtime.stored import Storage, StoredModel

if TYPE_CHECKING:
    from glnn.backends import Backend
    from glnn.compile import Executor
    from glnn.compile.fastest import Fastest
    from glnn.model.loaded import Loaded


class Deferred:
    """Loads the model that `source` is, names or is the content of, to be run as `options` say.

    stored: its plans on disk; None where there are none, and it is loaded at once. storage: where
    new plans are kept. Any thread may use it.
    """

    def __init__(
        self, source: object, options: Options, stored: StoredModel | None, storage: Storage
    ) -> None:
        self._source, self._options, self._stored = source, options, stored
        self._storage = storage
        self._lock = ProcessLock()
        self._backend: Backend | None = None
        self.loaded: Loaded | None = None
        """The model and its executor, once it was loaded."""

    def load(self) -> Loaded:
        """Load the model on first use, and return it.

        Raises what `Loaded.of` raises, and ModelError where its file changed since it was stored.
        """
        if self.loaded is None:
            with self._lock:
                if self.loaded is None:
                    self.loaded = self._load()
                    if isinstance(self._source, bytes):
                        self._source = self.loaded.model  # they are not needed any more
        return self.loaded

    def _load(self) -> Loaded:
        module: Any = import_module("glnn.model.loaded")
        again = self._stored is not None
        loaded: Loaded = module.Loaded.of(
            self._source, self._options, self._backend, self._storage, again
        )
        if self._stored is not None and not self._stored.unchanged():
            raise ModelError(
                f"{self._source} was changed while a session used what was stored of "
                f"{self._stored.name}: make another session"
            )
        return loaded

    def executor(self) -> Executor | Fastest:
        """Return the executor of the model, loaded on first use. Raises what `load` raises."""
        return self.load().executor

    @property
    def backend(self) -> Backend:
        """The backend: another one after the device was lost. Raises what `load` raises."""
        if self.loaded is not None or self._stored is None:
            return self.load().executor.backend
        with self._lock:
            if self._backend is None:
                name, asked = self._stored.backend, self._options
                module: Any = import_module("glnn.backends")
                self._backend = module.open_backend(
                    name, asked.device, gpu=asked.gpu, limits=asked.limits
                )
            return self._backend

    @property
    def where(self) -> str:
        """The name of its backend; where plans were stored, none is opened to tell it."""
        stored = self._stored if self.loaded is None else None
        return self.load().executor.backend.name if stored is None else stored.backend
