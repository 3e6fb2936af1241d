"""How long do the admin's lists take over many rows, compared with a list of Django's own?

    python benchmarks/admin.py                      # on SQLite, PostgreSQL and MariaDB; starts them
    python benchmarks/admin.py --kinds mariadb --scale 4 --rounds 30 --check

The peer of each page is the changelist of a plain model with as many rows in the same database, as
many columns, one filter and a search of five fields, one of them the text, as
``django.contrib.admin`` draws it by itself, with 100 rows on a page: of a later page a later page,
of a search its search, of a filter its filter. Each is a request of a test client, from the address
to the HTML. The two are asked for in turns, so that whatever else goes on at the machine meets
both. A line has the medians of both, the median and the middle half of the ratios, and how many
statements distlock has sent. With ``--check`` the exit code is 1 if the median of a ratio is above
its bound.

That is 3, but for lines with a *: these searches read the bodies of 50,000 items, for a second at
most, since only Python can tell what is in a value of JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

#: How many times as long as Django's own list a page may take; and one that searches all bodies.
LIMIT, LIMIT_OF_BODIES = 3.0, 10.0
KINDS = ["sqlite", "postgresql", "mariadb"]
SIZES = {"locks": 30_000, "names": 3_000, "items": 50_000, "letters": 300}
#: The recipes that are listed by name, and the columns of their lists.
RECIPES = {"election": 6, "group": 3, "names": 3, "config": 5, "progress": 6, "queue": 7}
#: What is copied.
SAMPLE = "aaa:sample"
ANALYZE = {
    "sqlite": ["ANALYZE"],
    "postgresql": ["ANALYZE"],
    "mariadb": [
        f"ANALYZE TABLE database_lock{which}" for which in ("", "_record", "_directory", "_session")
    ],
}


@dataclass(frozen=True)
class Peer:
    """A plain model, with as many rows and columns."""

    name: str
    rows: int
    columns: int
    one_in: int = 50  # so many have what the filter looks for


@dataclass(frozen=True)
class Pair:
    """A page of ours, and the page of Django's own list that it is compared with."""

    title: str
    ours: str
    peer: Peer
    theirs: str = ""
    bound: float = LIMIT


