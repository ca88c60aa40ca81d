"""A landscape and a variation of it, by the command of adaptive-terrain-diffusion."""

import sys
import tempfile
from pathlib import Path

import numpy as np
from terrain_diffusion.cli import main

_, out = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    first, second = Path(folder, "generated"), Path(folder, "varied")
    chosen = ["--format", "npy", "--seed", "3", "--difficulty"]
    main(["generate", "--output", str(first), *chosen, "20"])
    (made,) = first.glob("*.npy")
    main(["vary", str(made), "--output", str(second), *chosen, "80"])
    (varied,) = second.glob("*.npy")
    np.savez(out, generated=np.load(made), varied=np.load(varied))
