"""``manage.py locks release NAME --token N``"""

from __future__ import annotations

import os
import socket
from io import StringIO
from types import SimpleNamespace

import pytest
from django.core.management import call_command

from distlock import Lock
from distlock.conf import locks
from distlock.signals import lock_broken
from distlock.types.lease import State
from tests.commands.processes import hold_until_lost

#: what is asked, and what is taken for a yes, has nothing to do with the engine
on_one_engine = pytest.mark.parametrize("kind", ["sqlite"])


class TestWithoutAQuestion:
    def test_breaks_the_hold_and_says_whose(self, local, run, taken):
        lock = taken("stock")[0]
        token = lock.token
        result = run("release", "stock", "--token", str(token), "--yes")
        assert (result.code, result.err) == (0, "")
        assert f"by {socket.gethostname()}:{os.getpid()}:MainThread since" in result.out
        assert "may still be working" in result.out
        assert not lock.held
        assert local.inspect("stock").state is State.FREE

    def test_says_whether_the_holder_is_told(self, local, run, taken):
        learns = {True: "learns of it when it next renews", False: "does not learn of it"}
        for renew, said in learns.items():
            (lock,) = taken(f"stock:{renew}", renew=renew)
            assert said in run("release", lock.name, "--token", str(lock.token), "--yes").out

    def test_sends_the_signal(self, local, run, taken):
        token = taken("stock")[0].token
        told = []

        def receive(sender, lease, using, **kwargs):
            told.append((lease.name, lease.token, using))

        lock_broken.connect(receive)
        try:
            run("release", "stock", "--token", str(token), "--yes")
        finally:
            lock_broken.disconnect(receive)
        assert told == [("stock", token, "default")]

    def test_is_felt_by_the_holder(self, shared, run, child):
        process = child(hold_until_lost, "stock")
        token = process.line()
        assert run("release", "stock", "--token", token, "--yes").code == 0
        assert process.line() == f"lost {token}"

    def test_lets_the_next_one_in(self, shared, run, holder):
        token = holder("stock").tokens[0]
        assert run("release", "stock", f"--token={token}", "--yes").code == 0
        with Lock("stock", on_busy="raise") as lock:
            assert lock.token > token

    def test_breaks_an_expired_hold_too(self, shared, run, abandoned):
        (token,) = abandoned("stock")
        result = run("release", "stock", f"--token={token}", "--yes")
        assert (result.code, "is expired by" in result.out) == (0, True)
        assert locks["default"].inspect("stock").state is State.FREE


class TestAnotherHold:
    def test_is_left_alone(self, shared, run, holder):
        token = holder("stock").tokens[0]
        for other in (token - 1, token + 1, 0):
            result = run("release", "stock", f"--token={other}", "--yes")
            assert (result.out, result.code) == ("", 3)
            assert f"is not held under token {other}; on default it is held by" in result.err
            assert f"under token {token}" in result.err
        assert shared.inspect("stock").state is State.HELD

    def test_of_another_name_is_left_alone(self, shared, run, holder):
        process = holder("a", "b")
        assert run("release", "b", f"--token={process.tokens[0]}", "--yes").code == 3
        assert shared.inspect("b").state is State.HELD

    def test_that_is_gone_is_not_found(self, shared, run, holder):
        process = holder("stock")
        process.tell()
        process.finish()
        result = run("release", "stock", f"--token={process.tokens[0]}", "--yes")
        assert (result.code, "it is free" in result.err) == (3, True)

    @pytest.mark.slow
    def test_that_takes_over_during_the_question_is_left_alone(self, shared, holder, process):
        first = holder("stock")
        asking = process("release", "stock", f"--token={first.tokens[0]}", typed="")
        while "may still be working" not in asking.line():
            pass
        first.tell()
        first.finish()
        second = holder("stock")
        asking.tell("y")
        assert asking.wait() == 3
        assert shared.inspect("stock").token == second.tokens[0]


