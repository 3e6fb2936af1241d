"""Check that a wheel has all of the package, nothing else, and works where it is installed."""

from __future__ import annotations

import email
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Kinds of files that a careless build configuration leaves out.
INDISPENSABLE = (
    "distlock/py.typed",
    "distlock/celery/typed_tasks.pyi",
    "distlock/migrations/0001_initial.py",
    "distlock/static/distlock/admin.css",
    "distlock/templates/admin/distlock/heldlock/list.html",
)

SMOKE = """
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "distlock"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "locks.sqlite3"}},
    USE_TZ=True,
)
django.setup()
call_command("check")
call_command("migrate", verbosity=0)

import distlock
assert "site-packages" in distlock.__file__, distlock.__file__
with distlock.Lock("wheel", timeout=10) as lock:
    assert lock.held and lock.token > 0
call_command("locks", "list")
"""

ADMIN = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "distlock",
    ],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
    STATIC_URL="static/",
)
django.setup()

from django.contrib import admin
from django.contrib.staticfiles import finders
from django.template.loader import get_template
from django.utils import translation
from distlock.models import HeldLock

assert HeldLock in admin.site._registry
get_template("admin/distlock/heldlock/list.html")
assert finders.find("distlock/admin.css") and finders.find("distlock/admin.js")
for language in ("de", "zh-hans"):
    with translation.override(language):
        assert str(HeldLock._meta.verbose_name) != "held lock"
"""


def source_files() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "distlock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def problems(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata_name = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
    inside = {name for name in names if not name.startswith(metadata_name.split("/")[0])}
    found = [f"missing: {name}" for name in sorted(source_files() - inside)]
    found += [f"does not belong: {name}" for name in sorted(inside - source_files())]
    found += [f"not in the sources: {name}" for name in INDISPENSABLE if name not in inside]
    if metadata["License-Expression"] != "MIT":
        found.append(f"licence: {metadata['License-Expression']}")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        found.append("missing: LICENSE")
    return found


def run_installed(wheel: Path) -> None:
    """Install it apart from the sources and take a lock; Django is the build environment's."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False, system_site_packages=False)
        python = f"{folder}/bin/python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "install", "-q", "-c", ROOT / "requirements.txt", wheel.resolve()], check=True
        )
        for program in (SMOKE, ADMIN):
            if subprocess.run([python, "-W", "error", "-c", program], cwd=folder).returncode:
                sys.exit(f"{wheel.name} does not work where it is installed.")


def main() -> None:
    wheel = Path(sys.argv[1])
    if found := problems(wheel):
        sys.exit("\n".join([f"{wheel.name} is not right:", *found]))
    run_installed(wheel)
    print(f"{wheel.name}: {len(source_files())} files, installs and locks.")


if __name__ == "__main__":
    main()
