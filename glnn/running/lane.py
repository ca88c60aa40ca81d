"""What one run of a plan has for itself: inputs, outputs, and the commands between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from glnn.device import Device
from glnn.running.store import Store
from glnn.types import Array


class Lane(ABC):
    """The inputs, the outputs and the commands of one run at a time. Only inside `perform`.

    Those of a plan share everything else: one may be filled, and read, while another runs.
    device: None where no GL is involved. inputs: where each input is put.
    """

    def __init__(self, device: Device | None, inputs: Mapping[str, Store]) -> None:
        self.device, self.inputs = device, inputs
        self._stretch = 0  # of the device's work, by which its last run is over

    @property
    @abstractmethod
    def stores(self) -> Mapping[str, Store]:
        """The tensors that can be read, by name, as the last run had them."""

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs to where the device reads them, once it does not read others there."""
        device = self.device
        if device is not None and device.timeline.done < self._stretch:
            device.wait()
        for name, store in self.inputs.items():
            store.put(feeds[name])

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        try:
            self._perform()
        finally:
            device = self.device
            if device is not None:  # only now: a run may wait for the device in the middle
                self._stretch = device.timeline.now

    @abstractmethod
    def _perform(self) -> None:
        """Have every step begun with."""

    @abstractmethod
    def result(self, name: str) -> Store:
        """The store of the tensor called `name`, as the last run left it."""
