"""What a process imports: little when it starts, and nothing in the middle of an operation."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: All of the package that a process imports before it uses a lock, whatever else it has installed.
AT_START = {
    "distlock",
    "distlock.activity",
    "distlock.apps",
    "distlock.backends",
    "distlock.backends.open_transactions",
    "distlock.concurrency",
    "distlock.concurrency.clock",
    "distlock.concurrency.fork",
    "distlock.concurrency.pending",
    "distlock.concurrency.reentry",
    "distlock.concurrency.work",
    "distlock.exceptions",
    "distlock.models",
    "distlock.registry",
    "distlock.types",
    "distlock.types.lease",
    "distlock.types.values",
}

#: What a lock in a database needs none of.
NEVER = {
    "celery",
    "distlock.admin",
    "distlock.audit",
    "distlock.backends.etcd",
    "distlock.backends.zookeeper",
    "distlock.celery",
    "distlock.commands",
    "distlock.recipes",
    "http.client",
    "kazoo",
    "multiprocessing",
    "rest_framework",
    "shtab",
    "ssl",
    "subprocess",
}

SETTINGS = """
import json, sys, threading
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", *sys.argv[2:]],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    USE_TZ=True,
)
import django
django.setup()
"""


def said(code, *apps, database=":memory:"):
    """Return what a new interpreter prints as JSON, after django.setup() with these apps."""
    run = subprocess.run(
        [sys.executable, "-c", SETTINGS + code, database, *apps],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("DJANGO")},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(run.stdout)


def all_modules(code, *apps):
    return set(said(f"{code}\nprint(json.dumps(sorted(sys.modules)))", *apps))


def test_a_process_that_uses_no_lock_imports_little_of_the_package():
    others = all_modules("")
    imported = all_modules("import distlock, distlock.models", "distlock") - others
    assert {name for name in imported if name.startswith("distlock")} == AT_START
    rest = {name for name in imported if not name.startswith(("distlock", "django."))}
    assert rest <= {"__future__", "gc"}  # these cost nothing


def test_a_lock_imports_nothing_of_other_backends_or_of_what_only_people_use():
    others = all_modules("")
    imported = all_modules("from distlock import Lock, locks\nlocks['default']", "distlock")
    parts = {name[:end] for name in imported - others for end in _ends(name)}
    assert not parts & NEVER


def _ends(name):
    return [at for at, each in enumerate(name) if each == "."] + [len(name)]


def test_the_names_of_the_package_are_there_before_they_are_imported():
    found = said(
        """
import distlock
before = sorted(distlock.__all__) == [name for name in dir(distlock) if name in distlock.__all__]
late = "distlock.locking.lock" not in sys.modules
from distlock import *
same = all(globals()[name] is getattr(distlock, name) for name in distlock.__all__)
try:
    distlock.Semaphore
except AttributeError as error:
    said = str(error)
print(json.dumps([before, late, same, said]))
"""
    )
    assert found == [True, True, True, "module 'distlock' has no attribute 'Semaphore'"]


def test_no_operation_imports_a_part_of_the_package(tmp_path):
    """An interrupt in the middle of an import, or a fork, would leave half a module."""
    found = said(
        """
from django.core.management import call_command
from distlock import Lock, LockBusy, locks

locks["default"]  # the first use of a lock makes its backend before anything else
call_command("migrate", verbosity=0)
before = set(sys.modules)


def other():
    try:
        Lock("a").acquire(blocking=False)
    except LockBusy:
        pass
    with Lock("a", timeout=20):
        busy.append(Lock("b").locked())


busy = []
with Lock("a", description="first") as lock:
    with Lock("a"):
        lock.check()
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.5)  # it waits for all of these
    lock.verify()
thread.join()
imported = {name for name in set(sys.modules) - before if name.startswith("distlock")}
print(json.dumps([busy, sorted(imported)]))
""",
        "distlock",
        database=str(tmp_path / "db"),
    )
    assert found == [[False], []]
