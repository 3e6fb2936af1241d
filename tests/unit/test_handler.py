"""From the DISTLOCK setting to backends."""

import threading
from functools import partial

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from distlock import Lock, locks
from distlock.backends.local import LocalBackend
from distlock.conf import BackendHandler
from distlock.recipes import Queue, Semaphore

LOCAL = "distlock.backends.local.LocalBackend"


def refused(configured, alias="orders"):
    with override_settings(DISTLOCK=configured), pytest.raises(ImproperlyConfigured) as caught:
        BackendHandler()[alias]
    return str(caught.value)


def test_an_alias_gives_the_backend_that_is_configured():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        backend = locks["orders"]
    assert isinstance(backend, LocalBackend)
    assert backend.alias == "orders"


def test_an_alias_gives_the_same_backend_again():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        assert locks["orders"] is locks["orders"]


def test_threads_that_ask_at_once_get_the_same_backend():
    barrier = threading.Barrier(8)
    got = []

    def ask():
        barrier.wait()
        got.append(handler["orders"])

    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        handler = BackendHandler()
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(map(id, got))) == 1


def test_a_class_may_stand_where_its_path_may():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LocalBackend}}):
        assert isinstance(locks["orders"], LocalBackend)


def test_without_a_setting_the_default_database_holds_the_locks(settings):
    del settings.DISTLOCK
    handler = BackendHandler()
    assert list(handler) == ["default"]
    assert type(handler["default"]).__name__ == "DatabaseBackend"


@pytest.mark.parametrize("configured", [None, {}])
def test_an_empty_setting_is_none(configured):
    with override_settings(DISTLOCK=configured):
        assert list(BackendHandler()) == ["default"]
        assert type(BackendHandler()["default"]).__name__ == "DatabaseBackend"


def test_a_lock_without_an_alias_is_not_moved_by_a_mistyped_one():
    with override_settings(DISTLOCK={"Default": {"BACKEND": LOCAL}}):
        for take in (
            Lock("stock").acquire,
            Semaphore("stock", 2).acquire,
            partial(Queue("stock").put, 1),
        ):
            with pytest.raises(ImproperlyConfigured, match=r"'default'.*aliases are: 'Default'"):
                take()
        assert list(BackendHandler()) == ["Default"]
        with Lock("stock", using="Default"):
            pass


def test_none_says_that_there_is_no_default_on_purpose():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}, "default": None}):
        assert list(BackendHandler()) == ["orders"]
    message = refused({"orders": {"BACKEND": LOCAL}, "default": None}, "default")
    assert "the aliases are: 'orders'" in message


def test_the_error_without_default_says_how_to_mean_the_database():
    message = refused({"orders": {"BACKEND": LOCAL}}, "default")
    assert "distlock.backends.database.DatabaseBackend" in message


@pytest.mark.parametrize(
    "configured",
    [{"BACKEND": LOCAL}, {"LEASE": 60}, {"default": {"BACKEND": LOCAL}, "OPTIONS": {"timeout": 3}}],
)
@pytest.mark.parametrize("alias", ["default", "orders", "BACKEND"])
def test_settings_of_an_entry_beside_the_aliases_are_refused(configured, alias):
    message = refused(configured, alias)
    assert message.startswith("DISTLOCK must have an entry for each alias")
    assert repr(next(key for key in configured if key.isupper())) in message


def test_aliases_can_be_looked_for():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        assert "orders" in locks
        assert "nowhere" not in locks


def test_a_changed_setting_makes_new_backends():
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        before = locks["orders"]
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        assert locks["orders"] is not before


def test_an_unknown_alias_is_named_with_the_known_ones():
    message = refused({"default": {"BACKEND": LOCAL}}, "order")
    assert "DISTLOCK['order']" in message
    assert "'default'" in message


@pytest.mark.parametrize(
    "path",
    ["nowhere.Backend", "distlock.backends.local.Nothing", "distlock", "", "a b", 7, None, "é.ü"],
)
def test_a_backend_that_cannot_be_imported_is_named(path):
    message = refused({"orders": {"BACKEND": path}})
    assert "DISTLOCK['orders']" in message
    assert repr(path) in message


def test_the_import_error_is_the_cause():
    with (
        override_settings(DISTLOCK={"orders": {"BACKEND": "nowhere.Backend"}}),
        pytest.raises(ImproperlyConfigured) as caught,
    ):
        BackendHandler()["orders"]
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.parametrize("path", ["django.http.HttpResponse", "os.path.join", dict])
def test_what_is_no_lock_backend_is_refused(path):
    assert "DISTLOCK['orders']" in refused({"orders": {"BACKEND": path}})


@pytest.mark.parametrize("entry", [None, "x", [], {}, {"LEASE": 3}])
def test_an_entry_that_names_no_backend_is_refused(entry):
    assert "DISTLOCK['orders']" in refused({"orders": entry})


@pytest.mark.parametrize("configured", ["orders", ["orders"], 7])
def test_a_setting_that_is_no_dictionary_is_refused(configured):
    assert "DISTLOCK" in refused(configured)


@pytest.mark.parametrize(
    "params",
    [{"LEASE": 0}, {"LEASE": 3, "RENEW": 2}, {"OPTIONS": {"nonsense": 1}}, {"TYPO": 1}],
)
def test_an_unsafe_or_unknown_setting_is_refused_when_the_backend_is_made(params):
    assert "DISTLOCK['orders']" in refused({"orders": {"BACKEND": LOCAL, **params}})


def test_a_refused_backend_can_be_had_once_it_is_repaired():
    handler = BackendHandler()
    unsafe = {"orders": {"BACKEND": LOCAL, "LEASE": 0}}
    with override_settings(DISTLOCK=unsafe), pytest.raises(ImproperlyConfigured):
        handler["orders"]
    with override_settings(DISTLOCK={"orders": {"BACKEND": LOCAL}}):
        assert handler["orders"].settings.lease == 30.0


def test_all_gives_every_configured_backend():
    with override_settings(DISTLOCK={"default": {"BACKEND": LOCAL}, "b": {"BACKEND": LOCAL}}):
        assert [backend.alias for backend in BackendHandler().all()] == ["default", "b"]
