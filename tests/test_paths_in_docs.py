"""Pages, kernels and shaders name files, modules, kernels and identifiers that exist."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import rich_click as click

import glnn
from glnn.cli import cli
from glnn.graph.functions import FUNCTIONS
from glnn.kernels import Kernel
from glnn.kernels.library import declared

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = re.compile(r"`([\w./-]+\.(?:py|toml|comp|vert|frag|glsl))`")
MODULES = re.compile(r"\bglnn(?:\.[a-z_][a-z_0-9]*)+")
READERS = re.compile(
    r"[A-Z]{3,}|^mine/|l2_normali|hypotenuse|sitecustomize|silero_vad|^shaders/matmul/(scalar|together)\.|^each\."
)
"""Files of the reader, or of others."""
NAMES = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
FOREIGN = {
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "ENV", "PickableInferenceSession"),
    *("com.microsoft", "pkg_resources", "findMSB", "umulExtended", "unpackSnorm4x8"),
    *("update_cs_shader_module", "vkCreateComputePipelines", "zink_bind_cs_state"),
    *("WEIGHT_IN_C_4_4_C", "epilogue_scalar0", "weight_hh_l1_reverse"),
}
"""Names of others, and such as glnn makes of parts."""
SCHEMES = re.compile(r"NAME|\.(py|c|json)$")
"""Patterns of names, and files."""
CURRENT = [page for page in PAGES if page.stem != "measurements"]
"""Pages without results of kernels that are gone."""
TREE = [
    path.relative_to(ROOT).as_posix()
    for folder in ("glnn", "shaders", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".toml", ".comp", ".vert", ".frag", ".glsl")
]


def exists(module: str) -> bool:
    """Whether `module` can be imported, or is an attribute of one that can be."""
    parts = module.split(".")
    try:
        if find_spec(module) is not None:
            return True
    except ModuleNotFoundError:
        pass
    owner: object = glnn
    for name in parts[1:]:
        owner = getattr(owner, name, None)
    return owner is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = {name for name in FILES.findall(page.read_text("utf-8")) if not READERS.search(name)}
    missing = {
        name
        for name in named
        if not any(path == name or path.endswith(f"/{name.removeprefix('../')}") for path in TREE)
        and not (page.parent / name).exists()
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    named = set(MODULES.findall(page.read_text("utf-8")))
    assert not {name for name in named if not exists(name) and not READERS.search(name)}


@pytest.fixture(scope="module")
def words() -> set[str]:
    """The words of all sources but this one."""
    files = [ROOT / name for name in TREE if not __file__.endswith(name)] + [
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
    ]
    return {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.stem)
def test_identifiers_that_a_page_names_exist(page: Path, words: set[str]) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    named = set(NAMES.findall(text)) - FOREIGN
    assert not {
        name
        for name in named
        if not SCHEMES.search(name) and not READERS.search(name)
        if not words.issuperset(name.split("."))
    }


def parses(command: str) -> bool:
    """Whether `command`, as "run net.onnx --top 5", is one of glnn's with options that it has."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a quotation that is open
        return False
    # A command keeps the names of --help in its first context: without -h there, it never has one.
    parent = click.Context(cli, **cli.context_settings)
    name, found = "glnn", cli.get_command(parent, words.pop(0))
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        name, parent = words.pop(0), click.Context(found, parent)
        found = found.get_command(parent, name)
    if found is None:
        return False
    if isinstance(found, click.Group) and not words:
        return True
    try:
        found.make_context(name, words, parent)
    except click.exceptions.Exit:  # --help
        return True
    except click.UsageError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_blocks_are_commands(page: Path) -> None:
    """Behind two blanks or more there may be a remark, of a pipe or a list what follows."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if match := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?glnn ([a-z].*)", line):
            command = re.split(r" (?:\||&&|>) ", match[1])[0]
            ends = [at.start() for at in re.finditer(r" {2,}", command)]
            assert any(parses(command[:end]) for end in (len(command), *ends)), (page.name, line)


SHADERS = [ROOT / name for name in TREE if name.startswith("shaders/")]
FORMER = re.compile(r"^\| \w+ \| (.*`.*) \|$", re.MULTILINE)
"""Rows of the table of former names, which are those in backticks."""


def test_summaries_name_kernels_that_exist() -> None:
    """As flash_split, which is one of the operator, or of one that the shader computes, too."""
    kernels: dict[Path, list[Kernel]] = {}
    for kernel in declared():
        kernels.setdefault(kernel.path.parent, []).append(kernel)
    everywhere = {kernel.name for kernel in declared()}
    for kernel in declared():
        beside = {one.name for one in kernels[kernel.path.parent]}
        first = re.findall(r"^as (\w+)", kernel.summary)
        assert beside.issuperset(first), (kernel.declaration, kernel.name, kernel.summary)
        named = set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", kernel.summary))
        assert everywhere.issuperset(named), (kernel.declaration, kernel.name, kernel.summary)


def test_no_source_has_a_former_name_of_a_kernel() -> None:
    """Of those with an underscore, which are no words of anything else."""
    page = (ROOT / "docs" / "measurements.md").read_text("utf-8")
    rows = FORMER.findall(page[page.index("## Former names of kernels") :])
    former = {name for row in rows for name in re.findall(r"`(\w+_\w+)`", row)}
    former -= {kernel.name for kernel in declared()}
    assert len(former) > 60
    word = re.compile(rf"\b({'|'.join(sorted(former))})\b")
    for path in (*SHADERS, *CURRENT):
        assert not word.search(path.read_text("utf-8")), path


def test_shaders_that_a_shader_names_exist() -> None:
    there = {path.relative_to(ROOT / "shaders").as_posix() for path in SHADERS}
    for path in SHADERS:
        for name in re.findall(r"[\w/]*\w\.(?:comp|vert|glsl|toml)\b", path.read_text("utf-8")):
            assert any(one == name or one.endswith(f"/{name}") for one in there), (path, name)


def test_the_front_page_counts_functions_and_layers() -> None:
    """Layers as their page does, which test_layers_page.py counts."""
    text = (ROOT / "README.md").read_text("utf-8")
    (classes,) = re.findall(r"\d+ of its classes", (ROOT / "docs/layers.md").read_text("utf-8"))
    assert f"any expression of {len(FUNCTIONS)} scalar functions" in text
    assert classes in text
