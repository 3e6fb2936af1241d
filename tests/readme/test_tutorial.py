"""The tutorial and the README do what they say: a test types them in, word for word.

Every day that is with the package from its sources. The slow tests install the wheel that is built
from them in an empty environment, as the reader does, with SQLite and with PostgreSQL.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.contract.watch import eventually
from tests.readme.pages import ROOT, TUTORIAL
from tests.readme.walk import Shell, Step, steps, write
from tests.servers.process import free_port

PAGE = TUTORIAL.read_text()
README = ROOT / "README.md"
FIRST_STEPS = "The first lock"
#: What a reader of the README has done already.
PROJECT = [
    "python3 -m venv .venv",
    ". .venv/bin/activate",
    "pip install -q Django",
    "django-admin startproject mysite .",
]
#: That of the reader's superuser.
PASSWORD = re.search(r"SUPERUSER_PASSWORD=(\S+) .* --username (\S+)", PAGE)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this package, and all that it and its drivers need."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder)]
    constraints = ["-c", str(ROOT / "requirements.txt")]
    subprocess.run([*command, *constraints, f"{ROOT}[postgresql]"], check=True, cwd=folder)
    return folder


def follow(page: list[Step], folder: Path, environment: dict[str, str]) -> None:
    """Do what a page says, step by step."""
    with ExitStack() as after:
        shells = {}
        for where in ("first", "second"):
            shells[where] = Shell(folder, environment)
            after.callback(shells[where].close)
        for step in page:
            if step.what == "write":
                for shell in shells.values():
                    shell.finish()
                write(folder, step)
            elif step.what == "type":
                shells[step.where].enter(step.text)
            elif step.what == "see":
                shells[step.where].expect(step.text)
            elif step.what == "press":
                shells[step.where].press(step.text)
            elif step.what == "open":
                look(environment["PORT"], step)
        for shell in shells.values():
            shell.finish()


def look(port: str, step: Step) -> None:
    """Log in and open a page in a browser without a screen."""
    site = f"http://127.0.0.1:{port}"
    cookies = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    login = f"{site}/admin/login/?next={step.where}"
    browser.open(login, timeout=60).close()
    assert PASSWORD
    form = {
        "username": PASSWORD[2],
        "password": PASSWORD[1],
        "csrfmiddlewaretoken": next(each.value for each in cookies if each.name == "csrftoken"),
    }
    browser.open(login, urllib.parse.urlencode(form).encode(), timeout=60).close()

    def shows_all() -> bool:
        with browser.open(f"{site}{step.where}", timeout=60) as response:
            shown = response.read().decode()
        return all(words in shown for words in step.text.splitlines())

    eventually(shows_all)  # a slow machine asks the reader to load it again


def tutorial(*leave_out: str) -> tuple[list[Step], dict[str, str]]:
    """Return what the tutorial says, with a free port, and the environment of its terminals."""
    port = str(free_port())
    found = steps(PAGE.replace("8000", port), leave_out=leave_out)
    return found, {"PORT": port, "PATH": os.defpath}


def readme(extra: str = "") -> list[Step]:
    """Return what the README says, for a reader who has a project already."""
    found = steps(README.read_text(), section=FIRST_STEPS)
    # "… and within five seconds in a second one, too": it waits, and prints the same.
    again = [step._replace(where="second") for step in found[-2:]]
    found += [Step("type", "second", ". .venv/bin/activate"), *again]
    install = "pip install django-distlock"
    return [
        *(Step("type", "first", command) for command in PROJECT),
        *(step._replace(text=step.text.replace(install, f"{install}{extra}")) for step in found),
    ]


def from_the_sources(page: list[Step], folder: Path) -> tuple[list[Step], dict[str, str]]:
    """Return the page without what installs, and an environment in which all is installed."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    left, installs = [], False
    for step in page:
        if step.what == "type":
            installs = step.text.startswith(("pip ", "python3 "))
        if not (installs and step.what in ("type", "see")):
            left.append(step)
    return left, {"PATH": f"{sys.prefix}/bin:{os.defpath}", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def installing(wheels: Path) -> dict[str, str]:
    """An environment whose pip finds these wheels, and nothing else."""
    return {
        "PATH": f"{Path(sys._base_executable).parent}:{os.defpath}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COMPILE": "1",  # the parts that are used are compiled when they are used
    }


@pytest.fixture
def postgresql_of_reader(server) -> Iterator[dict[str, str]]:
    """A database and its owner, as the tutorial has them; gives what leads there."""
    postgresql = server("postgresql")
    postgresql.execute(
        "CREATE ROLE mysite LOGIN PASSWORD 'mysite'", "CREATE DATABASE mysite OWNER mysite"
    )
    yield {"PGPORT": str(postgresql.port)}
    postgresql.execute("DROP DATABASE mysite WITH (FORCE)", "DROP ROLE mysite")


def test_the_tutorial_from_the_sources(tmp_path: Path) -> None:
    """The parts that take the least time."""
    page, _ = tutorial("PostgreSQL", "renews", "killed", "paused", "admin")
    page = [step._replace(text=step.text.replace("lease=5", "lease=3")) for step in page]
    page, environment = from_the_sources(page, tmp_path)
    follow(page, tmp_path, environment)
    assert len(page) > 35


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_from_the_wheel(tmp_path: Path, installing: dict[str, str]) -> None:
    page, environment = tutorial("PostgreSQL")
    follow(page, tmp_path, {**environment, **installing})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_on_postgresql(
    tmp_path: Path, installing: dict[str, str], postgresql_of_reader: dict[str, str]
) -> None:
    page, environment = tutorial()
    follow(page, tmp_path, {**environment, **installing, **postgresql_of_reader})


def test_the_readme_from_the_sources(tmp_path: Path) -> None:
    page, environment = from_the_sources(readme(), tmp_path)
    follow(page, tmp_path, environment)
    assert {step.what for step in page} == {"type", "see", "write"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_from_the_wheel(tmp_path: Path, installing: dict[str, str]) -> None:
    follow(readme(), tmp_path, installing)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readme_on_postgresql(
    tmp_path: Path, installing: dict[str, str], postgresql_of_reader: dict[str, str]
) -> None:
    databases = next(step for step in tutorial()[0] if "DATABASES" in step.text)
    page = readme("[postgresql]")
    page.insert(len(PROJECT), databases)
    follow(page, tmp_path, {**installing, **postgresql_of_reader})
