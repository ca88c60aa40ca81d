"""Whether what a plan needs is there, and what to say where it is not."""

from __future__ import annotations

from glnn.compile.outline import Outline
from glnn.errors import LimitError
from glnn.settings import Settings


def check(outline: Outline, available: int | None) -> None:
    """Raise LimitError where `outline` needs more than the `available` bytes."""
    need = outline.need
    if available is None or need <= available:
        return
    steps = {f"{at}{one.name}": one for at, part in outline.walk() for one in part.steps}
    sizes = {f"the result of {name}": step.nbytes[0] for name, step in steps.items()}
    sizes |= {f"the parameters of {name}": step.nbytes[1] for name, step in steps.items()}
    sizes |= {f"the textures of {name}": step.nbytes[2] for name, step in steps.items()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    named = ", ".join(f"{name} ({_mib(sizes[name])})" for name in largest)
    digits = 1  # as many as tell the two from each other, and what there is from nothing
    while digits < 7 and _mib(available, digits) in (_mib(need, digits), _mib(0, digits)):
        digits += 1
    allowed = Settings.from_environment().memory == available
    raise LimitError(
        f"the model needs {_mib(need, digits)} of device memory, "
        f"{'GLNN_MEMORY allows ' if allowed else ''}{_mib(available, digits)}"
        f"{'' if allowed else ' are free'}; the largest tensors are {named}"
    )


def _mib(nbytes: int, digits: int = 1) -> str:
    return f"{nbytes / 2**20:.{digits}f} MiB"
