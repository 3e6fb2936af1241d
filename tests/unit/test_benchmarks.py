"""The benchmarks compare fairly, and say what they have found: what needs no server of theirs."""

import importlib
import time
from contextlib import contextmanager
from dataclasses import asdict

import pytest

from benchmarks import __main__ as command
from benchmarks import contention, harness, report
from benchmarks.contention import Limits
from benchmarks.harness import Block, Plan, Row, Side, Table
from benchmarks.lock_peers import LockPeer
from benchmarks.servers import LocalPlace

pytestmark = pytest.mark.once


def side(name, seconds=0.001, fails=False):
    """A side whose cycle waits for so long, or that cannot work."""

    @contextmanager
    def make(place):
        if fails:
            raise ImportError("no module named peer")
        yield lambda: time.sleep(seconds)

    return Side(name, make, "its settings")


@pytest.fixture
def rows(tmp_path):
    compared = [side("distlock", 0.004), side("peer", 0.001), side("missing", fails=True)]
    return harness.turns(compared, LocalPlace(str(tmp_path)), Plan(rounds=5, seconds=0.05))


def test_a_ratio_compares_the_first_side_with_each(rows):
    ours, peer, _ = rows
    assert ours.ratio == (1.0, 1.0, 1.0)
    assert peer.ratio[0] < 0.8


def test_a_side_that_cannot_work_is_left_out_with_its_reason(rows):
    assert rows[2].left_out == "not installed: no module named peer"
    text = report.markdown(asdict(Table("A case", "cycles", rows)))
    assert "Left out: missing (not installed: no module named peer)." in text
    assert "| peer |" in text and "| missing |" not in text


def test_sides_are_first_and_last_equally_often():
    orders = [harness.alternated(["a", "b", "c"], number) for number in range(6)]
    assert sorted(order[0] for order in orders) == ["a", "a", "b", "b", "c", "c"]
    assert sorted(order[-1] for order in orders) == ["a", "a", "b", "b", "c", "c"]


def test_ratios_are_those_of_one_round():
    ours = [Block(100, 1.0, 0.1), Block(10, 1.0, 0.1)]  # the machine was busy in the second round
    theirs = [Block(50, 1.0, 0.1), Block(5, 1.0, 0.1)]
    assert harness.ratios(ours, theirs) == (2.0, 2.0, 2.0)


def test_a_table_tells_how_much_more_a_client_uses_than_another():
    rows = [Row("distlock", client=100.0), Row("bare", client=40.0)]
    text = report.markdown(asdict(Table("A case", "cycles", rows)))
    assert "| client µs | client ÷ its |" in text
    assert "| distlock | 100 | 1 |" in text and "| bare | 40.0 | 2.5 |" in text


def test_the_page_gets_the_tables_of_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write", lambda results, pictures: None)
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- locks -->\nold\n<!-- end -->\n\nAfter.\n")
    table = Table("PostgreSQL: a case", "cycles", [Row("distlock", rate=(1.0, 2.0, 3.0))], plot="")
    results = {"parts": {"locks": {"tables": [asdict(table)]}}}
    report.publish(results, page, tmp_path)
    text = page.read_text()
    assert text.startswith("Before.\n") and text.endswith("\nAfter.\n")
    assert "### PostgreSQL: a case" in text and "| distlock | 2.00 |" in text and "old" not in text


@pytest.mark.parametrize("part", command.PARTS)
def test_a_part_needs_no_peer_before_it_is_measured(part):
    assert callable(importlib.import_module(f"benchmarks.{part}").measure)


def test_the_page_has_a_place_for_each_part():
    for part in ["about", *command.PARTS]:
        assert f"<!-- {part} -->" in report.PAGE.read_text()


def test_turns_are_counted_when_each_process_has_had_one(tmp_path):
    """A first wait may connect again, which takes long on a slow machine."""

    class Locks:
        pauses = iter([0.0, 3 * contention.WARM_UP])

        @contextmanager
        def hold(self):
            time.sleep(next(self.pauses, 0.001))
            yield

    @contextmanager
    def make(place):
        yield Locks()

    peer = LockPeer(make, "", exclusive=False)
    done = contention.crowd(peer, LocalPlace(str(tmp_path)), 2, Limits(0.3))
    assert all(member.turns for member in done.members)
