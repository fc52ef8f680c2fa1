"""The long poll: news from whichever bookie has it first, never without a proof, through losses and changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.errors import ClientClosed, NotEnoughBookies, QuorumTimeout
from fastbk.model.ledger import Fragment, LedgerState
from fastbk.replication.lac_procedures import LATE_S, LacNews, PollLac, PollOptions
from fastbk.replication.procedure import ReadLac, Reply, SendRequest, Sleep
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.fake_quorum import LEDGER, Client, FakeQuorum, entry_of, length_at, metadata_of

PACING = Pacing(request_timeout_s=1.0, give_up_s=3.0, pause_min_s=0.02, pause_max_s=0.5)
OPTIONS = PollOptions(wait_s=1.0, grace_s=0.005, pacing=PACING)
LEFT_S = OPTIONS.wait_s - OPTIONS.grace_s + LATE_S  # until the poll's own end, when all are asked


def asked_of_one(harness: FakeQuorum, position: int, **options: object) -> tuple[Client, PollLac]:
    """Return a poll that has begun: the carrier waits."""
    poll = PollLac(LEDGER, harness.metadata, position, replace(OPTIONS, **options))  # type: ignore[arg-type]
    return Client(harness, poll), poll  # type: ignore[arg-type]


def poll_of(harness: FakeQuorum, position: int, **options: object) -> tuple[Client, PollLac]:
    """Return a poll that has brought nothing for a while: all members wait."""
    client, poll = asked_of_one(harness, position, **options)
    if not poll.is_finished:
        client.deliver(sleeping(client, OPTIONS.grace_s))
        client.now_s += OPTIONS.grace_s
    return client, poll


def world_of(entries: int, size: int = 3, write_quorum: int = 3, spare: int = 0) -> FakeQuorum:
    harness = FakeQuorum.of(metadata_of(size, write_quorum, 2), spare)
    for entry_id in range(entries):
        harness.write(entry_id)
    return harness


def at(client: Client, name: str) -> SendRequest:
    return client.asks(ReadLac, name)[0]


def sleeping(client: Client, pause_s: float) -> Sleep:
    return next(
        one
        for one in client.pending.values()
        if isinstance(one, Sleep) and one.pause_s == pytest.approx(pause_s)
    )


def carrier_of(client: Client) -> str:
    return next(one.bookie_id for one in client.asks(ReadLac) if one.request.piggyback)  # type: ignore[union-attr]


def others_of(client: Client) -> list[str]:
    return [one.bookie_id for one in client.asks(ReadLac) if not one.request.piggyback]  # type: ignore[union-attr]


def test_one_is_asked_for_the_entry_and_all_members_wait_when_it_brings_nothing() -> None:
    client, _ = asked_of_one(world_of(5), 4)
    (ask,) = client.asks(ReadLac)
    assert ask.request == ReadLac(3, 1.0, piggyback=True)
    assert (ask.bookie_id, ask.timeout_s) == ("b1", 2.0)  # the first that holds entry 4
    client.deliver(sleeping(client, OPTIONS.grace_s))
    requests = {one.bookie_id: one.request for one in client.asks(ReadLac)}
    assert requests.pop("b1") == ReadLac(3, 1.0, piggyback=True)
    assert requests == dict.fromkeys(("b0", "b2"), ReadLac(3, 1.0 - OPTIONS.grace_s))
    assert all(
        one.timeout_s == pytest.approx(1.995) for one in [at(client, "b0"), at(client, "b2")]
    )


def test_an_entry_with_its_proof_costs_one_request() -> None:
    harness = world_of(5)
    client, poll = asked_of_one(harness, 4)
    for bookie in harness.bookies.values():
        bookie.explicit_lac = 4
    client.run()
    assert poll.value() == LacNews(4, entry_of(4))
    assert sum(isinstance(one, SendRequest) for one in client.log) == 1


def test_an_entry_that_a_newer_one_proves_costs_two_requests_of_one_bookie() -> None:
    client, poll = asked_of_one(world_of(6), 4)
    client.run()
    assert poll.value() == LacNews(4, entry_of(4))
    assert [one.bookie_id for one in client.log if isinstance(one, SendRequest)] == ["b1", "b1"]


@pytest.mark.parametrize(
    "outcome",
    [
        NotEnoughBookies("lost"),
        Reply(Status.OK, damaged=True),
        Reply(Status.OK, lacs=(3,)),
        Reply(Status.NO_LEDGER),
        Reply(Status.TOO_MANY_REQUESTS),
    ],
)
def test_a_carrier_that_says_nothing_useful_is_not_alone_any_longer(
    outcome: Reply | NotEnoughBookies,
) -> None:
    harness = world_of(6)
    client, poll = asked_of_one(harness, 4)
    client.complete(at(client, "b1"), outcome)
    assert {one.bookie_id for one in client.asks(ReadLac)} >= {"b0", "b2"}
    client.deliver(at(client, "b0"))
    assert poll.value() == LacNews(4, slow="b1")  # nothing is waited for, and another preferred


def test_a_proof_that_proves_nothing_has_all_members_asked() -> None:
    harness = world_of(5)
    client, poll = asked_of_one(harness, 4)
    client.deliver(at(client, "b1"))
    assert [one.bookie_id for one in client.asks(ReadLac)] == ["b1"]
    client.deliver(at(client, "b1"))  # still nothing newer
    assert {one.bookie_id for one in client.asks(ReadLac)} >= {"b0", "b2"}
    harness.write(5)
    client.deliver(at(client, "b2"))
    assert poll.value() == LacNews(4, entry_of(4))


def test_a_silent_carrier_delays_no_news_by_more_than_one_grace() -> None:
    """What others say at once when they are asked was there before: the entry gets no second grace."""
    client, poll = asked_of_one(world_of(6), 4)
    client.deliver(sleeping(client, OPTIONS.grace_s))
    client.deliver(at(client, "b0"))
    assert poll.value() == LacNews(4, slow="b1")
    assert client.now_s == pytest.approx(OPTIONS.grace_s + 0.001)


def test_a_carrier_that_brought_the_entry_is_not_slow_when_others_prove_it() -> None:
    harness = world_of(5)
    client, poll = asked_of_one(harness, 4)
    client.deliver(at(client, "b1"))
    client.deliver(sleeping(client, OPTIONS.grace_s))
    harness.write(5)
    client.deliver(at(client, "b0"))
    assert poll.value() == LacNews(4, entry_of(4))


def test_a_carrier_that_leaves_hands_over_before_the_others_are_asked() -> None:
    harness = world_of(5, spare=1)
    client, poll = asked_of_one(harness, 9)
    carrier = client.asks(ReadLac)[0].bookie_id
    ensemble = tuple("s0" if one == carrier else one for one in ("b0", "b1", "b2"))
    harness.edit(fragments=(*harness.metadata.fragments, Fragment(7, ensemble)))
    poll.metadata_changed(harness.metadata, 0.001)
    client.take()
    (ask,) = client.asks(ReadLac)
    assert ask.bookie_id == "s0"
    client.deliver(sleeping(client, OPTIONS.grace_s))
    assert {one.bookie_id for one in client.asks(ReadLac)} == set(ensemble)


def test_a_wait_shorter_than_the_grace_ends_in_time() -> None:
    client, poll = asked_of_one(world_of(5), 4, wait_s=0.002)
    client.deliver(sleeping(client, 0.002))
    client.deliver(sleeping(client, LATE_S))
    client.complete(at(client, "b2"), Reply(Status.OK, lacs=(3,)))
    assert poll.value() == LacNews(3)


def test_the_first_that_has_news_ends_it() -> None:
    harness = world_of(5)
    client, poll = poll_of(harness, 4)
    other = others_of(client)[0]
    harness.write(5)
    harness.write(6)
    client.deliver(at(client, other))
    assert poll.value() == LacNews(5)  # more than one entry: better read in a batch
    assert not client.pending


def test_the_entry_comes_along_once_it_is_proven() -> None:
    harness = world_of(5)
    client, poll = poll_of(harness, 4)
    carrier, other = carrier_of(client), others_of(client)[0]
    harness.write(5)
    client.deliver(at(client, other))
    assert not poll.is_finished  # the entry itself has a moment to come
    client.deliver(at(client, carrier))
    assert poll.value() == LacNews(4, entry_of(4))


def test_a_bookie_that_keeps_the_entry_back_is_not_waited_for() -> None:
    harness = world_of(6)
    client, poll = poll_of(harness, 4)
    carrier, other = carrier_of(client), others_of(client)[0]
    client.deliver(at(client, other))
    client.deliver(sleeping(client, OPTIONS.grace_s))
    assert poll.value() == LacNews(4, slow=carrier)


def test_what_fails_its_digest_is_no_news() -> None:
    """P19."""
    harness = world_of(6)
    client, poll = poll_of(harness, 4)
    for bookie in harness.bookies.values():
        bookie.damaged = {4, 5}
    for ask in client.asks(ReadLac):
        client.deliver(ask)
    assert not poll.is_finished
    client.run()
    assert poll.error is not None
    assert set(poll.error.replicas) == {"b0", "b1", "b2"}


def test_bookies_that_answer_when_their_wait_ends_have_answered() -> None:
    """The poll's own clock may be a little ahead of theirs."""
    client, poll = poll_of(world_of(5), 4)
    client.deliver(sleeping(client, LEFT_S))
    assert not poll.is_finished
    client.complete(at(client, "b2"), Reply(Status.OK, lacs=(3,)))
    assert poll.value() == LacNews(3)


