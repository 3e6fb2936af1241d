"""django-tenants: the caller's search_path goes by the customer, and the locks are everybody's."""

import json
from contextlib import ExitStack

import pytest

from distlock import Lock, LockLost, locks
from distlock.recipes import Queue
from tests.children import Child, write_line
from tests.servers.pgbouncer import PgBouncer
from tests.tenants import settings as project

pytestmark = pytest.mark.once

DATABASE = "tenants"
TENANTS = BLUE, GREEN = "blue", "green"


def prepare():
    """Make the tables of the project, and those of its customers."""
    from django.apps import apps
    from django.core.management import call_command

    call_command("migrate_schemas", "--shared", run_syncdb=True, interactive=False, verbosity=0)
    for name in TENANTS:
        apps.get_model("tenants.Tenant").objects.create(schema_name=name)


@pytest.fixture(
    scope="module",
    params=[
        "django_tenants.postgresql_backend",
        pytest.param("dj_db_conn_pool.backends.postgresql.django_tenants", marks=pytest.mark.slow),
        pytest.param("behind a pooler", marks=pytest.mark.slow),
    ],
    ids=["alone", "with a pool", "behind a pooler"],
)
def seen(request, postgresql):
    """What a process of the project has seen, by the name of what it did."""
    with ExitStack() as after:
        postgresql.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        postgresql.execute(f"CREATE DATABASE {DATABASE} OWNER distlock")
        after.callback(postgresql.execute, f"DROP DATABASE {DATABASE} WITH (FORCE)")
        engine = "django_tenants.postgresql_backend"
        entry = {**postgresql.django(), "NAME": DATABASE, "ENGINE": engine}
        run(prepare, entry)
        if request.param == "behind a pooler":
            pooler = after.enter_context(PgBouncer(postgresql, size=2))
            entry["PORT"] = str(pooler.port)
        else:
            entry["ENGINE"] = request.param
        yield json.loads(run(work, entry)[-1])


def run(function, entry):
    """Run a function in a process of the project; its lines."""
    environment = {
        "DJANGO_SETTINGS_MODULE": project.__name__,
        project.ENTRY: json.dumps(entry),
    }
    child = Child(function, env=environment)
    try:
        return child.finish()
    finally:
        child.close()


def work():
    """Do what the tests ask about, and tell what came of it."""
    parts = (atomic, lost, delivery, one_for_all, sessions)
    found = {}
    for part in parts:
        try:
            found[part.__name__] = part()
        except Exception as error:
            found[part.__name__] = repr(error)
        locks.close_all()
    write_line(json.dumps(found))


def atomic():
    from django.contrib.contenttypes.models import ContentType
    from django_tenants.utils import schema_context

    with schema_context(BLUE), Lock("atomic") as lock, lock.atomic():
        ContentType.objects.create(app_label="written", model="under the lock")
    counts = []
    for name in TENANTS:
        with schema_context(name):
            counts.append(ContentType.objects.filter(app_label="written").count())
    return counts


def lost():
    from django_tenants.utils import schema_context

    with schema_context(BLUE):
        lock = Lock("lost")
        lock.acquire()
        try:
            with lock.atomic():
                locks["default"].force_release("lost", lock.token)
        except LockLost:
            return "lost"
    return "committed"


def delivery():
    from django_tenants.utils import schema_context

    queue = Queue("bills")
    with schema_context(BLUE):
        queue.put(1)
    with schema_context(GREEN):
        with queue.get(timeout=10) as item, item.atomic():
            pass
        return queue.qsize()


def one_for_all():
    """Several times: behind a pooler it may work by chance."""
    from django.contrib.contenttypes.models import ContentType
    from django_tenants.utils import schema_context

    backend, granted = locks["default"], []
    for number in range(10):
        for name in TENANTS:
            with schema_context(name):
                ContentType.objects.exists()
                other = Lock(f"shared:{number}", owner=name, lease=60, renew=False)
                granted.append(other.acquire(blocking=False))
            backend.pool.close()
    return granted


def sessions():
    """Where the work for one customer follows that for another, as in a web process."""
    from django.db import connections
    from django.db.backends.signals import connection_created
    from django_tenants.utils import schema_context

    opened = []

    def note(connection, **about):
        if connection is not connections["default"]:
            opened.append(connection)

    connection_created.connect(note)
    for number in range(6):
        with schema_context(TENANTS[number % 2]), Lock("sessions"):
            pass
    return len(opened)


def test_atomic_commits_in_the_schema_of_the_tenant(seen):
    assert seen["atomic"] == [1, 0]


def test_atomic_tells_that_a_lock_was_lost(seen):
    assert seen["lost"] == "lost"


def test_a_delivery_is_acknowledged_in_another_schema(seen):
    assert seen["delivery"] == 0


def test_a_lock_is_one_for_all_tenants(seen):
    assert seen["one_for_all"] == [True, False] * 10


def test_another_tenant_needs_no_other_session(seen):
    assert seen["sessions"] == 1
