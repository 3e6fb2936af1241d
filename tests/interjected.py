"""A test's code in the middle of an operation of the package; it is no signal handler there."""

from distlock.concurrency import reentry


@reentry.calls_others
def interjected(call, *args):
    """Call what may use locks, although the caller is inside an operation of the package."""
    return call(*args)


# Only marked functions of the package itself are looked for on the stack.
reentry._in_rooms[interjected.__code__.co_filename] = True
