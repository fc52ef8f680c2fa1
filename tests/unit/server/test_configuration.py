from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fastbk import config as files
from fastbk.config import is_loopback, split_address
from fastbk.errors import ConfigError
from fastbk.server import process_table
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check
from fastbk.server.configuration.example import example, value_text
from fastbk.units import (
    GIB,
    KIB,
    MIB,
    format_count,
    format_entries,
    format_size,
    parse_duration_us,
    parse_size,
)

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[bookie]
listen = "127.0.0.1:3181"
[metadata]
uri = "sqlite:/tmp/m.sqlite"
[journal]
directory = "/tmp/journal"
file_size = "64MiB"
[ledgers]
directory = "/tmp/ledgers"
flush_interval = "2s"
"""


def load(tmp_path: Path, text: str) -> BookieConfig:
    path = tmp_path / "bookie.toml"
    path.write_text(text)
    return files.load(path, BookieConfig)


def test_units_in_values_reach_the_fields_that_carry_the_unit(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    check(config)
    assert config.journal.file_size_bytes == 64 * MIB
    assert config.ledgers.flush_interval_ms == 2000
    assert config.ledgers.write_cache_size_bytes == 48 * MIB


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('fle_size = "1MiB"', "did you mean file_size?"),
        ("limit = 512", 'has no unit: write it like "64MiB"'),
        ('limit = "512 apples"', "no known unit"),
        ('limit = "1KiB"', "limit: Expected `int` >= 33554432"),
        ("directory = 7", "directory: Expected `str`"),
        ('backend = "magic"', "backend"),
        ('limit = "0.3B"', "not a whole number"),
    ],
)
def test_a_wrong_key_or_value_is_refused_in_one_line_that_names_it(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"[journal]\n{line}\n")
    text = str(caught.value)
    assert message in text
    assert "[journal]" in text
    assert "\n" not in text


def test_an_unknown_section_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean journal\?"):
        load(tmp_path, "[jurnal]\n")


def test_broken_toml_and_a_missing_file_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bookie\.toml: not valid TOML"):
        load(tmp_path, "[journal\n")
    with pytest.raises(ConfigError, match="cannot read it"):
        files.load(tmp_path / "none.toml", BookieConfig)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('directory = "/tmp/journal"', "", r"\[journal\] directory is missing"),
        ('uri = "sqlite:/tmp/m.sqlite"', "", r"\[metadata\] uri is missing"),
        ("sqlite:/tmp/m.sqlite", "gateway://g:3182", "a bookie needs the metadata store itself"),
        ("127.0.0.1:3181", "0.0.0.0:3181", "strangers are not kept out"),
        ("127.0.0.1:3181", "10.1.2.3:3181", "strangers are not kept out"),
        ("127.0.0.1:3181", "somewhere:3181", "strangers are not kept out"),
        ("127.0.0.1:3181", "127.0.0.1:0", "give the bookie an id"),
        ("127.0.0.1:3181", "127.0.0.1", "not host:port"),
        ("127.0.0.1:3181", "127.0.0.1:70000", "not host:port"),
        ("/tmp/ledgers", "/tmp/journal", "must be different"),
        (
            'directory = "/tmp/journal"',
            'directories = ["/tmp/j0", "/tmp/j1"]',
            "each journal needs the directory of its index",
        ),
        ('directory = "/tmp/journal"', 'directories = ["/tmp/j0", ""]', "directory is missing"),
        ('/tmp/journal"', '/tmp/journal"\ndirectories = ["/tmp/j0"]', "one of the two"),
        (
            'directory = "/tmp/journal"',
            f"directories = {[f'/tmp/j{n}' for n in range(9)]}",
            "names 9",
        ),
        ("[metadata]", '[limits]\nadd_ring_size = "8MiB"\n[metadata]', "must hold 3 frames"),
        ("[metadata]", '[limits]\nadd_ring_size = "24MiB"\n[metadata]', "power of two"),
        ("[metadata]", '[http]\nlisten = "0.0.0.0:80"\n[metadata]', "reachable from other"),
        ("[bookie]", '[bookie]\nlocation = "eu/r1"', r"\[bookie\] location 'eu/r1': write /region"),
        ("[bookie]", '[bookie]\nlabels = ["gold", "a b"]', r"\[bookie\] label 'a b'"),
        ("[bookie]", '[bookie]\nlabels = "gold"', "labels"),
        ('file_size = "64MiB"', 'file_size = "1GiB"', "at least two files"),
        ("flush_interval", 'write_cache_size = "200MiB"\nflush_interval', "add up to"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=message):
        check(load(tmp_path, GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("section", "line", "message"),
    [
        ("limits", 'frame_size_max = "8KiB"', "frame_size_max must be 16KiB"),
        ("network", 'reply_backlog_max = "4MiB"', "reply_backlog_max must hold 1 frames"),
        ("network", 'unread_replies_max = "7MiB"', "must not be below reply_backlog_max"),
        ("network", 'reply_backlog_max = "1GiB"', "reply_backlog_max must be below 1GiB"),
        ("network", 'partial_frames_max = "8MiB"', "partial_frames_max must hold 2 frames"),
        ("network", 'hello_timeout = "2000s"', "hello_timeout must be at most 1000s"),
        ("ledgers", 'write_cache_size = "8MiB"', "write_cache_size must hold 3 frames"),
        ("journal", 'batch_size_max = "40MiB"', "batch_size_max must be at most 31MiB"),
        ("journal", 'batch_size_max = "20MiB"', "must hold 4 batches"),
        ("journal", 'first_file_size = "16MiB"', "first_file_size must hold 4 frames"),
    ],
)
def test_what_c_would_refuse_at_the_start_is_refused_before(
    tmp_path: Path, section: str, line: str, message: str
) -> None:
    text = GOOD if f"[{section}]" in GOOD else f"{GOOD}[{section}]\n"
    with pytest.raises(ConfigError, match=message):
        check(load(tmp_path, text.replace(f"[{section}]", f"[{section}]\n{line}")))


def test_a_bookie_is_told_its_place_and_labels(tmp_path: Path) -> None:
    text = GOOD.replace("[bookie]", '[bookie]\nlocation = "/eu/r1"\nlabels = ["gold", "ssd"]')
    config = load(tmp_path, text)
    check(config)
    assert (config.bookie.location, config.bookie.labels) == ("/eu/r1", ("gold", "ssd"))


def test_listening_beyond_loopback_takes_an_explicit_setting(tmp_path: Path) -> None:
    text = GOOD.replace("127.0.0.1:3181", "0.0.0.0:3181")
    text = text.replace("[bookie]", "[bookie]\nallow_unauthenticated_remote = true")
    check(load(tmp_path, text))


REMOTE = '[metadata]\nuri = "zk+hierarchical://10.0.0.7:2181/ledgers"\n'


@pytest.mark.parametrize(
    ("bookie", "says"),
    [
        ("", "the address 127.0.0.1 in"),
        ('listen = "0.0.0.0:3181"', "the address 0.0.0.0 in"),
        ('listen = "[::]:3181"', "the address :: in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "localhost"', "the address localhost in"),
        ('listen = "0.0.0.0:3181"\nadvertised = "10.0.0.1"', "id is missing"),
        ('listen = "[::0]:3181"', "the address ::0 in"),
        ('listen = "[0:0:0:0:0:0:0:0]:3181"', "the address 0:0:0:0:0:0:0:0 in"),
        ('listen = "0:3181"', "the address 0 in"),
        ('listen = "[::ffff:127.0.0.1]:3181"', "the address ::ffff:127.0.0.1 in"),
        ('listen = "[::ffff:0.0.0.0]:3181"', "the address ::ffff:0.0.0.0 in"),
        ('listen = "127.1:3181"', "the address 127.1 in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "127.9.9.9"', "the address 127.9.9.9 in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "::1"', "the address ::1 in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "0.0"', "the address 0.0 in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "LocalHost."', "the address LocalHost. in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "ip6-localhost"', "the address ip6-localhost in"),
        ('listen = "10.0.0.1:3181"\nadvertised = "b1.localhost"', "the address b1.localhost in"),
        ('listen = "[::0]:3181"\nadvertised = "10.0.0.1"', "id is missing"),
    ],
)
def test_no_address_of_one_machine_is_registered_in_a_zookeeper_of_another(
    tmp_path: Path, bookie: str, says: str
) -> None:
    text = f"[bookie]\nallow_unauthenticated_remote = true\n{bookie}\n{REMOTE}"
    text += f'[journal]\ndirectory = "{tmp_path}/j"\n[ledgers]\ndirectory = "{tmp_path}/l"\n'
    with pytest.raises(ConfigError, match=re.escape(says)):
        check(load(tmp_path, text))
    check(load(tmp_path, text.replace("10.0.0.7", "127.0.0.1")))
    good = 'listen = "0.0.0.0:3181"\nadvertised = "10.0.0.1"\nid = "b1"\n[metadata]'
    check(load(tmp_path, text.replace(f"{bookie}\n[metadata]", good)))


def test_a_name_to_listen_on_that_has_loopback_addresses_only_is_not_registered_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian's `/etc/hosts` has a machine's own name. What others know of an advertised name only they know."""
    asked = socket.getaddrinfo

    def own_name(host: str, *rest: Any, **options: Any) -> Any:
        address = "127.0.1.1" if host == "bookie-1" and not options.get("flags") else host
        return asked(address, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", own_name)
    text = f'[bookie]\nallow_unauthenticated_remote = true\nlisten = "bookie-1:3181"\n{REMOTE}'
    text += f'[journal]\ndirectory = "{tmp_path}/j"\n[ledgers]\ndirectory = "{tmp_path}/l"\n'
    with pytest.raises(ConfigError, match="the address bookie-1 in"):
        check(load(tmp_path, text))
    advertised = text.replace(":3181", ':3181"\nadvertised = "bookie-1').replace(
        "bookie-1:", "10.0.0.1:"
    )
    check(load(tmp_path, advertised))


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.1", True), ("::1", True), ("0:0:0:0:0:0:0:1", True), ("::ffff:127.8.8.8", True),
     ("localhost", True), ("LOCALHOST", False), ("x.localhost", False), ("ip6-localhost", False), ("0", False),
     ("::", False), ("::ffff:10.0.0.1", False), ("10.0.0.1", False), ("bookie-1", False), ("a\0b", False), ("", False)],
)  # fmt: skip
def test_loopback_is_what_the_system_takes_for_it_and_names_may_be_anything(
    host: str, is_local: bool
) -> None:
    """Who listens on loopback only may do so without keys: a name that a name service may answer is not believed."""
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("metadata-store:etcd:h:1", "only ZooKeeper is known here"),
        ("zk+tree://h/ledgers", "unknown layout"),
        ("zookeeper:h", "unknown scheme"),
        ("sqlite:metadata", "absolute path"),
        ("h:2181", "unknown scheme"),
    ],
)
def test_a_metadata_uri_that_the_start_refuses_is_refused_by_the_check(
    tmp_path: Path, uri: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        check(load(tmp_path, GOOD.replace("sqlite:/tmp/m.sqlite", uri)))


def test_the_default_bookie_stays_within_its_memory_table() -> None:
    assert process_table.memory_bytes(BookieConfig()) <= 364 * MIB


def test_every_setting_has_a_key_of_its_own() -> None:
    for section in msgspec.structs.fields(BookieConfig):
        keys = [files.key_of(field.name)[0] for field in msgspec.structs.fields(section.type)]
        assert len(keys) == len(set(keys)), section.name


@pytest.mark.parametrize(
    ("field", "key", "unit"),
    [
        ("frame_size_bytes_max", "frame_size_max", "bytes"),
        ("hello_timeout_ms", "hello_timeout", "ms"),
        ("restarts_window_s", "restarts_window", "s"),
        ("bytes", "bytes", None),
        ("readers", "readers", None),
    ],
)
def test_a_key_is_the_field_without_its_unit(field: str, key: str, unit: str | None) -> None:
    assert files.key_of(field) == (key, unit)


@pytest.mark.parametrize(
    ("text", "value"), [("1B", 1), ("4KiB", 4 * KIB), ("1.5GiB", GIB * 3 // 2), ("2 MB", 2_000_000)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("200us", 200), ("1.5ms", 1500), ("10min", 600_000_000), ("0s", 0)]
)
def test_durations(text: str, value: int) -> None:
    assert parse_duration_us(text) == value


@pytest.mark.parametrize("text", ["", "MiB", "5", "-1KiB", "1..2MiB", "nanKiB", "infKiB", "1e3q"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole"):
        parse_size(text)


def test_sizes_are_shown_with_a_readable_unit() -> None:
    assert [format_size(n) for n in (5, 2048, 3 * MIB, 2 * GIB)] == [
        "5 B", "2.0 KiB", "3.0 MiB", "2.0 GiB"]  # fmt: skip


def test_counts_agree_with_their_noun() -> None:
    assert [format_count(n, "bookie") for n in (0, 1, 2000)] == [
        "0 bookies", "1 bookie", "2,000 bookies"]  # fmt: skip
    assert [format_entries(n) for n in (1, 2)] == ["1 entry", "2 entries"]


def test_addresses() -> None:
    assert split_address("[::1]:80", "x") == ("::1", 80)
    assert is_loopback("127.0.0.53")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("127.example.org.evil")


def test_the_example_has_every_key_and_says_what_holds_without_it(tmp_path: Path) -> None:
    text = example()
    assert load(tmp_path, text) == BookieConfig()
    for section in msgspec.structs.fields(BookieConfig):
        for field in msgspec.structs.fields(section.type):
            assert f"\n{files.key_of(field.name)[0]} = " in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(300 * MIB, "bytes", '"300MiB"'), (5 * MIB + 4 * KIB, "bytes", '"5124KiB"'),
     (600_000, "ms", '"10min"'), (0, "bytes", "0"), (True, None, "true"), ("a", None, '"a"')],
)  # fmt: skip
def test_values_are_written_with_their_largest_whole_unit(
    value: object, unit: str | None, text: str
) -> None:
    assert value_text(value, unit) == text


def test_several_pairs(tmp_path: Path) -> None:
    text = GOOD.replace('directory = "/tmp/journal"', 'directories = ["/tmp/j0", "/tmp/j1"]')
    text = text.replace('directory = "/tmp/ledgers"', 'directories = ["/tmp/l0", "/tmp/l1"]')
    config = load(tmp_path, text)
    check(config)
    assert config.journal.all_directories == ("/tmp/j0", "/tmp/j1")
    assert config.ledgers.all_directories == ("/tmp/l0", "/tmp/l1")
    nine = text.replace('["/tmp/j0", "/tmp/j1"]', str([f"/tmp/j{n}" for n in range(9)]))
    nine = nine.replace('["/tmp/l0", "/tmp/l1"]', str([f"/tmp/l{n}" for n in range(9)]))
    with pytest.raises(ConfigError, match="at most 8"):
        check(load(tmp_path, nine))
    twice = text.replace("/tmp/l1", "/tmp/l0")
    with pytest.raises(ConfigError, match="must be different"):
        check(load(tmp_path, twice))
