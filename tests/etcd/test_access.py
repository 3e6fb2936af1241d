"""Users, their passwords and what they may do; certificates."""

import base64

import pytest

from distlock import Lock, LockUnavailable, NotPermitted, locks
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.etcd.conftest import TIMEOUT, followed, revision
from tests.servers.etcd import Etcd

PASSWORD = "correct-horse-battery-staple"


# Users


@pytest.fixture(scope="module")
def guarded():
    """An etcd that serves users only."""
    with Etcd(password=PASSWORD) as server:
        yield server


def user(configure, server, password=PASSWORD):
    return configure({"default": server.url}, user="root", password=password)


def test_a_user_takes_locks(configure, guarded, name):
    with Lock(name, using=user(configure, guarded)) as lock:
        lock.verify()


@pytest.fixture(scope="module")
def limited(guarded):
    """An account that may use the keys below /mine/, and nothing else."""
    below = {"key": encoded("/mine/"), "range_end": encoded("/mine0"), "permType": "READWRITE"}
    guarded.ask("auth/role/add", name="mine")
    guarded.ask("auth/role/grant", name="mine", perm=below)
    guarded.ask("auth/user/add", name="limited", password=PASSWORD)
    guarded.ask("auth/user/grant", user="limited", role="mine")
    return guarded


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def test_a_user_needs_no_more_than_the_keys_below_the_prefix(configure, limited, actor, name):
    addresses = dict.fromkeys(("default", "other"), limited.url)
    using = configure(addresses, user="limited", password=PASSWORD, prefix="/mine/")
    held = Lock(name, using=using)
    held.acquire()
    wait = actor("thread", "other").lock(name).start("acquire")
    eventually(lambda: held.info().waiters)
    assert locks[using].renew([locks[using].try_acquire(claim(f"{name}:2"))])
    assert [info.name for info in locks[using].list()] == [name, f"{name}:2"]
    held.release()
    assert wait.result(PATIENCE)
    assert Lock(name, using=using).force_release(Lock(name, using=using).info().token)


def claim(name):
    return Claim(name, current_owner(), 30.0)


def test_a_user_who_may_not_use_the_keys_is_told(configure, limited, name):
    using = configure({"default": limited.url}, user="limited", password=PASSWORD, prefix="/x/")
    with pytest.raises(NotPermitted, match="refuses the user 'limited': .*permission denied"):
        Lock(name, using=using).acquire()


def test_a_token_that_has_ended_is_renewed(configure, guarded, name):
    using = user(configure, guarded)
    with Lock(name, using=using) as lock:
        guarded.end_tokens()
        lock.verify()
    with Lock(name, using=using) as lock:
        lock.verify()


def test_a_wrong_password_is_told_and_not_shown(configure, guarded, name):
    with pytest.raises(NotPermitted) as caught:
        Lock(name, using=user(configure, guarded, PASSWORD * 2)).acquire()
    assert "DISTLOCK['default']" in str(caught.value)
    assert "refuses the user 'root': etcdserver: authentication failed" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert not caught.value.maybe_applied


def test_a_client_without_a_user_is_told_what_is_missing(configure, guarded, name):
    with pytest.raises(NotPermitted, match=r"a client without OPTIONS\['user'\]"):
        Lock(name, using=configure({"default": guarded.url})).acquire()


def test_a_user_does_no_harm_where_nobody_asks_for_one(configure, etcd, name):
    with Lock(name, using=user(configure, etcd)) as lock:
        lock.verify()


def test_a_watch_whose_token_has_ended_goes_on_with_another(configure, guarded, told, name):
    client = locks[user(configure, guarded)].client
    since = revision(client, name)
    followed(client, f"{name}:other")
    guarded.end_tokens()
    client.watches.add(name, since, told)

    def is_told():
        revision(client, name)  # and this gets a new token
        return told.wait(0.1)

    eventually(is_told)


def test_a_user_who_waits_is_woken(configure, guarded, actor, name):
    using = user(configure, guarded)
    held = Lock(name, using=using)
    held.acquire()
    wait = actor("thread", using).lock(name).start("acquire")
    passed(0.2)
    held.release()
    assert wait.result(PATIENCE)


# Certificates


@pytest.fixture(scope="module")
def encrypted():
    """An etcd that speaks TLS only, and asks for a certificate."""
    with Etcd(tls=True) as server:
        yield server


def test_a_stream_that_is_encrypted_takes_further_keys(configure, encrypted, told, name):
    files = encrypted.certificates
    tls = {"ca": str(files.ca), "certfile": str(files.client), "keyfile": str(files.client_key)}
    client = locks[configure({"default": encrypted.url}, tls=tls)].client
    since = revision(client, name)
    followed(client, f"{name}:other")
    for number in range(5):
        told.clear()
        client.watches.add(f"{name}:{number}", since, told)
        revision(client, f"{name}:{number}")
        assert told.wait(PATIENCE)


def test_a_client_with_a_certificate_takes_locks(configure, encrypted, actor, name):
    files = encrypted.certificates
    tls = {
        "ca": str(files.ca),
        "certfile": str(files.client),
        "keyfile": str(files.client_key),
    }
    using = configure(dict.fromkeys(("default", "other", "third"), encrypted.url), tls=tls)
    with Lock(name, using=using) as lock:
        lock.verify()
        wait = actor("thread", "other").lock(name).start("acquire")
        passed(0.2)
    assert wait.result(PATIENCE)


@pytest.mark.parametrize("knows", ["nothing", "the authority"])
def test_a_client_without_a_certificate_is_refused(configure, encrypted, knows, name):
    tls = {"ca": str(encrypted.certificates.ca)} if knows == "the authority" else {}
    addresses = dict.fromkeys(("default", "other", "third"), encrypted.url)
    using = configure(addresses, tls={**tls, "verify_certs": True}, timeout=TIMEOUT)

    def is_told():
        with pytest.raises(LockUnavailable, match=r"DISTLOCK\['default'\]") as caught:
            Lock(name, using=using).acquire()
        return "SSL" in str(caught.value)

    eventually(is_told)  # the answer may have come too late


def test_a_client_that_speaks_no_tls_is_refused(configure, encrypted, name):
    address = encrypted.url.replace("https", "http")
    with pytest.raises(LockUnavailable, match=r"DISTLOCK\['default'\]: etcd at"):
        Lock(name, using=configure({"default": address}, timeout=0.5)).acquire()
