"""Files in Apache's format: every key of Apache's has a verdict, and does what the verdict says."""

from __future__ import annotations

import getpass
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk import config as toml
from fastbk.apache.configuration import key_translation, keys, source
from fastbk.apache.configuration.keys import Kind, Verdict
from fastbk.cli.config import toml_text
from fastbk.errors import ConfigError
from fastbk.security.settings import TlsSettings
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.bookie_file import BookieFile
from fastbk.server.configuration.checks import check
from fastbk.units import GIB, MIB
from tests.fixtures.apache_cases import CASES, FACTORY, PEM, PKCS12, ROLES, SASL, TRUST
from tests.fixtures.host import Host

if TYPE_CHECKING:
    from fastbk.apache.configuration.config_builder import Report

APACHE_KEYS = (Path(__file__).parents[2] / "golden" / "apache_keys.txt").read_text().split()
"""The names that Apache BookKeeper 4.18's bookies look up, those of its sample file included."""
BASE = {
    "advertisedAddress": "10.0.0.1",
    "journalDirectories": "/data/journal",
    "ledgerDirectories": "/data/ledgers",
    "metadataServiceUri": "zk+hierarchical://127.0.0.1:2181;localhost:2182/ledgers",
}
WITH_VALUES = {Verdict.HONOURED, Verdict.TRANSLATED}


def translated(
    keys: dict[str, str],
    environment: dict[str, str] | None = None,
    path: Path = Path("bk_server.conf"),
) -> tuple[BookieConfig | None, Report]:
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    read = source.KeySource(path, source.parse(text), environment or {})
    return key_translation.translate(read, Host())


def accepted(keys: dict[str, str]) -> tuple[BookieConfig, Report]:
    """Translate BASE with `keys` over it; None takes one out."""
    config, report = translated(
        {key: value for key, value in {**BASE, **keys}.items() if value is not None}
    )
    assert config is not None, report.problems
    check(config)
    return config, report


def problems(keys: dict[str, Any]) -> list[str]:
    config, report = translated(
        {key: value for key, value in {**BASE, **keys}.items() if value is not None}
    )
    assert config is None
    return report.problems


def value_of(config: BookieConfig, setting: str) -> Any:
    section, _, name = setting.partition(".")
    return getattr(getattr(config, section), name)


def test_every_key_of_apache_has_a_row_and_every_row_is_one() -> None:
    assert set(keys.KEYS) == set(APACHE_KEYS)
    for row in keys.KEYS.values():
        for setting in row.setting.split():
            assert value_of(BookieConfig(), setting) is not None, f"{row.name}: {setting}"
        if row.verdict in (Verdict.IGNORED, Verdict.REFUSED):
            assert row.note, f"{row.name} needs a reason"
            assert not row.setting
        assert (row.verdict in WITH_VALUES) == (row.name in CASES), f"{row.name} needs a case"


@pytest.mark.parametrize("key", CASES)
def test_a_key_sets_what_its_row_says(key: str) -> None:
    for pairs, expected in CASES[key]:
        filled = {
            name: value and value.replace("{user}", getpass.getuser())
            for name, value in pairs.items()
        }
        config, report = accepted(filled)
        for setting, value in expected.items():
            assert value_of(config, setting) == value, setting
        for finding in report.findings:
            assert set(finding.settings) <= set(finding.key.setting.split())


@pytest.mark.parametrize(
    "name", [name for name, row in keys.KEYS.items() if row.verdict is Verdict.IGNORED]
)
def test_an_ignored_key_changes_nothing_and_is_told(name: str) -> None:
    without, _ = accepted({})
    config, report = accepted({name: keys.KEYS[name].default or "x"})
    assert config == without
    (finding,) = (one for one in report.findings if one.key.name == name)
    assert finding.verdict is Verdict.IGNORED
    assert finding.reason
    assert name in report.named(Verdict.IGNORED)


@pytest.mark.parametrize(
    "name", [name for name, row in keys.KEYS.items() if row.verdict is Verdict.REFUSED]
)
def test_a_refused_key_is_refused_only_where_it_asks_for_something(name: str) -> None:
    row = keys.KEYS[name]
    (problem,) = problems({name: "true" if row.kind is Kind.BOOLEAN else "com.example.Mine"})
    assert name in problem and row.note in problem
    for harmless in {*row.harmless, row.default}:
        _, report = accepted({name: harmless})
        (finding,) = (one for one in report.findings if one.key.name == name)
        assert finding.verdict is Verdict.IGNORED


