"""An interrupt leaves no mutex locked, wherever the interpreter may raise it.

From Python 3.13 on an interrupt can be raised where a loop goes back to its beginning, and there it
passes by the ``with`` around the loop if the last thing in the loop was a condition: CPython's
issue 130279. In a function of its own, such as a generator expression, a loop does no harm.
"""

import ast
import dis
from pathlib import Path
from types import CodeType

import distlock

PACKAGE = Path(distlock.__file__).parent


def test_no_loop_under_a_mutex_goes_back_past_it():
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in unprotected(path.read_text())
    ]
    assert not wrong


def test_such_a_loop_is_found_where_it_does_harm():
    loop = "for one in many:\n  if one:\n   print()\n"
    assert bool(unprotected(f"with mutex:\n {loop}")) == interrupts_pass_by()
    assert not unprotected("with mutex:\n found = tuple(one for one in many if one)\n")


def interrupts_pass_by():
    """Whether this interpreter compiles a conditional jump back into one that is not protected."""
    code = compile("try:\n    while a:\n        b()\nfinally:\n    c()\n", "", "exec")
    return any(unprotected_jumps(code))


def unprotected(source):
    """Return the lines under a mutex from which a loop goes back without its protection."""
    mutexes = [
        range(node.body[0].lineno, node.body[-1].end_lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With)
        if isinstance(node.items[0].context_expr, (ast.Attribute, ast.Name))
    ]
    return sorted(
        {
            line
            for code in codes(compile(source, "", "exec"))
            if code.co_name != "<genexpr>"
            for line in unprotected_jumps(code)
            if any(line in body for body in mutexes)
        }
    )


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
