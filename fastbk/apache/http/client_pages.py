"""Apache's endpoints that need a client: reading entries, deleting ledgers, asking all bookies
for their disks, the sanity test.

A server has no client in it (`tests/style/test_layers.py`), and none of this may come near its data path: each request
starts `python -m fastbk.admin.http_tool`, which is given a question on its standard input and ends with the answer. At
most two at a time; one that is not done in time is killed.

The tool is a client of its own: it shows bookies what the environment of this one has, or this one's certificate. So
who reads entries by it needs the right to do so (`Kind.ENTRIES` of `fastbk/web/page_admission.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.apache.http.answers import NOT_GET, answer, integer, text
from fastbk.errors import StorageError
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.units import format_apache_size
from fastbk.web.page_server import Request, Response

if TYPE_CHECKING:
    from fastbk.apache.http.answers import BookieFacts
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.web.page_server import Page

TOOL = "fastbk.admin.http_tool"
TOOLS_MAX = 2
PAGE_ENTRIES = 1000
"""Entries of a page of `ledger/read`."""


class ClientPages:
    """Those of one bookie."""

    def __init__(self, facts: BookieFacts) -> None:
        self._facts = facts
        self._turns = asyncio.Semaphore(TOOLS_MAX)
        self._sanity_turn = asyncio.Lock()
        self._failures = LimitLog("http.sanity_failed")

    def bookie_pages(self) -> dict[str, Page]:
        """Return the pages about bookies by the ends of their paths."""
        return {"list_bookie_info": self._infos, "sanity": self._sanity}

    def ledger_pages(self) -> dict[str, Page]:
        """Return the pages about a ledger by the ends of their paths."""
        return {"read": self._read, "delete": self._delete}

    async def _infos(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        found: dict[str, tuple[int, int]] = await self._tool("infos")
        if not found:
            return text(404, "Not found any Bookie info.")
        listed = {
            bookie_id: f": {_space(free, total)}," for bookie_id, (free, total) in found.items()
        }
        free_bytes, total_bytes = (sum(each[at] for each in found.values()) for at in (0, 1))
        return answer({**listed, "ClusterInfo: ": _space(free_bytes, total_bytes)})

    async def _sanity(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, "Only support GET method to retrieve bookie sanity state.")
        if self._facts.read_only.is_forced:
            return answer({"passed": False, "readOnly": True})
        async with self._sanity_turn:
            reason: str = await self._tool("sanity", bookie_id=self._facts.bookie_id)
        if reason:
            self._failures.note("sanity", reason=reason)
        return answer({"passed": not reason, "readOnly": False})

    async def _read(self, request: Request) -> Response:
        if request.method != "GET" or "ledger_id" not in request.query:
            return text(404, "Not found method. Should be GET method, with ledger_id provided")
        ledger_id = integer(request, "ledger_id", 0, low=0)
        first, last = integer(request, "start_entry_id", 0), integer(request, "end_entry_id", -1)
        page = integer(request, "page", -1)
        said: dict[str, str] = {}
        if page > 0:
            page_first, page_last = (page - 1) * PAGE_ENTRIES, page * PAGE_ENTRIES - 1
            first = page_first if first == 0 or first < page_first else first
            last = page_last if last == -1 or last > page_last else last
            said["Entries for page: "] = str(page)
        if last != -1 and first > last:
            return text(
                500,
                f"parameter for start_entry_id: {first} and end_entry_id: {last} conflict with page={page}",
            )
        namespaces = None if request.principal is None else request.principal.namespaces
        found = await self._tool(
            "read", ledger_id=ledger_id, first=first, last=last, namespaces=namespaces
        )
        if found is None:
            return text(403, f"ledger {ledger_id} is of no namespace that the token is limited to")
        return answer(said | found)

    async def _delete(self, request: Request) -> Response:
        if request.method != "DELETE":
            return text(404, "Not found method. Should be DELETE method")
        if "ledger_id" not in request.query:
            return text(404, "Not ledger found. Should provide ledger_id=<id>")
        ledger_id = integer(request, "ledger_id", 0, low=0)
        # By a client, which fences an open ledger (INV-S19): its writer may not go on being acknowledged.
        if await self._tool("delete", ledger_id=ledger_id):
            logs.warning("http.ledger_deleted", ledger_id=ledger_id)
        return answer(f"Deleted ledger: {ledger_id}")

    async def _tool(self, tool: str, **asked: object) -> Any:  # noqa: ANN401 -- what JSON has
        """Return what a tool answers. Raises StorageError with the reason why there is none."""
        question = {"tool": tool, "uri": self._facts.config.metadata.uri, **asked}
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", TOOL,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=_tool_environment(self._facts.config),
            )  # fmt: skip
            try:
                output, _ = await process.communicate(msgspec.json.encode(question))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        try:
            said: dict[str, Any] = msgspec.json.decode(output, type=dict)
        except (ValueError, RecursionError):
            raise StorageError(
                f"{TOOL} ended with code {process.returncode} and no answer"
            ) from None
        if "error" in said:
            raise StorageError(said["error"])
        return said["answer"]


def lends_credentials(config: BookieConfig) -> bool:
    """Return whether tools show bookies more than a stranger has: a token, a password or a certificate."""
    environment = _tool_environment(config)
    tls = TlsOptions.from_environment(environment)
    return Credentials.from_environment(environment) is not None or bool(
        tls and tls.certificate_file
    )


def _tool_environment(config: BookieConfig) -> dict[str, str]:
    """Return what a tool finds in its environment: TLS as [tls] has it, where nothing else is said."""
    environment = dict(os.environ)
    if config.tls.mode == "off" or any(name.startswith("FASTBK_TLS") for name in environment):
        return environment
    files = config.tls
    options = TlsOptions(ca_file=files.ca_file, ca_password_file=files.ca_password_file)
    # else nobody asks for it, and a key that is not used needs no reader
    if files.client_certificates != "none":
        options = TlsOptions(
            ca_file=files.ca_file,
            ca_password_file=files.ca_password_file,
            certificate_file=files.certificate_file,
            key_file=files.key_file,
            key_password_file=files.key_password_file,
        )
    return environment | options.environment()


def _space(free_bytes: int, total_bytes: int) -> str:
    free, total = map(format_apache_size, (free_bytes, total_bytes))
    return f"{{Free: {free}, Total: {total}}}"
