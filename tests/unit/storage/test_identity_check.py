"""Which directories a bookie may start with: every difference ends the start, and says what, why and what next.

INV-D1, A20.
"""

from __future__ import annotations

import msgspec
import pytest

from fastbk.storage.cookie_file import Cookie
from fastbk.storage.identity import Identity
from fastbk.storage.identity_check import (
    DirectoryContent,
    DirectoryPlace,
    IdentityError,
    KnownBookie,
    Verdict,
    judge,
)

ME = "127.0.0.1:3181"
CLUSTER = "0b1e-77"
JOURNAL = Identity(
    bookie_id=ME,
    incarnation="00000000000000ff",
    directory_id="a1",
    role="journal",
    created_s=5,
    starts=3,
)
LEDGER = msgspec.structs.replace(JOURNAL, directory_id="b2", role="ledger")
JOURNAL_2 = msgspec.structs.replace(JOURNAL, directory_id="c3", pair=1, pairs=2)
LEDGER_2 = msgspec.structs.replace(LEDGER, directory_id="d4", pair=1, pairs=2)
COOKIE = Cookie(ME, ("a1",), ("b2",), CLUSTER)
COOKIE_2 = Cookie(ME, ("a1", "c3"), ("b2", "d4"), CLUSTER)
KNOWN = KnownBookie(
    incarnation=255,
    places={"a1": DirectoryPlace("journal"), "b2": DirectoryPlace("ledger")},
    starts=3,
)
KNOWN_2 = KnownBookie(
    255,
    {**KNOWN.places, "c3": DirectoryPlace("journal", 1), "d4": DirectoryPlace("ledger", 1)},
    starts=3,
)


def found(
    journal: Identity | None = JOURNAL,
    ledger: Identity | None = LEDGER,
    data: list[str] | None = None,
    cookie: Cookie | None = None,
) -> list[DirectoryContent]:
    return [
        DirectoryContent("/j", DirectoryPlace("journal"), journal, cookie=cookie),
        DirectoryContent("/l", DirectoryPlace("ledger"), ledger, data or [], cookie),
    ]


def second(
    journal: Identity | None = None, ledger: Identity | None = None, cookie: Cookie | None = None
) -> list[DirectoryContent]:
    return [
        DirectoryContent("/j2", DirectoryPlace("journal", 1), journal, cookie=cookie),
        DirectoryContent("/l2", DirectoryPlace("ledger", 1), ledger, cookie=cookie),
    ]


def changed(identity: Identity, **fields: object) -> Identity:
    return msgspec.structs.replace(identity, **fields)


def refusal(
    directories: list[DirectoryContent], known: KnownBookie | None = KNOWN, *, expand: bool = False
) -> str:
    """What the start ends with."""
    with pytest.raises(IdentityError) as caught:
        judge(ME, directories, known, instance_id=CLUSTER, expand=expand)
    return str(caught.value)


def test_all_agree() -> None:
    assert judge(ME, found(), KNOWN) is Verdict.KNOWN


def test_a_new_bookie() -> None:
    assert judge(ME, found(None, None), None) is Verdict.NEW


def test_a_birth_cut_short() -> None:
    assert judge(ME, found(), None) is Verdict.BORN_HALFWAY
    assert judge(ME, found(JOURNAL, None), None) is Verdict.BORN_HALFWAY


@pytest.mark.parametrize(
    ("directories", "known", "says", "next_step"),
    [
        (found(ledger=None), KNOWN, "/l is empty", "Mount or restore"),
        (found(None, None), KNOWN, "never starts empty", "new id"),
        (found(ledger=None, data=["logs/1.log"]), KNOWN, "holds logs/1.log but no identity.json", "restore"),
        (found(data=["logs/1.log"]), None, "wrong metadata store", "metadata.uri"),
        (found(None, None, ["x.journal"]), None, "wrong metadata store", "do not delete"),
        (found(changed(JOURNAL, bookie_id="b:1")), KNOWN, "belongs to bookie 'b:1'", "set bookie.id"),
        (found(LEDGER, JOURNAL), KNOWN, "is a ledger directory, but is configured as the journal", "Swap"),
        (found(changed(JOURNAL, incarnation="0000000000000001")), KNOWN, "two different lives", "belong together"),
        (
            found(changed(JOURNAL, incarnation="0000000000000001"), changed(LEDGER, incarnation="0000000000000001")),
            KNOWN, "old copy", "Mount the right directory",
        ),
        (found(changed(JOURNAL, starts=2)), KNOWN, "has seen 2 starts", "used last"),
        (found(JOURNAL, changed(LEDGER, starts=2)), KNOWN, "restored from an old copy", "--accept-data-loss"),
        (found(ledger=changed(LEDGER, directory_id="zz")), KNOWN, "none of those", "born with"),
        (found()[:1], KNOWN, "missing: ledger directory b2", "Configure all"),
        ([*found(), found()[1]], KNOWN, "copies of one directory", "used last"),
        (found(ledger=changed(LEDGER, pairs=2)), KNOWN, "2 journal/index pairs", "Configure all"),
        (found(ledger=changed(LEDGER, shards=(1, *[0] * 63))), KNOWN, "which pair has which shard", "used last"),
    ],
)  # fmt: skip
def test_every_difference_ends_the_start(
    directories: list[DirectoryContent], known: KnownBookie | None, says: str, next_step: str
) -> None:
    with pytest.raises(IdentityError) as caught:
        judge(ME, directories, known)
    assert says in str(caught.value)
    assert next_step in str(caught.value)