def test_silence_of_all_is_an_error_in_the_end() -> None:
    client, poll = poll_of(world_of(5), 4)
    client.deliver(sleeping(client, LEFT_S))
    client.complete(at(client, "b0"), QuorumTimeout("silent"))
    client.deliver(sleeping(client, 2.0))
    with pytest.raises(NotEnoughBookies, match="tail again") as caught:
        poll.value()
    assert caught.value.replicas == {"b0": "silent", "b1": "no answer", "b2": "no answer"}
    assert caught.value.entry_id == 4


LONG = {"wait_s": 30.0}
LONG_LEFT_S = 30.0 - OPTIONS.grace_s + LATE_S


def test_an_idle_poll_costs_one_request_of_each_member() -> None:
    """Bookies count whole milliseconds: their answers may come just before the end of the poll, or behind it."""
    for early_s in (0.002, -0.1):
        client, poll = poll_of(world_of(5), 4, **LONG)
        if early_s < 0:
            client.deliver(sleeping(client, LONG_LEFT_S))
        else:
            client.now_s = 30.0 - early_s
        client.complete(at(client, "b0"), Reply(Status.OK, lacs=(3,)))
        assert poll.value() == LacNews(3)
        assert sorted(one.bookie_id for one in client.log if isinstance(one, SendRequest)) == [
            "b0",
            "b1",
            "b2",
        ]


