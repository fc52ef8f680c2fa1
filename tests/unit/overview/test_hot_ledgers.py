import pytest

from fastbk.overview.poller import LedgerFacts, added_up, by_stream, hottest


def page(*ledgers: tuple[int, float, float]) -> dict[str, object]:
    return {
        "ledgers": [
            {"ledger_id": ledger_id, "adds_per_second": adds, "bytes_per_second": size_bytes}
            for ledger_id, adds, size_bytes in ledgers
        ]
    }


def test_copies_are_added_up_and_divided_by_the_write_quorum() -> None:
    sums = added_up([page((1, 90.0, 900.0), (2, 50.0, 5.0)), page((1, 90.0, 900.0)), {}])
    assert sums == {1: (180.0, 1800.0, 2), 2: (50.0, 5.0, 1)}
    first, second = hottest(sums, {1: LedgerFacts(2, "shop/orders"), 2: LedgerFacts(1)})
    assert (first.ledger_id, first.adds_per_s, first.bytes_per_s, first.bookies) == (
        1,
        90.0,
        900.0,
        2,
    )
    assert first.stream == "shop/orders"
    assert (second.ledger_id, second.stream) == (2, "")


def test_the_quorum_decides_the_order() -> None:
    sums = {1: (100.0, 0.0, 3), 2: (60.0, 0.0, 1)}
    assert [one.ledger_id for one in hottest(sums, {1: LedgerFacts(3), 2: LedgerFacts(1)})] == [
        2,
        1,
    ]


def test_ledgers_of_a_stream_are_one_row() -> None:
    facts = {
        1: LedgerFacts(1, "a"),
        2: LedgerFacts(1, "b"),
        3: LedgerFacts(1, "a"),
        4: LedgerFacts(1),
    }
    ledgers = hottest({n: (10.0 * n, n, 1) for n in (1, 2, 3, 4)}, facts)
    streams = by_stream(ledgers)
    assert [(one.path, one.adds_per_s) for one in streams] == [
        ("a", pytest.approx(40)),
        ("b", 20.0),
    ]
