"""A test run with a server and a child process; not collected by itself, it is run to be ended."""

from tests.children import hear, say


def wait_for_the_end():
    say("here")
    hear()


def test_it_runs_until_it_is_ended(postgresql, child):
    process = child(wait_for_the_end)
    process.line()
    say("running", postgresql.folder, process.pid, *postgresql.pids())
    hear()