def test_a_key_that_nobody_knows_is_told_with_the_nearest() -> None:
    _, report = accepted({"ledgerDirectorys": "/x", "zzz": "1", "dlog.something": "2"})
    assert report.unknown() == ["ledgerDirectorys", "zzz"]
    reasons = {one.key.name: one.reason for one in report.findings}
    assert "did you mean ledgerDirectories?" in reasons["ledgerDirectorys"]
    assert "streams" in reasons["dlog.something"]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"journalDirectories": None}, "journalDirectories is not set"),
        ({"ledgerDirectories": ""}, "ledgerDirectories is not set"),
        ({"journalDirectories": "/tmp/bk-txn"}, "Apache's temporary folder"),
        ({"ledgerDirectories": "/a,/tmp/bk-data/"}, "Apache's temporary folder"),
        ({"ledgerDirectories": "/a,/a"}, "twice"),
        ({"ledgerDirectories": ",".join(f"/d{n}" for n in range(9))}, "8 are possible"),
        (
            {"allowMultipleDirsUnderSameDiskPartition": "false", "ledgerDirectories": "/a1,/a2"},
            "one file system",
        ),
        ({"metadataServiceUri": None}, "neither metadataServiceUri nor zkServers"),
        (
            {"metadataServiceUri": None, "zkServers": "zk1", "ledgerManagerFactoryClass": "a.B"},
            "layout of a.B is not known",
        ),
        ({"ledgerStorageClass": "com.example.Storage"}, "cannot run here"),
        ({"bookiePort": "x"}, "'x' is not an integer"),
        ({"bookiePort": "65536"}, "not a port"),
        ({"bookiePort": "0"}, "allowEphemeralPorts"),
        ({"bookiePort": "0", "allowEphemeralPorts": "true"}, "needs a bookieId"),
        ({"bookieId": "readonly"}, "cannot be a bookie's id"),
        ({"bookieId": "a/b"}, "cannot be a bookie's id"),
        ({"journalSyncData": "maybe"}, "neither true nor false"),
        ({"diskUsageThreshold": "95%"}, "not a number"),
        ({"diskUsageThreshold": "95"}, "not between 0 and 1"),
        ({"dbStorage_writeCacheMaxSizeMb": "99%"}, "1% to 90%"),
        ({"gcWaitTime": "9" * 30}, "out of range"),
        ({"httpServerEnabled": "true", "httpServerPort": "-1"}, "not a port"),
        ({"permittedStartupUsers": "nobody-else"}, "allowed are nobody-else"),
        ({"advertisedAddress": None, "listeningInterface": "lo"}, "allowLoopback"),
        ({"listeningInterface": "none9"}, "no address found"),
        (
            {
                "advertisedAddress": None,
                "listeningInterface": "eth1",
                "useHostNameAsBookieID": "true",
            },
            "has no name",
        ),
        ({"flushInterval": "${nothing}"}, "stands for nothing"),
    ],
)
def test_what_a_bookie_must_not_start_with_is_told(keys: dict[str, Any], fault: str) -> None:
    found = problems(keys)
    assert len(found) == 1
    assert fault in found[0]


def test_all_problems_are_told_at_once() -> None:
    found = problems({"bookiePort": "x", "zkEnableSecurity": "true", "ledgerDirectories": None})
    for fault, text in zip(("zkEnable", "bookiePort", "ledgerD"), found, strict=True):
        assert fault in text


def test_the_file_is_the_word_that_a_bookie_may_listen_beyond_loopback() -> None:
    config, _ = accepted({})
    assert config.bookie.allow_unauthenticated_remote


def test_every_key_at_apaches_default_is_a_bookie_that_starts() -> None:
    """But for the folders, which have to be named."""
    defaults = {
        row.name: row.default
        for row in keys.KEYS.values()
        if row.name not in BASE and row.name != "journalDirectory" and not row.default.startswith("=")
        and "of direct memory" not in row.default
    }  # fmt: skip
    config, report = accepted(defaults)
    assert not report.unknown()
    assert config.journal.sync == "always"
    assert config.disk.full_ratio == 0.95


def test_large_caches_raise_the_memory_that_is_allowed() -> None:
    config, report = accepted({"dbStorage_readAheadCacheMaxSizeMb": "4096"})
    assert config.bookie.memory_total_bytes > 4 * GIB
    assert "bookie.memory_total_bytes" in report.origins


