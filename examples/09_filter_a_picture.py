"""A picture filtered: blurred, its edges found, and made smaller.

Needs `pip install '.[images]'`. Writes filters.png: the picture, which is drawn here, and what
becomes of it. On the command line `glnn filter sobel in.png out.png` does the same with any
picture.
"""

from __future__ import annotations

import numpy as np

from glnn import filters
from glnn.backends import open_backend

try:
    from PIL import Image, ImageDraw
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[images]'") from None

SIZE = 160


def drawn() -> Image.Image:
    """A house under the sun, with some dust on it."""
    picture = Image.new("RGB", (SIZE, SIZE), "skyblue")
    draw = ImageDraw.Draw(picture)
    draw.ellipse((110, 12, 146, 48), "gold")
    draw.rectangle((0, 120, SIZE, SIZE), "forestgreen")
    draw.rectangle((30, 70, 100, 130), "firebrick")
    draw.polygon([(22, 70), (65, 36), (108, 70)], "saddlebrown")
    draw.rectangle((55, 95, 75, 130), "white")
    dust = np.random.default_rng(0).integers(0, SIZE, (2, 300))
    for x, y in dust.T.tolist():
        draw.point((x, y), "black")
    return picture


def main() -> None:
    backend = open_backend("auto")
    picture = np.asarray(drawn())
    clean = filters.median(picture, backend=backend)
    blurred = filters.gaussian_blur(clean, 9, 2.5, backend=backend)
    dx, dy = filters.sobel(filters.grey(clean, backend), backend)
    edges = np.clip(2 * np.hypot(dx.astype(np.float32), dy), 0, 255).astype(np.uint8)
    small = filters.resize(clean, (SIZE // 4, SIZE // 4), "area", backend)

    sheet = Image.new("RGB", (5 * SIZE, SIZE), "white")
    for i, found in enumerate((picture, clean, blurred, edges, small)):
        sheet.paste(Image.fromarray(found), (i * SIZE, 0))
    sheet.save("filters.png")
    share = (edges > 32).mean()
    print(f"{share:.0%} of the pixels are on edges, by {backend.name}")


if __name__ == "__main__":
    main()
