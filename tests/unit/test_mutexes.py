"""An interrupt leaves no mutex locked, and nothing half done, wherever the interpreter raises it.

From Python 3.13 on an interrupt can be raised where a loop goes back to its beginning, and there it
passes by the ``with`` or ``try`` around the loop if the last thing in the loop was a condition:
CPython's issue 130279. In a function of its own, such as a generator expression, a loop does no
harm.
"""

import ast
import dis
import re
from pathlib import Path
from types import CodeType

import distlock
from distlock.concurrency import reentry

PACKAGE = Path(distlock.__file__).parent
#: Functions that run on threads of the package or in its programs, which no interrupt reaches; or
#: in which one does no harm there.
UNHARMED = {
    "RecordListener.listen",
    "RenewalSteps.add",
    "Waiter.run",
    "Watchdog._reap",
    "Watches._follow",
    "_Alarm.wait",
    "_free_without_holder",
    "_leave_to_parent",
    "send_loss",
}

#: Crashes without the GIL before Python 3.14; no promise that two threads get different numbers.
UNSAFE = {("collections", "OrderedDict"), ("itertools", "count")}


def test_no_loop_goes_back_past_what_cleans_up_after_it():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in unprotected(path.read_text())
    ]
    assert not wrong


def test_a_module_that_takes_a_mutex_is_known_to_those_who_refuse_reentry():
    """In a signal handler, nothing else can be begun while it is taken below."""
    unknown = [
        module
        for path in sorted(PACKAGE.rglob("*.py"))
        if re.search(r"threading\.Lock\(|Semaphore\(\)|Condition\(", path.read_text())
        if not reentry._is_in(module := dotted(path), reentry.ROOMS)
    ]
    assert not unknown


def test_nothing_is_used_that_is_only_safe_with_the_gil():
    """See "Without a mutex" in docs/architecture.md. Two equal numbers would be one owner."""
    used = [
        f"{path.relative_to(PACKAGE)}: {node.module}.{name.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if (node.module, name.name) in UNSAFE
    ]
    counting = [path for path in PACKAGE.rglob("*.py") if "itertools.count" in path.read_text()]
    assert not used
    assert not counting


def dotted(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def test_such_a_loop_is_found_where_it_does_harm():
    loop = "for one in many:\n  if one:\n   print()\n"
    assert bool(unprotected(f"with mutex:\n {loop}")) == interrupts_pass_by()
    assert bool(unprotected(f"try:\n {loop}finally:\n print()")) == interrupts_pass_by()
    assert not unprotected("with mutex:\n found = tuple(one for one in many if one)\n")


def interrupts_pass_by():
    """Whether this interpreter compiles a conditional jump back into one that is not protected."""
    code = compile("try:\n    while a:\n        b()\nfinally:\n    c()\n", "", "exec")
    return any(unprotected_jumps(code))


def unprotected(source):
    """Return the lines under a `with` or a `try` from which a loop goes back without it."""
    protected = [
        range(node.body[0].lineno, node.body[-1].end_lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With) or (isinstance(node, ast.Try) and cleans_up(node))
    ]
    return sorted(
        {
            line
            for code in codes(compile(source, "", "exec"))
            if code.co_name != "<genexpr>" and code.co_qualname not in UNHARMED
            for line in unprotected_jumps(code)
            if any(line in body for body in protected)
        }
    )


def cleans_up(node):
    """Whether a `try` has something to do after an interrupt."""
    caught = [ast.unparse(handler.type) if handler.type else "" for handler in node.handlers]
    return bool(node.finalbody) or any(name in ("", "BaseException") for name in caught)


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def unprotected_jumps(code):
    """Yield the lines of jumps back that no handler protects, while what is before them has one."""
    handlers = dis.Bytecode(code).exception_entries

    def protected(instruction):
        return any(entry.start <= instruction.offset < entry.end for entry in handlers)

    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "JUMP_BACKWARD" and before and not protected(instruction):
            yield before.positions.lineno
        if not instruction.opname.startswith("POP_JUMP"):
            before = instruction if protected(instruction) else None
