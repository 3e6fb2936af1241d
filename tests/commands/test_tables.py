"""Tables fit a terminal, and are whole where there is none."""

from __future__ import annotations

import pytest

from distlock.commands import output
from distlock.commands.output import GAP, WIDEST, cells, cut, iter_lines, table_lines

HEADING = ("NAME", "STATE", "OWNER", "NOTE")
ROWS = [("stock", "held", "web-1:812:MainThread", "-"), ("x" * 564, "held", "web-2:7:A", "-")]


class TestWithoutATerminal:
    def test_columns_are_aligned(self):
        assert table_lines(("N", "V"), [("a", "x"), ("abc", "z")]) == ["N    V", "a    x", "abc  z"]

    def test_nothing_is_printed_without_rows(self):
        assert table_lines(("N",), []) == []

    def test_a_long_value_is_whole_and_shifts_only_its_own_row(self):
        heading, short, long = table_lines(HEADING, ROWS)
        assert heading.index("STATE") == short.index("held") == WIDEST + len(GAP)
        assert long.startswith("x" * 564 + GAP + "held")


class TestOnATerminal:
    @pytest.mark.parametrize("width", [*range(1, 30), 60, 80, 140, 700])
    def test_no_line_is_wider(self, width):
        for rows in (ROWS, [("锁" * 564, "🔒", "e\u0301" * 90, "x" * 1024), *ROWS]):
            lines = table_lines(HEADING, rows, width)
            assert len(lines) == len(rows) + 1
            assert max(map(cells, lines)) <= width

    def test_columns_are_aligned_also_under_wide_characters(self):
        rows = [("锁锁", "1"), ("abc", "2"), ("e\u0301", "3")]
        assert table_lines(("N", "V"), rows, 60) == [
            "N     V",
            "锁锁  1",
            "abc   2",
            "e\u0301     3",
        ]

    def test_a_long_name_is_cut_in_the_middle_so_that_both_ends_are_seen(self):
        rows = [(f"report:{'customer:' * 20}{number}", "held", "o", "-") for number in (17, 18)]
        lines = table_lines(HEADING, rows, 60)
        assert [line.split()[0].startswith("report:") for line in lines[1:]] == [True, True]
        assert [line.split()[0][-2:] for line in lines[1:]] == ["17", "18"]

    def test_where_it_is_narrow_what_says_the_same_in_each_row_goes_first(self):
        owners = [
            ("a", "held", "web-1:812:MainThread", "x" * 30),
            ("b", "held", "b" * 40, "y" * 30),
        ]
        (heading, *_) = table_lines(HEADING, owners, 42, ("NOTE", "STATE"))
        assert heading.split() == ["NAME", "OWNER", "NOTE"]

    def test_and_then_what_matters_least(self):
        owners = [
            ("a", "held", "web-1:812:MainThread", "x" * 30),
            ("b", "free", "b" * 40, "y" * 30),
        ]
        (heading, *_) = table_lines(HEADING, owners, 30, ("NOTE", "STATE"))
        assert heading.split() == ["NAME", "STATE", "OWNER"]

    def test_what_there_is_room_for_is_whole(self):
        heading, row = table_lines(HEADING, ROWS[:1], 60, HEADING)
        assert (heading.split(), row.split()) == ([*HEADING], [*ROWS[0]])


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("abcd", 1, "…"),
        ("锁锁锁", 4, "锁…"),
        ("锁锁锁", 3, "锁…"),
    ],
)
def test_a_text_is_cut_to_columns_of_the_terminal(text, width, short):
    assert cut(text, width) == short


@pytest.mark.parametrize(("width", "short"), [(7, "abc…xyz"), (6, "abc…yz"), (2, "a…"), (1, "…")])
def test_a_text_may_keep_both_ends(width, short):
    assert cut("abcdefuvwxyz", width, middle=True) == short


def test_a_long_table_is_written_as_its_rows_come(monkeypatch):
    monkeypatch.setattr(output, "AT_ONCE", 2)
    read = []

    def rows():
        for row in [("a", "1"), ("bb", "2"), ("c", "3"), ("dddd", "4"), ("e", "5")]:
            read.append(row[0])
            yield row

    lines = iter_lines(("N", "V"), rows())
    assert [next(lines), next(lines), next(lines)] == ["N   V", "a   1", "bb  2"]
    assert read == ["a", "bb"]
    assert next(lines) == "c   3"
    assert read == ["a", "bb", "c"]
    assert [*lines] == ["dddd  4", "e   5"]
