"""Pages of the site that are no files of docs/: mkdocs calls the functions named `on_`.

Pages of docs/ link to files of the repository, as `../CONTRIBUTING.md`. Each such file becomes a
page: Markdown as it is, a program as its text, a notebook as both. The reference is made of modules
and commands.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import MODULES, api_page, commands_page, module_path

from glnn.cli import cli

ROOT = Path(__file__).parents[2]
GENERATED = {module_path(name): f"api/{name.rpartition('.')[2]}.md" for name in MODULES}
GENERATED[module_path("glnn.cli")] = "commands.md"
"""Pages of the reference by the file in the repository that each is made of."""
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")
"""The target of a Markdown link to a file, without its anchor."""
FENCE = re.compile(r"^( *)(```+).*?^\1\2$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    texts = {"commands.md": commands_page(cli, "glnn"), "examples/index.md": examples()}
    texts |= {f"api/{name.rpartition('.')[2]}.md": api_page(name) for name in MODULES}
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    wanted = list(named(config.nav))
    for name, text in [*pages, *texts.items()]:
        wanted += links(repository_path(name), text)
    while wanted:
        path = wanted.pop()
        name = site_path(path)
        there = name in texts or files.get_file_from_path(name) is not None
        if not there and (ROOT / path).is_file():
            texts[name] = repository_page(path)
            wanted += links(path, texts[name])
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page, in which links between files become links between pages."""
    source = page.file.src_uri

    def relative(found: re.Match[str]) -> str:
        target = site_path(resolve(repository_path(source), found[0]))
        return posixpath.relpath(target, posixpath.dirname(source) or ".")

    return "".join(
        part if part.lstrip().startswith("```") else LINK.sub(relative, part)
        for part in split_fences(markdown)
    )


def named(nav: object) -> Iterator[str]:
    """Yield the files of the repository that the navigation names."""
    if isinstance(nav, str):
        yield nav
    elif nav is not None:
        assert isinstance(nav, list | dict)
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from named(one)


def split_fences(markdown: str) -> Iterable[str]:
    """Yield the parts of a text, of which each block of code is one."""
    end = 0
    for block in FENCE.finditer(markdown):
        yield markdown[end : block.start()]
        yield block[0]
        end = block.end()
    yield markdown[end:]


def links(page: str, markdown: str) -> list[str]:
    """Return the files that a page links to, as paths in the repository."""
    return [resolve(page, target) for target in LINK.findall(FENCE.sub("", markdown))]


def resolve(page: str, target: str) -> str:
    """Return the path in the repository that `target` is in the page at path `page`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def site_path(path: str) -> str:
    """Return the page of the site that shows the file at `path` in the repository."""
    if path == "README.md":
        return "index.md"
    if path == "examples":
        return "examples/index.md"
    if path in GENERATED:
        return GENERATED[path]
    name = path.removeprefix("docs/")
    shown = name != path and not path.endswith(".py")  # as it is: pages and pictures of docs/
    return name if shown or path.endswith(".md") else f"{name}.md"


def repository_path(page: str) -> str:
    """Return the path in the repository of a page of the site, the inverse of `site_path`."""
    if (ROOT / "docs" / page).is_file():
        return f"docs/{page}"
    return page


def repository_page(path: str) -> str:
    """Return the text of the page that shows the file at `path` in the repository."""
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".md"):
        return text
    if path.endswith(".ipynb"):
        return notebook_page(text)
    kind = "python" if path.endswith(".py") else "text"
    return f"# {path}\n\n`````{kind}\n{text}`````\n"


def notebook_page(text: str) -> str:
    """Return the cells of a notebook as Markdown, without their outputs."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(f"`````python\n{source}\n`````" if cell["cell_type"] == "code" else source)
    return "\n\n".join(parts) + "\n"


def examples() -> str:
    """Return the page that lists the examples, each with its first sentence, or its title."""
    rows = ["# Examples", "", "| program or notebook | |", "|---|---|"]
    folder = ROOT / "examples"
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.ipynb")]):
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            said = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        else:
            said = notebook_page(text).partition("\n")[0].removeprefix("# ")
        rows.append(f"| [{path.name}]({path.name}) | {' '.join(said.split())} |")
    return "\n".join(rows) + "\n"
