"""What may be the name of a lock, an owner, or a description."""

import pytest

from distlock.types.values import (
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_OWNER,
    checked_description,
    checked_label,
    checked_name,
)
from tests.contract.names import AWKWARD_NAMES

CONTROL = ["\x00", "\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\ud800", "\udfff"]


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_a_name_is_returned_as_it_was_given(name):
    assert checked_name(name) == name


def test_a_name_may_have_564_characters():
    assert len(checked_name("n" * 564)) == MAX_NAME == 564


def test_a_name_is_measured_in_characters_and_not_in_bytes():
    assert checked_name("🔒" * MAX_NAME)


@pytest.mark.parametrize("name", ["n" * 565, "n" * 100_000])
def test_a_longer_name_is_refused_without_being_repeated_in_full(name):
    with pytest.raises(ValueError, match=r"^name must have at most 564 characters") as caught:
        checked_name(name)
    assert str(len(name)) in str(caught.value)
    assert len(str(caught.value)) < 200


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="^name must not be empty"):
        checked_name("")


@pytest.mark.parametrize("character", CONTROL)
@pytest.mark.parametrize("place", ["{}b", "a{}b", "a{}"])
def test_a_name_with_a_control_character_is_refused(character, place):
    with pytest.raises(ValueError, match="^name must not contain control characters"):
        checked_name(place.format(character))


@pytest.mark.parametrize("name", [" a", "a ", " ", "\u00a0a", "a\u3000"])
def test_a_name_with_space_at_either_end_is_refused(name):
    with pytest.raises(ValueError, match="^name must not begin or end with space") as caught:
        checked_name(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", [None, 42, b"bytes", 1.5, ["list"], object])
def test_a_name_that_is_no_str_is_refused(name):
    with pytest.raises(TypeError, match="^name must be a str, not ") as caught:
        checked_name(name)
    assert repr(name) in str(caught.value)


def test_a_lazy_or_subclassed_str_becomes_a_plain_one():
    class Slug(str):
        pass

    assert type(checked_name(Slug("slug"))) is str


@pytest.mark.parametrize("owner", ["", "o" * (MAX_OWNER + 1), "a\nb", " a"])
def test_an_owner_obeys_the_rules_of_names(owner):
    with pytest.raises(ValueError, match="^owner must "):
        checked_label("owner", owner)


def test_an_owner_that_is_no_str_is_refused():
    with pytest.raises(TypeError, match="^owner must be a str, not 7"):
        checked_label("owner", 7)


def test_a_description_may_be_empty():
    assert checked_description("") == ""


def test_a_description_may_have_space_around_it():
    assert checked_description(" nightly run ") == " nightly run "


@pytest.mark.parametrize("description", ["d" * (MAX_DESCRIPTION + 1), "a\x00b"])
def test_a_description_that_no_column_can_hold_is_refused(description):
    with pytest.raises(ValueError, match="^description must "):
        checked_description(description)


def test_a_description_that_is_no_str_is_refused():
    with pytest.raises(TypeError, match="^description must be a str, not None"):
        checked_description(None)
