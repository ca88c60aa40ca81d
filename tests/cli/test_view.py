"""`glnn view`: what the page shows, that it works in a browser, and that names do no harm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from glnn.cli.graph_page import graph_page
from glnn.layers import Linear, ReLU
from glnn.model import Model
from tests.cli.conftest import Glnn

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SCRIPT = "</script><script>document.title='harmed'</script><img src=x onerror=alert(1)>&\x1b[31m"


class Page(HTMLParser):
    """The elements of a page, and the data of its steps."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.steps: list[dict[str, Any]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "rect", "path"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script" and self.elements[-1][1].get("id") == "steps":
            self.steps = json.loads(data)

    def count(self, tag: str, kind: str) -> int:
        """The number of elements of a class."""
        return sum(tag == t and a.get("class") == kind for t, a in self.elements)


def page_of(cli: Glnn, folder: Path, *arguments: object) -> tuple[Page, Any]:
    """The page that `glnn view` writes, and what it says with --json."""
    file = folder / "page.html"
    found = cli("view", *arguments, "--output", file, "--json").json
    assert found["file"] == str(file)
    return Page(file.read_text("utf-8")), found


@pytest.mark.parametrize("backend", ["compute", "cpu"])
def test_the_page_has_the_plan(cli: Glnn, tmp_path: Path, backend: str) -> None:
    page, found = page_of(cli, tmp_path, "lenet", "--backend", backend)
    plan = cli("plan", "lenet", "--backend", backend, "--json").json
    steps = plan["steps"]
    assert found["steps"] == len(steps) and found["times_ms"] == {}
    assert page.count("g", "node") == len(steps) + 2 == len(page.steps)
    assert page.count("path", "edge") == len(steps) + 1  # lenet is a chain
    assert page.count("rect", "time") == 0
    for shown, step in zip(page.steps[1:-1], steps, strict=True):
        assert shown["name"] == step["name"]
        details = dict(shown["details"])
        assert details["kernel"] == step["kernel"] and details["dtype"] == "float32"
        assert details["shape"] == " x ".join(map(str, step["shape"]))
        assert all(f"{k} {v}" in details["layouts"] for k, v in step["layouts"].items())


def test_times_are_shown(cli: Glnn, tmp_path: Path) -> None:
    page, found = page_of(cli, tmp_path, "lenet", "--time", "--repeat", "1")
    assert len(found["times_ms"]) == found["steps"] and "clock" in found
    assert page.count("rect", "time") == found["steps"]
    for shown in page.steps[1:-1]:
        ms = found["times_ms"][shown["name"]]
        assert dict(shown["details"])["time"] == f"{ms:.3g} ms" and ms > 0


def test_a_file_is_replaced_only_if_asked(cli: Glnn, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("mine")
    refused = f"--output: {file} is there already: --overwrite replaces it"
    assert cli("view", "lenet", "--output", file).refusal == refused
    assert file.read_text() == "mine"
    assert cli("view", "lenet", "--output", file, "--overwrite").code == 0
    assert "5 steps" in cli("view", "lenet", "--output", file, "--overwrite").out
    missing = tmp_path / "none" / "page.html"
    assert "cannot write" in cli("view", "lenet", "--output", missing).refusal


def test_the_page_loads_nothing(cli: Glnn, tmp_path: Path) -> None:
    page, _ = page_of(cli, tmp_path, "lenet")
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "action"} & set(attributes)
    assert "http" not in re.sub(r'http-equiv="', "", (tmp_path / "page.html").read_text("utf-8"))


def branches(count: int) -> dict[str, Any]:
    """A report as `glnn plan --json` has it, of steps that read one or two of the last seven."""
    steps = []
    for i in range(count):
        near = {i - 1, i - 1 - i % 7} & set(range(i))
        sources = [f"t{at}" for at in sorted(near)] or ["x"]
        step = {"name": f"step{i}", "layer": f"step{i}", "op": "matmul" if i % 2 else "pointwise"}
        step |= {"kernel": "k", "via": None, "why_host": None, "inputs": sources}
        step |= {"output": f"t{i}", "shape": [1, i], "layouts": {"out": "R"}, "reads": {}}
        step |= {"dtype": "float32", "sources": sources, "bytes": 4, "parameter_bytes": 0}
        steps.append({**step, "block": 0})
    return {
        "model": "many",
        "backend": "compute",
        "device": "none",
        "inputs": {"x": [1, 4]},
        "outputs": {"y": [f"t{count - 1}"]},
        "steps": steps,
    }


