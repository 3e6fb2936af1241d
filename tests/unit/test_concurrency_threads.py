"""What our own threads log with: an error of the log is printed, and ends none of them."""

import logging
import threading

import pytest

from distlock.concurrency.threads import thread_logger


def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_an_error_of_the_log_is_printed(failing_log, capsys):
    over = []
    in_thread(lambda: over.append(thread_logger.warning("a line")))
    assert over
    assert failing_log in capsys.readouterr().err


def test_it_is_not_printed_where_logging_prints_none(failing_log, capsys, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    in_thread(lambda: thread_logger.warning("a line"))
    printed = capsys.readouterr()
    assert not printed.out
    assert not printed.err


def test_it_is_not_printed_elsewhere_where_there_is_no_stderr(failing_log, capsys, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", None)
        in_thread(lambda: thread_logger.warning("a line"))
    assert not capsys.readouterr().out


def test_ctrl_c_in_the_main_thread_is_not_kept_from_it():
    """Where no thread can be had, the main thread does what is another's work."""

    def interrupt(record):
        raise KeyboardInterrupt

    logger = logging.getLogger("distlock")
    logger.addFilter(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread_logger.warning("a line")
    finally:
        logger.removeFilter(interrupt)


def test_a_line_says_where_it_was_written(caplog):
    thread_logger.warning("a line")
    thread_logger.log(logging.WARNING, "another line")
    names = [record.funcName for record in caplog.records]
    assert names == ["test_a_line_says_where_it_was_written"] * 2
