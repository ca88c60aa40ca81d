"""Lists of places that are merged in pairs, by every kernel, against a sort by Python's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.graph.operators import MergeTopK
from tests.backends.harness import kernels, run
from tests.backends.ranking import in_order, numbers


@pytest.mark.parametrize(("name", "kernel"), kernels("merge_top_k"))
@pytest.mark.parametrize("largest", [True, False])
def test_pairs_of_lists(opened, name, kernel, largest) -> None:
    for seed, (shape, k, length) in enumerate(
        [
            ((1,), 1, 1),
            ((3, 7), 3, 1),
            ((2, 3, 129), 5, 4),
            ((127, 3), 2, 2),
            ((2, 1031), 64, 64),
            ((5, 257), 7, 7),
            ((2, 700), 600, 128),
        ]
    ):
        for kind in range(5):
            x, step = numbers(shape, 5 * seed + kind), 2 * length
            n, most = shape[-1], min(k, step)
            operands = {"x": x}
            if length > 1:
                whole = -(-n // length) * length
                lists = [list(range(i, min(i + length, n))) for i in range(0, n, length)]
                rows = [
                    [place for one in lists for place in in_order(row, one, largest)]
                    for row in x.reshape(-1, n).tolist()
                ]
                places = np.full((len(rows), whole), 2**31 - 1, np.int32)
                places[:, :n] = rows
                operands["places"] = places.reshape(*shape[:-1], whole)
            got = run(opened(name), MergeTopK(k, largest, length), operands, kernel)
            expected = np.full((x.size // n, -(-n // step), most), 2**31 - 1, np.int32)
            for i, row in enumerate(x.reshape(-1, n).tolist()):
                for j in range(0, n, step):
                    some = in_order(row, list(range(j, min(j + step, n))), largest)[:most]
                    expected[i, j // step, : len(some)] = some
            expected = expected.reshape(*shape[:-1], -1)
            np.testing.assert_array_equal(got, expected, err_msg=f"{shape} {k} {length} {kind}")
            reference = MergeTopK(k, largest, length).compute(operands)
            np.testing.assert_array_equal(reference, expected)


def test_lists_that_are_merged() -> None:
    for seed, (shape, k) in enumerate([((1,), 1), ((3, 7), 7), ((2, 3, 129), 5), ((2, 641), 640)]):
        x, length, places = numbers(shape, seed), 1, None
        while length < shape[-1]:
            operands = {"x": x} if places is None else {"x": x, "places": places}
            places = MergeTopK(k, True, min(length, k)).compute(operands)
            length *= 2
        if places is not None:
            rows = x.reshape(-1, shape[-1]).tolist()
            expected = [in_order(row, list(range(len(row))), True)[:k] for row in rows]
            np.testing.assert_array_equal(places.reshape(len(rows), k), expected)