def test_a_quiet_poll_asks_all_at_once_and_needs_no_timer_to_end() -> None:
    client, poll = asked_of_one(world_of(5), 4, is_quiet=True, **LONG)
    assert [one.request.wait_s for one in client.asks(ReadLac)] == [30.0] * 3  # type: ignore[union-attr]
    assert [one.request.piggyback for one in client.asks(ReadLac)].count(True) == 1  # type: ignore[union-attr]
    client.now_s = 30.0
    client.complete(at(client, "b2"), Reply(Status.OK, lacs=(3,)))
    assert poll.value() == LacNews(3)
    assert not any(isinstance(one, Sleep) and one.pause_s < 30 for one in client.log)


def test_answers_at_the_end_of_a_long_wait_have_the_time_of_a_request() -> None:
    client, poll = poll_of(world_of(5), 4, **LONG)
    client.deliver(sleeping(client, LONG_LEFT_S))
    assert sleeping(client, PACING.request_timeout_s)
    client.now_s += 0.9
    client.complete(at(client, "b0"), Reply(Status.OK, lacs=(3,)))
    assert poll.value() == LacNews(3)


def test_the_loss_of_all_members_is_known_long_before_the_end_of_a_long_wait() -> None:
    harness = world_of(5)
    client, poll = poll_of(harness, 4, **LONG)
    for name in harness.bookies:
        client.complete(at(client, name), NotEnoughBookies("lost"))
    client.deliver(sleeping(client, PACING.give_up_s))
    with pytest.raises(NotEnoughBookies, match="tail again"):
        poll.value()


def test_a_new_member_is_not_given_up_for_what_the_former_ones_did() -> None:
    harness = world_of(5, spare=1)
    client, poll = poll_of(harness, 9, **LONG)
    for name in ("b0", "b1", "b2"):
        client.complete(at(client, name), NotEnoughBookies("lost"))
    giving_up = sleeping(client, PACING.give_up_s)
    harness.edit(fragments=(*harness.metadata.fragments, Fragment(7, ("b0", "b1", "s0"))))
    poll.metadata_changed(harness.metadata, client.now_s)
    client.take()
    assert giving_up not in client.pending.values()
    assert at(client, "s0").request.wait_s > 25  # type: ignore[union-attr]


