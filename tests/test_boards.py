"""What board compilers say, in tables: of kernels by themselves, and of the layers of networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_benchmarks import pytestmark as pytestmark
from tests.test_benchmarks import run


def test_boards() -> None:
    stats = {"shader": "COMPUTE", "inst": 7, "registers": 3, "spills": 1, "fills": 2}
    line = {"target": "mali-g52", "file": "softmax-rows.comp", "ok": True, "stats": [stats]}
    loop = {"fma": 96, "ld": 10, "inner": True}
    chosen = {
        "target": "mali-g52",
        "file": "matmul-gemm_blocked.comp",
        "ok": True,
        "stats": [{**stats, "spills": 0, "fills": 0, "threads": 1}],
        "loops": [{"loops": [loop]}],
    }
    document = {
        "target": "mali-t760",
        "file": "sobel-char8.comp",
        "ok": True,
        "stats": [{**stats, "spills": 0, "fills": 0, "threads": 2, "bundles": 78}],
    }
    late = {"target": "mali-t760", "file": "conv2d-direct.comp", "ok": False, "rc": "timeout"}
    wrong = {"target": "mali-g52", "file": "conv2d-direct.comp", "ok": False, "log": "no main"}
    tiled = {**line, "file": "matmul-gemm_tiled_128x128.comp"}
    behind = {**line, "file": "matmul-gemm_blocked-prologue.comp"}
    other = {**behind, "target": "v3d-4.2"}
    lines = (line, chosen, document, late, wrong, tiled, behind, other)
    page = run("benchmarks.boards", given="\n".join(map(json.dumps, lines)))
    assert "8 compilations, 1 failed, 1 out of time, 3 with spills." in page
    assert "| matmul-gemm_blocked-prologue.comp | not given | refused | 7 3r, 3 spills |" in page
    assert "| conv2d-direct.comp | does not compile: no main | out of time | refused |" in page
    assert "| matmul-gemm_tiled_128x128.comp | 7 3r, 3 spills | unfit |" in page
    never = next(row for row in page.splitlines() if row.startswith("No board is given"))
    assert "`sobel-char16.comp`" in never and "`sobel-char8.comp`" not in never
    assert "| char8 | 17 | 9 | 128 | 78 | 3 | 128 |" in page
    assert "| char16 | 21 | 7 | 64 | - | - | - |" in page
    assert "| softmax-rows.comp | 7 3r, 3 spills | refused |" in page
    row = "| mali-g52 | gemm_blocked WG_X=8 WG_Y=8 TM=6 TN=1 | 96 | 10 | 9.6 | 3 | 1 | 0 |"
    assert row in page


def test_layers_of_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is planned, by kernels whose shaders are there; one that spills is told of."""
    monkeypatch.setenv("GLNN_LIMITS", "es31-minimum")  # boards have no texture buffers either
    folder = tmp_path / "v3d-7.1"
    found = run("benchmarks.board_plan", "--layers", "--sources", str(folder))
    steps = [json.loads(line) for line in found.splitlines()]
    assert all((folder / step["source"]).read_text("utf-8") for step in steps)
    own = [step for step in steps if step["model"] == "depthwise 5x5, 96 of 28 + added"]
    (depthwise,) = (step["source"] for step in own if step["multiply_adds"])
    stats = {"shader": "COMPUTE", "inst": 7, "threads": 2, "spills": 0}
    said = [
        {
            **{"target": "v3d-7.1", "file": f"any/{name}", "ok": True},
            "stats": [{**stats, "spills": 3 * (name == depthwise)}],
        }
        for name in sorted({step["source"] for step in steps})
    ]
    (tmp_path / "v3d-7.1.steps").write_text(found, "utf-8")
    (tmp_path / "v3d-7.1.lines").write_text("\n".join(map(json.dumps, said)), "utf-8")
    page = run("benchmarks.board_layers", str(tmp_path))
    assert f"\n{len(said)} shaders, 1 with spills.\n" in page
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    assert rows[0] == "| layer | v3d-7.1 |" and len(rows) > 50
    # One program does for depthwise convolutions of all counts of channels.
    spilled = next(row for row in rows if "spills" in row and "96 of 28" in row)
    assert spilled.startswith("| depthwise 5x5, 96 of 28 | `depthwise")
    assert spilled.endswith("` 7 2t (**spills**) |")
