"""What a file of Apache's is told of: values that were there in vain."""

from __future__ import annotations

from pathlib import Path

from fastbk.apache.configuration import key_translation, source
from fastbk.apache.configuration.config_builder import Report
from tests.fixtures.host import Host

BASE = """
advertisedAddress=10.0.0.1
journalDirectories=/data/journal
ledgerDirectories=/data/a,/data/b
metadataServiceUri=zk+hierarchical://zk1:2181,zk2:2181/ledgers
"""


def report_of(text: str) -> Report:
    read = source.KeySource(Path("bk_server.conf"), source.parse(BASE + text), {})
    config, report = key_translation.translate(read, Host())
    assert config is not None, report.problems
    return report


def test_of_several_values_the_first_counts_and_that_is_said() -> None:
    """Whoever writes a line below the one that is there gets what was there, in Apache as here."""
    report = report_of("journalMaxSizeMB=512\nbookiePort=3181\njournalMaxSizeMB=2048\n")
    assert report.remarks == [
        "journalMaxSizeMB (line 6) has several values, 512,2048: the first one counts, as in Apache"
    ]
    twice = report_of("bookiePort=3181\nbookiePort=3181\n")
    assert twice.remarks == []


def test_lists_and_one_value_are_not_remarked_on() -> None:
    assert report_of("journalMaxSizeMB=,512\ncompactionRate=5,6\n").remarks == []


def test_a_cache_that_is_too_large_is_lowered_and_that_is_said() -> None:
    report = report_of("dbStorage_writeCacheMaxSizeMb=999999999\n")
    (finding,) = (one for one in report.findings if one.key.name == "dbStorage_writeCacheMaxSizeMb")
    assert finding.remarks == ("lowered to 1048576",)


def test_a_layout_class_that_the_metadata_uri_overrides_is_reported_as_not_used() -> None:
    report = report_of("ledgerManagerFactoryClass=com.example.ItsOwnLedgerManagerFactory\n")
    (finding,) = (one for one in report.findings if one.key.name == "ledgerManagerFactoryClass")
    assert finding.remarks == ("not used: metadataServiceUri goes before it",)
    assert report.problems == []
