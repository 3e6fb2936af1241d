"""Cron mails what a command prints: a lost race can be silent, an outage is one line."""

import io

import pytest
from django.core.management import CommandError, call_command

from distlock import Lock
from distlock.commands.exit_codes import BUSY, FAILED, UNAVAILABLE
from tests.commands.processes import manage

NIGHTLY = "command:tests.nightly"
RUN = ["locks", "run", NIGHTLY, "--timeout=0"]
PROGRAM = ["--", "echo", "ran"]


@pytest.fixture
def kind():
    return "sqlite"


class TestABusyLock:
    """Of two commands that cron starts at once on two machines, one finds the lock busy."""

    @pytest.fixture(params=["locks run", "LockedCommand"])
    def loser(self, request, child, shared):
        """Start the command that comes late; its exit code, and what it printed."""

        def start(*options):
            with Lock(NIGHTLY):
                if request.param == "LockedCommand":
                    late = child(manage, "nightly", *options)
                else:
                    late = child(manage, *RUN, *options, *PROGRAM)
                code = late.wait()
            return code, "\n".join(late.rest()) + late.errors

        return start

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            (["--busy-code=0"], 0),
            (["--verbosity=0"], BUSY),
        ],
        ids=str,
    )
    def test_can_be_silent(self, loser, options, code):
        assert loser(*options) == (code, "")

    @pytest.mark.parametrize(
        ("options", "code"),
        [([], BUSY), (["--busy-code=0", "--verbosity=2"], 0)],
        ids=str,
    )
    def test_is_told_otherwise(self, loser, options, code):
        ended, printed = loser(*options)
        assert ended == code
        assert printed.count("\n") == 1
        assert f"lock {NIGHTLY!r} on 'default' is held by" in printed

    @pytest.mark.parametrize("command", [RUN + PROGRAM, ["nightly"]], ids=["locks run", "nightly"])
    def test_is_no_error_from_code_either_if_its_code_is_0(self, local, command, capfd):
        with Lock(NIGHTLY, owner="someone"):
            call_command(*command, busy_code=0)
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("command", [RUN + PROGRAM, ["nightly"]], ids=["locks run", "nightly"])
    def test_raises_from_code_however_little_is_to_be_said(self, local, command):
        with Lock(NIGHTLY, owner="someone"), pytest.raises(CommandError, match="held by") as raised:
            call_command(*command, verbosity=0, stderr=io.StringIO())
        assert raised.value.returncode == BUSY


COMMANDS = [
    (["locks", "list"], FAILED),
    (["locks", "show", "stock"], FAILED),
    (["locks", "release", "stock", "--token=7", "--no-input"], FAILED),
    (["locks", "sweep"], FAILED),
    (["locks", "election", "list"], FAILED),
    (["locks", "config", "set", "mailer", "{}"], FAILED),
    (["locks", "run", "stock", "--", "echo", "ran"], UNAVAILABLE),
    (["locks", "run", "stock", "--slots=3", "--", "echo", "ran"], UNAVAILABLE),
    (["locks", "run", "stock", "--elect", "--timeout=1", "--", "echo", "ran"], UNAVAILABLE),
    (["nightly"], UNAVAILABLE),
]


class TestADatabaseThatIsDown:
    """All commands are started at once, so that all wait at the same time."""

    @pytest.mark.parametrize(
        ("kind", "how"),
        [
            ("postgresql", "stop"),
            pytest.param("postgresql", "pause", marks=pytest.mark.slow),
            pytest.param("mariadb", "stop", marks=pytest.mark.slow),
            pytest.param("mariadb", "pause", marks=pytest.mark.slow),
        ],
    )
    def test_is_told_in_one_line(self, kind, how, backend_settings, settings, server, child):
        settings.DISTLOCK = backend_settings(kind, OPTIONS={"timeout": 1})
        getattr(server(kind), how)()
        for command, run, code in [(line, child(manage, *line), code) for line, code in COMMANDS]:
            assert (command, run.wait(), run.rest()) == (command, code, [])
            (said,) = run.errors.splitlines()
            # Commands that ask all backends at once wait for none of them for longer than that.
            if how == "stop" or "no answer within 2 seconds" not in said:
                assert f"database '{kind}': " in said
                assert "connect" in said
            assert "\\x" not in said

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("backend", "said_of_it", "asks_nobody"),
        [
            ("zookeeper.ZooKeeperBackend", "ZooKeeper at 127.0.0.1:1 cannot be reached", []),
            # Nothing is left to sweep there.
            (
                "etcd.EtcdBackend",
                "etcd at http://127.0.0.1:1 cannot be reached",
                ["locks", "sweep"],
            ),
        ],
        ids=["zookeeper", "etcd"],
    )
    def test_as_is_another_server(
        self, backend, said_of_it, asks_nobody, backend_settings, settings, child
    ):
        settings.DISTLOCK = {
            "default": {
                "BACKEND": f"distlock.backends.{backend}",
                "LOCATION": "127.0.0.1:1",
                "OPTIONS": {"timeout": 1},
            }
        }
        for command, run, code in [
            (line, child(manage, *line), code)
            for line, code in COMMANDS
            if line not in (["nightly"], asks_nobody)
        ]:
            assert (command, run.wait(), run.rest()) == (command, code, [])
            (said,) = run.errors.splitlines()
            assert said_of_it in said