class TestTheQuestion:
    @on_one_engine
    @pytest.mark.parametrize("answer", ["y\n", "YES\n", " yes \n"])
    def test_answered_with_yes_breaks_the_hold(self, shared, holder, process, answer):
        token = holder("stock").tokens[0]
        asking = process("release", "stock", f"--token={token}", typed=answer)
        assert asking.wait() == 0
        assert shared.inspect("stock").state is State.FREE

    @on_one_engine
    @pytest.mark.parametrize("answer", ["\n", "n\n", "ja\n", "\x04"])
    def test_answered_otherwise_does_nothing(self, shared, holder, process, answer):
        token = holder("stock").tokens[0]
        asking = process("release", "stock", f"--token={token}", typed=answer)
        assert asking.wait() == 4
        assert "nothing was done" in asking.errors
        assert shared.inspect("stock").state is State.HELD

    def test_interrupted_does_nothing(self, local, run, taken, monkeypatch):
        def interrupted(prompt):
            raise KeyboardInterrupt

        lock = taken("stock")[0]
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("builtins.input", interrupted)
        assert run("release", "stock", f"--token={lock.token}").code == 4
        assert lock.held

    @pytest.mark.parametrize("option", ["--yes", "--no-input", "--noinput"])
    def test_is_not_asked_of_scripts(self, local, run, taken, option):
        lock = taken("stock")[0]
        assert run("release", "stock", f"--token={lock.token}", option).code == 0
        assert not lock.held

    def test_is_not_asked_of_code_that_says_so_as_to_django(self, local, taken):
        lock = taken("stock")[0]
        call_command(
            "locks", "release", "stock", token=lock.token, interactive=False, stdout=StringIO()
        )
        assert not lock.held

    @on_one_engine
    def test_needs_a_terminal(self, shared, holder, process):
        token = holder("stock").tokens[0]
        asking = process("release", "stock", f"--token={token}")
        assert asking.wait() == 2
        assert "--yes" in asking.errors
        assert shared.inspect("stock").state is State.HELD


class TestSeveralBackends:
    @pytest.fixture
    def twins(self, settings, backend_settings):
        """Two aliases of one table: every hold is seen on both."""
        settings.DISTLOCK = {
            **backend_settings("sqlite"),
            **backend_settings("sqlite", alias="twin"),
        }
        yield
        locks.close_all()

    def test_are_told_apart_by_the_token(self, settings, backend_settings, run, taken):
        settings.DISTLOCK = {**backend_settings("local"), **backend_settings("local", alias="b")}
        first, second = taken("stock")[0], taken("stock", using="b")[0]
        assert run("release", "stock", f"--token={second.token}", "--yes").code == 0
        assert (first.held, second.held) == (True, False)

    def test_with_the_same_hold_must_be_chosen_from(self, twins, run, taken):
        token = taken("stock")[0].token
        result = run("release", "stock", f"--token={token}", "--yes")
        assert (result.out, result.code) == ("", 2)
        assert "'stock' on 'default', 'stock' on 'twin'; choose one with --using" in result.err
        result = run("release", "stock", f"--token={token}", "--yes", "--using=twin")
        assert result.code == 0

    def test_that_cannot_be_asked_do_not_stand_in_the_way(
        self, settings, backend_settings, run, taken
    ):
        settings.DISTLOCK = {**backend_settings("local"), "wrong": {"BACKEND": "nowhere.Backend"}}
        token = taken("stock")[0].token
        assert run("release", "stock", f"--token={token}", "--yes").code == 0
        result = run("release", "stock", f"--token={token}", "--yes")
        assert (result.code, "'wrong' could not be asked" in result.err) == (1, True)


@pytest.mark.parametrize("token", ["", "x", "-1", "1.0", "١", "1 2"])
def test_what_can_be_no_token_is_refused(local, run, token):
    result = run("release", "stock", f"--token={token}", "--yes")
    assert (result.code, "--token: must be a whole number" in result.err) == (1, True)


def test_the_token_must_be_given(local, run):
    assert "--token" in run("release", "stock", "--yes").err
