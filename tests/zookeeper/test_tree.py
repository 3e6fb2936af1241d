"""Every name is one component of a path, and comes back from it as it was."""

import random

import pytest

from distlock.backends.zookeeper.tree import (
    ancestors,
    escaped,
    in_order,
    nonce_of,
    unescaped,
)
from distlock.types.values import MAX_NAME, checked_name
from tests.contract.names import AWKWARD_NAMES, LOOKALIKES

NONCE = "0123456789abcdef" * 2


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_an_awkward_name_comes_back_as_it_was(name):
    component = escaped(name)
    assert "/" not in component
    assert component not in (".", "..", "")
    assert unescaped(component) == name


@pytest.mark.parametrize(("one", "other"), LOOKALIKES)
def test_names_that_look_alike_have_different_components(one, other):
    assert escaped(one) != escaped(other)


@pytest.mark.parametrize("name", ["invoice:42", "report_2024-01", "l'été", "日本語のロック", "a b"])
def test_common_names_can_be_read_in_the_tree(name):
    assert escaped(name) == name


def some_names(count):
    dice = random.Random(7)
    while count:
        length = dice.choice([1, 2, 10, MAX_NAME])
        characters = [chr(dice.choice([dice.randrange(256), dice.randrange(0x110000)]))]
        characters += [chr(dice.randrange(0x110000)) for _ in range(length - 1)]
        name = "".join(characters)
        try:
            yield checked_name(name)
        except ValueError:
            continue
        count -= 1


def test_any_name_comes_back_as_it_was():
    names = list(some_names(300))
    assert [unescaped(escaped(name)) for name in names] == names
    assert len({escaped(name) for name in names}) == len(set(names))


def test_the_servers_accept_any_name(tree):
    """Each as a node, and read back from the list of nodes."""
    names = {*AWKWARD_NAMES, *some_names(100)}
    tree.kazoo.ensure_path(tree.root)
    for name in names:
        tree.kazoo.create(tree.path(name))
    assert {unescaped(component) for component in tree.parents()} == names


def contenders(*numbers):
    return [f"{NONCE}-{number:010d}" for number in numbers]


def test_the_lowest_number_is_first():
    assert in_order(contenders(12, 3, 100)) == contenders(3, 12, 100)


def test_numbers_go_on_below_zero_when_the_counter_overflows():
    """ZooKeeper's counter is a signed 32-bit number."""
    queue = contenders(2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1)
    assert in_order(reversed(queue)) == queue


def test_numbers_pass_zero_again_in_order():
    queue = contenders(-2, -1, 0, 1)
    assert in_order(reversed(queue)) == queue


def test_foreign_nodes_are_not_contenders():
    assert in_order(["lock-0000000001", f"{NONCE}-", "x", *contenders(5)]) == contenders(5)
    assert nonce_of("lock-0000000001") is None
    assert nonce_of(contenders(-5)[0]) == NONCE


def test_what_is_above_a_path():
    assert ancestors("/a/b/c") == ["/a", "/a/b", "/a/b/c"]
