"""``manage.py locks top``: what is wrong first, then the locks; at a terminal and for scripts."""

from __future__ import annotations

import signal

import pytest

from distlock.commands import output
from distlock.commands.monitoring import MANY_WAITERS
from distlock.recipes import Queue
from tests.commands.processes import hold
from tests.commands.terminal import MANAGE
from tests.contract.watch import eventually

#: Like MANAGE, but Ctrl-C reaches another thread than the one that waits at the terminal.
ELSEWHERE = (
    *MANAGE[:2],
    "import signal, threading;"
    " threading.Thread(target=threading.Event().wait, daemon=True).start();"
    f" signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); {MANAGE[2]}",
)

pytestmark = pytest.mark.once


@pytest.fixture
def wrong(run_json):
    """``wrong()``: what ``locks top`` says is wrong: a name, what it is, and a text."""

    def look():
        found = run_json("top", "--once")["problems"]
        return [(one["name"] or one["using"], one["problem"], one["text"]) for one in found]

    return look


class TestWhatIsWrong:
    def test_is_nothing_where_all_is_well(self, sqlite_only, holder, run, wrong):
        holder("stock")
        assert wrong() == []
        summary, heading, row = run("top").out.splitlines()
        assert summary.startswith("0 wrong, 1 held, 0 expired, 0 waiting  2")
        assert (heading.split()[0], row.split()[:2]) == ("NAME", ["stock", "held"])

    def test_is_a_renewal_that_was_missed(self, sqlite_only, holder, overdue, wrong):
        holder("calm", "stock")
        overdue("stock")
        ((name, problem, text),) = wrong()
        assert (name, problem) == ("stock", "missed renewal")
        assert " of 10m00s left, held by " in text

    def test_is_a_hold_whose_lease_ended_without_release(self, sqlite_only, abandoned, wrong):
        abandoned("stock")
        ((name, problem, text),) = wrong()
        assert (name, problem) == ("stock", "leaked hold")
        assert text.endswith(" has not released it")

    @pytest.mark.every_day_on("postgresql")
    @pytest.mark.parametrize("kind", ["postgresql"])
    def test_is_a_lock_that_many_wait_for(self, shared, holder, child, wrong, run_json):
        holder("calm", "stock")
        for _ in range(MANY_WAITERS):
            child(hold, "stock")
        name, problem, text = eventually(lambda: wrong() and wrong()[0])
        assert (name, problem) == ("stock", "many waiters")
        assert text.startswith("10 wait; held for ")
        assert [lock["name"] for lock in run_json("top")["locks"]] == ["stock", "calm"]

    def test_is_a_queue_with_dead_letters(self, local, wrong):
        letters = Queue("letters", max_deliveries=1)
        letters.put("to ada")
        letters.get().nack()
        assert wrong() == [("letters", "dead letters", "1 dead, 0 ready")]

    def test_is_a_backend_that_does_not_answer(self, sqlite_only, abandoned, troubled, run, wrong):
        abandoned("stock")
        assert [one[:2] for one in wrong()] == [
            ("dead", "unavailable"),
            ("mute", "unavailable"),
            ("stock", "leaked hold"),
        ]
        result = run("top")
        assert "'mute' could not be asked: no answer within 2 seconds" in result.err
        assert result.code == 1


class TestAtATerminal:
    @pytest.mark.parametrize(
        "columns", [60, *(pytest.param(wide, marks=pytest.mark.slow) for wide in (80, 140))]
    )
    def test_it_is_printed_once_if_one_says_so(self, sqlite_only, holder, terminal, columns):
        holder("stock", "x" * 564)
        once = terminal("top", "--once", columns=columns)
        assert once.end() == 0
        assert max(map(output.cells, once.lines)) <= columns
        assert "\x1b[?1049h" not in once.printed

    @pytest.mark.timeout(150)
    def test_it_is_live_and_fits_its_window(self, sqlite_only, holder, terminal):
        first = holder("stock")
        live = terminal("top", "--every", "0.2", columns=60, rows=10)
        live.see("0 wrong, 1 held")
        holder("x" * 564, *(f"report:{number}" for number in range(20)))
        live.see("22 held")
        live.resize(140, 40)
        live.see("report:19")
        live.see("TOKEN")
        first.tell()
        live.see("21 held")
        live.type("q")
        assert live.end() == 0
        assert live.restored

    @pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
    def test_it_ends_and_leaves_the_terminal_as_it_was(self, sqlite_only, terminal, how):
        live = terminal("top", "--every", "60")
        live.see("0 wrong")
        assert not live.restored
        if how == "Ctrl-C":
            live.type("\x03")
        else:
            live.process.send_signal(signal.SIGTERM)
        assert live.end() == 0
        assert live.restored
        assert "\x1b[?1049l" in live.printed[-100:]
        assert "Traceback" not in live.printed

    def test_a_signal_that_interrupts_no_wait_ends_it(self, sqlite_only, terminal):
        """Such as one that comes just before the wait, or to another thread."""
        live = terminal("top", "--every", "9999", program=(*ELSEWHERE, "locks"))
        live.see("0 wrong")
        live.type("\x03")
        assert live.end() == 0

    def test_a_pause_may_be_of_months(self, sqlite_only, terminal):
        live = terminal("top", "--every", "9999999")
        live.see("0 wrong")
        live.type("q")
        assert live.end() == 0

    def test_a_silent_backend_keeps_nothing_from_being_seen(
        self, sqlite_only, holder, troubled, terminal
    ):
        holder("stock")
        live = terminal("top", "--every", "0.2")
        live.see("2 wrong, 1 held")
        holder("report:7")
        live.see("2 wrong, 2 held")
        live.type("q")
        assert live.end() == 0

    def test_a_terminal_that_can_do_nothing_is_refused_with_what_to_say(self, local, terminal):
        live = terminal("top", env={"TERM": "dumb-as-a-post"})
        assert live.end() == 1
        assert "this terminal cannot show it" in "".join(live.lines)
        assert "use --once" in "".join(live.lines)


@pytest.mark.parametrize("every", ["0", "soon", "-1"])
def test_a_pause_that_makes_no_sense_is_refused(local, run, every):
    assert "must be a number of seconds > 0" in run("top", f"--every={every}").err
