"""Every command that has --json, run on real bookies: its answer has the shape that docs/json.md promises."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastbk.cli.completion import parsers_below, whole_parser
from fastbk.native.disk import Disk
from fastbk.storage import limbo
from fastbk.testing import LocalCluster
from tests.fixtures import apache_disk
from tests.fixtures.bookie_image import make_image
from tests.fixtures.cli import Cli
from tools.json_shapes import PAGE, differences, documented

SPARK = (
    "spark archive",
    "spark audit",
    "spark ingest",
    "spark rebuild",
    "spark restore",
    "spark usage",
)
"""Documented, and run by the tests of Spark: each starts a Java machine."""
NOT_RUN = {*SPARK, "dev", "metadata format", "metadata secure"}
"""`dev` is a service, and the last two need a ZooKeeper: their own tests run them."""


def commands() -> set[str]:
    """Return the commands and verbs that have --json."""
    return {
        parser.prog.removeprefix("fastbk ")
        for parser, _ in parsers_below(whole_parser())
        if "--json" in parser._option_string_actions
        and not any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    }


class Recorder:
    """Runs commands with --json, and keeps their answers by command."""

    def __init__(self, cli: Cli) -> None:
        self.answers: dict[str, list[object]] = {}
        self._cli = cli

    def __call__(
        self, command: str, *words: str, codes: tuple[int, ...] = (0,), stdin: bytes = b""
    ) -> list[object]:
        """Run a command; return the documents that it printed, one a line."""
        code, written = self._cli.run(*command.split(), *words, "--json", stdin=stdin)
        assert code in codes, f"{command} {words}: {code}: {self._cli.err}"
        documents = [json.loads(line) for line in written.decode().splitlines()]
        self.answers.setdefault(command, []).extend(documents)
        return documents


def use_ledgers(run: Recorder, folder: Path) -> None:
    text = folder / "text"
    text.write_bytes(b"a\nb\nc\n")
    (made,) = run("ledger create", "--ensemble", "2", "--write-quorum", "2", "--ack-quorum", "2")
    ledger_id = str(made["ledger_id"])  # type: ignore[index]
    run("ledger recover", ledger_id)
    (made,) = run("ledger write", str(text))
    ledger_id = str(made["ledger_id"])  # type: ignore[index]
    (made,) = run("ledger write", stdin=b"\xff\n")
    run("ledger read", str(made["ledger_id"]))  # type: ignore[index]
    for verb in ("show", "read", "tail"):
        run(f"ledger {verb}", ledger_id)
    run("ledger list")
    run("ledger metadata", ledger_id, "--set", "a=b")
    run("ledger audit")
    run("ledger export", ledger_id, str(folder / "a.parquet"))
    run("ledger delete", ledger_id, "--dry-run")
    run("ledger delete", ledger_id, "--yes")


def use_objects(run: Recorder, folder: Path) -> None:
    (folder / "object").write_bytes(b"data")
    run("object put", "shop", "a/1", str(folder / "object"), "--set", "step=1")
    run("object info", "shop", "a/1")
    run("object list", "shop")
    run("object verify", "shop", "a/1")
    run("object get", "shop", "a/1", str(folder / "got"))
    run("object delete", "shop", "a/1", "--dry-run")
    run("object delete", "shop", "a/1", "--yes")


def use_streams(run: Recorder, folder: Path) -> None:
    import fastbk.sync

    run("namespace create", "shop")
    run("namespace create", "shop/eu")
    run("namespace set", "shop", "--set", "compression=lz4")
    run("namespace list", "--recursive")
    run("namespace info", "shop")
    use_objects(run, folder)
    run("stream create", "shop/orders", "shop/old")
    run("stream append", "shop/orders", stdin=b"a\nb\n\xff\n")
    run("stream append", "shop/produced", "--create", "--producer", "import", stdin=b"a\n")
    with (
        fastbk.sync.connect(run._cli._environment["FASTBK_METADATA"]) as client,
        client.namespace("shop").stream("orders").cursor("billing", start="earliest") as cursor,
    ):
        cursor.ack(next(iter(cursor)))
    with (
        fastbk.sync.connect(run._cli._environment["FASTBK_METADATA"]) as client,
        client.namespace("shop").cursor("ord*", "all") as all_orders,
    ):
        all_orders.ack(next(iter(all_orders)))
    run("namespace cursors", "shop")
    run("namespace cursors", "shop", "--delete", "all", "--dry-run")
    run("stream info", "shop/orders")
    run("stream cursors", "shop/ord*")
    run("stream cursors", "shop/ord*", "--move", "all", "--to", "earliest", "--dry-run")
    run("stream cursors", "shop/ord*", "--move", "all", "--to", "earliest", "--yes")
    run("stream read", "shop/ord*")
    run("namespace cursors", "shop", "--delete", "all", "--yes")
    run("stream cursors", "shop/ord*", "--create", "all", "--to", "latest")
    run("stream cursors", "shop/ord*", "--delete", "all", "--yes")
    run("stream list", "shop")
    run("stream read", "shop/orders")
    run("stream export", "shop/orders", str(folder / "b.parquet"))
    run("stream cursors", "shop/orders")
    run("stream cursors", "shop/orders", "--create", "audit", "--to", "latest")
    run("stream cursors", "shop/orders", "--move", "billing", "--back", "1", "--dry-run")
    run("stream cursors", "shop/orders", "--move", "billing", "--back", "1", "--yes")
    run("stream cursors", "shop/orders", "--delete", "billing", "--yes")
    run("stream set", "shop/orders", "--set", "roll_bytes=1MiB")
    run("stream truncate", "shop/orders", "--before", "seq:1", "--dry-run")
    run("stream truncate", "shop/orders", "--before", "seq:1", "--yes")
    with fastbk.sync.connect(run._cli._environment["FASTBK_METADATA"]) as client:
        *_, segment = run._cli("ledger", "list").split()
        with client.create_ledger(1, 1, 1) as copy:
            for entry in client.open_ledger(int(segment)).read():
                copy.append(bytes(entry.data))
    run("stream attach", "shop/old", str(copy.ledger_id))
    run("stream reattach")
    run("stream kind", "shop/old", "producers")
    run("stream kind", "shop/old", "writer")
    run("stream rename", "shop/old", "older")
    run("stream seal", "shop/older", "--yes")
    run("stream tail", "shop/older", "--timeout", "5", codes=(0, 75))
    run("stream tail", "shop/orders", "--timeout", "1", codes=(75,))
    run("stream delete", "shop/older", "--dry-run")
    run("stream delete", "shop/older", "--yes")
    use_coordination(run)
    run("namespace rename", "shop/eu", "us")
    run("namespace watch", "shop", "--timeout", "1", codes=(75,))
    run("namespace delete", "shop/us", "--yes")
    run("janitor", "--once")


def use_coordination(run: Recorder) -> None:
    import fastbk.sync

    with fastbk.sync.connect(run._cli._environment["FASTBK_METADATA"]) as client:
        shop = client.namespace("shop")
        fastbk.sync.Counter(shop, "count").add()
        fastbk.sync.Config(shop, "flags").set(b"on")
        with fastbk.sync.Lease(shop, "leader"):
            run("coordination list", "shop")
        for name in ("count", "flags", "leader"):
            run("coordination show", "shop", name)
    for words in (("--dry-run",), ("--yes",)):
        run("coordination release", "shop", "leader", *words)
        run("coordination delete", "shop", "count", *words)


def use_cluster(run: Recorder, folder: Path) -> None:
    run("bookie list")
    run("bookie info", "bookie-1", codes=(0, 1))
    run("bookie disk", "bookie-1", codes=(0, 1))
    run("bookie log-level", "bookie-1")
    run("bookie log-level", "bookie-1", "info")
    for verb in ("status", "run", "suspend", "resume"):
        run(f"bookie gc {verb}", "bookie-1")
    run("bookie maintenance", "bookie-1", "--for", "1h", "--reason", "a test")
    run("cluster status", codes=(1,))
    run("bookie maintenance")
    run("bookie maintenance", "bookie-1", "--end")
    run("cluster status", codes=(0, 1))
    run("cluster bookies")
    run("cluster under-replicated", codes=(0, 1))
    run("cluster under-replicated", "--verify", codes=(0, 1))
    for words in ((), ("pause",), ("rate", "64MiB"), ("hold", "1min"), ("resume",)):
        run("cluster heal", *words, codes=(0, 1))
    run("cluster roll", "--restart", "true {bookie}", "--dry-run")
    run("cluster roll", "--restart", "false {bookie}", "--whole-timeout", "1s", codes=(1,))
    run("cluster finalize", "--dry-run", codes=(0, 1))
    run("cluster finalize", "--yes", codes=(0, 1))
    run("cluster rebalance", "--dry-run")
    run("cluster rebalance", "--yes", codes=(0, 75))
    run("cluster placement show")
    run("cluster placement check", codes=(0, 1))
    (some_ledger, *_) = run._cli("ledger", "list").split()
    run("cluster placement check", "--explain", some_ledger, codes=(0, 1))
    run("cluster placement set", "--location", "bookie-1=/r1", "--dry-run")
    run("cluster placement set", "--location", "bookie-1=/r1", "--location", "bookie-2=/r2")
    run("cluster placement check", codes=(0, 1))
    run("cluster cookies")
    run("cluster events")
    run("bookie repair", "bookie-1", "--dry-run")
    run("bookie repair", "bookie-1")
    run("top", codes=(0, 1))
    run("version")
    run("version", "--formats")
    run("bench", "append", "--seconds", "0.2")
    run("bench", "read", "--seconds", "0.2")
    run("support-bundle", "-o", str(folder / "bundle.tar.gz"), "--patience", "20")


def use_metadata(run: Recorder, folder: Path) -> None:
    run("metadata show")
    run("metadata status")
    run("metadata hold", "--reason", "a test")
    run("metadata status", codes=(1,))
    run("metadata confirm", "--yes")
    backup = str(folder / "metadata.backup")
    run("metadata backup", "--to", backup)
    run("metadata check", backup)
    run("metadata bad-records")
    run("metadata diff", backup, codes=(0, 1))
    run("stream create", "shop/new")
    run("metadata diff", backup, codes=(1,))
    run("metadata restore", backup, "--metadata", f"sqlite:{folder}/restored.sqlite")
    run("metadata init", "--metadata", f"sqlite:{folder}/made.sqlite")


def use_machine(run: Recorder, folder: Path, bookie: Path) -> None:
    """Commands that need no cluster."""
    config = str(bookie / "bookie.toml")
    run("doctor", codes=(0, 1))
    run("doctor", "--config", config, codes=(0, 1))
    run("config check", config)
    run("config show", config)
    run("config explain", "journalMaxSizeMB")
    run("config explain", "journal.file_size")
    run("config explain")
    apache = folder / "bk_server.conf"
    apache.write_text("bookiePort=3181\nmetadataServiceUri=zk+hierarchical://127.0.0.1/ledgers\n"
                      "journalDirectory=/j\nledgerDirectories=/l\nallowLoopback=true\nnoSuchKey=1\n")  # fmt: skip
    run("config check", str(apache), codes=(0, 1))
    run("config convert", str(apache))
    run("token key", str(folder / "key"), "--public", str(folder / "keys"))
    words = ("--key-file", str(folder / "key"), "--subject", "ann", "--audience", "c")
    run("token create", *words)
    run("token create", *words, "--out", str(folder / "token"))
    run("token show", str(folder / "token"))
    (folder / "audit.log").write_bytes(b"{}\n")
    run("audit verify", str(folder / "audit.log"), codes=(0, 1))
    run("context add", "a", "--metadata", "sqlite:/a", "--tls")
    run("context use", "a")
    run("context list")
    run("context show")
    run("context remove", "a")
    password = folder / "password"
    password.write_text("secret")
    password.chmod(0o600)
    run("metadata acl-id", "--user", "ann", "--password-file", str(password))
    run("disk bench", str(folder), "--seconds", "0.2", codes=(0, 1))


def use_stopped_bookie(run: Recorder, folder: Path, bookie: Path) -> None:
    config, ledgers, journal = (
        folder / "more.toml",
        str(bookie / "ledgers"),
        str(bookie / "journal"),
    )
    text = (bookie / "bookie.toml").read_text()
    for section in ("ledgers", "journal"):
        one = f'"{bookie}/{section}"'
        text = text.replace(f"directory = {one}", f'directories = [{one}, "{folder}/{section}2"]')
    config.write_text(text)
    for words in (("expand",), ("move-shards", "--even"), ("check",)):
        run(f"bookie {words[0]}", "--config", str(config), *words[1:], codes=(0, 1))
    for kind, place in (("journal", journal), ("entrylog", ledgers), ("locations", ledgers)):
        run(f"inspect {kind}", place)
        run(f"inspect {kind}", place, "--summary")
    with Disk(ledgers, "plain") as disk:
        limbo.write_limbo(disk, ledgers, (1, 2), 1)
    for kind in ("manifest", "mark", "identity", "cookie", "limbo", "scrub"):
        run(f"inspect {kind}", ledgers)
    (bookie / "ledgers" / limbo.NAME).unlink()
    image = folder / "image"
    image.mkdir()
    run("inspect audit", str(make_image(image).ledgers))
    data = [
        word
        for place in (bookie, folder / "ledgers2", folder / "journal2")
        for word in ("--data", str(place))
    ]
    run("metadata collect", *data, "--to", str(folder / "collected"))
    run(
        "metadata rebuild",
        str(folder / "collected"),
        "--metadata",
        f"sqlite:{folder}/rebuilt.sqlite",
        codes=(0, 1),
    )
    run("bookie rebuild-locations", "--config", str(config), "--dry-run", codes=(0, 1))
    run("bookie rebuild-locations", "--config", str(config), codes=(0, 1))
    run("bookie unadopt", "--config", str(config), codes=(0, 2))


def use_import(run: Recorder, folder: Path) -> None:
    recorded = apache_disk.recorded("db")
    config = folder / "import.toml"
    config.write_text(
        f"[bookie]\nid = '{recorded.bookie_id}'\n[metadata]\nuri = 'sqlite:{folder}/import.sqlite'\n"
        f"[journal]\ndirectory = '{folder}/import-journal'\n[ledgers]\ndirectory = '{folder}/import-ledgers'\n"
    )
    words = (
        "--config",
        str(config),
        f"--journal={recorded.folder}/journal",
        f"--ledgers={recorded.folder}/ledgers",
    )
    run("bookie import", *words, "--dry-run")
    run("bookie import", *words)


def test_answers_of_jobs_on_spark_have_the_documented_names() -> None:
    """They are what the jobs' classes hold; running them all takes minutes."""
    from fastbk.admin.copy_audit import Audited
    from fastbk.spark.jobs.archive import ArchivedStream
    from fastbk.spark.jobs.ingest import Ingested
    from fastbk.spark.jobs.rebuild import StateVersion
    from fastbk.spark.jobs.usage import Usage, UsageLine

    shapes = documented(PAGE.read_text())
    for shape, kind in (
        (shapes["spark archive"]["streams"][0], ArchivedStream),
        (shapes["spark ingest"], Ingested),
        (shapes["spark rebuild"], StateVersion),
        (shapes["spark usage"], Usage),
        (shapes["spark usage"]["streams"][0], UsageLine),
    ):
        assert set(shape) == {field.name for field in dataclasses.fields(kind)}
    assert set(shapes["spark audit"]) == {field.name for field in dataclasses.fields(Audited)} | {
        "is_whole"
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[object]]]:
    """All answers of all commands."""
    folder = tmp_path_factory.mktemp("shapes")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(3))
        cli = Cli(cluster.metadata_uri)
        cli._environment["XDG_CONFIG_HOME"] = str(folder / "config")
        run = Recorder(cli)
        use_ledgers(run, folder)
        use_streams(run, folder)
        use_cluster(run, folder)
        use_metadata(run, folder)
        bookie = cluster.data / "bookie-3"
        use_machine(run, folder, bookie)
        cluster.kill(2)
        run("inspect unclean", str(bookie / "ledgers"))
        cluster.start_bookie(2)
        cluster.wait_ready(2)
        cluster.stop_bookie(2)
        use_stopped_bookie(run, folder, bookie)
        use_import(run, folder)
        run("bookie recover", "bookie-3", "--dry-run", "--grace", "0")
        run("bookie recover", "bookie-3", "--grace", "0", codes=(0, 1, 75))
        run("bookie decommission", "bookie-3", "--grace", "0", "--yes", codes=(0, 1, 75))
        shutil.rmtree(folder / "config")
        yield run.answers


def test_every_command_is_documented_and_no_other() -> None:
    assert set(documented(PAGE.read_text())) == commands()


@pytest.mark.waits
def test_every_answer_has_its_documented_shape(answers: dict[str, list[object]]) -> None:
    shapes = documented(PAGE.read_text())
    faults = [
        f"{command}: {fault}"
        for command, documents in answers.items()
        for document in documents
        for fault in differences(shapes[command], document)
    ]
    assert faults == []
    run = {command for command, documents in answers.items() if documents}
    assert commands() - run == NOT_RUN
