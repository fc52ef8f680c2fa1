"""Apache's endpoints that need a client: reading entries, asking all bookies for their disks, the sanity test.

A server has no client in it (`tests/style/test_layers.py`), and none of this may come near its data path: each request
starts `python -m fastbk.admin.http_tool`, which is given a question on its standard input and ends with the answer. At
most two at a time; one that is not done in time is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.apache.http.answers import NOT_GET, answer, integer, text
from fastbk.errors import StorageError
from fastbk.server.admin.http import Request, Response
from fastbk.units import format_apache_size

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import BookieFacts
    from fastbk.server.admin.http import Page

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

    def bookie_pages(self) -> dict[str, Page]:
        """Return the pages about bookies by the ends of their paths."""
        return {"list_bookie_info": self._infos, "sanity": self._sanity}

    def ledger_pages(self) -> dict[str, Page]:
        """Return the page about a ledger by the end of its path."""
        return {"read": self._read}

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
            passed = await self._tool("sanity", bookie_id=self._facts.bookie_id)
        return answer({"passed": passed, "readOnly": False})

    async def _read(self, request: Request) -> Response:
        if request.method != "GET" or "ledger_id" not in request.query:
            return text(404, "Not found method. Should be GET method, with ledger_id provided")
        ledger_id = integer(request, "ledger_id", 0)
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
        return answer(said | await self._tool("read", ledger_id=ledger_id, first=first, last=last))

    async def _tool(self, tool: str, **asked: object) -> Any:  # noqa: ANN401 -- what JSON has
        """Return what a tool answers. Raises StorageError with the reason why there is none."""
        question = {"tool": tool, "uri": self._facts.config.metadata.uri, **asked}
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", TOOL,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
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


def _space(free_bytes: int, total_bytes: int) -> str:
    free, total = map(format_apache_size, (free_bytes, total_bytes))
    return f"{{Free: {free}, Total: {total}}}"
