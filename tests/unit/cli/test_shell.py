"""The words of a call of `fastbk shell`, and how it prints ids and sizes."""

from __future__ import annotations

import io

import pytest

from fastbk.apache.shell.context import CommandLine, Context, Option, Verb, flag
from fastbk.cli.shell import _verbs
from fastbk.errors import ConfigError

VERB = Verb(
    "verb",
    "Do it.",
    lambda _context, _words: 0,
    (
        flag("rw", "readwrite", text="a flag"),
        Option(("l", "ledgerid"), "an id", "ID", is_required=True),
        Option(("n",), "a number", "N"),
    ),
    "<bookie-id>",
)


@pytest.mark.parametrize(
    "words",
    [
        ["-l", "5", "-rw", "x"],
        ["x", "--ledgerid=5", "--readwrite"],
        ["-ledgerid", "5", "--rw", "--", "x"],
        ["-rw", "-l=5", "x"],
    ],
)
def test_options_have_two_names_with_one_dash_or_two(words: list[str]) -> None:
    assert VERB.parse(words) == CommandLine("verb", {"ledgerid": "5", "readwrite": ""}, ("x",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-l"], "-l needs a value: ID"),
        (["-rw"], "-ledgerid ID is missing"),
        (["-l", ""], "-ledgerid ID is missing"),
        (["-l", "5", "-rw=1"], "-rw takes no value"),
        (["-l", "5", "-redwrite"], "no option -redwrite: did you mean -readwrite?"),
        (["-l", "5", "-q"], "no option -q; there are: -rw, -readwrite, -l, -ledgerid ID, -n N"),
    ],
)
def test_wrong_calls_say_what_is_wrong(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        VERB.parse(words)
    assert str(raised.value) == said


def test_help_goes_before_everything_that_is_missing() -> None:
    assert VERB.parse(["-rw", "-help", "-q"]).has("help")
    assert VERB.parse(["-h"]).has("help")
    # It is an option of its own there, as in Apache's shell.
    assert _verbs()["listbookies"].parse(["-h"]).has("hostnames")


@pytest.mark.parametrize("text", ["x", "-1", "1.5", ""])
def test_numbers_have_bounds(text: str) -> None:
    assert CommandLine("verb", {"n": "7"}).integer("n", 3) == 7
    assert CommandLine("verb").integer("n", 3) == 3
    with pytest.raises(ConfigError, match="must be an integer of 0 or more"):
        CommandLine("verb", {"n": text}).integer("n", 3)


@pytest.mark.parametrize(
    ("form", "text"),
    [("long", "65538"), ("hex", "10002"), ("uuid", "00000000-0000-0000-0000-000000010002")],
)
def test_ledger_ids_are_read_as_they_are_shown(form: str, text: str) -> None:
    context = Context("memory:x", ledger_format=form)
    assert context.shown(65538) == text
    assert context.ledger_id(text) == 65538
    for wrong in ("", "-5", "zz", "99999999999999999999"):
        with pytest.raises(ConfigError, match="not a ledger id"):
            context.ledger_id(wrong)


@pytest.mark.parametrize(
    ("typed", "is_yes"), [("y\n", True), ("huh\nYES\n", True), ("no\n", False), ("", False)]
)
def test_a_question_is_asked_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, typed: str, is_yes: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert Context.confirmed("Sure?") is is_yes


def test_every_verb_of_apaches_shell_is_known() -> None:
    apache = """
        metaformat initbookie initnewcluster nukeexistingcluster bookieformat recover ledger readledger listledgers
        activeledgers listunderreplicated whoisauditor whatisinstanceid ledgermetadata localconsistencycheck simpletest
        bookiesanity readlog readlogmetadata readjournal lastmark autorecovery queryautorecoverystatus listbookies
        listfilesondisc updatecookie updateledgers updateBookieInLedger deleteledger bookieinfo clusterinfo
        decommissionbookie endpointinfo convert-to-db-storage convert-to-interleaved-storage
        rebuild-db-ledger-locations-index rebuild-db-ledgers-index check-db-ledgers-index
        regenerate-interleaved-storage-index-file lostbookierecoverydelay triggeraudit forceauditchecks cookie_create
        cookie_delete cookie_update cookie_get cookie_generate
    """
    assert set(_verbs()) == set(apache.split())
