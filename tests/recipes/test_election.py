"""Elections: who leads, who is next, and what is told of both; on all kinds of backends."""

import asyncio
import threading

import pytest

from distlock import (
    Lock,
    LockError,
    LockLost,
    LockNotHeld,
    NotSupported,
    ValueNotAgreed,
    locks,
)
from distlock.recipes import Election
from distlock.recipes.candidates import Candidates
from tests.contract.actors import PATIENCE
from tests.contract.watch import eventually, passed
from tests.recipes.every_kind import pytest_generate_tests  # noqa: F401 - pytest calls it
from tests.recipes.standing import names, terms
from tests.recipes.wrapping import in_thread


class TestOrder:
    def test_leadership_goes_from_a_to_b_to_c(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b, c = stand("B"), stand("C")
        look = Election(name, using=using)
        assert names(look) == ["A", "B", "C"]
        assert look.leader().name == "A"
        assert look.leader().term == a.election.term
        assert look.leader().owner.pid
        first = a.election.term
        a.election.resign()
        eventually(b.leads)
        assert not a.leads()
        assert not c.leads()
        second = b.election.term
        assert second > first
        b.election.resign()
        eventually(c.leads)
        assert c.election.term > second
        c.election.verify()
        c.election.resign()
        assert look.leader() is None
        assert terms(look) == [("A", "resigned"), ("B", "resigned"), ("C", "resigned")]
        assert [one.term for one in look.history()][1:] == [second, first]

    def test_succession_goes_by_priority_and_evicts_nobody(self, using, name, stand):
        a = stand("A", order="succession", priority=1)
        eventually(a.leads)
        stand("B", order="succession", priority=5)
        c = stand("C", order="succession", priority=9)
        look = Election(name, using=using)
        assert names(look) == ["C", "B", "A"]
        assert a.leads()
        assert look.leader().name == "A"
        a.election.resign()
        eventually(c.leads)
        assert look.leader().priority == 9

    def test_a_leader_is_named_by_hand(self, using, name, stand):
        a, b = stand("A", order="appointed"), stand("B", order="appointed")
        look = Election(name, using=using)
        assert look.leader() is None
        look.appoint("B")
        eventually(b.leads)
        look.appoint("A")
        eventually(lambda: b.told)
        assert not b.leads()
        with pytest.raises(LockLost):
            b.election.check()
        b.election.resign()
        eventually(a.leads)
        assert not b.leads()
        assert look.info().appointed == "A"
        assert terms(look) == [("B", "stepped down"), ("A", "")]

    def test_who_resigns_says_who_is_next(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b, c = stand("B"), stand("C")
        with pytest.raises(LockError, match="'D' does not stand"):
            a.election.resign("D")
        assert a.leads()
        a.election.resign("C")
        eventually(c.leads)
        again = stand("A")
        assert not b.leads()
        c.election.resign()
        eventually(b.leads)
        assert not again.leads()

    def test_who_was_named_leads_before_one_who_waits_for_the_lock_already(
        self, using, name, stand
    ):
        a = stand("A", order="succession", priority=1)
        eventually(a.leads)
        b = stand("B", order="succession", priority=9)
        c = stand("C", order="succession", priority=5)
        a.election.resign("C")
        eventually(c.leads)
        assert not b.leads()
        c.election.resign()
        eventually(b.leads)
        assert [one for one, _ in terms(b.election)] == ["A", "C", "B"]

    @pytest.mark.parametrize(("order", "other"), [("succession", "first"), ("first", "appointed")])
    def test_all_who_stand_have_the_same_order(self, using, name, stand, order, other):
        a = stand("A", order=order)
        with pytest.raises(ValueNotAgreed, match=f"^order='{other}': .* has order='{order}' for"):
            Election(name, "B", order=other, using=using).campaign(blocking=False)
        assert names(a.election) == ["A"]
        assert a.election.info().order == order

    def test_a_leader_is_asked_to_step_down(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b = stand("B")
        look, term = Election(name, using=using), a.election.term
        assert not look.step_down(term + 1)
        assert look.step_down(term)
        eventually(lambda: a.told)
        assert a.told[0].token == term
        assert not a.leads()
        assert not b.leads()  # it has not resigned yet
        a.election.resign()
        eventually(b.leads)
        assert not look.step_down(term)

    @pytest.mark.brief
    @pytest.mark.every_day_on("local", "postgresql")
    def test_one_who_was_asked_to_step_down_and_does_not_is_resigned(self, name, stand):
        a = stand("A")
        eventually(a.leads)
        b = stand("B")
        b.election.step_down(a.election.term)
        eventually(b.leads)
        assert not a.leads()
        with pytest.raises(LockLost, match="asked to step down"):
            a.election.resign()
        assert terms(b.election) == [("A", "stepped down"), ("B", "")]

    def test_a_leader_whose_lock_is_broken_is_told_and_the_next_one_leads(self, using, name, stand):
        a = stand("A")
        eventually(a.leads)
        b = stand("B")
        look, term = Election(name, using=using), a.election.term
        assert not look.force_release(term + 1)
        assert look.force_release(term)
        eventually(b.leads)
        assert not a.leads()
        eventually(lambda: a.told)
        with pytest.raises(LockLost):
            a.election.resign()
        assert terms(look) == [("A", "broken"), ("B", "")]
        assert names(look) == ["B"]
        stand("A")
        assert names(look) == ["B", "A"]

    def test_who_broke_a_term_may_write_that_down_in_the_next_one(
        self, using, name, stand, monkeypatch
    ):
        """Nobody queues for the lock of the leader then, where who dies keeps others out."""
        a = stand("A", order="succession")
        eventually(a.leads)
        b, ending = stand("B", order="succession"), Candidates.ending

        def late(found, term, why):
            if why != "broken" or b.leads():
                return ending(found, term, why)
            eventually(b.leads)
            return ending(Candidates(locks[using].store.read(f"election:{name}")), term, why)

        monkeypatch.setattr(Candidates, "ending", late)
        assert Election(name, using=using).force_release(a.election.term)
        assert terms(b.election) == [("A", "broken"), ("B", "")]
        c = stand("C", order="succession", priority=1)
        passed(0.3)
        assert not Lock(f"election:{name}", using=using).info().waiters
        b.election.resign()
        eventually(c.leads)


class TestOneObject:
    def test_run_leaves_alone_who_leads_already(self, using, name):
        with Election(name, using=using) as election:
            with pytest.raises(LockError, match="leads already"):
                election.run(pytest.fail)
            election.verify()

    def test_of_two_tasks_one_stands(self, using, name):
        async def main():
            await election.acampaign()
            await election.astep_down(election.term)
            eventually(lambda: not election.leading)
            ends = await asyncio.gather(*(stand() for _ in range(2)))
            assert election.leading
            await election.aresign()
            return ends

        async def stand():
            try:
                return await election.acampaign(timeout=PATIENCE)
            except LockError as error:
                return str(error)

        election = Election(name, using=using)
        won, refused = asyncio.run(main())
        assert won is True
        assert "stands already" in refused


class TestCrowd:
    def test_one_leads_at_a_time_whoever_comes_and_goes(self, using, name):
        alone, terms, rounds = threading.Lock(), [], 3

        def lead(election):
            assert alone.acquire(blocking=False), "two lead at the same time"
            terms.append(election.term)
            alone.release()

        def stand(number):
            for _ in range(rounds):
                election = Election(name, using=using, order="succession", priority=number % 2)
                election.run(lead, election)

        done = [in_thread(stand, number) for number in range(5)]
        assert [one() for one in done] == [None] * 5
        assert len(terms) == len(set(terms)) == 5 * rounds
        assert terms == sorted(terms)


class TestTasks:
    def test_tasks_lead_one_after_the_other(self, using, name):
        async def lead(candidate, led):
            async def work():
                led.append((candidate, elections[candidate].term))
                await asyncio.sleep(0)
                return candidate

            return await elections[candidate].arun(work)

        async def main():
            led = []
            done = await asyncio.gather(*(lead(candidate, led) for candidate in "ABC"))
            assert done == ["A", "B", "C"]
            assert len({term for _, term in led}) == 3
            look = Election(name, using=using)
            assert sorted(one.candidate for one in await look.ahistory()) == ["A", "B", "C"]
            seen = [one async for one in look.achanges(timeout=0)]
            assert seen == []
            assert await look.aleader() is None
            async with look:
                await look.averify()
                assert [one.name for one in await look.acandidates()] == [look.candidate]
            assert not look.leading

        elections = {one: Election(name, one, using=using) for one in "ABC"}
        asyncio.run(main())


class TestChanges:
    def test_each_beginning_and_each_end_is_told_once_and_in_order(self, using, name, stand):
        told, ready = [], threading.Event()

        def follow():
            ready.set()
            for term in Election(name, using=using).changes(timeout=PATIENCE):
                told.append((term.candidate, term.why))
                if len(told) == 5:
                    return

        a = stand("A")
        eventually(a.leads)
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        eventually(lambda: told)
        b = stand("B")
        a.election.resign()
        eventually(b.leads)
        b.election.resign()
        c = stand("C")
        eventually(c.leads)
        thread.join(PATIENCE)
        assert told == [("A", ""), ("A", "resigned"), ("B", ""), ("B", "resigned"), ("C", "")]


class TestAtomic:
    def test_a_transaction_commits_only_while_the_candidate_leads(self, using, backend, name):
        election = Election(name, using=using)
        with pytest.raises(LockNotHeld), election.atomic():
            pass
        with election:
            if not backend.capabilities.atomic:
                with pytest.raises(NotSupported), election.atomic():
                    pass
                return
            with election.atomic() as entered:
                assert entered.leading
        with pytest.raises(LockNotHeld), election.atomic():
            pass
