"""What board compilers say, in tables: of kernels by themselves, and of the layers of networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    tiled = {**line, "file": "matmul-gemm_tiled.comp"}
    behind = {**line, "file": "matmul-gemm_blocked-prologue.comp"}
    other = {**behind, "target": "v3d-4.2"}
    lines = (line, chosen, document, late, wrong, tiled, behind, other)
    page = run("benchmarks.board_compilers", given="\n".join(map(json.dumps, lines)))
    assert "8 compilations, 1 failed, 1 out of time, 3 with spills." in page
    assert "| matmul-gemm_blocked-prologue.comp | not given | refused | 7 3r, 3 spills |" in page
    assert "| conv2d-direct.comp | does not compile: no main | out of time | refused |" in page
    assert "| matmul-gemm_tiled.comp | 7 3r, 3 spills | unfit |" in page
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


def test_a_token_of_a_language_model(tmp_path: Path) -> None:
    """Loops that are walked as a step says add up, and each position is a network of its own."""
    options = ["--positions", "9,99", "--sources", str(tmp_path / "sources")]
    found = run("benchmarks.board_decoders", "smollm2", *options)
    steps = [json.loads(line) for line in found.splitlines()]
    names = ("smollm2 q4_0 at 9", "smollm2 q4_0 at 99")
    assert tuple(dict.fromkeys(step["model"] for step in steps)) == names
    products = [step for step in steps if step["step"] == "blk.7.gated"]
    assert products[0]["loops"][1:] == products[1]["loops"][1:] and len(products) == 2
    weights = 2 * 1536 * 576 // 32 * 18
    assert products[0]["bytes"] == pytest.approx(weights, rel=0.02)
    first, second = (step for step in steps if step["step"] == "blk.7.attention")
    seen = 4 * 2 * 3 * 64  # bytes of keys and values of a token
    assert second["bytes"] - first["bytes"] == 90 * seen

    def stats(step: dict[str, Any]) -> dict[str, Any]:
        whole = {"shader": "COMPUTE", "inst": 1000, "spills": 0}
        loops = [{"inst": 10, "ld": 1, "depth": 1} for _ in step["loops"]]
        if step["op"] == "quantized_matmul":  # the second is in the first
            loops[0]["inst"], loops[1]["depth"] = 30, 2
        entry = {"target": "mali-g610", "file": step["source"], "ok": True, "stats": [whole]}
        return {**entry, "loops": [{"loops": loops}]}

    chosen = [{**one, "loops": [3, 4, 1, 5, 1][: len(one["loops"])]} for one in products[:1]]
    (tmp_path / "steps").write_text("\n".join(map(json.dumps, chosen)), "utf-8")
    (tmp_path / "lines").write_text("\n".join(json.dumps(stats(one)) for one in chosen), "utf-8")
    files = ["--steps", str(tmp_path / "steps"), "--statistics", str(tmp_path / "lines")]
    command = ["benchmarks.board_times", "mali-g610", *files, "--bandwidth", "34"]
    result = json.loads(run(*command, "--json"))
    assert result["predicted"] and result["bandwidth"] == 34e9
    (step,), (model,) = result["steps"], result["models"]
    walked = 1000 + (3 - 1) * 30 + (3 * 4 - 3) * 10 + (5 - 1) * 10
    assert step["issue"] == pytest.approx(step["invocations"] * walked / (256 * 0.95e9))
    assert step["memory"] == pytest.approx(step["bytes"] / 34e9)
    assert model["seconds"] == step["seconds"] and sum(model["shares"].values()) == pytest.approx(1)
    assert "predicted for mali-g610 by a model, not measured; 34 GB/s" in run(*command, "--totals")
