"""Use an installed distlock as a new project does: ``smoke.py [SETTINGS [PACKAGE …]]``.

SETTINGS is a JSON object with DATABASES or DISTLOCK, by default a SQLite file in the current
folder. The last line that it prints is a JSON object: ``versions`` of Django and of these packages,
and ``start``, the seconds of processor time that ``import distlock`` and ``django.setup()`` take,
Django's own part included.
"""

import json
import sys
import time
import warnings
from importlib.metadata import version
from importlib.util import find_spec

import django
from django.conf import settings
from django.core.management import call_command

given, packages = json.loads((sys.argv[1:] or ["{}"])[0]), sys.argv[2:]
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "locks.sqlite3"}

warnings.filterwarnings("error", module=r"distlock(\.|$)")

started = time.process_time()
import distlock  # noqa: E402

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "distlock"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    SILENCED_SYSTEM_CHECKS=["distlock.W002"],  # there is one host
    USE_TZ=True,
    **{"DATABASES": {"default": SQLITE}, **given},
)
django.setup()
needed = time.process_time() - started

assert "site-packages" in distlock.__file__, distlock.__file__
call_command("check", databases=["default"], fail_level="WARNING")
call_command("migrate", verbosity=0)
with distlock.Lock("smoke", timeout=10) as lock:
    assert lock.held and lock.token > 0
    call_command("locks", "list")

if "celery" in packages:
    from celery import Celery

    from distlock.celery import locked_task

    app = Celery("smoke", broker="memory://", backend="cache+memory://")
    app.conf.task_always_eager = True
    app.set_default()

    @locked_task(name="smoke.double", lock="double:{number}")
    def double(number: int) -> int:
        return 2 * number

    assert double.delay(21).get() == 42

if find_spec("shtab") is not None:
    call_command("locks", "completion", "bash")

versions = {name: version(name) for name in ["Django", *packages]}
print(json.dumps({"versions": versions, "start": round(needed, 2)}))
