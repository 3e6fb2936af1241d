"""Run a command with a server of its own, whose address is in the environment for that time.

``python -m tools.with_server zookeeper COMMAND...`` (in ``ZOOKEEPER``) or ``etcd COMMAND...`` (in
``ETCD``) ends as the command does, and the server with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from tests.servers.debian import Missing, missing_packages
from tests.servers.etcd import Etcd
from tests.servers.zookeeper import ZooKeeper

_KINDS = {"zookeeper": ZooKeeper, "etcd": Etcd}
_NEED = "The server cannot be started, because programs are not installed."
_ELSEWHERE = {
    "zookeeper": (
        "Elsewhere, install a Java runtime and ZooKeeper (as /usr/share/java/zookeeper.jar), or"
        " name a ZooKeeper that runs already: ZOOKEEPER=host:port"
    ),
    "etcd": "Elsewhere, install etcd, or name one that runs already: ETCD=host:port",
}


class Interrupted(BaseException):
    """A signal came before there was a command to pass it on to."""


class Company:
    """The command; Ctrl-C reaches it anyhow, as it does everyone at the terminal."""

    def __init__(self) -> None:
        self._started = self._terminated = False
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)

    def run(self, command: list[str], more: dict[str, str]) -> int:
        self._started = True
        process = subprocess.Popen(command, env={**os.environ, **more})
        while (code := process.poll()) is None:
            if self._terminated:
                self._terminated = False
                process.terminate()
            # Python may miss a signal that comes in the moment in which a longer wait begins.
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        return code if code >= 0 else 128 - code

    def _on_signal(self, signum: int, frame: object) -> None:
        if not self._started:
            raise Interrupted
        if signum == signal.SIGTERM:
            self._terminated = True


def main() -> int:
    kind, *command = sys.argv[1:]
    packages = missing_packages(kind)
    if packages:
        install = ["tools/install", _NEED, _ELSEWHERE[kind], *packages]
        if subprocess.run(install).returncode:
            return 1
    company = Company()
    try:
        with _KINDS[kind]() as server:
            return company.run(command, {kind.upper(): server.hosts})
    except Interrupted:
        return 130
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
