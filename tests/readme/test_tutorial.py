"""The tutorial does what it says: a test types it in, word for word, at two terminals.

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
from contextlib import ExitStack
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.readme.pages import ROOT, TUTORIAL
from tests.readme.walk import KEYS, Shell, Step, steps, write
from tests.servers.process import free_port

PAGE = TUTORIAL.read_text()
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
                shells[step.where].type(KEYS[step.text])
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
    with browser.open(login, urllib.parse.urlencode(form).encode(), timeout=60) as response:
        shown = response.read().decode()
    for words in step.text.splitlines():
        assert words in shown


def of_the_page(*leave_out: str) -> tuple[list[Step], dict[str, str]]:
    """Return what the tutorial says, with a free port, and the environment of its terminals."""
    port = str(free_port())
    found = steps(PAGE.replace("8000", port), leave_out=leave_out)
    return found, {"PORT": port, "PATH": os.defpath}


def test_the_tutorial_from_the_sources(tmp_path: Path) -> None:
    """The parts that take the least time."""
    page, environment = of_the_page("Install", "PostgreSQL", "renews", "killed", "paused", "admin")
    environment["PATH"] = f"{sys.prefix}/bin:{os.defpath}"
    environment["PYTHONPATH"] = str(ROOT)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    page = [step._replace(text=step.text.replace("lease=5", "lease=2")) for step in page]
    follow(page, tmp_path, environment)
    assert len(page) > 35


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_from_the_wheel(tmp_path: Path, wheels: Path) -> None:
    page, environment = of_the_page("PostgreSQL")
    follow(page, tmp_path, installing(environment, wheels))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_on_postgresql(tmp_path: Path, wheels: Path, server) -> None:
    postgresql = server("postgresql")
    page, environment = of_the_page()
    environment["PGPORT"] = str(postgresql.port)
    postgresql.execute(
        "CREATE ROLE mysite LOGIN PASSWORD 'mysite'", "CREATE DATABASE mysite OWNER mysite"
    )
    try:
        follow(page, tmp_path, installing(environment, wheels))
    finally:
        postgresql.execute("DROP DATABASE mysite WITH (FORCE)", "DROP ROLE mysite")


def installing(environment: dict[str, str], wheels: Path) -> dict[str, str]:
    """Return an environment whose pip finds these wheels, and nothing else."""
    return {
        **environment,
        "PATH": f"{Path(sys._base_executable).parent}:{os.defpath}",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
