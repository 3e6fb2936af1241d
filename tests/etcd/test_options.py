"""Settings: what is refused, what is told about it, and what is never shown."""

import logging

import pytest
from django.core.exceptions import ImproperlyConfigured

from distlock import Lock, LockUnavailable, NotSupported, locks
from distlock.backends.etcd import EtcdBackend

PASSWORD = "correct-horse-battery-staple"
NOWHERE = "http://127.0.0.1:1"


def backend(location=NOWHERE, entry=None, **options):
    params = {"BACKEND": EtcdBackend, "LOCATION": location, "OPTIONS": options}
    return EtcdBackend("locks", {**params, **(entry or {})})


def refused(*args, **kwargs):
    with pytest.raises(ImproperlyConfigured) as caught:
        backend(*args, **kwargs)
    text = str(caught.value)
    assert text.startswith("DISTLOCK['locks']: ")
    return text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prefx": "/x"}, "OPTIONS: unknown setting 'prefx'"),
        ({"prefix": ""}, "OPTIONS['prefix'] must be like '/distlock/', not ''"),
        ({"prefix": "/"}, "OPTIONS['prefix'] must be like '/distlock/', not '/'"),
        ({"prefix": "a\0b"}, "OPTIONS['prefix'] must be printable"),
        ({"prefix": None}, "OPTIONS['prefix'] must be like"),
        ({"timeout": 0}, "OPTIONS['timeout'] must be finite and greater than 0"),
        ({"timeout": "5"}, "OPTIONS['timeout'] must be a number of seconds"),
        ({"user": "me"}, "OPTIONS['password'] must be a text that is not empty"),
        ({"password": PASSWORD}, "OPTIONS['user'] must be a text that is not empty"),
        ({"user": 5, "password": PASSWORD}, "OPTIONS['user'] must be a text"),
        ({"user": "me", "password": ""}, "OPTIONS['password'] must be a text"),
        ({"tls": "yes"}, "OPTIONS['tls'] must be True or a dictionary, not 'yes'"),
        (
            {"tls": {"cert": "x"}},
            "OPTIONS['tls']: unknown setting 'cert'; known are: 'ca', ",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(options, complaint):
    text = refused("127.0.0.1:1", **options)
    assert complaint in text
    assert PASSWORD not in text


@pytest.mark.parametrize(
    ("tls", "complaint"),
    [
        ({"verify_certs": False, "check_hostname": True}, "check_hostname goes only with"),
        ({"keyfile": "/nowhere.key"}, "keyfile goes only with certfile"),
        ({"ca": "/nowhere.pem"}, "cannot load ca '/nowhere.pem' (FileNotFoundError"),
        (
            {"certfile": "/nowhere.pem"},
            "cannot load certfile '/nowhere.pem' with keyfile None (FileNotFoundError",
        ),
        ({"certfile": 5}, "cannot load certfile 5 with keyfile None (TypeError"),
    ],
)
def test_wrong_certificates_are_refused_by_name(tls, complaint):
    text = refused("https://127.0.0.1:1", tls={**tls, "keyfile_password": PASSWORD})
    assert f"OPTIONS['tls']: {complaint}" in text
    assert PASSWORD not in text


def test_a_password_that_is_no_text_is_refused_and_not_shown():
    text = refused("https://127.0.0.1:1", tls={"keyfile_password": PASSWORD.encode()})
    assert "OPTIONS['tls']: keyfile_password must be a text, not of type bytes" in text
    assert PASSWORD not in text


@pytest.mark.parametrize(
    "location",
    ["", None, [], 5, ["http://a", 5], "http://a,,http://b", "ftp://a", "http://", "http://a:b"]
    + [
        "http://a:0",
        "http://a:99999",
        "http://a/v3",
        "http://a?b",
        "http://[::1",
        ["http://a "] * 0,
    ],
)
def test_a_location_that_names_no_members_is_refused(location):
    assert "LOCATION" in refused(location)


def test_a_password_has_no_place_in_the_location():
    text = refused(f"http://me:{PASSWORD}@127.0.0.1:1")
    assert "OPTIONS['password']" in text
    assert PASSWORD not in text


def test_encryption_alone_needs_no_dictionary():
    options = backend("a:1", tls=True).options
    assert [str(one) for one in options.endpoints] == ["https://a:1"]
    assert options.tls.check_hostname


def test_certificates_need_encryption():
    assert "LOCATION has http, too" in refused("http://a:1,https://b:1", tls={"ca": None})


@pytest.mark.parametrize(
    ("location", "endpoints"),
    [
        ("a:1", ["http://a:1"]),
        ("a, b:2", ["http://a:2379", "http://b:2"]),
        (["http://a:1", "https://b"], ["http://a:1", "https://b:2379"]),
        ("http://[::1]:5", ["http://[::1]:5"]),
        ("http://a:1,http://a:1", ["http://a:1"]),
    ],
)
def test_members_are_named_in_one_text_or_a_list(location, endpoints):
    assert [str(one) for one in backend(location).options.endpoints] == endpoints


@pytest.mark.parametrize("entry", [{"LEASE": 1}, {"LEASE": 1.9, "RENEW": 0.1}])
def test_a_lease_shorter_than_etcd_grants_is_refused(entry):
    assert "LEASE must be at least 2 seconds here" in refused(entry=entry)


def test_a_lock_with_a_lease_shorter_than_etcd_grants_is_refused(using, name):
    with pytest.raises(NotSupported, match=r"lease=1\.5: a lease of DISTLOCK\['default'\] lasts"):
        Lock(name, using=using, lease=1.5).acquire()


def test_atomic_is_refused(using, name):
    with (
        pytest.raises(NotSupported, match="outside the database"),
        Lock(name, using=using).atomic(),
    ):
        pass


def test_the_password_is_never_shown(settings, caplog, name):
    settings.DISTLOCK = {
        "default": {
            "BACKEND": EtcdBackend,
            "LOCATION": NOWHERE,
            "OPTIONS": {"user": "me", "password": PASSWORD},
        }
    }
    with caplog.at_level(logging.DEBUG), pytest.raises(LockUnavailable) as caught:
        Lock(name).acquire()
    made = locks["default"]
    shown = [caught.value, made, made.settings, made.options, vars(made.options), made.client]
    assert PASSWORD not in "".join(map(repr, shown)) + str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("location", "user", "ids"),
    [
        ("http://etcd.example", "me", ["distlock.W008"]),
        ("https://etcd.example", "me", []),
        ("http://localhost", "me", []),
        ("http://etcd.example", None, []),
    ],
)
def test_a_password_in_the_clear_is_warned_of(location, user, ids):
    options = {"user": user, "password": PASSWORD} if user else {}
    found = [*backend(location, **options).checks()]
    assert [message.id for message in found] == ids
    assert PASSWORD not in str(found)
