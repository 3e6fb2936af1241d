"""An entry of the DISTLOCK setting is checked, and every complaint names the entry."""

import math

import pytest
from django.core.exceptions import ImproperlyConfigured

from distlock.backends.settings import BackendSettings


def settings_of(params, options=None, *, uses_location=False):
    return BackendSettings.parse("orders", params, options or {}, uses_location=uses_location)


def refused(params, *patterns, options=None):
    with pytest.raises(ImproperlyConfigured) as caught:
        settings_of(params, options)
    message = str(caught.value)
    assert "DISTLOCK['orders']" in message
    for pattern in patterns:
        assert pattern in message


def test_a_lease_lasts_thirty_seconds_unless_said_otherwise():
    assert settings_of({}).lease == 30.0


def test_renewals_are_a_third_of_the_lease_apart_unless_said_otherwise():
    assert settings_of({"LEASE": 12}).renew == 4.0


def test_a_shorter_renewal_is_accepted():
    assert settings_of({"LEASE": 12, "RENEW": 1.5}).renew == 1.5


def test_a_lease_of_a_length_of_its_own_is_renewed_within_a_third_of_it():
    assert settings_of({"LEASE": 30, "RENEW": 5}).interval(3.0) == 1.0


def test_a_longer_lease_of_its_own_keeps_the_configured_interval():
    assert settings_of({"LEASE": 30, "RENEW": 5}).interval(300.0) == 5.0


def test_a_renewal_longer_than_a_third_of_the_lease_is_refused():
    refused({"LEASE": 9, "RENEW": 3.1}, "RENEW", "3.1", "3 seconds")


@pytest.mark.parametrize("key", ["LEASE", "RENEW"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf])
def test_times_that_are_no_lengths_are_refused(key, value):
    refused({key: value}, key, repr(value))


@pytest.mark.parametrize("key", ["LEASE", "RENEW"])
@pytest.mark.parametrize("value", ["30", None, True, [30]])
def test_times_that_are_no_numbers_are_refused(key, value):
    refused({key: value}, key, repr(value))


def test_an_unknown_key_is_refused_and_the_known_ones_are_named():
    refused({"LEESE": 3}, "'LEESE'", "'LEASE'")


def test_an_unknown_option_is_refused_and_the_known_ones_are_named():
    refused(
        {"OPTIONS": {"databse": "x"}}, "'databse'", "'database'", options={"database": "default"}
    )


def test_options_have_defaults():
    settings = settings_of({"OPTIONS": {"a": 5}}, {"a": 1, "b": 2})
    assert settings.options == {"a": 5, "b": 2}


@pytest.mark.parametrize("options", ["database", ["database"], 7])
def test_options_that_are_no_dictionary_are_refused(options):
    refused({"OPTIONS": options}, "OPTIONS", repr(options))


def test_a_location_where_it_has_no_meaning_is_refused():
    refused({"LOCATION": "zk1:2181"}, "LOCATION")


def test_a_location_where_it_has_a_meaning_is_kept():
    assert settings_of({"LOCATION": "zk1:2181"}, uses_location=True).location == "zk1:2181"


def option(value, default=1):
    return settings_of({"OPTIONS": {"x": value}}, {"x": default})


@pytest.mark.parametrize("value", [0, -2, math.nan, math.inf, "5", True, None])
def test_an_option_in_seconds_must_be_finite_and_positive(value):
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['orders'\].*OPTIONS\['x'\]"):
        option(value).seconds("x")


def test_an_option_in_seconds_is_given_as_a_float():
    assert option(5).seconds("x") == 5.0


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None])
def test_an_option_that_counts_must_be_a_whole_number(value):
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['orders'\].*OPTIONS\['x'\]"):
        option(value).count("x")


def test_an_option_that_counts_may_be_zero():
    assert option(0).count("x") == 0


def test_an_option_with_choices_names_them_when_refused():
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['orders'\].*'maybe'.*auto, poll"):
        option("maybe").choice("x", ("auto", "poll"))


def test_an_option_with_choices_is_given():
    assert option("poll").choice("x", ("auto", "poll")) == "poll"


def test_settings_do_not_change():
    settings = settings_of({"LEASE": 30}, {"a": 1})
    with pytest.raises(AttributeError):
        settings.lease = 5
    with pytest.raises(TypeError):
        settings.options["a"] = 2
    assert settings.lease == 30