BORN_AGAIN = [
    changed(each, incarnation="0000000000000001", directory_id=f"{each.role}9")
    for each in (JOURNAL, LEDGER)
]


@pytest.mark.parametrize(
    "directories",
    [
        found(None, None),
        found(ledger=None),
        found(*BORN_AGAIN),
        found(BORN_AGAIN[0], None),
        found(BORN_AGAIN[0], changed(BORN_AGAIN[1], incarnation="0000000000000002")),
    ],
    ids=["all", "one", "cut short", "cut short earlier", "cut short twice"],
)
def test_lost_data_is_accepted_on_a_person_s_word_only(directories: list[DirectoryContent]) -> None:
    """INV-X4."""
    assert judge(ME, directories, KNOWN, accept_data_loss=True) is Verdict.LOST
    with pytest.raises(IdentityError):
        judge(ME, directories, KNOWN)


@pytest.mark.parametrize(
    "directories",
    [
        found(None, None, ["logs/1.log"]),
        found(None, data=["logs/1.log"]),
        found(*BORN_AGAIN, data=["manifest"]),
        found(changed(JOURNAL, bookie_id="b:1"), None),
    ],
    ids=["data without identity", "journal lost", "data of another life", "another bookie's"],
)
def test_what_is_left_of_data_is_not_given_up(directories: list[DirectoryContent]) -> None:
    with pytest.raises(IdentityError) as failed:
        judge(ME, directories, KNOWN, accept_data_loss=True)
    said = str(failed.value)
    assert "belongs to bookie 'b:1'" in said or (
        "only where nothing of it is left, but" in said and "start once with" not in said
    ), "the option was given: it is no advice"


def test_the_word_has_no_effect_where_nothing_is_missing() -> None:
    assert judge(ME, found(), KNOWN, accept_data_loss=True) is Verdict.KNOWN
    assert judge(ME, found(data=["logs/1.log"]), KNOWN, accept_data_loss=True) is Verdict.KNOWN
    assert judge(ME, found(None, None), None, accept_data_loss=True) is Verdict.NEW


def test_the_refusal_says_how_to_go_on() -> None:
    with pytest.raises(IdentityError, match=r"bookie recover 127.0.0.1:3181`.*--accept-data-loss"):
        judge(ME, found(None, None), KNOWN)


# --- cookies -----------------------------------------------------------------------------------------------------


def test_a_cookie_that_agrees() -> None:
    assert judge(ME, found(cookie=COOKIE), KNOWN, instance_id=CLUSTER) is Verdict.KNOWN
    assert judge(ME, found(cookie=COOKIE), None, instance_id=CLUSTER) is Verdict.BORN_HALFWAY


@pytest.mark.parametrize("known", [KNOWN, None], ids=["known", "unknown"])
def test_a_directory_of_another_bookie(known: KnownBookie | None) -> None:
    """A foreign disk, and a bookie that came back on another host."""
    other = Cookie("b:1", ("a1",), ("b2",), CLUSTER)
    says = refusal(found(None, None, cookie=other), known)
    assert "that of bookie 'b:1'" in says
    assert "moved to another host" in says
    assert "set bookie.id to 'b:1'" in says


@pytest.mark.parametrize("known", [KNOWN, None], ids=["known", "unknown"])
def test_a_directory_of_another_cluster(known: KnownBookie | None) -> None:
    cookie = Cookie(ME, ("a1",), ("b2",), "other")
    says = refusal(found(data=["logs/1.log"], cookie=cookie), known)
    assert "instance id other" in says
    assert "Correct metadata.uri" in says


@pytest.mark.parametrize(("in_cookie", "in_metadata"), [("", CLUSTER), ("other", "")])
def test_a_cluster_without_an_instance_id_is_not_compared(in_cookie: str, in_metadata: str) -> None:
    cookie = Cookie(ME, ("a1",), ("b2",), in_cookie)
    assert judge(ME, found(cookie=cookie), KNOWN, instance_id=in_metadata) is Verdict.KNOWN


