"""Interrupts a call at each moment at which Python would deliver a signal."""

import dis
import functools
import sys
from pathlib import Path

import distlock

PACKAGE = str(Path(distlock.__file__).parent)
#: After these the interpreter looks for signals (``CHECK_EVAL_BREAKER`` in ceval.c).
STOPS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}


def interrupted(call, moment):
    """Run ``call`` with a KeyboardInterrupt at the given moment; False if it ended before."""
    passed = 0
    last = {}

    def trace(frame, event, arg):
        nonlocal passed
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            here = frame.f_lasti
            before = last.get(frame)
            last[frame] = here
            if before is not None and stops(frame.f_code, before, here):
                passed += 1
                if passed == moment:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(outer)
    return False


def stops(code, before, here):
    """Whether a signal can arrive between two instructions, seen by the same handler."""
    return dis.opname[code.co_code[before]] in STOPS and (
        handler(code, before) == handler(code, here)
    )


@functools.cache
def handlers(code):
    return dis._parse_exception_table(code)


def handler(code, at):
    return next((entry.target for entry in handlers(code) if entry.start <= at < entry.end), None)
