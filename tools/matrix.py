"""Try each Python with the lowest and the highest versions of the extras: ``make matrix``.

    python -m tools.matrix UV PYTHON …

On each Python, with the Django of its pair in pyproject.toml, and twice, with the lowest and with
the highest versions that pyproject.toml allows:

- the wheel alone, and with each extra alone: ``manage.py check``, ``migrate``, and a lock on a real
  server with the driver of the extra, by ``tools/smoke.py``; no warning may come from the package;
- all extras at once: the quick tests in ``TESTS``.

A Python that is missing is an error, unless the environment names it: ``ALLOW_MISSING=3.14``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.servers.etcd import Etcd
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL
from tests.servers.zookeeper import ZooKeeper

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
EXTRAS: dict[str, list[str]] = tomllib.loads(PYPROJECT.read_text())["project"][
    "optional-dependencies"
]
#: What a user calls the lower and the upper end, and what uv calls it.
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
#: Each extra by itself, and its server; "sqlite" is a file.
ALONE = [
    ("", "sqlite"),
    ("", "etcd"),
    ("mysql", "mariadb"),
    ("postgresql", "postgresql"),
    ("zookeeper", "zookeeper"),
    ("sasl", "zookeeper"),
    ("celery", "sqlite"),
    ("completion", "sqlite"),
]
#: Quick tests on all backends, of Celery's tasks, and of SASL, which needs a server of its own.
TESTS = [
    *(
        f"tests/contract/test_{name}.py"
        for name in ("atomic", "backend", "exclusion", "handover", "loss", "release", "waiting")
    ),
    "tests/celery/test_eager.py",
    "tests/celery/test_queueing_interrupts.py",
    "tests/celery/test_running.py",
    "tests/zookeeper/test_environments.py",
]


class Failed(Exception):
    """A command failed; the message is what it printed."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command prints; raise Failed if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        called = " ".join(map(str, command))
        raise Failed(f"$ {called}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def interpreters(versions: list[str], allowed: set[str]) -> dict[str, str]:
    """Return the path of each Python that is there; exit if one is missing that must not be."""
    if unknown := allowed.difference(versions):
        names = ", ".join(sorted(unknown))
        sys.exit(f"ALLOW_MISSING names {names}; the matrix has {', '.join(versions)}.")
    found = {}
    complaints = []
    for version in versions:
        done = subprocess.run([ROOT / "tools/python", version], capture_output=True, text=True)
        if not done.returncode:
            found[version] = done.stdout.strip()
        elif version in allowed:
            print(f"{version:5}NOT TRIED: it is missing, and ALLOW_MISSING names it")
        else:
            complaints.append(f"{done.stderr}Or leave it out: make matrix ALLOW_MISSING={version}")
    if complaints:
        sys.exit("\n\n".join(complaints))
    if not found:
        sys.exit("No Python is left to try.")
    return found


class Servers:
    """The servers that the rows need, each started when the first one asks for it."""

    _KINDS = {"mariadb": MariaDB, "postgresql": PostgreSQL, "zookeeper": ZooKeeper, "etcd": Etcd}

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Any] = {}

    def settings(self, kind: str) -> dict[str, Any]:
        """Return the settings of a project whose locks are there."""
        if kind == "sqlite":
            return {}
        if kind not in self._started:
            self._started[kind] = self._stack.enter_context(self._KINDS[kind]())
        server = self._started[kind]
        if kind in ("mariadb", "postgresql"):
            return {"DATABASES": {"default": server.django()}}
        name = {"zookeeper": "ZooKeeperBackend", "etcd": "EtcdBackend"}[kind]
        entry = {"BACKEND": f"distlock.backends.{kind}.{name}", "LOCATION": server.hosts}
        return {"DISTLOCK": {"default": entry}}


@dataclass
class Matrix:
    """Runs the rows and prints a line for each; ``failures`` has what failed."""

    uv: str
    folder: Path
    wheel: Path
    servers: Servers
    failures: list[str] = field(default_factory=list)
    rows: int = 0

    def try_python(self, version: str, python: str) -> None:
        """Try all rows of one Python."""
        for ends in RESOLUTIONS:
            for extra, kind in ALONE:
                title = f"{extra or 'no extra'} on {kind}"
                self._row(version, ends, title, partial(self._alone, python, ends, extra, kind))
            self._row(version, ends, "all extras", partial(self._together, python, ends))

    def _row(self, version: str, ends: str, title: str, attempt: Callable[[], str]) -> None:
        self.rows += 1
        try:
            outcome = attempt()
        except Failed as failure:
            outcome = "FAILED"
            self.failures.append(f"{version} {ends} {title}\n{failure}")
        print(f"{version:5}{ends:9}{title:26}{outcome}", flush=True)

    def _alone(self, python: str, ends: str, extra: str, kind: str) -> str:
        """Use the wheel with this extra as a new project does; return the versions."""
        wanted = ["--extra", extra] if extra else []
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            new = self._environment(Path(name), python)
            self._install(new, ends, "--group", "django", *wanted)
            self._pip(new, "install", "--no-deps", self.wheel)
            self._pip(new, "check")
            packages = [Requirement(line).name for line in EXTRAS.get(extra, ())]
            settings = json.dumps(self.servers.settings(kind))
            smoke = run(new, ROOT / "tools/smoke.py", settings, *packages, cwd=Path(name))
        found = json.loads(smoke.splitlines()[-1])
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        return f"{versions} (start {found['start']} s)"

    def _together(self, python: str, ends: str) -> str:
        """Run the quick tests with all extras, all else as pinned; return pytest's last line."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            new = self._environment(Path(name), python)
            self._pip(new, "install", "--requirement", ROOT / "requirements.txt")
            self._install(new, ends, "--upgrade", "--group", "django", "--all-extras")
            options = ["-q", "--numprocesses=2", "--dist=loadfile", f"--basetemp={name}/tmp"]
            return run(new, "-m", "pytest", *options, *TESTS).splitlines()[-1]

    def _environment(self, folder: Path, python: str) -> Path:
        run(self.uv, "venv", "--quiet", "--python", python, folder / "env")
        return folder / "env/bin/python"

    def _install(self, python: Path, ends: str, *wanted: str) -> None:
        resolution = RESOLUTIONS[ends]
        self._pip(python, "install", "--resolution", resolution, "-r", PYPROJECT, *wanted)

    def _pip(self, python: Path, verb: str, *arguments: str | Path) -> None:
        run(self.uv, "pip", verb, "--quiet", "--python", python, *arguments)


def main() -> None:
    uv, *versions = sys.argv[1:]
    allowed = set(os.environ.get("ALLOW_MISSING", "").replace(",", " ").split())
    found = interpreters(versions, allowed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            run(uv, "build", "--quiet", "--wheel", "--out-dir", folder / "dist", ROOT)
        except Failed as failure:
            sys.exit(str(failure))
        (wheel,) = folder.glob("dist/*.whl")
        matrix = Matrix(uv, folder, wheel, Servers(stack))
        for version, python in found.items():
            matrix.try_python(version, python)
    if matrix.failures:
        failed = f"{len(matrix.failures)} of {matrix.rows} rows failed."
        sys.exit("\n\n".join(["", *matrix.failures, failed]))
    print(f"All {matrix.rows} rows passed, on Python {', '.join(found)}.")


if __name__ == "__main__":
    main()
