"""Settings: what is refused, what is passed on, and what is never shown."""

import importlib.util
import logging
import socket

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from kazoo.security import make_digest_acl

from distlock import Lock, LockUnavailable, NotSupported, locks
from distlock.backends.zookeeper import ZooKeeperBackend
from distlock.backends.zookeeper.options import new_handler
from tests.contract.watch import eventually

HOSTS = "127.0.0.1:1"
PASSWORD = "correct-horse-battery-staple"


def backend(location=HOSTS, entry=None, **options):
    params = {"BACKEND": ZooKeeperBackend, "LOCATION": location, "OPTIONS": options}
    return ZooKeeperBackend("locks", {**params, **(entry or {})})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rooot": "/x"}, "OPTIONS: unknown setting 'rooot'"),
        ({"root": "x"}, "OPTIONS['root'] must be a path like '/distlock', not 'x'"),
        ({"root": "/"}, "OPTIONS['root'] must leave the top of the tree to others"),
        ({"root": "/a/../b"}, "OPTIONS['root'] must not contain . or .."),
        ({"root": None}, "OPTIONS['root'] must be a path"),
        ({"session_timeout": 0}, "OPTIONS['session_timeout'] must be finite and greater than 0"),
        ({"session_timeout": "10"}, "OPTIONS['session_timeout'] must be a number of seconds"),
        ({"timeout": float("inf")}, "OPTIONS['timeout'] must be finite"),
        ({"auth": "digest:a:b"}, "OPTIONS['auth'] must be a list of pairs"),
        ({"auth": [("digest", 5)]}, "OPTIONS['auth'] must be a list of pairs"),
        ({"auth": [("sasl", "a:b")]}, "SASL has an option of its own"),
        ({"sasl": {"username": "u"}}, "OPTIONS['sasl'] must be a dictionary with a 'mechanism'"),
        ({"acl": "anyone"}, "OPTIONS['acl'] must be 'open', 'creator', or a list"),
        ({"acl": []}, "OPTIONS['acl'] must be"),
        ({"tls": {"cert": "x"}}, "OPTIONS['tls']: unknown setting 'cert'; known are: 'ca'"),
        ({"tls": 5}, "OPTIONS['tls'] must be True or a dictionary, not 5"),
        ({"tls": {"verify_certs": False, "check_hostname": True}}, "goes only with verify_certs"),
        ({"retry": {"deadline": 5}}, "OPTIONS['retry']: unknown setting 'deadline'; known are"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_name(options, complaint):
    with pytest.raises(ImproperlyConfigured) as caught:
        backend(**options)
    assert str(caught.value).startswith("DISTLOCK['locks']: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("location", ["", None, [], "host:port", ":2181", "/chroot"])
def test_a_location_must_name_servers(location):
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['locks'\]: LOCATION"):
        backend(location=location)


@pytest.mark.parametrize("key", ["LEASE", "RENEW"])
def test_leases_have_no_length_to_set_and_the_way_out_is_told(key):
    with pytest.raises(ImproperlyConfigured, match=rf"{key} .*session_timeout"):
        backend(entry={key: 5})


def test_sasl_without_its_library_says_what_to_install(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "puresasl" else find(name)
    )
    with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-distlock\[sasl\]'"):
        backend(sasl={"mechanism": "DIGEST-MD5", "username": "u", "password": PASSWORD})


def test_everything_is_passed_on_to_kazoo():
    acl = make_digest_acl("user", PASSWORD, all=True)
    made = backend(
        location="one:2181,two:2182,[::1]:2183/chroot/deep",
        root="/locks",
        session_timeout=7,
        auth=[("digest", f"user:{PASSWORD}")],
        acl=[acl],
        tls={"ca": "ca.pem", "certfile": "c.pem", "keyfile": "k.pem", "check_hostname": False},
        retry={"max_delay": 3},
    ).options
    arguments = made.arguments(new_handler(1.0))
    assert arguments["hosts"] == "one:2181,two:2182,[::1]:2183"
    assert made.root == "/chroot/deep/locks"
    assert arguments["timeout"] == 7
    assert [
        (scheme, credential == f"user:{PASSWORD}") for scheme, credential in arguments["auth_data"]
    ] == [("digest", True)]
    assert made.acl == [acl]
    assert arguments["use_ssl"] is True
    assert (arguments["ca"], arguments["certfile"], arguments["keyfile"]) == (
        "ca.pem",
        "c.pem",
        "k.pem",
    )
    assert (arguments["verify_certs"], arguments["check_hostname"]) == (True, False)
    assert arguments["connection_retry"].max_delay == 3


def test_tls_checks_certificates_and_names_unless_told_otherwise():
    arguments = backend(tls=True).options.arguments(new_handler(1.0))
    assert arguments["use_ssl"] is True
    assert (arguments["verify_certs"], arguments["check_hostname"]) == (True, True)


def test_a_certificate_that_cannot_be_read_is_named(configure, name):
    using = configure(tls={"ca": "/nowhere.pem"}, timeout=1)

    def refusal():
        with pytest.raises(LockUnavailable) as caught:
            Lock(name, using=using).acquire(timeout=1)
        return str(caught.value)

    # A client may not have come far enough yet to know.
    eventually(lambda: "cannot load ca '/nowhere.pem'" in refusal())


def test_one_of_several_servers_that_is_cut_off_does_not_take_the_time_of_the_others():
    assert backend(location="a,b,c", session_timeout=9, timeout=5).options.connect_limit == 3
    assert backend(location="a", session_timeout=9, timeout=5).options.connect_limit == 5


def test_nothing_is_connected_to_before_it_is_needed(configure, zookeeper):
    with socket.create_server(("127.0.0.1", 0)) as server:
        using = configure({"default": f"127.0.0.1:{server.getsockname()[1]}"})
        lock = Lock("x", using=using)
        assert not lock.held
        server.settimeout(0.05)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_password_is_never_shown(configure, tree, caplog, root):
    """Not in what objects look like, not in any log, not in an error."""
    caplog.set_level(1)
    for logger in ("kazoo", "kazoo.client", "distlock", "distlock.zookeeper"):
        caplog.set_level(1, logger=logger)
    tree.kazoo.create(root, acl=[make_digest_acl("somebody", "else", all=True)])
    using = configure(
        auth=[("digest", f"user:{PASSWORD}")], acl="creator", tls={"keyfile_password": PASSWORD}
    )
    assert PASSWORD not in str(vars(locks[using].options))
    using = configure(auth=[("digest", f"user:{PASSWORD}")], acl="creator")
    with pytest.raises(LockUnavailable) as caught:
        Lock("x", using=using).acquire()
    shown = [repr(locks[using]), repr(locks[using].options), repr(caught.value)]
    shown += [str(vars(locks[using].options)), repr(caught.value.__cause__)]
    assert PASSWORD not in " ".join(shown)
    assert "NoAuthError" in str(caught.value)
    assert logging.getLogger("distlock.zookeeper").isEnabledFor(1)
    assert "Auth(" in caplog.text  # kazoo logs the request itself
    assert PASSWORD not in caplog.text


def test_a_lease_of_its_own_length_is_refused_with_the_way_out(using, name):
    with pytest.raises(NotSupported, match="leave it out"):
        Lock(name, using=using, lease=5).acquire()


def test_a_named_owner_is_refused_with_the_way_out(using, name):
    with pytest.raises(NotSupported, match="leave it out"):
        Lock(name, using=using, owner="order-42").acquire()


def test_atomic_is_refused_with_the_way_out_and_nothing_stays_locked(using, tree, name):
    connection.ensure_connection()
    with (
        pytest.raises(NotSupported, match=r"distlock\.fencing\.FencedModel"),
        Lock(name, using=using).atomic(),
    ):
        raise AssertionError("the body must not run")
    eventually(lambda: tree.queue(name) == [])
