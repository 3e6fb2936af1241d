"""How often can one client take and free a lock in etcd that nobody else wants?

    python benchmarks/etcd.py                         # starts an etcd
    python benchmarks/etcd.py --hosts etcd1:2379      # uses one
    python benchmarks/etcd.py --rounds 30 --check

It is compared with the lock of tooz over etcd3gw, and with the requests that such a cycle
needs, sent bare over one connection of ``http.client``: a transaction that puts a key if nobody has
the lock or waits for it, and one that deletes the key and tells whether it was there. All run
against one server, in turns; see peers.py. With ``--check`` the exit code is 1 unless distlock is
at least 2.0 times as fast as tooz, and 0.8 times as fast as the bare requests.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peers import Contestant, Missing, compare, timed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

LEAST = {"tooz": 2.0, "bare": 0.8}


@contextmanager
def distlock(hosts: str, root: str) -> Iterator[Contestant]:
    import django
    from django.conf import settings

    entry = {
        "BACKEND": "distlock.backends.etcd.EtcdBackend",
        "LOCATION": hosts,
        "OPTIONS": {"prefix": root},
    }
    settings.configure(INSTALLED_APPS=["distlock"], DATABASES={}, DISTLOCK={"default": entry})
    django.setup()
    from distlock import Lock, locks

    lock = Lock("benchmark")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    locks.close_all()


@contextmanager
def bare(hosts: str, root: str) -> Iterator[Contestant]:
    host, _, port = hosts.partition(",")[0].rpartition(":")
    connection = http.client.HTTPConnection(host, int(port))

    def ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", f"/v3/{path}", json.dumps(request))
        reply = connection.getresponse()
        answer: dict[str, Any] = json.loads(reply.read())
        assert reply.status == 200, answer
        return answer

    # Whose it is, since when and for how long, for people to read.
    value = _encoded(json.dumps({"owner": "x" * 32, "since": "x" * 32, "thread": "x" * 150}))
    held, waited = (_range(f"{root}-bare/benchmark/{what}/") for what in "hw")
    key = f"{root}-bare/benchmark/h/{uuid.uuid4().hex}"
    lease = ask("lease/grant", {"TTL": 600, "ID": 0})["ID"]

    def cycle() -> None:
        nobody = {"target": "CREATE", "result": "EQUAL", "create_revision": 0}
        put = {"key": _encoded(key), "value": value, "lease": lease}
        who = {**held, "limit": 1}
        taking = {
            "compare": [{**held, **nobody}, {**waited, **nobody}],
            "success": [{"request_put": put}],
            "failure": [{"request_range": who}],
        }
        assert ask("kv/txn", taking)["succeeded"]
        delete = {**_range(key), "prev_kv": True}
        (answer,) = ask("kv/txn", {"success": [{"request_delete_range": delete}]})["responses"]
        assert answer["response_delete_range"]["deleted"] == "1"

    yield timed(cycle)
    ask("lease/revoke", {"ID": lease})
    connection.close()


def _range(prefix: str) -> dict[str, str]:
    """Return the part of a request that means all keys that begin so."""
    return {"key": _encoded(prefix), "range_end": _encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@contextmanager
def tooz(hosts: str, root: str) -> Iterator[Contestant]:
    try:
        from tooz import coordination
    except ImportError:
        raise Missing("not installed: pip install tooz[etcd3gw]") from None
    address = hosts.partition(",")[0]
    coordinator = coordination.get_coordinator(f"etcd3+http://{address}", b"benchmark")
    coordinator.start()
    lock = coordinator.get_lock(f"{root}-tooz".encode())

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    coordinator.stop()


PEERS = {"distlock": distlock, "tooz": tooz, "bare": bare}


@contextmanager
def server(hosts: str | None) -> Iterator[str]:
    if hosts:
        yield hosts
        return
    from tests.servers.etcd import Etcd

    with Etcd() as started:
        yield started.hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", help="an etcd to use instead of one that is started")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cycles", type=int, default=50, help="of each peer in each round")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    root = f"/benchmark-{uuid.uuid4().hex[:8]}"
    with server(options.hosts) as hosts:
        good = compare(
            PEERS, hosts, root, rounds=options.rounds, cycles=options.cycles, least=LEAST
        )
    if options.check and not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
