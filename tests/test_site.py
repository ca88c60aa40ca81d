"""The site of docs/ builds without a warning, is whole, and has all that is public."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from markdown_it import MarkdownIt

from glnn.cli import cli

ROOT = Path(__file__).parents[1]
INTERNAL = re.compile(r"glnn\.(compiler|core|graph|layers\.arguments)\b")
"""Modules for those who extend glnn: no part of the reference."""
if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("the site is not part of the package", allow_module_level=True)


PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COUNTED = ("h1", "h2", "h3", "img", "li", "ol", "pre", "strong", "table", "td", "ul")


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def build(folder: Path) -> Path:
    """The site, in `folder` unless GLNN_SITE says where it was built."""
    if os.environ.get("GLNN_SITE"):
        return ROOT / os.environ["GLNN_SITE"]
    for name in ("mkdocs", "material", "mkdocstrings_handlers"):
        if find_spec(name) is None:
            how = f"{name} is not installed: pip install -e '.[docs]'"
            assert not os.environ.get("GLNN_PACKAGES"), how
            pytest.skip(how)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_each_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert not pages - set(listed), "add them to nav in mkdocs.yml"


def test_the_site(tmp_path: Path) -> None:
    """One test: a build takes most of its time."""
    site = build(tmp_path / "site")
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert not sorted(dead_links(pages))
    assert not sorted(foreign(pages))
    assert not missing_names(site)
    assert not {path.name: found for path in PAGES if (found := unlike_a_code_host(path, site))}
    terms = re.findall(r"<dt><code>(.*?)</code>", (site / "commands.html").read_text("utf-8"))
    described = Counter(name for term in terms for name in re.findall(r"--[a-z][\w-]*", term))
    assert not Counter(options(cli)) - described


def dead_links(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield links between pages whose page or anchor is not there."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            known = pages[target].anchors | {""} if target in pages else {""}
            if not target.is_file() or anchor not in known:
                yield f"{path.name}: {link}"


def foreign(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield what a page loads that is not in its folder: the site is read without a network."""
    for path, page in pages.items():
        for link in page.loaded:
            parts = urlsplit(link)
            if parts.netloc or not (path.parent / unquote(parts.path)).is_file():
                yield f"{path.name}: {link}"


def unlike_a_code_host(path: Path, site: Path) -> dict[str, tuple[int, int]]:
    """Return how often a page of Markdown has an element, as CommonMark has it and as the site has.

    Only elements whose numbers differ: lists and blocks of code have to be indented for both.
    """
    text = MarkdownIt("commonmark").enable("table").render(path.read_text("utf-8"))
    page = (site / path.with_suffix(".html").name).read_text("utf-8")
    article = page.partition("<article")[2].partition("</article>")[0]
    theirs, ours = (Counter(re.findall(r"<(\w+)", one)) for one in (text, article))
    return {n: (theirs[n], ours[n]) for n in COUNTED if theirs[n] != ours[n]}


def missing_names(site: Path) -> set[str]:
    """Return public names without an entry: in a module's `__all__`, or imported by guides."""
    _, _, entries = (site / "objects.inv").read_bytes().partition(b"zlib.\n")
    listed = {line.split()[0] for line in zlib.decompress(entries).decode().splitlines()}
    names = {"glnn.torch.compile", "glnn.torch.LeftToPyTorch"}  # without importing torch
    for name in public_modules() - {"glnn.torch"}:
        module = import_module(name)
        home = "glnn.onnxruntime.names" if name == "glnn.onnxruntime" else name
        names |= {f"{home}.{one}" for one in module.__all__}
    return {name for name in names | imported() if name not in public_modules()} - listed


def public_modules() -> set[str]:
    """Return the modules that programs import: in `glnn.__all__`, and those that guides name."""
    glnn = import_module("glnn")
    named = {f"glnn.{name}" for name in glnn.__all__ if find_module(f"glnn.{name}")}
    return {"glnn", *named, *(name.rpartition(".")[0] for name in imported())}


def find_module(name: str) -> bool:
    """Whether `name` is that of a module."""
    return name != "glnn.__version__" and find_spec(name) is not None


def imported() -> set[str]:
    """Return what guides and examples import of glnn, but for what is there to extend it."""
    guides = [path for path in (ROOT / "docs").glob("*.md") if not path.stem.startswith("adding")]
    texts = [path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py")]
    for path in guides:
        texts += re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    found: set[str] = set()
    for text in texts:
        for module, names in re.findall(r"^from (glnn[\w.]*) import (\([^)]*\)|.*)", text, re.M):
            if not INTERNAL.match(module):
                found |= {f"{module}.{name}" for name in re.findall(r"\w+", names.split("#")[0])}
    return found


def options(group: click.Group) -> Iterator[str]:
    """Yield the options of every command, as help shows them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from options(command)
        else:
            shown = [one for one in command.params if isinstance(one, click.Option)]
            yield from (max(one.opts, key=len) for one in shown if not one.hidden)
