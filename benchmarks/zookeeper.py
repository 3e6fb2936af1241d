"""How often can one client take and free a lock that nobody else wants, compared with its peers?

    python benchmarks/zookeeper.py                       # starts a ZooKeeper
    python benchmarks/zookeeper.py --hosts zk1:2181      # uses one
    python benchmarks/zookeeper.py --rounds 30 --check
    python benchmarks/zookeeper.py --recipes semaphore reader writer

The peers are ``kazoo.recipe.lock``, the ZooKeeper driver of tooz (it has locks only), and Curator's
``InterProcessMutex``, ``InterProcessSemaphoreV2`` and ``InterProcessReadWriteLock`` (Debian:
libcurator-recipes-java, default-jdk-headless). All run against one server, in turns; see peers.py.
With ``--check`` the exit code is 1 unless a lock of distlock is at least 2.0 times as fast as
kazoo's and 1.25 times as fast as Curator's.
"""

from __future__ import annotations

import argparse
import glob
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from peers import Contestant, Missing, compare, timed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

#: what is measured, and by how much distlock has to be faster than whom
RECIPES: dict[str, dict[str, float]] = {
    "lock": {"kazoo": 2.0, "Curator": 1.25},
    "semaphore": {},
    "reader": {},
    "writer": {},
}
#: how many seats the semaphores have
SEATS = 3
#: Cycles of Curator before anything is measured; Java compiles what it has run often.
WARM_UP = 3000
JARS = ("curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute")


@contextmanager
def distlock(hosts: str, root: str, recipe: str) -> Iterator[Contestant]:
    import django
    from django.conf import settings

    entry = {
        "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": hosts,
        "OPTIONS": {"root": root},
    }
    if not settings.configured:
        settings.configure(INSTALLED_APPS=["distlock"], DATABASES={}, DISTLOCK={"default": entry})
        django.setup()
    from distlock import Lock, locks
    from distlock.recipes import RWLock, Semaphore

    lock = {
        "lock": Lock("benchmark"),
        "semaphore": Semaphore("benchmark", SEATS),
        "reader": RWLock("benchmark").reader(),
        "writer": RWLock("benchmark").writer(),
    }[recipe]

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    locks.close_all()


@contextmanager
def kazoo(hosts: str, root: str, recipe: str) -> Iterator[Contestant]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=hosts)
    client.start()
    path = f"{root}-kazoo-{recipe}"
    lock = {
        "lock": lambda: client.Lock(path, "benchmark"),
        "semaphore": lambda: client.Semaphore(path, "benchmark", SEATS),
        "reader": lambda: client.ReadLock(path, "benchmark"),
        "writer": lambda: client.WriteLock(path, "benchmark"),
    }[recipe]()

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    client.stop()
    client.close()


@contextmanager
def tooz(hosts: str, root: str, recipe: str) -> Iterator[Contestant]:
    if recipe != "lock":
        raise Missing("has locks only")
    try:
        from tooz import coordination
    except ImportError:
        raise Missing("not installed: pip install tooz") from None
    coordinator = coordination.get_coordinator(f"zookeeper://{hosts}", b"benchmark")
    coordinator.start()
    lock = coordinator.get_lock(f"{root.strip('/')}-tooz".encode())

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    coordinator.stop()


@contextmanager
def curator(hosts: str, root: str, recipe: str) -> Iterator[Contestant]:
    jars = [f"/usr/share/java/{name}.jar" for name in JARS]
    jars += glob.glob("/usr/share/java/guava.jar") + glob.glob("/usr/share/java/slf4j-nop.jar")
    if not shutil.which("javac"):
        raise Missing("there is no javac: install default-jdk-headless")
    if missing := [jar for jar in jars if not Path(jar).exists()]:
        raise Missing(f"there is no {missing[0]}: install libcurator-recipes-java")
    with tempfile.TemporaryDirectory() as folder:
        path = ":".join([folder, *jars])
        source = str(HERE / "CuratorCycles.java")
        subprocess.run(["javac", "-cp", path, "-d", folder, source], check=True)
        process = subprocess.Popen(
            ["java", "-cp", path, "CuratorCycles", hosts, f"{root}-curator-{recipe}", recipe],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def run(cycles: int) -> float:
            print(cycles, file=questions, flush=True)
            return int(answers.readline()) / 1e9

        yield run
        questions.close()
        process.wait()
        answers.close()


PEERS = {"distlock": distlock, "kazoo": kazoo, "tooz": tooz, "Curator": curator}


@contextmanager
def server(hosts: str | None) -> Iterator[str]:
    if hosts:
        yield hosts
        return
    from tests.servers.zookeeper import ZooKeeper

    with ZooKeeper(properties={"tickTime": "2000"}) as started:
        yield started.hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", help="a ZooKeeper to use instead of one that is started")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--cycles", type=int, default=50, help="of each peer in each round")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    root = f"/benchmark-{uuid.uuid4().hex[:8]}"
    with server(options.hosts) as hosts:
        good = True
        for recipe in options.recipes:
            print(f"\n{recipe}")
            good &= compare(
                {name: partial(peer, recipe=recipe) for name, peer in PEERS.items()},
                hosts,
                root,
                rounds=options.rounds,
                cycles=options.cycles,
                least=RECIPES[recipe],
                warm_up={"Curator": WARM_UP},
            )
    if options.check and not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