def pairs(sizes: dict[str, int]) -> list[Pair]:
    """Return what is compared."""
    locks, names, items, letters = sizes.values()
    held = Peer("locks", locks, 8)
    middle = f"heldlock/?after=default:0:{name_of(locks // 2)}"
    one = name_of(locks // 3).removeprefix("invoice:")
    found = [
        Pair("locks, first page", "heldlock/", held),
        Pair("locks, later page", middle, held, f"?p={locks // 200}"),
        Pair("locks, held for longest", "heldlock/?order=age", held, "?o=7"),
        Pair("locks, search of many", "heldlock/?q=99", held, "?q=99"),
        Pair("locks, search of one", f"heldlock/?q={one}", held, f"?q={one}"),
        Pair("locks, search of none", "heldlock/?q=nothing", held, "?q=nothing"),
        Pair("locks, expired ones", "heldlock/?state=expired", held, "?flag__exact=1"),
        Pair("locks, of a host", "heldlock/?host=worker-7.example", held, "?flag__exact=1"),
    ]
    for kind, columns in RECIPES.items():
        peer, later = Peer(kind, names, columns), f"{kind}/?page={max(names // 100, 1)}"
        found += [
            Pair(f"{kind}, first page", f"{kind}/", peer),
            Pair(f"{kind}, later page", later, peer, f"?p={max(names // 200, 1)}"),
            Pair(f"{kind}, search", f"{kind}/?q=99", peer, "?q=99"),
            Pair(f"{kind}, search of none", f"{kind}/?q=nothing", peer, "?q=nothing"),
        ]
    ready, last = Peer("items", items + letters, 6, one_in=items // letters), items - 17
    dead, bodies = "?flag__exact=1", LIMIT_OF_BODIES
    queue = "queue/one/?backend=default&name=letters&state="
    return [
        *found,
        Pair("ready items, newest", f"{queue}ready", ready),
        Pair("ready items, oldest", f"{queue}ready&order=oldest", ready, "?o=1"),
        Pair("ready items, later page", f"{queue}ready&after={items // 2}", ready, "?p=250"),
        Pair("ready items, search of many", f"{queue}ready&q=99", ready, "?q=99"),
        Pair("ready items, search of one", f"{queue}ready&q={last}", ready, f"?q={last}", bodies),
        Pair("ready items, search of none", f"{queue}ready&q=nothing", ready, "?q=nothing", bodies),
        Pair("dead letters, newest", f"{queue}dead", ready, dead),
        Pair("dead letters, later page", f"{queue}dead&after=100", ready, f"{dead}&p=2"),
        Pair("dead letters, search", f"{queue}dead&q=99", ready, f"{dead}&q=99"),
        Pair("dead letters, search of none", f"{queue}dead&q=nothing", ready, f"{dead}&q=nothing"),
    ]


def name_of(number: int) -> str:
    return f"invoice:{number:09}"


def register(peer: Peer) -> Any:
    """Return a plain model for this peer, which Django's admin lists by itself."""
    from django.contrib import admin
    from django.db import models

    fields: dict[str, Any] = {
        "name": models.CharField(max_length=200),
        "owner": models.CharField(max_length=200),
        "host": models.CharField(max_length=200),
        "token": models.BigIntegerField(),
        "text": models.TextField(),
        "flag": models.BooleanField(),
        "since": models.DateTimeField(),
        "until": models.DateTimeField(),
    }
    meta = type("Meta", (), {"app_label": "tests", "db_table": f"benchmark_{peer.name}"})
    values = {"__module__": "tests", "Meta": meta, **fields}
    model: Any = type(f"Plain{peer.name}", (models.Model,), values)

    class Plain(admin.ModelAdmin):
        list_display = [*fields][: peer.columns]
        list_filter = ["flag"]
        search_fields = ["name", "owner", "host", "token", "text"]
        using = "default"

        def get_queryset(self, request: Any) -> Any:
            return super().get_queryset(request).using(type(self).using)

    admin.site.register(model, Plain)
    return model


def fill(model: Any, using: str, peer: Peer) -> None:
    """Put rows into the table of a plain model."""
    from datetime import timedelta

    from django.contrib import admin
    from django.utils import timezone

    now = timezone.now()
    model.objects.using(using).bulk_create(
        [
            model(
                name=name_of(number),
                owner=f"worker-{number % 40}.example:{number}:MainThread",
                host=f"worker-{number % 40}.example",
                token=1_795_221_409_053_272 + number,
                text='{"to": "ada", "subject": "Your invoice of November"}',
                flag=number % peer.one_in == 0,
                since=now - timedelta(seconds=number % 7300),
                until=now,
            )
            for number in range(peer.rows)
        ],
        1000,
    )
    type(admin.site.get_model_admin(model)).using = using


@contextmanager
def holding(using: str, sizes: dict[str, int]) -> Iterator[None]:
    """Hold one of each in the backend "default", and copy it in its database as often as wanted."""
    from distlock import Lock
    from distlock.recipes import Config, Election, Group, Names, Progress, Queue
    from tests.admin.seeding import copy_recipe, fill_queue, lock_many

    with ExitStack() as after:
        after.enter_context(Lock(SAMPLE, lease=1800, description="Celery task shop.charge"))
        lock_many(using, SAMPLE, map(name_of, range(sizes["locks"])))
        leader = Election(SAMPLE, "beat-1", data={"zone": "a"})
        leader.campaign()
        after.callback(leader.resign)
        after.enter_context(Group(SAMPLE, "worker-1", data={"queues": ["mail", "pdf"]}))
        after.enter_context(Names(SAMPLE).register("front desk", "10.0.0.7:631"))
        for version in range(3):
            Config(SAMPLE).set({"host": f"mx{version}", "port": 25}, who="ada")
        work = Progress(SAMPLE, 4800, unit="rows").start()
        after.callback(work.finish)
        work.set(3120)
        for name in (SAMPLE, "letters"):
            queue = Queue(name, max_deliveries=1)
            queue.put_many([{"to": "ada", "subject": "Your invoice of November"}] * 3)
            queue.get().nack(reason="SMTP: no such mailbox")
            after.enter_context(queue.get())
        for kind in RECIPES:
            copy_recipe(using, kind, SAMPLE, map(name_of, range(sizes["names"])))
        fill_queue(using, "letters", sizes["items"], sizes["letters"])
        yield


@contextmanager
def databases(kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Start these; yields them by kind. That of "sqlite" has the users and sessions, too."""
    from tests.databases import ALIASES, SQLite, migrate, publish
    from tests.servers.mariadb import MariaDB
    from tests.servers.postgresql import PostgreSQL

    started: dict[str, Any] = {"sqlite": SQLite()}
    publish("default", started["sqlite"].django())
    migrate("default")
    with ExitStack() as after:
        for kind in kinds:
            if kind != "sqlite":
                server: Any = {"mariadb": MariaDB, "postgresql": PostgreSQL}[kind]()
                started[kind] = after.enter_context(server)
                publish(ALIASES[kind], server.django())
                migrate(ALIASES[kind])
        yield started


def client() -> Any:
    """Return a client that a superuser is signed in with."""
    from django.contrib.auth.models import User
    from django.test import Client

    signed_in = Client(SERVER_NAME="localhost")
    operator, _ = User.objects.get_or_create(username="operator", is_staff=True, is_superuser=True)
    signed_in.force_login(operator)
    return signed_in


def seconds_of(get: Callable[[str], Any], address: str) -> float:
    """Return how long a page takes that has to be whole."""
    began = time.perf_counter()
    response = get(address)
    taken = time.perf_counter() - began
    context = response.context_data
    assert response.status_code == 200 and not context.get("problem"), (address, response)
    overview = context.get("overview")
    assert overview is None or not any(card.problem for card in overview.cards), overview.cards
    return taken


def compare(get: Callable[[str], Any], pair: Pair, rounds: int) -> float:
    """Print a line for a pair of pages; return what part of its bound the median ratio is."""
    from tests.database.counting import statements

    ours = f"/admin/distlock/{pair.ours}"
    theirs = f"/admin/tests/plain{pair.peer.name}/{pair.theirs}"
    seconds_of(get, theirs)  # compiles its templates, opens its sessions
    seconds_of(get, ours)
    with statements(of="distlock-ask") as seen:
        seconds_of(get, ours)
    taken = [(seconds_of(get, ours), seconds_of(get, theirs)) for _ in range(rounds)]
    low, middle, high = statistics.quantiles([our / their for our, their in taken], n=4)
    our, their = (statistics.median(each) * 1000 for each in zip(*taken, strict=True))
    print(
        f"  {pair.title + ' *' * (pair.bound > LIMIT):31} {our:5.0f} ms {their:5.0f} ms"
        f"  {middle:5.2f} ({low:.2f} to {high:.2f}){len(seen):5}",
        flush=True,
    )
    return middle / pair.bound


def measure(
    kind: str, database: Any, compared: list[Pair], sizes: dict[str, int], rounds: int
) -> float:
    """Compare the pages over one database; return the highest part of a bound."""
    from django.test import override_settings

    from distlock.conf import locks
    from tests.databases import ALIASES

    entry = {
        "BACKEND": "distlock.backends.database.DatabaseBackend",
        "OPTIONS": {"database": ALIASES[kind], "idle": 60},
    }
    with override_settings(DISTLOCK={"default": entry}, ALLOWED_HOSTS=["localhost"]):
        with holding(ALIASES[kind], sizes):
            database.execute(*ANALYZE[kind])
            print(f"{kind}: " + ", ".join(f"{rows:,} {name}" for name, rows in sizes.items()))
            print(f"  {'':31} distlock  Django  ratio (middle half)  statements")
            get = client().get
            worst = max(compare(get, pair, rounds) for pair in compared)
        locks.close_all()
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of databases")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers of rows")
    parser.add_argument("--rounds", type=int, default=11, help="requests of each page (11)")
    parser.add_argument("--only", default="", help="pages whose title begins so")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is above its bound")
    options = parser.parse_args()
    django.setup()
    sizes = {name: int(rows * options.scale) for name, rows in SIZES.items()}
    compared = [pair for pair in pairs(sizes) if pair.title.startswith(options.only)]
    models = {peer: register(peer) for peer in {pair.peer: None for pair in compared}}
    worst = 0.0
    with databases(options.kinds) as started:
        for kind in options.kinds:
            from tests.databases import ALIASES

            for peer, model in models.items():
                fill(model, ALIASES[kind], peer)
            worst = max(worst, measure(kind, started[kind], compared, sizes, options.rounds))
    if options.check and worst > 1:
        sys.exit(f"a page takes {worst:.2f} times as long as it may beside Django's own list")


if __name__ == "__main__":
    main()
