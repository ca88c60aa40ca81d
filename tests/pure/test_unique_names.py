"""Names for values that would be called alike."""

from __future__ import annotations

from glnn.graph.builder import UniqueNames


def test_a_few_have_marks_and_many_are_counted() -> None:
    marks, taken = UniqueNames(), {"y", "x'"}
    found = []
    for _ in range(10):
        found.append(marks.free("x", taken, ("kept",)))
        taken.add(found[-1])
    assert found == ["x", *("x" + n * "'" for n in range(2, 8)), "x'8", "x'9", "x'10"]
    assert marks.free("kept", taken, ("kept",)) == "kept'"


def test_what_is_free_again_is_used() -> None:
    """As in another scope, whose names are others: nothing is marked that is not taken."""
    marks = UniqueNames()
    assert marks.free("x", {"x"}) == "x'"
    assert marks.free("x", set()) == "x"
    assert marks.free("x", {"x", "x'", "x''"}) == "x'''"
