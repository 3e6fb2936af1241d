"""Check a wheel and a source distribution: check_dist.py WHEEL SDIST.

The wheel has all of the package, nothing else, and works where it is installed. The source
distribution has the documentation and the tests. What a package index shows has no link that is
dead there, with the addresses in pyproject.toml as without them.
"""

from __future__ import annotations

import email
import json
import re
import shutil
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

#: What somebody who has only the source distribution reads and runs.
TRAVELS = ("docs/locks.md", "Makefile", "tests/conftest.py", "tests/README.md", "tools/lock")

#: A link or a picture that leads nowhere but in the repository.
RELATIVE = re.compile(r"""\]\((?!https://)[^)]*\)|src(?:set)?="(?!https://)[^"]*\"""")
ADDRESSES = {
    "repository": "https://example.org/owner/name",
    "documentation": "https://example.org/docs",
}

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
    found += [f"a dead link: {link}" for link in RELATIVE.findall(str(metadata.get_payload()))]
    return found


def problems_of_sources(sdist: Path) -> list[str]:
    """Also build the metadata from it with the addresses that the project does not have yet."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(sdist, folder)
        (root,) = Path(folder).iterdir()
        found = [f"missing: {name}" for name in TRAVELS if not (root / name).is_file()]
        pyproject = root / "pyproject.toml"
        settings = pyproject.read_text()
        for name, address in ADDRESSES.items():
            settings = re.sub(rf'(?m)^{name} = ".*"$', f'{name} = "{address}"', settings)
        pyproject.write_text(settings)
        run = [sys.executable, "-m", "hatchling", "metadata"]
        metadata = json.loads(subprocess.check_output(run, cwd=root))
    text = metadata["readme"]["text"]
    found += [f"a dead link with addresses: {link}" for link in RELATIVE.findall(text)]
    wanted = len(RELATIVE.findall((ROOT / "README.md").read_text()))
    absolute = text.count(f"{ADDRESSES['repository']}/")
    if absolute < wanted:
        found.append(f"with addresses {absolute} of {wanted} links lead into the repository")
    if metadata["urls"].get("Documentation") != ADDRESSES["documentation"]:
        found.append(f"links of the project: {metadata['urls']}")
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
        for program in ([ROOT / "tools/smoke.py"], ["-c", ADMIN]):
            if subprocess.run([python, "-W", "error", *program], cwd=folder).returncode:
                sys.exit(f"{wheel.name} does not work where it is installed.")


def main() -> None:
    wheel, sdist = map(Path, sys.argv[1:])
    for path, found in ((wheel, problems(wheel)), (sdist, problems_of_sources(sdist))):
        if found:
            sys.exit("\n".join([f"{path.name} is not right:", *found]))
    run_installed(wheel)
    print(f"{wheel.name}: {len(source_files())} files, installs and locks.")


if __name__ == "__main__":
    main()
