"""Whether what a plan needs is there, and what to say where it is not."""

from __future__ import annotations

from glnn.compile.emit import wanted
from glnn.compile.outline import Outline
from glnn.compile.weights import Weights
from glnn.errors import LimitError
from glnn.graph.constant import Made
from glnn.graph.result_memory import described
from glnn.host_memory import check_memory
from glnn.settings import Settings
from glnn.symint import hint
from glnn.types import DType


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


def check_host(outline: Outline, weights: Weights) -> None:
    """Raise LimitError where the host has too little memory for a plan of the `cpu` backend.

    All tensors of a run are there until the next one, inputs are the caller's, and outputs are
    copied; weights that are made of others or widened are kept beside these.
    """
    nbytes = sum(hint(value.type.nbytes) for value in outline.graph.outputs)
    for within, part in outline.walk():
        own = {value.name for value in part.graph.inputs} if not within else set()
        memories: dict[str, int] = {}
        for tensor in part.schedule.tensors.values():
            taken = memories.get(tensor.memory, 0)
            memories[tensor.memory] = max(taken, hint(tensor.type.nbytes))
        nbytes += sum(taken for memory, taken in memories.items() if memory not in own)
    for weight, layout, copied in dict.fromkeys(wanted(outline)):
        made = isinstance(weight.constant, Made) or weight.type.dtype is DType.float16
        if made and (weight, layout, copied) not in weights:
            nbytes += hint(weight.type.nbytes)
    check_memory(nbytes, lambda: f"a run of {outline.graph.name} on cpu, of which {_most(outline)}")


def _most(outline: Outline) -> str:
    """What errors say of the step with the largest result."""
    tensors = [
        (entry, part.schedule.tensors[name].type)
        for _, part in outline.walk()
        for entry in part.schedule.entries
        for name in (entry.task.output, *entry.task.more)
    ]
    if not tensors:
        return "no step is known,"
    entry, type = max(tensors, key=lambda one: hint(one[1].nbytes))
    return f"{described(entry.task.layer, entry.task.op, type)} takes {hint(type.nbytes)},"


def _mib(nbytes: int, digits: int = 1) -> str:
    return f"{nbytes / 2**20:.{digits}f} MiB"
