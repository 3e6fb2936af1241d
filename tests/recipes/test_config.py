"""Config: one value under a name, with versions, the same in every process and backend."""

import threading

import pytest

from distlock import StaleToken
from distlock.recipes import Config
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it


@pytest.fixture
def config(using, name):
    return Config(name, using=using)


class TestValues:
    def test_one_that_was_never_set_has_version_0_and_the_default(self, config):
        assert (config.get().value, config.get(7).value, config.get().version) == (None, 7, 0)

    def test_versions_are_1_2_3(self, config):
        assert [config.set({"bound": number}) for number in (10, 20, 30)] == [1, 2, 3]
        found = config.get()
        assert (found.value, found.version, found.stale) == ({"bound": 30}, 3, False)

    def test_one_wins_who_changes_a_version_and_the_others_are_told_both(self, using, name):
        won, lost = [], []

        def change(number):
            try:
                won.append(Config(name, using=using).set(number, if_version=0))
            except StaleToken as error:
                lost.append(str(error))

        setters = [threading.Thread(target=change, args=[number]) for number in range(8)]
        for setter in setters:
            setter.start()
        for setter in setters:
            setter.join()
        assert won == [1]
        assert len(lost) == 7
        assert all("version 1" in text and "if_version=0" in text for text in lost)

    @pytest.mark.parametrize(
        ("value", "error"),
        [({1, 2}, TypeError), (float("nan"), ValueError), ("x" * 65536, ValueError)],
        ids=["no JSON", "no number", "too large"],
    )
    def test_what_cannot_be_kept_is_refused_by_name(self, config, value, error):
        with pytest.raises(error, match="^value must"):
            config.set(value)
        assert config.get().version == 0
