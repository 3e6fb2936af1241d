"""How often can one client take and free a lock that nobody else wants, compared with its peers?

    python benchmarks/zookeeper.py                       # starts a ZooKeeper
    python benchmarks/zookeeper.py --hosts zk1:2181      # uses one
    python benchmarks/zookeeper.py --rounds 30 --check

The peers are ``kazoo.recipe.lock.Lock``, the ZooKeeper driver of tooz, and Curator's
``InterProcessMutex`` (Debian: libcurator-recipes-java, default-jdk-headless). All run against one
server, in turns: a round gives each of them the same number of cycles, in an order that changes
from round to round. Rates are medians of the rounds; a ratio is the median of the rounds' ratios,
so that a machine that is busy for a while disturbs no comparison. With ``--check`` the exit code is
1 unless distlock is at least 2.0 times as fast as kazoo and 1.25 times as fast as Curator.
"""

from __future__ import annotations

import argparse
import glob
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

LEAST = {"kazoo": 2.0, "Curator": 1.25}
#: Cycles before anything is measured; Java compiles what it has run often.
WARM_UP = 3000
JARS = ("curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute")

#: Runs so many cycles and returns the seconds that they took.
Contestant = Callable[[int], float]


class Missing(Exception):
    """A peer is not installed."""


def timed(cycle: Callable[[], object]) -> Contestant:
    def run(cycles: int) -> float:
        start = time.perf_counter()
        for _ in range(cycles):
            cycle()
        return time.perf_counter() - start

    return run


@contextmanager
def distlock(hosts: str, root: str) -> Iterator[Contestant]:
    import django
    from django.conf import settings

    entry = {
        "BACKEND": "distlock.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": hosts,
        "OPTIONS": {"root": root},
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
def kazoo(hosts: str, root: str) -> Iterator[Contestant]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=hosts)
    client.start()
    lock = client.Lock(f"{root}-kazoo", "benchmark")

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield timed(cycle)
    client.stop()
    client.close()


@contextmanager
def tooz(hosts: str, root: str) -> Iterator[Contestant]:
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
def curator(hosts: str, root: str) -> Iterator[Contestant]:
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
            ["java", "-cp", path, "CuratorCycles", hosts, f"{root}-curator"],
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


def measure(contestants: dict[str, Contestant], rounds: int, cycles: int) -> dict[str, list[float]]:
    """Return the rate of each contestant in each round."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for name, run in contestants.items():
        run(WARM_UP if name == "Curator" else WARM_UP // 10)
    for _ in range(rounds):
        for name in random.sample(list(contestants), len(contestants)):
            rates[name].append(cycles / contestants[name](cycles))
    return rates


def report(rates: dict[str, list[float]], skipped: dict[str, str]) -> bool:
    """Print what came out; whether distlock is as much faster as it has to be."""
    good = True
    print(f"{'':10}{'cycles/s':>10}{'slowest':>10}{'fastest':>10}   distlock is faster by")
    for name, seen in rates.items():
        ratio = statistics.median(
            ours / theirs for ours, theirs in zip(rates["distlock"], seen, strict=True)
        )
        good &= ratio >= LEAST.get(name, 0.0)
        factor = "" if name == "distlock" else f"   {ratio:.2f}"
        line = f"{statistics.median(seen):>10.0f}{min(seen):>10.0f}{max(seen):>10.0f}"
        print(f"{name:10}{line}{factor}")
    for name, why in skipped.items():
        print(f"{name:10}skipped, {why}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", help="a ZooKeeper to use instead of one that is started")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--cycles", type=int, default=50, help="of each peer in each round")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    root = f"/benchmark-{uuid.uuid4().hex[:8]}"
    contestants: dict[str, Contestant] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as after:
        hosts = after.enter_context(server(options.hosts))
        for name, peer in PEERS.items():
            try:
                contestants[name] = after.enter_context(peer(hosts, root))
            except Missing as why:
                skipped[name] = str(why)
        rates = measure(contestants, options.rounds, options.cycles)
        good = report(rates, skipped)
    if options.check and not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
