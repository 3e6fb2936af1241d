"""Processes of greenlets, servers that want to know who is there, and encrypted connections."""

import subprocess

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from distlock import Lock, LockUnavailable, NotPermitted, locks
from distlock.backends.zookeeper import ZooKeeperBackend
from distlock.concurrency.clock import clock
from distlock.concurrency.steps import run
from distlock.types.lease import Claim
from distlock.types.owners import current_owner
from tests.children import read_line, write_line
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually
from tests.servers.debian import jar
from tests.servers.process import free_port
from tests.servers.zookeeper import ZooKeeper

# gevent


def use_greenlets(using, name):
    """Many greenlets under one lock, each of which has it until one that does not wait has run."""
    import gevent
    from kazoo.handlers.gevent import SequentialGeventHandler

    from distlock.backends.zookeeper.options import new_handler

    ticks, inside, most = [], [], []

    def tick():
        while True:
            ticks.append(1)
            gevent.sleep(0.001)

    def work():
        for _ in range(5):
            with Lock(name, using=using):
                inside.append(1)
                most.append(len(inside))
                before = len(ticks)
                while len(ticks) == before:
                    gevent.sleep(0.001)
                inside.pop()

    ticking = gevent.spawn(tick)
    gevent.joinall([gevent.spawn(work) for _ in range(10)], raise_error=True)
    write_line(isinstance(new_handler(1.0), SequentialGeventHandler), len(most), max(most))
    lock = Lock(name, using=using)
    lock.acquire()
    write_line("held", lock.token)
    read_in_hub = gevent.get_hub().threadpool.apply(read_line)
    lock.verify()
    write_line(lock.held, read_in_hub)
    lock.release()
    ticking.kill()


@pytest.mark.slow
def test_greenlets_take_turns_and_the_hub_runs_on(using, child, name):
    greenlets = child(use_greenlets, using, name, gevent=True)
    assert greenlets.line() == "True 50 1"
    token = int(greenlets.line().split()[1])
    assert Lock(name, using=using).acquire(blocking=False) is False
    greenlets.tell("go on")
    assert greenlets.line() == "True go on"
    greenlets.finish()
    with Lock(name, using=using) as lock:
        assert lock.token > token


# Who may do what


@pytest.fixture
def guarded(configure):
    return configure(auth=[("digest", "us:secret")], acl="creator")


def test_nodes_belong_to_those_who_know_the_password(guarded, tree, name):
    with Lock(name, using=guarded) as lock, Lock(f"{name}:2", using="other"):
        lock.verify()
        assert lock.info().token == lock.token
        for path in (tree.root, tree.path(name)):
            ((acl,), _) = KazooWithPassword(tree).get_acls(path)
            assert (acl.id.scheme, acl.perms) == ("digest", 31)
            assert acl.id.id == make_digest_acl("us", "secret", all=True).id.id
    locks["default"].sweep()


def KazooWithPassword(tree):  # noqa: N802 - reads as the class it stands for
    tree.kazoo.add_auth("digest", "us:secret")
    return tree.kazoo


def test_others_are_refused_and_that_is_not_a_held_lock(guarded, hosts, root, name):
    stranger = ZooKeeperBackend("stranger", {"LOCATION": hosts, "OPTIONS": {"root": root}})
    claim = Claim(name, current_owner(), 5.0)
    with Lock(name, using=guarded):
        for act in (
            lambda: stranger.try_acquire(claim),
            lambda: run(stranger.enqueue(claim, clock() + 5)),
            lambda: stranger.inspect(name),
            lambda: stranger.list(),
        ):
            with pytest.raises(NotPermitted, match="NoAuth") as caught:
                act()
            assert "secret" not in str(caught.value)
    stranger.close()


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert, both = (folder / name for name in ("key.pem", "cert.pem", "both.pem"))
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return cert, both


#: what Debian's package of ZooKeeper does not look for, although TLS needs it
NETTY = (
    "common",
    "buffer",
    "transport",
    "transport-native-unix-common",
    "transport-native-epoll",
    "resolver",
    "codec",
    "handler",
)


