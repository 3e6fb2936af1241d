"""A test run with a server and a child process; not collected by itself, it is run to be ended."""

from tests.children import read_line, write_line


def wait_for_the_end():
    write_line("here")
    read_line()


def test_it_runs_until_it_is_ended(postgresql, child):
    process = child(wait_for_the_end)
    process.line()
    write_line("running", postgresql.folder, process.pid, *postgresql.pids())
    read_line()