def harmful() -> dict[str, Any]:
    """A report of which each text would be an element, were it not escaped."""
    report = branches(2)
    report |= {"model": SCRIPT, "device": SCRIPT, "inputs": {SCRIPT: [1]}}
    report["outputs"] = {SCRIPT: ["t1"]}
    for step in report["steps"]:
        step |= {"name": SCRIPT, "op": SCRIPT, "kernel": SCRIPT, "layer": SCRIPT}
    return report


def test_names_cannot_bring_elements() -> None:
    plain, page = Page(graph_page(branches(2))), Page(graph_page(harmful()))
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in plain.elements}
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    assert page.steps[1]["name"] == SCRIPT.replace("\x1b", "\\x1b")
    assert not any(name.startswith("on") for _, found in page.elements for name in found)


def test_a_model_with_such_names(cli: Glnn, tmp_path: Path) -> None:
    model = Model.sequential({SCRIPT: Linear(3, 4), "relu": ReLU()}, (3,), SCRIPT)
    model.save(tmp_path / "net.json")
    page, _ = page_of(cli, tmp_path, tmp_path / "net.json", "--no-fuse")
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    assert any(step["name"].startswith("</script>") for step in page.steps)


def in_browser(html: str, folder: Path, script: str) -> str:
    """The title that the page has in a headless browser after `script` ran in it."""
    driver = f"<script>window.addEventListener('load', () => {{{script}}})</script></body>"
    assert "</body>" in html
    policy = re.compile(r"<meta http-equiv=[^>]*>")  # it would rightly refuse the test's own script
    path = folder / "tested.html"
    path.write_text(policy.sub("", html).replace("</body>", driver), "utf-8")
    return title_of(dump(path, folder))


def dump(path: Path, folder: Path) -> str:
    """The document of a page once headless Chromium has run it."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "<title>" in done.stdout, done.stderr[-2000:]
    return done.stdout


def title_of(document: str) -> str:
    """The title of an HTML document."""
    return document.partition("<title>")[2].partition("</title>")[0]


def test_it_works_in_a_browser(tmp_path: Path) -> None:
    """500 steps: a search finds some, Enter chooses the first, and a click another one."""
    script = """
      const events = [];
      const search = document.querySelector('input');
      search.value = 'matmul step49';
      search.dispatchEvent(new Event('input'));
      events.push(document.getElementById('found').textContent);
      events.push(document.querySelectorAll('.node.dim').length);
      search.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
      events.push(document.getElementById('name').textContent);
      const node = document.querySelectorAll('.node')[8];
      node.dispatchEvent(new MouseEvent('click', {bubbles: true}));
      events.push(document.getElementById('name').textContent);
      events.push(document.querySelectorAll('#details dd')[1].textContent);
      events.push(document.querySelectorAll('path.edge.chosen').length);
      const before = document.querySelector('svg').getAttribute('viewBox');
      document.querySelector('svg').dispatchEvent(
        new WheelEvent('wheel', {deltaY: 200, clientX: 300, clientY: 300, cancelable: true}));
      events.push(before !== document.querySelector('svg').getAttribute('viewBox'));
      document.title = events.join('|');
    """
    title = in_browser(graph_page(branches(500)), tmp_path, script)
    # Products among 49 and 490 to 499: the odd ones. Behind the input stands step 0, so that the
    # ninth box is step 7, which reads step 6 and is read by step 8.
    assert title == "6 of 502|496|step49|step7|matmul|2|true"


def test_a_browser_runs_no_script_of_a_name(tmp_path: Path) -> None:
    """Its policy admits the page's own script, which is seen to have run, and no other."""
    path = tmp_path / "page.html"
    html = graph_page(harmful())
    path.write_text(html, "utf-8")
    document = dump(path, tmp_path)
    assert title_of(document).startswith("&lt;/script")
    (drawn,) = re.findall(r'<svg viewBox="([^"]*)"', html)
    assert f'viewBox="{drawn}"' not in document  # the page's script fits it to the window
    other = "<script>document.title='harmed'</script></body>"
    path.write_text(html.replace("</body>", other), "utf-8")
    assert title_of(dump(path, tmp_path)) == title_of(document)
    path.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", html).replace("</body>", other), "utf-8")
    assert title_of(dump(path, tmp_path)) == "harmed"  # as it would be without
