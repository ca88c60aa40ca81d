"""Whether what a document claims holds here, from what the benchmarks wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from benchmarks import beside
from benchmarks.documents import ALIKE, Claim, Figure, Told

Json = dict[str, Any]
NEAR = 1.5
"""A claimed number is met within this factor."""
RULE = f"""\
A ratio is the geometric mean over the sizes that the claim is of. That one thing is faster holds
if it is at every size, and in part if at some. A claimed number holds if the ratio goes the claimed
way and is within a factor of {NEAR:g} of the number, and in part if it goes that way only; a number
that has no unit, as a share, holds within that factor. What is about equal holds within a factor of
{ALIKE:g} at every size, and in part in the mean. Absolute times and rates are their devices' own:
they stand in the tables and are not judged.
"""
YES, PART, NO, NEVER, LATER = "yes", "in part", "no", "not measurable", "not measured yet"
VERDICTS = (YES, PART, NO, NEVER, LATER)


@dataclass(frozen=True)
class Verdict:
    """What became of one claim."""

    says: str
    """The document's claim."""
    here: str
    """What was measured, or why nothing was."""
    holds: str
    """One of VERDICTS."""


@dataclass(frozen=True)
class Evidence:
    """What one run of a benchmark holds of one figure."""

    entries: tuple[Json, ...] = ()
    """Its numbers, as beside.rows wrote them."""
    near: tuple[Json, ...] = ()
    """Those of the document's other figures in the same run."""
    answers: Mapping[str, Json] = field(default_factory=dict)
    """What it says of the claims, by the claim."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a row could not run, by the row."""

    @property
    def ours(self) -> dict[tuple[str, str], float]:
        """What was measured, by row and column."""
        return {(e["row"], e["column"]): e["ours"] for e in self.entries if e["ours"] is not None}

    @property
    def unit(self) -> str:
        """Of `ours`."""
        return str(self.entries[0]["unit"]) if self.entries else ""

    def said(self, figure: Figure) -> dict[str, Json]:
        """What the numbers answer, by the claim: this figure's, then with those beside it."""
        alike = [e for e in self.near if e["unit"] == self.unit and e["ours"] is not None]
        wide = {(e["row"], e["column"]): e["ours"] for e in alike} | self.ours
        found: dict[str, Json] = {}
        for ours in (wide, self.ours):
            for entry in beside.claims(figure, ours, self.unit):
                if entry["ours_least"] is not None:
                    found[entry["claim"]] = entry
        return found


def evidence(figure: Figure, run: Json) -> Evidence:
    """What `run`, which a benchmark wrote, holds of `figure`."""
    every = [
        entry
        for entry in run.get("beside", [])
        if entry.get("document", figure.document) == figure.document
    ]
    near = [entry for entry in every if entry["figure"] != figure.key]
    measured = [entry for entry in every if entry["figure"] == figure.key]
    entries: list[Json] = []
    for unit in dict.fromkeys(entry["unit"] for entry in measured):
        alike = [e for e in measured if e["unit"] == unit and e["ours"] is not None]
        ours = {(e["row"], e["column"]): e["ours"] for e in alike}
        entries += beside.rows(figure, ours, unit)  # anew: the document's side is the TOML's
    answers = {
        entry["claim"]: entry
        for entry in run.get("claims", [])
        if entry["figure"] == figure.key
        and entry.get("document", figure.document) == figure.document
        and (entry.get("ours_least") is not None or "here" in entry)
    }
    rows = run.get("rows", [])
    reasons = {
        str(row.get("name", row.get("kernel"))): str(row["reason"])
        for row in (rows if isinstance(rows, list) else [])
        if row.get("reason")
    }
    reasons |= run.get("reasons", {})
    return Evidence(tuple(entries), tuple(near), answers, reasons)


def verdicts(figure: Figure, found: Evidence) -> Iterator[Verdict]:
    """What becomes of every claim of `figure`."""
    answers = {**found.answers, **found.said(figure)}
    for claim in figure.claims:
        says = _worded(str(claim), figure.unit) + (f" ({claim.text})" if claim.text else "")
        yield _verdict(claim, says, answers.get(str(claim)), figure)
    for told in figure.told:
        yield _verdict(told, told.text, answers.get(told.text), figure)


def _verdict(claim: Claim | Told, says: str, answer: Json | None, figure: Figure) -> Verdict:
    if answer is None and (claim.reason or figure.reason):
        return Verdict(says, claim.reason or "-", NEVER)  # the figure's stands above all of them
    if answer is None:
        return Verdict(says, "-", LATER)
    if "here" in answer:
        return Verdict(says, answer["here"], answer["holds"])
    assert isinstance(claim, Claim)
    least, greatest = answer["ours_least"], answer["ours_greatest"]
    mean = answer.get("ours_mean") or sqrt(max(0.0, least * greatest))
    return Verdict(says, _span(least, mean, greatest), holds(claim, least, mean, greatest))


def holds(claim: Claim, least: float, mean: float, greatest: float) -> str:
    """Whether ratios from `least` to `greatest` are what `claim` says, by RULE."""
    if claim.alike:
        low, high = claim.least, claim.most
        if low <= least and greatest <= high:
            return YES
        return PART if low <= mean <= high else NO
    if claim.over and claim.least == 1 and claim.most == float("inf"):
        return YES if least > 1 else PART if greatest > 1 else NO
    near = claim.least / NEAR <= mean <= claim.most * NEAR
    if not claim.over or claim.least == claim.most == 1:
        return YES if near else NO
    if not (mean > 1 if claim.least >= 1 else mean < 1):
        return NO
    return YES if near else PART


def _span(least: float, mean: float, greatest: float) -> str:
    if f"{least:.3g}" == f"{greatest:.3g}":
        return f"{mean:.3g}"
    return f"{mean:.3g} ({least:.3g} to {greatest:.3g})"


def _worded(claim: str, unit: str) -> str:
    """`claim` in words that suit numbers which are no speed."""
    if unit in ("%", "x", "fraction of peak"):
        claim = claim.replace("as fast as", "as high as").replace(
            "is faster than", "is higher than"
        )
    return claim


def empty_rows(figure: Figure, found: Evidence) -> dict[str, str]:
    """The rows and columns of `figure` that have none of our numbers, and why; empty if unknown."""
    ours = found.ours
    rows = dict.fromkeys([*figure.rows_here, *figure.rows])
    missing: dict[str, str] = {}
    for row in rows:
        if not any(name == row for name, _ in ours):
            reason = figure.reasons.get(row) or figure.reason or found.reasons.get(row, "")
            missing[row] = reason
    if not missing:
        for column in figure.columns_here:
            if not any(name == column for _, name in ours):
                missing[column] = figure.reasons.get(column) or figure.reason
    return missing


def doubles(runs: Mapping[str, Json], figures: Iterable[Figure]) -> Iterator[str]:
    """The figures that several runs, or another than their command's, have numbers of."""
    for figure in figures:
        owners = [name for name, run in runs.items() if evidence(figure, run).entries]
        if len(owners) > 1 or (owners and owners != [figure.measured]):
            expected = f"{figure.measured}.json" if figure.command else "none"
            files = " and ".join(f"{name}.json" for name in owners)
            yield f"{figure.document} {figure.key}: expected numbers in {expected}, got {files}"
