"""`fastbk support-bundle`: what is in it, with bookies that are down, and no secret from any place that has one."""

from __future__ import annotations

import json
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk.sync
from fastbk.admin import support_bundle
from fastbk.admin.page_client import AdminClient, BookieSilent, client_at
from fastbk.admin.support_bundle import Redactor, SupportBundle
from fastbk.cli import options
from fastbk.devcluster.cluster import DevService
from fastbk.security.tokens import TokenKey
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.wait import wait_until

PLANTED = "pl4nted"
"""Part of every secret here, so that one search finds all of them."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2) as made:
        yield made


@pytest.fixture
def cli(cluster: LocalCluster) -> Cli:
    return Cli(cluster.metadata_uri)


def parts_of(path: Path) -> dict[str, str]:
    """Return the parts of a bundle by their names."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert len({name.partition("/")[0] for name in names}) == 1
        assert all(".." not in name for name in names)
        return {
            name.partition("/")[2]: archive.extractfile(name).read().decode()  # type: ignore[union-attr]
            for name in names
        }


def secret(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def has_started(page: AdminClient) -> bool:
    """Return whether the event of its start is on a janitor's page."""
    try:
        return any(one["event"] == "janitor.started" for one in page.get("/events")["events"])
    except BookieSilent:
        return False


def test_it_has_what_helps_and_names_what_is_missing(
    cluster: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    out, folder = tmp_path / "a.tar.gz", cluster.data / "bookie-2"
    cluster.stop_bookie(1)
    began_s = time.monotonic()
    words = (
        "--config",
        str(folder / "bookie.toml"),
        "--log",
        str(folder / "bookie.log"),
        "--log",
        "/nowhere.log",
    )
    answer = cli.json("support-bundle", "-o", str(out), *words)
    assert time.monotonic() - began_s < 90
    assert answer["file"] == str(out) and answer["bytes"] == out.stat().st_size
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    parts = parts_of(out)
    running = {
        name.removeprefix("bookies/bookie-1/")
        for name in parts
        if name.startswith("bookies/bookie-1/")
    }
    assert running >= {
        "info.json",
        "disks.json",
        "readyz.json",
        "settings.json",
        "metrics.txt",
        "events.jsonl",
    }
    assert "fastbk_journal_" in parts["bookies/bookie-1/metrics.txt"]
    assert json.loads(parts["bookies/bookie-1/settings.json"])["journal.sync"] == "always"
    assert '"bookie.started"' in parts["bookies/bookie-1/events.jsonl"]
    assert json.loads(parts["cluster/status.json"].splitlines()[-1])["bookies"]["down"] == 1
    assert '"bookie.stopped"' in parts["here/1/events.jsonl"]  # of the bookie that is down
    assert json.loads(parts["here/1/settings.json"])["bookie.id"] == "bookie-2"
    assert '"status":"ok"' in parts["here/1/doctor.jsonl"]
    assert "bookie.draining" in parts["logs/1-bookie.log"]
    assert json.loads(parts["versions.json"])["fastbk"] == fastbk.__version__
    assert json.loads(parts["cluster/under-replicated.json"].splitlines()[-1])["missing"] == []
    manifest = json.loads(parts["manifest.json"])
    assert manifest["missing"]["bookies/bookie-2"].startswith(
        "it is not registered: it is down; on its machine"
    )
    assert manifest["missing"]["logs/2-nowhere.log"] == "/nowhere.log: No such file or directory"
    assert set(manifest["parts"]) == set(parts) - {"manifest.json"}
    assert "exists: choose another name" in cli.fails("support-bundle", "-o", str(out), code=2)
    cluster.start_bookie(1)
    cluster.wait_ready(1)


def test_services_are_in_it_and_a_process_that_does_not_answer_is_missing_once(
    cluster: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "services.tar.gz"
    janitor = DevService("janitor", tmp_path, cluster.metadata_uri)
    janitor.start()
    try:
        page = client_at(f"127.0.0.1:{janitor.http_port}", "--page")
        wait_until(lambda: has_started(page), "the janitor has started")
        words = ("--page", f"127.0.0.1:{janitor.http_port}", "--page", "127.0.0.1:1")
        with cluster.frozen(1, "supervisor"):
            cli("support-bundle", "-o", str(out), *words)
    finally:
        janitor.stop()
    parts = parts_of(out)
    assert '"janitor.started"' in parts[f"services/127.0.0.1_{janitor.http_port}/events.jsonl"]
    missing = json.loads(parts["manifest.json"])["missing"]
    assert {name for name in missing if "/" in name} - {"logs/systemd.log"} == {
        "bookies/bookie-2",
        "services/127.0.0.1_1",
    }
    assert "127.0.0.1:1 does not answer" in missing["services/127.0.0.1_1"]


def test_without_metadata_it_has_the_pages_that_are_named(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle is wanted just then, and soon."""
    monkeypatch.setattr(options, "METADATA_TIMEOUT_S", 1.0)
    out, place = tmp_path / "without.tar.gz", f"127.0.0.1:{cluster.bookies[0].http_port}"
    cli = Cli("zk+hierarchical://127.0.0.1:1/ledgers")
    cli("support-bundle", "-o", str(out), "--page", place)
    parts = parts_of(out)
    assert '"bookie.started"' in parts[f"services/{place.replace(':', '_')}/events.jsonl"]
    missing = json.loads(parts["manifest.json"])["missing"]
    assert missing["cluster"].startswith("ZooKeeper 127.0.0.1:1 did not answer")
    assert not [name for name in parts if name.startswith("cluster/")]


def test_no_secret_of_any_place_is_in_it(
    cluster: LocalCluster, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cluster.data / "bookie-1"
    key = TokenKey.generate("k")
    token = key.sign("ann", ["read"], "cluster", lifetime_s=60.0)
    files = {
        "token": token,
        "password": f"{PLANTED}-password",
        "zookeeper": f'mechanism = "digest"\nuser = "ann"\npassword_file = "{tmp_path}/zookeeper.password"\n',
        "zookeeper.password": f"{PLANTED}-zookeeper",
        "signing-key": key.text(),
        "users": f'FastbkUsers {{ user_ann="{PLANTED}-user"; }};',
        "key.pem": f"-----BEGIN PRIVATE KEY-----\n{PLANTED}KeyLine\n-----END PRIVATE KEY-----\n",
    }
    paths = {name: secret(tmp_path / name, text) for name, text in files.items()}
    pieces = {PLANTED, token, token.rpartition(".")[2], key.text().strip()}
    # Metadata: a ledger with a password; its entries and its custom metadata hold secrets of their own.
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        shape = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
        text = f"{PLANTED}-ledger".encode()
        with client.create_ledger(**shape, password=text, metadata={"note": text}) as writer:
            writer.append(text)
    # The configuration of a bookie names files of secrets, and holds one in a comment and in a setting of text.
    config = tmp_path / "bookie.toml"
    settings = (folder / "bookie.toml").read_text()
    config.write_text(
        f"# password = {PLANTED}-comment\n{settings}\n[authentication]\nusers_file = '{paths['users']}'\n"
        f"users_allowed = '{PLANTED}-allowed'\n[tls]\nkey_file = '{paths['key.pem']}'\n"
    )
    # Logs and events have known secrets anywhere, and unknown ones where they show themselves.
    known = [
        token,
        f"{PLANTED}-password",
        f"{PLANTED}-zookeeper",
        f"{PLANTED}-user",
        f"{PLANTED}-variable",
    ]
    lines = [json.dumps({"event": "a.b", "reason": f"of {one}", one: 1}) for one in known]
    lines += [
        json.dumps({"event": "a.b", "password": f"{PLANTED}-x"}),
        f"token={PLANTED}-y",
        files["key.pem"],
    ]
    lines += [f"zk://ann:{PLANTED}-z@host/ledgers", f"Traceback: Bearer {PLANTED}-bearer", *known]
    log = tmp_path / "bookie.log"
    log.write_text("\n".join(lines) + "\n")
    events = folder / "ledgers" / "events.jsonl"
    with events.open("a") as file:
        file.write("\n".join(lines) + "\n")
    assert PLANTED in log.read_text() and PLANTED in events.read_text()
    # The environment of the command.
    for name, value in {
        "FASTBK_TOKEN_FILE": paths["token"],
        "FASTBK_USER": "ann",
        "FASTBK_USER_PASSWORD_FILE": paths["password"],
        "FASTBK_ZOOKEEPER_FILE": paths["zookeeper"],
        "FASTBK_LEDGER_PASSWORD": f"{PLANTED}-variable",
        "FASTBK_SASL_WITHOUT_TLS": "1",
    }.items():
        cli._environment[name] = value
    out = tmp_path / "b.tar.gz"
    cli("support-bundle", "-o", str(out), "--config", str(config), "--log", str(log))
    parts = parts_of(out)
    assert len(parts) > 15 and "(removed)" in parts["logs/1-bookie.log"]
    assert parts["here/1/events.jsonl"].count("(removed)") >= len(lines)
    for name, text in {**parts, "what it prints": cli.err}.items():
        found = [piece for piece in pieces if piece in text]
        assert not found, f"{name}: {[text[max(0, text.index(one) - 80) :][:200] for one in found]}"


def test_it_is_bounded_in_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each line is looked at for secrets: parts of 4 MiB take ten seconds.
    part_bytes = 1 << 20
    monkeypatch.setattr(support_bundle, "PART_BYTES_MAX", part_bytes)
    bundle = SupportBundle(Redactor(), size_bytes_max=2 * part_bytes, deadline_s=0.5)
    long = tmp_path / "long.log"
    long.write_text("".join(f"line {number:09}\n" for number in range(part_bytes // 10)))
    bundle.add_file("1.log", long)
    bundle.add_file("2.log", long)
    bundle.add_file("3.log", long)
    began_s = time.monotonic()
    bundle.add_command("sleep.txt", ["sh", "-c", "echo begun; exec sleep 60"])
    assert time.monotonic() - began_s < 10
    out = tmp_path / "c.tar.gz"
    bundle.write(out)
    parts = parts_of(out)
    assert set(parts) >= {"manifest.json", "1.log"} and "3.log" not in parts
    assert parts["1.log"].endswith(f"line {part_bytes // 10 - 1:09}\n")
    assert parts["1.log"].startswith("line ") and len(parts["1.log"]) <= part_bytes
    missing = json.loads(parts["manifest.json"])["missing"]
    assert missing["1.log"].startswith("only the last 1 MiB") and "room" in missing["3.log"]
    assert missing["sleep.txt"].startswith("not done within")


def test_an_id_cannot_lead_out_of_the_folder() -> None:
    from fastbk.admin.support_bundle import _folder

    assert _folder("../../etc/passwd") == "bookies/_.._etc_passwd"
    assert _folder("bookie-1:3181") == "bookies/bookie-1_3181"


def test_without_a_cluster_it_has_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli("")
    out = tmp_path / "d.tar.gz"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cli("support-bundle", "-o", str(out))
    assert "no cluster is named" in cli.err
    assert {"versions.json", "doctor.jsonl"} <= set(parts_of(out))
