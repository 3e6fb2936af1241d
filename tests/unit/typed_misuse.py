"""Misuse of the public API: mypy must find every line that is marked, and no other."""

from distlock import Lock
from distlock.celery import LockedTask, locked_task

Lock(42)  # E: arg-type
Lock("a", "default")  # E: call-arg
Lock("a", timeout="5")  # E: arg-type
Lock("a", lease="5")  # E: arg-type
Lock("a", wait=True)  # E: call-arg
Lock("a", on_busy="retry")  # E: arg-type


@Lock("report:{account_id}")
def report(account_id: int) -> str:
    return str(account_id)


report("seven")  # E: arg-type
report()  # E: call-arg
number: int = report(7)  # E: assignment


@locked_task(lock="report:{account_id}")
def queued(account_id: int) -> str:
    return str(account_id)


@locked_task(bind=True, lock="report:{account_id}")
def bound(self: LockedTask, account_id: int) -> str:
    return str(account_id)


queued.delay("seven")  # E: arg-type
queued()  # E: call-arg
bound.delay(7, 8)  # E: call-arg
bound.delay_on_commit(account="7")  # E: call-arg
count: int = queued(7)  # E: assignment
locked_task(lock="a", on_busy="never")  # E: arg-type
locked_task(lock="a", on_lost="continue")  # E: arg-type
locked_task(queueing_lock="a", until="later")  # E: arg-type
locked_task(queueing_lock="a", on_queued="skip")  # E: arg-type
locked_task(lock="a", slots="3")  # E: arg-type
locked_task(lock="a", slots=1.5)  # E: arg-type
locked_task(lock=7)  # E: arg-type
locked_task(queued)  # E: arg-type