@pytest.fixture(scope="module")
def secure(certificate):
    """A server that speaks TLS on a second port."""
    _, both = certificate
    port = free_port()
    properties = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(both),
        "ssl.trustStore.location": str(both),
        "ssl.clientAuth": "none",
    }
    jars = ":".join(jar(f"netty-{part}.jar") for part in NETTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Xbootclasspath/a:{jars}")
        with ZooKeeper(properties=properties):
            yield f"127.0.0.1:{port}"


@pytest.mark.slow
def test_locks_work_over_tls(secure, certificate, configure, name):
    cert, _ = certificate
    tls = {"ca": str(cert)}
    using = configure(dict.fromkeys(("default", "other"), secure), tls=tls, session_timeout=60)
    for _ in range(20):
        with Lock(name, using=using) as lock:
            lock.verify()
            assert Lock(name, using="other").acquire(blocking=False) is False
    for number in range(300):  # many records at once, both ways
        Lock(f"{name}:{number}", using=using).acquire()
    assert len(list(locks["other"].list(f"{name}:"))) == 300


def refusal(using, name):
    """Say why a lock cannot be had; a client may not have come far enough yet to know."""
    with pytest.raises(LockUnavailable) as caught:
        Lock(name, using=using).acquire()
    return str(caught.value)


def test_a_certificate_that_nobody_vouches_for_is_refused(secure, configure, name):
    using = configure({"default": secure}, tls=True, timeout=1, session_timeout=1)
    eventually(lambda: "certificate verify failed" in refusal(using, name))


def test_a_certificate_of_another_host_is_refused(secure, certificate, configure, name):
    cert, _ = certificate
    host, port = secure.split(":")
    other = f"localhost:{port}"
    using = configure({"default": other}, tls={"ca": str(cert)}, timeout=1, session_timeout=1)
    eventually(lambda: "hostname mismatch" in refusal(using, name).lower())
    using = configure({"default": other}, tls={"ca": str(cert), "check_hostname": False})
    with Lock(name, using=using) as lock:
        lock.verify()


def test_certificates_are_not_checked_if_told_so(secure, configure, name):
    using = configure({"default": secure}, tls={"verify_certs": False})
    with Lock(name, using=using) as lock:
        lock.verify()


def test_a_client_without_tls_is_not_answered(secure, configure, name):
    using = configure({"default": secure}, timeout=1, session_timeout=1)
    with pytest.raises(LockUnavailable):
        Lock(name, using=using).acquire()


# SASL


@pytest.fixture(scope="module")
def sasl_server(tmp_path_factory):
    """A server that knows one user by DIGEST-MD5, and lets nobody else in."""
    folder = tmp_path_factory.mktemp("sasl")
    (folder / "jaas.conf").write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_us="secret"; };'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "JAVA_TOOL_OPTIONS",
            f"-Djava.security.auth.login.config={folder / 'jaas.conf'}",
        )
        properties = {
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "enforce.auth.enabled": "true",
            "enforce.auth.schemes": "sasl",
        }
        with ZooKeeper(properties=properties) as server:
            yield server.hosts


def sasl(password):
    return {"mechanism": "DIGEST-MD5", "username": "us", "password": password}


def test_locks_work_for_a_user_of_sasl(sasl_server, configure, name):
    using = configure({"default": sasl_server}, sasl=sasl("secret"), acl="creator")
    with Lock(name, using=using) as lock:
        lock.verify()


def test_a_wrong_password_is_told_as_such_and_can_be_put_right(
    sasl_server, configure, name, caplog
):
    using = configure({"default": sasl_server}, sasl=sasl("wr0ng-pass"), timeout=PATIENCE)
    for _ in range(2):
        with pytest.raises(LockUnavailable) as caught:
            Lock(name, using=using).acquire()
        assert "refuses the credentials" in str(caught.value)
        assert "wr0ng-pass" not in str(caught.value) + caplog.text
    using = configure({"default": sasl_server}, sasl=sasl("secret"))
    with Lock(name, using=using) as lock:
        lock.verify()


def test_kazoo_is_left_as_it_was(using, hosts):
    """Its own clients, next to ours, have its own handlers."""
    with Lock("a", using=using):
        kazoo = KazooClient(hosts=hosts)
        kazoo.start()
        assert kazoo.get_children("/")
        kazoo.stop()
        kazoo.close()
