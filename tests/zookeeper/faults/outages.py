"""Ways in which a network breaks, and on how many servers each is tried."""

import pytest

ONE, THREE = pytest.param(1, id="one"), pytest.param(3, id="three")
THREE_SLOWLY = pytest.param(3, id="three", marks=pytest.mark.slow)

#: One test of each fault runs on three servers in the common run, too; the others take long.
everywhere = pytest.mark.parametrize("servers", [ONE, THREE], indirect=True)


def silence(network):
    network.silence()


def refuse(network):
    network.refuse()


def drop_requests(network):
    network.drop_requests()


def drop_replies(network):
    network.drop_replies()


def everywhere_once(*outages):
    """Run on one server with all of these outages, in the common run on three with the first."""
    rest = [
        pytest.param(3, outage, marks=pytest.mark.slow, id=f"three-{outage.__name__}")
        for outage in outages[1:]
    ]
    first = [
        pytest.param(number, outage, id=f"{name}-{outage.__name__}")
        for number, name in ((1, "one"), (3, "three"))
        for outage in (outages if number == 1 else outages[:1])
    ]
    return pytest.mark.parametrize(("servers", "outage"), [*first, *rest], indirect=["servers"])
