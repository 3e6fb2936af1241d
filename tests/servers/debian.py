"""What the tests need from the system, and the Debian packages that bring it.

Run as a script it prints the packages that are missing, and exits with 1 if there are any; with the
name of a server, those which that server needs.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable

#: Servers lie where only root's PATH leads.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_JARS = "/usr/share/java"


class Missing(RuntimeError):
    """Something is not installed; the message says what to run."""


def program(name: str) -> str:
    """Return the path of a program; Missing if it is not installed."""
    return _found(name, shutil.which(name, path=_PATH))


def postgresql_program(name: str) -> str:
    """Return the path of a program of the newest PostgreSQL server that is installed."""
    installed = glob.glob(f"/usr/lib/postgresql/*/bin/{name}")
    newest = max(installed, key=lambda path: float(path.split("/")[4]), default=None)
    return _found(name, newest or shutil.which(name, path=_PATH))


def jar(name: str) -> str:
    """Return the path of a Java library; Missing if it is not installed."""
    path = f"{_JARS}/{name}"
    return _found(name, path if os.path.exists(path) else None)


def galera_library() -> str:
    """Return the path of the library that makes MariaDB servers a cluster."""
    name = "libgalera_smm.so"
    return _found(name, next(iter(glob.glob(f"/usr/lib/galera/{name}")), None))


def clock_shim(seconds_ahead: float) -> list[str]:
    """Return the beginning of a command that runs a program with a wrong clock.

    The clock that only grows stays as it is.
    """
    name = "libfaketimeMT.so.1"
    library = next(iter(glob.glob(f"/usr/lib/*/faketime/{name}")), None)
    return [
        program("env"),
        f"LD_PRELOAD={_found(name, library)}",
        f"FAKETIME={seconds_ahead:+f}s",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
    ]


def missing_packages(server: str | None = None) -> list[str]:
    """Return the packages to install for a server, or for everything that the tests need."""
    wanted = _SERVERS[server] if server else None
    return [
        package
        for package, present in _packages().items()
        if (wanted is None or package in wanted) and not present()
    ]


def install_command(packages: list[str]) -> str:
    """Return what root has to run to install ``packages``."""
    return f"apt-get update && apt-get install -y {' '.join(packages)}"


#: Those that something else than the tests may want to start.
_SERVERS = {
    "etcd": ("etcd-server",),
    "zookeeper": ("libzookeeper-java", "default-jre-headless"),
}

_PROVIDED_BY = {
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "pgbouncer": "pgbouncer",
    "java": "default-jre-headless",
    "zookeeper.jar": "libzookeeper-java",
    "etcd": "etcd-server",
    "redis-server": "redis-server",
    "chromium": "chromium",
    "xgettext": "gettext",
    "libgalera_smm.so": "galera-4",
    "libfaketimeMT.so.1": "libfaketime",
}


def _packages() -> dict[str, Callable[[], bool]]:
    return {
        "mariadb-server": lambda: _has(program, "mariadbd") and _has(program, "mariadb-install-db"),
        "postgresql": lambda: _has(postgresql_program, "initdb"),
        "pgbouncer": lambda: _has(program, "pgbouncer"),
        "libzookeeper-java": lambda: _has(jar, "zookeeper.jar"),
        "default-jre-headless": lambda: _has(program, "java"),
        "etcd-server": lambda: _has(program, "etcd"),
        "galera-4": lambda: _present(galera_library),
        "rsync": lambda: _has(program, "rsync"),
        "libfaketime": lambda: _present(lambda: clock_shim(0)),
        "redis-server": lambda: _has(program, "redis-server"),
        "chromium": lambda: _has(program, "chromium"),
        "zsh": lambda: _has(program, "zsh"),
        "fish": lambda: _has(program, "fish"),
        "npm": lambda: _has(program, "npm"),
        "gettext": lambda: _has(program, "xgettext") and _has(program, "msgfmt"),
        "openssl": lambda: _has(program, "openssl"),
        "libmariadb-dev": lambda: _has(program, "mariadb_config"),
        "pkg-config": lambda: _has(program, "pkg-config"),
        "gcc": lambda: _has(program, "gcc"),
        f"{_PYTHON}-dev": lambda: os.path.exists(f"{sysconfig.get_path('include')}/Python.h"),
        f"{_PYTHON}-venv": _can_make_environments,
    }


def _can_make_environments() -> bool:
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return False
    return True


def _has(find: Callable[[str], str], name: str) -> bool:
    return _present(lambda: find(name))


def _present(find: Callable[[], object]) -> bool:
    try:
        return bool(find())
    except Missing:
        return False


def _found(name: str, path: str | None) -> str:
    if path is None:
        package = _PROVIDED_BY.get(name, name)
        raise Missing(
            f"The tests need {name}, which is not installed. Run as root:"
            f" {install_command([package])}"
        )
    return path


if __name__ == "__main__":
    packages = missing_packages(*sys.argv[1:2])
    print(*packages)
    sys.exit(1 if packages else 0)
