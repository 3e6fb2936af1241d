"""Real hosts of web applications: processes of their own, which run functions of a test module."""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.children import environment_of_child
from tests.hosts.stage import LIMIT
from tests.servers.process import HOST, Server

_ROOT = Path(__file__).parent.parent.parent
_BIN = Path(sys.prefix) / "bin"


def command(program: str, port: int, options: tuple[str, ...]) -> list[str]:
    """Return the command that serves tests/hosts/app.py on a port, with these options."""
    own = {
        # --need-app: an application that cannot be loaded ends it.
        "uwsgi": f"--http-socket {HOST}:{port} --module tests.hosts.app:wsgi --home {sys.prefix}"
        f" --chdir {_ROOT} --die-on-term --need-app",
        "gunicorn": f"--bind {HOST}:{port} --chdir {_ROOT} --timeout 90 tests.hosts.app:wsgi",
        "uvicorn": f"--host {HOST} --port {port} --app-dir {_ROOT} tests.hosts.app:asgi",
        "daphne": f"--bind {HOST} --port {port} tests.hosts.app:asgi",
    }[program]
    if "--threads" in options and program == "uwsgi":
        # Else uWSGI uses one dictionary again and again, and now and then answers nothing.
        own += " --wsgi-env-behaviour holy"
    return [str(_BIN / program), *options, *own.split()]


class Host(Server):
    """A host that serves the functions of a module; see tests/hosts/app.py."""

    name = "host"

    def __init__(
        self, program: str, module: str, *options: str, loading: str = "", **settings: Any
    ) -> None:
        """``program`` is uwsgi, gunicorn, uvicorn or daphne.

        ``options`` are those of its command line, ``loading`` a function of the module to call
        while the application is loaded, ``settings`` more settings of Django. Databases and locks
        are those of this moment.
        """
        super().__init__()
        self._command = command(program, self.port, options)
        self.environment = {
            **os.environ,
            **environment_of_child(),
            "DJANGO_SETTINGS_MODULE": "tests.hosts.settings",
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "HOST_MODULE": module,
            "HOST_LOADING": loading,
            "HOST_FOLDER": str(self.folder),
            "HOST_SETTINGS": json.dumps(settings),
        }

    def install(self) -> None:
        (self.folder / "notes").touch()

    def command(self) -> list[str]:
        return self._command

    def answers(self) -> bool:
        try:
            return isinstance(self._ask("", {}, 5), int)
        except OSError:
            return False

    def get(self, function: str, **arguments: object) -> Any:
        """Return what a function returns in a request; AssertionError with what it raised."""
        try:
            return self._ask(function, arguments, LIMIT)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{function}: {error.read().decode()}") from None
        except OSError as error:
            raise AssertionError(f"{function}: {error!r}") from None

    def begin(self, function: str, **arguments: object) -> Future[Any]:
        """See get(); the request goes on while the caller does."""
        future: Future[Any] = Future()

        def ask() -> None:
            try:
                future.set_result(self.get(function, **arguments))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        return future

    def notes(self) -> list[str]:
        """Return the lines that functions have noted so far."""
        return (self.folder / "notes").read_text().splitlines()

    def cue(self, name: str) -> None:
        """Let those go on who wait for this cue."""
        (self.folder / f"cue-{name}").touch()

    def _ask(self, function: str, arguments: dict[str, object], limit: float) -> Any:
        url = f"http://{HOST}:{self.port}/{function}?{urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=limit) as response:
            return json.load(response)
