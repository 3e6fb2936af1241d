"""What the command prints is safe on a terminal and easy to read."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

import pytest

from distlock.commands import output
from distlock.types.values import quoted


class TestQuoted:
    @pytest.mark.parametrize(
        "name", ["stock", "a b", "<b>", "Straße", "锁", "🔒", "it's", 'a"b', "a\\b", "$x", "x;y"]
    )
    def test_a_name_that_prints_is_left_alone(self, name):
        assert quoted(name) == name

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("a\x1b[2Jb", r"$'a\x1b[2Jb'"),
            ("a\nb", r"$'a\x0ab'"),
            ("a\u202eb", r"$'a\u202eb'"),
            ("a\u2066b", r"$'a\u2066b'"),
            ("a\u200bb", r"$'a\u200bb'"),
            ("a\u00a0b", r"$'a\u00a0b'"),
            ("a\u2028b", r"$'a\u2028b'"),
            ("a\U000e0041b", r"$'a\U000e0041b'"),
            ("a\ud800b", r"$'a\ud800b'"),
            ("it's\t\\", r"$'it\'s\x09\\'"),
            ("stock  held", "$'stock  held'"),
            ("$'x'", r"$'$\'x\''"),
        ],
    )
    def test_what_does_not_print_is_shown_as_an_escape(self, name, shown):
        assert quoted(name) == shown
        assert shown.isprintable()

    @pytest.mark.parametrize(
        "name", ["a\x1b[2Jb", "a\u00a0b", "a\u202eb", "a\U000e0041b", "it's\t\\", "$'x'"]
    )
    def test_bash_reads_it_as_the_name(self, name):
        shell = f"printf %s {quoted(name)}"
        printed = subprocess.run(
            ["bash", "-c", shell], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
        ).stdout
        assert printed.decode() == name


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (-3.0, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (192, "3m12s"),
        (3600 * 2 + 60 * 5 + 7, "2h05m"),
        (86400 * 400 + 3600, "400d01h"),
    ],
)
def test_durations_have_two_units(seconds, shown):
    assert output.duration(seconds) == shown


def test_moments_tell_their_offset(settings):
    settings.TIME_ZONE = "Asia/Kathmandu"
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert output.moment(when) == "2026-01-02 08:49:05+05:45"
    assert output.moment(None) == "-"
