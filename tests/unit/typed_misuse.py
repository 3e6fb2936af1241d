"""Misuse of the public API: mypy must find every line that is marked, and no other."""

from distlock import Lock

Lock(42)  # E: arg-type
Lock("a", "default")  # E: call-arg
Lock("a", timeout="5")  # E: arg-type
Lock("a", lease="5")  # E: arg-type
Lock("a", wait=True)  # E: call-arg


@Lock("report:{account_id}")
def report(account_id: int) -> str:
    return str(account_id)


report("seven")  # E: arg-type
report()  # E: call-arg
number: int = report(7)  # E: assignment