def test_a_member_that_failed_waits_shortly_until_it_has_answered_well() -> None:
    """A request that waits says nothing of the bookie: two that went and came one after the other are not gone."""
    client, poll = poll_of(world_of(5), 4, **LONG)
    client.complete(at(client, "b0"), NotEnoughBookies("lost"))
    client.complete(at(client, "b1"), NotEnoughBookies("lost"))
    client.complete(at(client, "b2"), NotEnoughBookies("lost"))
    giving_up = sleeping(client, PACING.give_up_s)
    client.deliver(sleeping(client, PACING.pause_min_s))
    (again,) = client.asks(ReadLac)
    assert again.request.wait_s == PACING.pause_max_s  # type: ignore[union-attr]
    client.complete(again, Reply(Status.OK, lacs=(3,)))
    (long,) = client.asks(ReadLac)
    assert long.request.wait_s > 25  # type: ignore[union-attr]
    assert giving_up not in client.pending.values()
    assert not poll.is_finished


def test_lost_members_are_asked_again_after_pauses_while_others_wait() -> None:
    harness = world_of(5)
    client, poll = poll_of(harness, 4)
    harness.bookies["b2"].away = True
    pauses = []
    for _ in range(4):
        client.deliver(at(client, "b2"))
        assert set(poll.trouble) == {"b2"}
        pause_s = min(one.pause_s for one in client.pending.values() if isinstance(one, Sleep))
        pauses.append(pause_s)
        client.deliver(sleeping(client, pause_s))
    assert pauses == [0.02, 0.04, 0.08, 0.16]
    harness.bookies["b2"].away = False
    harness.write(5)
    harness.write(6)
    client.deliver(at(client, "b2"))
    assert poll.value() == LacNews(5)


def test_a_fenced_ledger_is_told_and_not_asked_about_without_end() -> None:
    """Bookies answer at once when a ledger is fenced: pauses keep that from becoming a storm."""
    harness = world_of(5)
    for bookie in harness.bookies.values():
        bookie.fenced = True
    client, poll = poll_of(harness, 4)
    client.run(steps_max=200)
    assert poll.value().fenced
    assert sum(isinstance(one, SendRequest) for one in client.log) < 60


def test_a_close_ends_it() -> None:
    harness = world_of(6)
    client, poll = poll_of(harness, 9)
    harness.edit(state=LedgerState.IN_RECOVERY)
    poll.metadata_changed(harness.metadata, 0.1)
    client.take()
    assert not poll.is_finished
    poll.metadata_changed(harness.metadata.closed(5, length_at(5)), 0.2)
    client.take()
    assert poll.value() == LacNews(5, is_closed=True)
    assert not client.pending
    poll.metadata_changed(harness.metadata, 0.3)
    assert poll.take_actions() == []


def test_a_change_of_the_ensemble_is_followed() -> None:
    harness = world_of(5, spare=1)
    client, poll = poll_of(harness, 9)
    carrier = carrier_of(client)
    ensemble = tuple("s0" if one == carrier else one for one in ("b0", "b1", "b2"))
    harness.edit(fragments=(*harness.metadata.fragments, Fragment(7, ensemble)))
    poll.metadata_changed(harness.metadata, 0.1)
    client.take()
    assert {one.bookie_id for one in client.asks(ReadLac)} == set(ensemble)
    client.complete(at(client, "s0"), Reply(Status.NO_LEDGER))
    client.deliver(sleeping(client, LEFT_S))
    assert poll.value() == LacNews(6)  # what lies before the last fragment is acknowledged


def test_a_new_fragment_alone_may_be_the_news() -> None:
    harness = world_of(5, spare=1)
    client, poll = poll_of(harness, 9)
    harness.edit(fragments=(*harness.metadata.fragments, Fragment(10, ("b0", "b1", "s0"))))
    poll.metadata_changed(harness.metadata, 0.1)
    client.take()
    assert poll.value() == LacNews(9)


def test_nothing_is_asked_when_there_is_nothing_to_wait_for() -> None:
    harness = world_of(5)
    harness.edit(fragments=(Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b0", "b1", "b2"))))
    client, poll = poll_of(harness, 4)
    assert poll.value() == LacNews(4)
    assert not client.asks(ReadLac)


def test_a_striped_ledger_asks_a_holder_for_the_entry() -> None:
    for position in range(10):
        client, _ = poll_of(world_of(0, 5, 2), position)
        assert carrier_of(client) in (f"b{position % 5}", f"b{(position + 1) % 5}")
        assert len(client.asks(ReadLac)) == 5


def test_a_closed_client_and_a_cancel_end_it() -> None:
    client, poll = poll_of(world_of(5), 4)
    client.complete(at(client, "b0"), ClientClosed("closed"))
    with pytest.raises(ClientClosed):
        poll.value()
    client, poll = poll_of(world_of(5), 4)
    poll.cancel()
    client.take()
    assert not client.pending
