"""Who is served at the HTTP ports of real services (INV-N7): strangers, tokens, certificates.

`LOCALHOST` counts as an address that other machines reach, as all names but `localhost` do, and is none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fastbk
from fastbk.devcluster import DevTls
from fastbk.devcluster.processes import free_port
from fastbk.errors import NoSuchLedger
from fastbk.exit_codes import USAGE
from fastbk.meta import open_store
from fastbk.safe_files import write_text
from fastbk.security.credentials import Credentials
from fastbk.security.tokens import BOOKIES, GATEWAYS, PAGES, TokenKey
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.logs import json_lines
from tests.fixtures.pages import page_at
from tests.fixtures.wait import wait_until

KEY = TokenKey.generate("k1")
AUDIENCE = "here"
DELETE = "/api/v1/ledger/delete?ledger_id="
READ = "/api/v1/ledger/read?ledger_id="
SANITY = "/api/v1/bookie/sanity"
WAIT_S = 60.0


def token(*operations: str, audience: str = AUDIENCE, namespaces: list[str] | None = None) -> str:
    return KEY.sign("ann", operations, audience, lifetime_s=600, namespaces=namespaces)


@dataclass
class Pages:
    """A port with TLS, called with the client's certificate, a token, or neither."""

    port: int
    tls: fastbk.TlsOptions

    def __call__(
        self, path: str, method: str = "GET", *, token: str = "", certificate: bool = False
    ) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=self.tls.ca_file)
        if certificate:
            context.load_cert_chain(self.tls.certificate_file, self.tls.key_file)
        with closing(
            http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=context)
        ) as made:
            made.request(
                method, path, headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            answer = made.getresponse()
            return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("admission")
    write_text(made / "keys.json", KEY.public_text())
    return made


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[LocalCluster]:
    """A bookie whose clients authenticate themselves, and whose pages are reached from elsewhere."""
    settings: dict[str, dict[str, object]] = {
        "bookie": {"allow_unauthenticated_remote": True},  # of the days before
        "tls": {"client_certificates": "request"},
        "http": {
            "listen": f"LOCALHOST:{free_port()}", "tls": True, "client_certificates": "request", "public": ["metrics"],
        },
        "authentication": {
            "methods": ["token", "certificate"], "token_keys_file": str(folder / "keys.json"),
            "token_audience": AUDIENCE,
        },
        "audit": {"file": str(folder / "audit.log")},
    }  # fmt: skip
    with LocalCluster(1, tls=True, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def pages(cluster: LocalCluster) -> Pages:
    assert cluster.tls_options is not None
    assert cluster.bookies[0].http_port is not None
    return Pages(cluster.bookies[0].http_port, cluster.tls_options)


def write_ledger(cluster: LocalCluster, namespace: str = "") -> int:
    async def write() -> int:
        async with (
            fastbk.connect(
                cluster.metadata_uri, tls=cluster.tls_options, namespace=namespace
            ) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            await writer.append(b"hello")
            return writer.ledger_id

    return asyncio.run(write())


def exists(cluster: LocalCluster, ledger_id: int) -> bool:
    with closing(open_store(cluster.metadata_uri)) as store:
        try:
            store.read_ledger(ledger_id)
        except NoSuchLedger:
            return False
        return True


def test_only_the_right_to_delete_deletes_a_ledger(
    cluster: LocalCluster, pages: Pages, folder: Path
) -> None:
    ledger_id = write_ledger(cluster)
    path = f"{DELETE}{ledger_id}"
    assert pages(path, "DELETE")[0] == 401
    assert pages(path, "DELETE", token=token("delete", audience="there"))[0] == 403
    for operations in (("read", "add", "recover"), ("admin",)):
        assert pages(path, "DELETE", token=token(*operations)) == (
            403, "changes need a token with the operation delete\n",
        )  # fmt: skip
    assert exists(cluster, ledger_id)
    assert pages(path, "DELETE", token=token("delete"))[0] == 200
    assert not exists(cluster, ledger_id)
    noted = [
        one for one in json_lines(folder / "audit.log") if one.get("operation") == f"DELETE {path}"
    ]
    assert [(one["event"], one["principal"], one["verdict"]) for one in noted] == [
        ("admin.denied", "", 401),
        ("admin.denied", "", 403),
        ("admin.denied", "token:ann", 403),
        ("admin.denied", "token:ann", 403),
        ("admin.changed", "token:ann", 200),
    ]


def test_a_stranger_gets_only_the_pages_that_are_named(pages: Pages) -> None:
    assert pages("/metrics")[0] == 200
    for path in (
        "/livez",
        "/info",
        "/events",
        "/api/v1/config/server_config",
        "/api/v1/ledger/list",
        "/nothing",
    ):
        assert pages(path)[0] == 401, path
        assert pages(path, token=token("read"))[0] == (404 if path == "/nothing" else 200), path
        assert pages(path, certificate=True)[0] == (404 if path == "/nothing" else 200), path
    for path in (
        "/gc/run",
        "/api/v1/bookie/state/readonly",
        "/log_level",
        "/api/v1/autorecovery/status?enabled=true",
    ):
        for method in ("PUT", "POST"):
            assert pages(path, method)[0] in (401, 415), path


def test_entries_are_read_with_the_right_to_read_them(
    cluster: LocalCluster, pages: Pages, folder: Path
) -> None:
    """The bookie reads by its own certificate, which the client does not have."""
    path = f"{READ}{write_ledger(cluster, 'shop')}"
    assert pages(path)[0] == 401
    assert pages(path, token=token("add", "admin"))[0] == 403
    assert pages(path, token=token("read", namespaces=["billing"]))[0] == 403
    for shown in (token("read"), token("read", namespaces=["shop"])):
        status, text = pages(path, token=shown)
        assert (status, json.loads(text)) == (200, {"0": "hello"})
    assert pages(path, certificate=True)[0] == 200
    noted = [
        one for one in json_lines(folder / "audit.log") if one.get("operation") == f"GET {path}"
    ]
    assert [one["event"] for one in noted] == ["admin.denied"] * 3 + ["admin.read"] * 3


def test_the_sanity_page_works_with_tls(pages: Pages) -> None:
    assert pages(SANITY)[0] == 401
    status, text = pages(SANITY, token=token("admin"))
    assert (status, json.loads(text)) == (200, {"passed": True, "readOnly": False})


def test_commands_show_pages_their_token(
    cluster: LocalCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.tls_options is not None
    monkeypatch.setenv("FASTBK_TLS_CA_FILE", cluster.tls_options.ca_file)
    cli = Cli(cluster.metadata_uri)
    code, _ = cli.run("bookie", "info", "bookie-1")
    assert (code != 0, "authenticated clients" in cli.err) == (True, True)
    write_text(folder / "mine", token("read", audience=f"{AUDIENCE}/{PAGES}"))
    monkeypatch.setenv("FASTBK_PAGES_TOKEN_FILE", str(folder / "mine"))
    assert cli.json("bookie", "info", "bookie-1")["bookie_id"] == "bookie-1"
    code, _ = cli.run("bookie", "gc", "run", "bookie-1")
    assert (code != 0, "the operation admin" in cli.err) == (True, True)
    cli.end()


@pytest.mark.parametrize(
    ("kind", "works_at"),
    [("", {BOOKIES, GATEWAYS, PAGES}), *((kind, {kind}) for kind in (BOOKIES, GATEWAYS, PAGES))],
)
def test_a_token_for_one_kind_of_servers_is_good_at_no_other(
    cluster: LocalCluster, pages: Pages, folder: Path, tmp_path: Path, kind: str, works_at: set[str]
) -> None:
    """Who takes a worker over has the tokens of its clients: those for bookies open no gateway, and no page."""
    assert cluster.tls_options is not None
    tls = fastbk.TlsOptions(ca_file=cluster.tls_options.ca_file)
    write_text(
        tmp_path / "token",
        token("read", "add", audience=f"{AUDIENCE}/{kind}" if kind else AUDIENCE),
    )
    credentials = Credentials(token_file=str(tmp_path / "token"))
    authentication = (
        f'[authentication]\nmethods = ["token"]\ntoken_keys_file = "{folder / "keys.json"}"\n'
        f'token_audience = "{AUDIENCE}"'
    )
    server = dataclasses.replace(
        cluster.tls_options,
        certificate_file=str(cluster.data / "tls" / "bookie" / "tls.crt"),
        key_file=str(cluster.data / "tls" / "bookie" / "tls.key"),
    )
    gateway = GatewayProcess(
        tmp_path / "gateway", cluster.metadata_uri, server, authentication=authentication
    )
    gateway.start()

    async def append(uri: str, **options: Any) -> bool:
        async with fastbk.connect(
            uri, tls=tls, credentials=credentials, append_timeout=3.0, **options
        ) as client:
            try:
                async with await client.create_ledger(1, 1, 1) as writer:
                    await writer.append(b"x")
            except fastbk.Error:
                return False
        return True

    async def list_ledgers() -> bool:
        try:
            async with fastbk.connect(gateway.uri, tls=tls, credentials=credentials) as client:
                return len([one async for one in client.list_ledgers()]) >= 0
        except fastbk.Unauthorized:
            return False

    try:
        found = {BOOKIES} if asyncio.run(append(cluster.metadata_uri)) else set()
        found |= {GATEWAYS} if asyncio.run(list_ledgers()) else set()
        found |= (
            {PAGES} if pages("/info", token=(tmp_path / "token").read_text())[0] == 200 else set()
        )
    finally:
        gateway.stop()
    assert found == works_at


# --- services that are started


@dataclass
class Service:
    """One that a command began, with its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def port(self) -> int:
        """Return where its pages are, once they are."""

        def started() -> int:
            assert self.process.poll() is None, self.log.read_text()
            for line in json_lines(self.log):
                if str(line["event"]).endswith(".started"):
                    return int(line["http_port"])
            return 0

        wait_until(started, "its start", WAIT_S)
        return started()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)


def begun(folder: Path, uri: str, name: str, *words: str) -> Service:
    with open(folder / "log", "wb") as out:
        command = [
            sys.executable,
            "-m",
            "fastbk.cli",
            name,
            "--metadata",
            uri,
            "--http",
            "LOCALHOST:0",
            *words,
        ]
        return Service(
            subprocess.Popen(command, stdout=out, stderr=out, env=os.environ), folder / "log"
        )


@pytest.mark.parametrize("name", ["janitor", "autorecovery"])
def test_janitor_and_healer_do_not_serve_strangers_unless_they_are_told_to(
    name: str, tmp_path: Path
) -> None:
    service = begun(tmp_path, f"sqlite:{tmp_path / 'm.sqlite'}", name)
    assert service.process.wait(WAIT_S) == USAGE
    assert "--http LOCALHOST:0 is reachable from other machines" in (tmp_path / "log").read_text()


def test_a_healer_shows_strangers_its_metrics_and_lets_them_change_nothing(tmp_path: Path) -> None:
    delay = "/api/v1/autorecovery/lost_bookie_recovery_delay"
    with LocalCluster(1) as cluster:
        uri = cluster.metadata_uri
        service = begun(
            tmp_path, uri, "autorecovery", "--http-public", "health", "--http-public", "metrics"
        )
        try:
            port = service.port()
            for path in ("/metrics", "/livez"):
                assert page_at(port, path)[0] == 200
            assert page_at(port, "/events")[0] == 401
            assert page_at(port, delay, "PUT", '{"delay_seconds": 0}')[0] == 401
            decommission = '{"bookie_src": "bookie-1"}'
            assert page_at(port, "/api/v1/autorecovery/decommission", "PUT", decommission)[0] == 401
        finally:
            service.end()
        with closing(open_store(uri)) as store:
            assert store.coordination.lost_bookie_delay_s() is None


def test_a_healer_changes_for_tokens_with_the_right_and_records_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = DevTls(tmp_path / "tls")
    for name, value in tls.service_environment().items():
        monkeypatch.setenv(name, value)
    delay = "/api/v1/autorecovery/trigger_audit"
    with LocalCluster(1) as cluster:
        words = (
            "--http-tls",
            "--http-token-keys",
            str(folder / "keys.json"),
            "--http-token-audience",
            AUDIENCE,
        )
        service = begun(
            tmp_path,
            cluster.metadata_uri,
            "autorecovery",
            *words,
            "--audit",
            str(tmp_path / "audit"),
        )
        try:
            pages = Pages(service.port(), tls.options)
            auditor = "/api/v1/autorecovery/who_is_auditor"
            wait_until(lambda: pages(auditor, token=token("read"))[0] == 200, "its election")
            assert [
                pages(delay, "PUT", token=one)[0] for one in ("", token("read"), token("admin"))
            ] == [401, 403, 200]
        finally:
            service.end()
    noted = [
        one for one in json_lines(tmp_path / "audit") if str(one["event"]).startswith("admin.")
    ]
    assert [one["event"] for one in noted] == ["admin.denied", "admin.denied", "admin.changed"]
