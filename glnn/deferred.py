"""A model that is loaded once somebody needs it, and a backend that is opened likewise.

What reads models and plans them takes several times as long to import as all that a stored plan is
run by: only `import_module` here brings it.
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
    """The model that `source` is, names or is the content of, to be run as `options` say.

    stored: what was stored of it; None where it is loaded at once. storage: where its plans are
    kept. Any thread may use it.
    """

    def __init__(
        self, source: object, options: Options, stored: StoredModel | None, storage: Storage
    ) -> None:
        self._source, self._options, self._stored = source, options, stored
        self._storage = storage
        self._lock = ProcessLock()
        self._backend: Backend | None = None
        self.loaded: Loaded | None = None
        """It, once it was."""

    def load(self) -> Loaded:
        """It, loaded now unless it was.

        Raises what `Loaded.of` raises, and ModelError where it is another one than was stored.
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
        """What runs it, loaded now unless it was. Raises what `load` raises."""
        return self.load().executor

    @property
    def backend(self) -> Backend:
        """What it runs on: another one after the device was lost. Raises what `load` raises."""
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
        """What its backend is called."""
        stored = self._stored if self.loaded is None else None
        return self.load().executor.backend.name if stored is None else stored.backend
