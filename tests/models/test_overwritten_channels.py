"""Channels that stay are not copied, and others overwrite what was behind them, only where nothing
reads that later: each case is one change to a block of ShuffleNet V2 (Ma et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.graph.graph import Value
from glnn.graph.passes import Pass
from tests.models.test_strips import Net, feeds, fixed, moves, planned, shuffled
from tests.oracle import error
from tests.references import results

pytestmark = pytest.mark.usefixtures("poisoned")
Images = tuple[Value, Value, Value]


def cut(net: Net) -> Images:
    """Images of 32 channels that one move makes, and both parts of these."""
    x = shuffled(net, net.conv(net.x, 32))
    a, b = net.split(x, 16, 16)
    return x, a, b


def branch(net: Net, taken: Value, channels: int) -> Value:
    """Two convolutions, of which the second does not read `taken` any more."""
    return net.conv(net.conv(taken, 16, 1), channels)


def plain(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 16)), 16)]


def stays_read_too(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    both = net.added(net.conv(stays, 16, 1), net.conv(taken, 16, 1))
    return [net.conv(net.join(stays, net.conv(both, 16)), 16)]


def second_half_stays(net: Net) -> list[Value]:
    _, taken, stays = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 16)), 16)]


def fewer_channels(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 8)), 16)]


def more_channels(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 24)), 16)]


def part_of_another(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    other = net.conv(net.x, 8)
    inner = net.join(stays, branch(net, taken, 16))
    return [net.conv(net.join(inner, other), 16)]


def rows_read_too(net: Net) -> list[Value]:
    """A product reads the same memory as a matrix, a row a pixel."""
    x, stays, taken = cut(net)
    both = net.added(net.conv(x, 16, 1), net.conv(taken, 16, 1))
    return [net.conv(net.join(stays, net.conv(both, 16)), 16)]


def slice_of_a_slice(net: Net) -> list[Value]:
    """It is read again, what it is sliced from is not."""
    _, stays, taken = cut(net)
    half, _ = net.split(taken, 8, 8)
    both = net.added(net.conv(half, 16, 1), net.conv(taken, 16, 1))
    y = net.conv(net.join(stays, net.conv(both, 16)), 16)
    return [net.added(y, net.conv(half, 16))]


def beside_numbers_that_no_run_changes(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    numbers = fixed(np.random.default_rng(2).standard_normal((2, 16, 13, 11)))
    return [net.added(net.conv(net.join(stays, numbers), 16), net.conv(taken, 16))]


def before_numbers_that_no_run_changes(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    numbers = fixed(np.random.default_rng(2).standard_normal((2, 8, 13, 11)))
    return [net.conv(net.join(stays, branch(net, taken, 8), numbers), 16)]


def result_is_an_output(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    joined = net.join(stays, branch(net, taken, 16))
    return [net.conv(joined, 16), joined]


def second_part_is_an_output(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    other = branch(net, taken, 16)
    return [net.conv(net.join(stays, other), 16), other]


def images_are_an_output(net: Net) -> list[Value]:
    x, stays, taken = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 16)), 16), x]


def slice_is_an_output(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    return [net.conv(net.join(stays, branch(net, taken, 16)), 16), stays]


def joined_before(net: Net) -> list[Value]:
    """A part of what is cut is needed once others could be in its place."""
    a, b = net.conv(net.x, 16), net.conv(net.x, 16, 1)
    stays, taken = net.split(net.join(a, b), 12, 20)
    y = net.conv(net.join(stays, branch(net, taken, 20)), 16)
    return [net.added(y, net.conv(b, 16))]


def taken_read_again(net: Net) -> list[Value]:
    _, stays, taken = cut(net)
    y = net.conv(net.join(stays, branch(net, taken, 16)), 16)
    return [net.added(y, net.conv(taken, 16, 1))]


def one_part(net: Net) -> list[Value]:
    return [net.conv(net.join(net.conv(net.x, 32)), 16)]


CASES: dict[str, Callable[[Net], list[Value]]] = {
    case.__name__: case
    for case in (
        *(plain, stays_read_too, second_half_stays, fewer_channels, more_channels),
        *(part_of_another, rows_read_too, slice_of_a_slice, beside_numbers_that_no_run_changes),
        *(
            before_numbers_that_no_run_changes,
            result_is_an_output,
            second_part_is_an_output,
            images_are_an_output,
            slice_is_an_output,
        ),
        *(joined_before, taken_read_again, one_part),
    )
}


@pytest.mark.parametrize("case", CASES)
def test_results(compute, case) -> None:
    net = Net()
    first, *others = CASES[case](net)
    graph = net.builder.graph([net.planar(first), *others])
    plan, given = planned(graph, compute), feeds()
    found = plan.run(given)
    for name, expected in results(graph, given).items():
        assert error(found[name], expected) <= 1e-5


def test_only_the_move_is_left(compute) -> None:
    """Nothing else reads what is overwritten: both parts are in their places."""
    net = Net()
    assert moves(planned(net.builder.graph([net.planar(*plain(net))]), compute)) == 1


def test_parts_that_cannot_be_placed_are_one_launch(compute) -> None:
    net = Net()
    a, b = net.conv(net.x, 16), net.conv(net.x, 16, 1)
    plan = planned(net.builder.graph([net.planar(net.conv(net.join(a, b), 16)), a, b]), compute)
    assert [step.op.name for step in plan.steps].count("concat") == moves(plan) == 1


def test_a_concatenation_of_all_channels_of_images(compute) -> None:
    """A slice and a concatenation that do nothing, where no pass removes them."""
    net = Net()
    x = shuffled(net, net.conv(net.x, 32))
    y = net.conv(net.join(*net.split(x, 32)), 16)
    graph, given = net.builder.graph([net.planar(y)]), feeds()
    (found,) = planned(graph, compute, Pass.IDENTITIES, Pass.MOVES).run(given).values()
    (expected,) = results(graph, given).values()
    assert error(found, expected) <= 1e-5
