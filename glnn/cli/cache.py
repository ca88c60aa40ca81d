"""`glnn cache`: what is kept on disk, and the removal of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import rich_click as click

from glnn.cli.options import output_options, print_json
from glnn.cli.screen import Column, Screen, Table, figures, size
from glnn.core.disk_cache import DiskCache
from glnn.core.plural import count_of
from glnn.core.settings import Settings
from glnn.errors import GlnnError, printable
from glnn.gl.device_file import TableFile, table_files

REMADE = "made again by itself"
MEASURED = "found by searching or trying"
UNUSABLE = "(not usable)"
KINDS = ("programs", "plans", "weights", "tuned", "verdicts", "certificates", "fastest", "limits")
KIND_OF_TABLE = {"choices": "tuned"}  # where a table of a device's file has another name


@dataclass(frozen=True)
class CacheRow:
    """The entries of one kind that the cache keeps for one device."""

    kind: str
    """The kind, as `glnn cache clear` takes it: programs, plans, tuned, verdicts, fastest,
    limits."""
    device: str
    """The driver's name, or UNUSABLE."""
    entries: int
    """The number of entries."""
    nbytes: int
    """The size on disk."""
    used: float
    """When the latest entry was made or used, to the day: seconds since 1970."""
    origin: str
    """The origin of the entries: REMADE or MEASURED."""

    @property
    def when(self) -> str:
        """`used` in UTC, to the minute."""
        with suppress(ValueError, OverflowError, OSError):  # of a file from the far future
            return datetime.fromtimestamp(self.used, timezone.utc).strftime("%Y-%m-%d %H:%M")
        return "?"


@click.group(invoke_without_command=True)
@output_options
@click.pass_context
def cache(context: click.Context, wide: bool, as_json: bool) -> None:
    """Show what is kept on disk from run to run, or remove it.

    Programs as the driver compiled them, plans and their packed weights are made again by
    themselves where they are not there; GLNN_CACHE_SIZE bounds them, 2G unless given, and 0 keeps
    none. What `glnn tune` found (tuned), what was seen of kernels (verdicts), limits that a driver
    does not keep and which backend `auto` found the fastest is small. GLNN_CACHE names the folder;
    empty, nothing is kept.

    \b
    Examples:
      glnn cache
      glnn cache --json
      glnn cache clear                    remove programs, plans and weights
      glnn cache clear programs --yes     remove these, and do not ask
      glnn cache clear tuned verdicts     remove what was found of kernels
    """
    if context.invoked_subcommand is not None:
        return
    settings = Settings.from_environment()
    rows = _rows(settings)
    if as_json:
        print_json(_report(settings, rows))
        return
    out = Screen(wide)
    if settings.cache is None:
        out.say("GLNN_CACHE is empty, so nothing is kept")
        return
    bound = size(settings.cache_size) if settings.cache_size else "nothing"
    out.say(f"{settings.cache}: up to {bound} of programs, plans and weights")
    if not rows:
        out.say("nothing is kept there yet")
        return
    heads = Column("kind", least=None), Column("device", least=24), figures("entries")
    listed = Table((*heads, figures("on disk"), Column("last used, UTC", 1, None)))
    for row in rows:
        listed.add(row.kind, row.device, f"{row.entries}", size(row.nbytes), row.when)
    out.show(listed)


def _complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds that begin with `incomplete` and are not on the command line yet."""
    named = ctx.params.get("kinds") or ()
    return [kind for kind in KINDS if kind.startswith(incomplete) and kind not in named]


@cache.command()
@click.argument("kinds", nargs=-1, metavar="[KIND]...", shell_complete=_complete_kind)
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_options
def clear(kinds: tuple[str, ...], yes: bool, wide: bool, as_json: bool) -> None:
    """Remove what is kept of each KIND: programs, plans, weights, tuned, verdicts, fastest, limits.

    The first three unless a KIND is named: these are made again by themselves.

    \b
    Examples:
      glnn cache clear
      glnn cache clear plans --yes
    """
    settings = Settings.from_environment()
    rows = _rows(settings)
    known = dict.fromkeys([*KINDS, *(row.kind for row in rows)])
    for kind in kinds:
        if kind not in known:
            raise GlnnError(f"expected a KIND of {', '.join(known)}, got {kind}")
    selected = [row for row in rows if row.kind in kinds or (not kinds and row.origin == REMADE)]
    entries, nbytes = sum(row.entries for row in selected), sum(row.nbytes for row in selected)
    names = " and ".join(dict.fromkeys(row.kind for row in selected))
    what = count_of(entries, "entry")
    if selected and not yes:
        _ask(f"Remove {what}, {size(nbytes)}, of {names} from {settings.cache}?")
    DiskCache(settings.cache).clear(kinds or None)
    for file in table_files(settings.cache):
        if KIND_OF_TABLE.get(file.table, file.table) in kinds:
            _unlink(file)
    if as_json:
        print_json({"removed": entries, "bytes": nbytes})
    else:
        result = f"{what} removed, {size(nbytes)}" if selected else "nothing to remove"
        Screen(wide).say(result)


def _ask(question: str) -> None:
    """Raise click.Abort where the answer is no, GlnnError where nobody can answer."""
    if not sys.stdin.isatty():
        raise GlnnError("expected --yes, as there is no terminal to ask on")
    click.confirm(printable(question), abort=True, err=True)


def _unlink(file: TableFile) -> None:
    try:
        file.path.unlink(missing_ok=True)
    except OSError as error:
        raise GlnnError(f"{file.path} cannot be removed: {error.strerror}") from None


def _rows(settings: Settings) -> list[CacheRow]:
    """Return the cache's content, a row for each kind and device."""
    single = [
        CacheRow(
            one.kind, (one.about or {}).get("device", UNUSABLE), 1, one.nbytes, one.used, REMADE
        )
        for one in DiskCache(settings.cache).entries()
    ]
    single += [
        CacheRow(
            KIND_OF_TABLE.get(one.table, one.table),
            one.device or UNUSABLE,
            one.entries,
            one.nbytes,
            one.written,
            MEASURED,
        )
        for one in table_files(settings.cache)
    ]
    groups: dict[tuple[str, str], list[CacheRow]] = {}
    for row in single:
        groups.setdefault((row.kind, row.device), []).append(row)
    return [_sum_rows(rows) for _, rows in sorted(groups.items())]


def _sum_rows(rows: Iterable[CacheRow]) -> CacheRow:
    first, *others = rows
    return CacheRow(
        first.kind,
        first.device,
        first.entries + sum(row.entries for row in others),
        first.nbytes + sum(row.nbytes for row in others),
        max([first.used, *(row.used for row in others)]),
        first.origin,
    )


def _report(settings: Settings, rows: list[CacheRow]) -> dict[str, Any]:
    return {
        "folder": None if settings.cache is None else str(settings.cache),
        "most": settings.cache_size,
        "bytes": sum(row.nbytes for row in rows),
        "kept": [
            {
                "kind": row.kind,
                "device": row.device,
                "entries": row.entries,
                "bytes": row.nbytes,
                "used": row.when,
                "what": row.origin,
            }
            for row in rows
        ],
    }