def test_a_directory_of_an_apache_bookie() -> None:
    """Its data would be deleted by none of ours, but neither served."""
    says = refusal(found(None, None, cookie=Cookie(ME, ("/j",), ("/l",), CLUSTER)), None)
    assert "Apache bookie" in says
    assert "empty directory" in says


def test_what_was_wiped_but_for_the_cookie() -> None:
    says = refusal(found(ledger=None, cookie=COOKIE))
    assert "holds a cookie but no identity.json" in says
    lost = found(None, None, cookie=COOKIE)
    assert judge(ME, lost, KNOWN, instance_id=CLUSTER, accept_data_loss=True) is Verdict.LOST


def test_identity_and_cookie_of_two_directories() -> None:
    says = refusal(found(cookie=Cookie(ME, ("a1",), ("zz",), CLUSTER)))
    assert "lists the ledger directories zz" in says
    assert "Put the directory back as it was" in says


def test_a_rebirth_cut_short_between_identities_and_cookies() -> None:
    assert (
        judge(ME, found(*BORN_AGAIN, cookie=COOKIE), KNOWN, accept_data_loss=True) is Verdict.LOST
    )


# --- more directories than before --------------------------------------------------------------------------------


def test_new_directories_are_added_on_a_person_s_word_only() -> None:
    directories = [*found(cookie=COOKIE), *second()]
    says = refusal(directories)
    assert "journal directory of pair 1 /j2 is empty" in says
    assert "fastbk bookie expand" in says
    assert judge(ME, directories, KNOWN, instance_id=CLUSTER, expand=True) is Verdict.EXPANDED


@pytest.mark.parametrize(
    "directories",
    [
        [*found(cookie=COOKIE), *second(JOURNAL_2)],
        [*found(cookie=COOKIE), *second(JOURNAL_2, LEDGER_2)],
        [*found(cookie=COOKIE_2), *second(JOURNAL_2, LEDGER_2)],
        [*found(cookie=COOKIE_2), *second(JOURNAL_2, LEDGER_2, COOKIE_2)],
    ],
    ids=["an identity", "identities", "some cookies", "cookies"],
)
def test_an_expansion_that_was_cut_short_goes_on(directories: list[DirectoryContent]) -> None:
    assert judge(ME, directories, KNOWN, instance_id=CLUSTER, expand=True) is Verdict.EXPANDED
    assert "bookie expand" in refusal(directories)


def test_an_expansion_cut_short_and_taken_out_of_the_configuration() -> None:
    assert "Likely an expansion was cut short" in refusal(found(cookie=COOKIE_2))


def test_an_expansion_adds_no_directory_with_data_and_replaces_none() -> None:
    used = [*found(), DirectoryContent("/j2", DirectoryPlace("journal", 1), None, ["x.journal"])]
    assert "no identity.json" in refusal(used, expand=True)
    assert "is empty" in refusal([found()[0], found(ledger=None)[1]], expand=True)
    assert judge(ME, found(), KNOWN, expand=True) is Verdict.KNOWN


def test_two_pairs() -> None:
    first = found(changed(JOURNAL, pairs=2), changed(LEDGER, pairs=2), cookie=COOKIE_2)
    directories = [*first, *second(JOURNAL_2, LEDGER_2, COOKIE_2)]
    assert judge(ME, directories, KNOWN_2, instance_id=CLUSTER) is Verdict.KNOWN
    swapped = [
        DirectoryContent("/j", DirectoryPlace("journal"), JOURNAL_2),
        DirectoryContent("/l", DirectoryPlace("ledger"), LEDGER),
        DirectoryContent("/j2", DirectoryPlace("journal", 1), JOURNAL),
        DirectoryContent("/l2", DirectoryPlace("ledger", 1), LEDGER_2),
    ]
    said = refusal(swapped, KNOWN_2)
    assert "/j is a journal directory of pair 1, but is configured as the journal directory" in said
    assert "order" in said
    assert "[ledgers]" not in said, "that would be another mistake"
    assert "missing: journal directory of pair 1 c3" in refusal(found(), KNOWN_2)


# --- starts ------------------------------------------------------------------------------------------------------


def test_directories_may_know_of_a_start_that_metadata_has_not_heard_of() -> None:
    """It was cut short, or a full disk kept one of them from counting."""
    for directories in (found(changed(JOURNAL, starts=4)), found(changed(JOURNAL, starts=9))):
        assert judge(ME, directories, KNOWN) is Verdict.KNOWN
