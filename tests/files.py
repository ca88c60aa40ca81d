"""What tests do to the files of models."""

from __future__ import annotations

import json
from pathlib import Path


def weights_of(model: Path) -> Path:
    """The .npz file that the .json file `model` names."""
    return model.with_name(json.loads(model.read_text())["weights"])


def name_weights_plainly(model: Path) -> Path:
    """Call the weights of `net.json` `net.npz`, as glnn did before; the .json file."""
    weights_of(model).rename(model.with_suffix(".npz"))
    document = json.loads(model.read_text()) | {"weights": model.with_suffix(".npz").name}
    model.write_text(json.dumps(document))
    return model