def test_a_share_of_memory_is_of_this_machine() -> None:
    config, report = accepted({"dbStorage_readAheadCacheMaxSizeMb": "1%"})
    assert config.ledgers.read_cache_size_bytes >= MIB
    assert "on this machine" in report.findings[-1].reason


def test_a_variable_goes_before_the_file_and_is_read_like_it(tmp_path: Path) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text(
        "".join(f"{key}={value}\n" for key, value in BASE.items()) + "gcWaitTime=1000\nroot=/x\n"
    )
    config, report = bookie_file.examine(
        path,
        {
            "BK_gcWaitTime": "0x2710",
            "BK_ledgerDirectories": "${root}/1, /y\\u002f2",
            "BK_journalDirectories": "/j",
            "BK_HOME": "/opt/bookkeeper",
            "gcWaitTime": "5",
        },
    )
    assert config is not None, report.problems
    assert config.gc.interval_ms == 10_000
    assert config.ledgers.directories == ("/x/1", "/y/2")
    assert report.origins["gc.interval_ms"] == "gcWaitTime (BK_gcWaitTime)"
    assert report.unknown() == ["root", "HOME"]


def test_what_somebody_may_count_on_and_is_missing_is_said_aloud() -> None:
    _, report = accepted({"autoRecoveryDaemonEnabled": "true", "extraServerComponents": "a.B,c.D"})
    assert [text.partition(":")[0] for text in report.remarks] == [
        "autoRecoveryDaemonEnabled=true",
        "extraServerComponents",
    ]
    assert not accepted({"autoRecoveryDaemonEnabled": "false", "extraServerComponents": ""})[
        1
    ].remarks


def test_values_of_secrets_are_not_shown() -> None:
    _, report = accepted({"httpServerKeyStorePassword": "hunter2"})
    assert report.findings[-1].shown == "***"


def test_included_files_lie_beside_the_one_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "common.conf").write_text("gcWaitTime=5000\n")
    path = tmp_path / "bk_server.conf"
    path.write_text(
        "include=common.conf\n" + "".join(f"{key}={value}\n" for key, value in BASE.items())
    )
    assert bookie_file.load(path, {}).gc.interval_ms == 5000


def test_a_file_of_ours_is_no_file_of_apaches(tmp_path: Path) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text('[gc]\ninterval = "5s"\n')
    file = bookie_file.read(path, {"BK_gcWaitTime": "1000"})
    assert file.config.gc.interval_ms == 5000
    assert file.report is None
    assert file.origin("gc.interval_ms") == str(path)
    assert file.origin("gc.lookup_rate") == ""


def test_apaches_format_under_another_name_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "bookie.config"
    path.write_text("bookiePort=3181\n")
    with pytest.raises(
        ConfigError, match=r"if it is in Apache's format, its name has to end in .conf"
    ):
        bookie_file.load(path, {})
    path.write_text("[gc]\nintervall = 5\n")
    with pytest.raises(ConfigError) as caught:
        bookie_file.load(path, {})
    assert "Apache" not in str(caught.value)


def test_a_file_that_must_not_start_says_all_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text("bookiePort=x\nzkEnableSecurity=true\n")
    with pytest.raises(
        ConfigError, match=r"bk_server.conf: line 2: zkEnableSecurity.*line 1: bookiePort"
    ):
        bookie_file.load(path, {})
    with pytest.raises(ConfigError, match="cannot read it"):
        bookie_file.load(tmp_path / "none.conf", {})


NUMBERS = (
    st.integers(-(1 << 70), 1 << 70).map(str)
    | st.floats().map(str)
    | st.sampled_from(["90%", "0x7fffffffffffffff", "1e-320", "1e999"])
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*CASES]),
        NUMBERS | st.text(max_size=10) | st.booleans().map(str),
        max_size=6,
    )
)
def test_any_value_makes_a_bookie_or_a_problem(keys: dict[str, str]) -> None:
    read = source.KeySource(
        Path("bk_server.conf"),
        source.Properties(
            {
                key: source.Property(source.value_list(value.replace("\\u", "u")), 1)
                for key, value in {**BASE, **keys}.items()
            }
        ),
        {},
    )
    config, report = key_translation.translate(read, Host())
    if config is None:
        assert report.problems
    else:
        check(config)
        assert msgspec.json.decode(msgspec.json.encode(config), type=BookieConfig) == config


PAIRS = st.lists(
    st.sampled_from(["/a", "/b", "/c", "/d", "/e"]), min_size=1, max_size=5, unique=True
)


@given(PAIRS, PAIRS)
def test_pairs_share_no_directory_and_stay_where_they_are(
    journals: list[str], ledgers: list[str]
) -> None:
    from fastbk.apache.configuration.key_translation import paired

    found = paired(journals, ledgers)
    everywhere = (*found.journals, *found.ledgers)
    assert len(set(everywhere)) == len(everywhere) == 2 * max(len(journals), len(ledgers))
    assert found.ledgers[: len(ledgers)] == tuple(ledgers)
    for journal in found.journals:
        assert any(journal == one or journal.startswith(f"{one}/") for one in journals)
    # One more directory behind the others moves none of them, unless it is the journal's own.
    more = paired(journals, [*ledgers, "/new"])
    assert more.journals[: len(found.journals)] == found.journals
    assert more.ledgers[: len(ledgers)] == tuple(ledgers)


SOME_KEYS = st.dictionaries(
    st.sampled_from(
        [name for name in CASES if name not in ("permittedStartupUsers", "bookiePort")]
    ),
    st.sampled_from(
        ["true", "false", "0", "1", "64", "1000000", "0.5", "/a,/b", "-1", "x", "eth1", ""]
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(SOME_KEYS)
def test_what_is_converted_configures_the_same_bookie(keys: dict[str, str]) -> None:
    config, report = translated({**BASE, **keys})
    if config is None:
        assert report.problems
        return
    check(config)
    text = toml_text(BookieFile(Path("bk_server.conf"), config, report))
    again = toml.from_document(tomllib.loads(text), BookieConfig, "toml")
    assert again == config
    check(again)
    assert msgspec.json.encode(again) == msgspec.json.encode(config)


# What a file of Apache's is told of: values that were there in vain.


BASE_TEXT = """
advertisedAddress=10.0.0.1
journalDirectories=/data/journal
ledgerDirectories=/data/a,/data/b
metadataServiceUri=zk+hierarchical://zk1:2181,zk2:2181/ledgers
"""


def report_of(text: str) -> Report:
    read = source.KeySource(Path("bk_server.conf"), source.parse(BASE_TEXT + text), {})
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


# Apache's keys about TLS together: when they count, and what is refused with its cure.


def tls_of(keys: dict[str, str]) -> TlsSettings:
    return accepted(keys)[0].tls


def test_keys_count_only_where_tls_is_on() -> None:
    assert tls_of({"authorizedRoles": "a"}) == TlsSettings()
    rest = {key: value for key, value in (PKCS12 | TRUST).items() if key not in FACTORY}
    assert tls_of(rest) == TlsSettings()
    off = dict(TRUST, tlsClientAuthentication="false")
    assert tls_of(PEM | off).client_certificates == "none"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (FACTORY, "keytool -importkeystore"),
        (
            PKCS12 | {"tlsKeyStoreType": "JKS", "tlsKeyStore": "/k.jks"},
            "-srckeystore /k.jks -destkeystore /k.p12",
        ),
        (PKCS12 | {"tlsKeyStoreType": "BCFKS"}, "BCFKS is not known"),
        (PEM | {"tlsCertificatePath": ""}, "the bookie's certificate"),
        (PEM | TRUST | {"tlsTrustStore": ""}, "the authorities"),
        (PEM | TRUST | {"tlsTrustStoreType": "JKS"}, "keytool"),
        (PEM | {"tlsProviderFactoryClass": "my.Factory"}, "my.Factory cannot run here"),
        (ROLES, "roles are in certificates"),
        (PEM | ROLES, "tlsClientAuthentication is not set"),
        (PEM | TRUST | ROLES | {"authorizedRoles": ""}, "at least one"),
        (PEM | TRUST | ROLES | {"bookieAuthProviderFactoryClass": "a.Sasl"}, "cannot run here"),
        (SASL | {"java.security.auth.login.config": ""}, "name the file of Java's -D"),
        (PEM | {"tlsEnabledProtocols": "SSLv3"}, "TLSv1.2 and TLSv1.3"),
    ],
)
def test_what_would_not_be_what_the_file_asks_for(keys: dict[str, str], reason: str) -> None:
    config, report = translated(BASE | keys)
    assert config is None
    assert reason in "\n".join(report.problems)
