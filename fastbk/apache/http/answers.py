"""How Apache's bookies answer over HTTP, and what their endpoints know of the bookie they stand in (`BookieFacts`).

They answer JSON as Jackson prints it, plain sentences, and 500 for what went wrong. They reach metadata by threads of
their own (`StoreThreads`).
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fastbk.errors import ConfigError, Error
from fastbk.meta import open_store
from fastbk.model.ids import ID_MAX
from fastbk.observe.logs import LimitLog
from fastbk.web.page_server import JSON, ROUTE_TIMEOUT_S, TEXT, Request, Response, decoded_object

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fastbk.meta.api import MetadataStore
    from fastbk.server.admin.metrics import Metrics
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.disks.disk_reports import DiskReports
    from fastbk.server.supervision.lifecycle import Lifecycle
    from fastbk.server.supervision.operator_requests import GcAdmin, LogLevel, ReadOnlyAdmin
    from fastbk.web.page_server import Page

_NUMBER = re.compile("-?[0-9]{1,19}")
NOT_GET = "Not found method. Should be GET method"
INTERNAL_ERROR = "Internal Server Error"


def text(status: int, sentence: str) -> Response:
    """Return a plain sentence as the answer."""
    return status, TEXT, sentence.encode()


def answer(value: object) -> Response:
    """Return `value` as the JSON of a 200."""
    return 200, JSON, pretty(value).encode()


def pretty(value: object, depth: int = 0) -> str:
    """Return JSON laid out as Jackson's default pretty printer does: objects in lines, arrays in one."""
    if isinstance(value, dict):
        if not value:
            return "{ }"
        inner = "  " * (depth + 1)
        lines = [
            f"{inner}{json.dumps(str(key), ensure_ascii=False)} : {pretty(one, depth + 1)}"
            for key, one in value.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    if isinstance(value, list | tuple):
        return "[ " + ", ".join(pretty(one, depth) for one in value) + " ]" if value else "[ ]"
    return json.dumps(value, ensure_ascii=False)


class WrongParameter(ConfigError):
    """A parameter of the query or body has no value that it can have: answered as 400, and nothing is done."""

    code = ConfigError.code


def json_object(request: Request, *known: str) -> dict[str, Any]:
    """Return the JSON object in a request's body. Raises ConfigError, also for another key than `known`, if given."""
    asked = decoded_object(request.body)
    for name in asked:
        if known and name not in known:
            raise WrongParameter(f"the body has the key {name!r}: it takes {', '.join(known)}")
    return asked


def integer(request: Request, name: str, default: int, low: int = -1, high: int = ID_MAX) -> int:
    """Return a number of the query. Raises WrongParameter."""
    if name not in request.query:
        return default
    given = request.query[name]
    if not _NUMBER.fullmatch(given) or not low <= int(given) <= high:
        raise WrongParameter(f"{name}={given[:40]}: must be a whole number from {low} to {high}")
    return int(given)


def boolean(name: str, given: object) -> bool:
    """Return what `true` or `false` says, of a query as text. Raises WrongParameter for anything else."""
    value = {"true": True, "false": False}.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(value, bool):
        raise WrongParameter(f"{name}={str(given)[:40]}: must be true or false")
    return value


_faults = LimitLog("http.page_failed", level="error")


def guarded(page: Page) -> Page:
    """Return `page` with what it raises, or what takes too long, answered as 500: the reason follows Apache's words."""

    async def guarded_page(request: Request) -> Response:
        try:
            async with asyncio.timeout(ROUTE_TIMEOUT_S):
                return await page(request)
        except WrongParameter as error:
            return text(400, f"Bad Request: {error}")
        except TimeoutError:
            reason = f"not done after {ROUTE_TIMEOUT_S:.0f} s"
        except (Error, ValueError, OSError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a page's fault must not end the server
            _faults.note(
                type(error).__name__, reason=repr(error), trace=traceback.format_exc(limit=-8)
            )
            reason = f"a fault of this bookie's: {error!r}; see its log"
        return text(500, f"{INTERNAL_ERROR}: {reason}")

    return guarded_page


T = TypeVar("T")

THREADS = 2


class StoreThreads:
    """A connection to metadata of its own, opened when a page needs it first: slow pages must not delay the lease."""

    def __init__(self, uri: str, session_timeout_s: float | None = None) -> None:
        """`session_timeout_s`: of ZooKeeper; None: the default."""
        self._uri = uri
        self._session_timeout_s = session_timeout_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="http-metadata")
        self._lock = threading.Lock()
        self._store: MetadataStore | None = None

    async def call(self, action: Callable[[MetadataStore], T]) -> T:
        """Return what `action` returns for the store. Raises Error."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: action(self._opened())
        )

    async def close(self) -> None:
        """Let go of the store; what is under way ends with an error of the store's."""

        store, self._store = self._store, None
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(None, store.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _opened(self) -> MetadataStore:
        with self._lock:
            if self._store is None:
                self._store = open_store(self._uri, session_timeout_s=self._session_timeout_s)
            return self._store


class BookieFacts(msgspec.Struct, frozen=True):
    """One bookie, as its pages see it.

    `set_read_only`: returns once adds are refused, or taken. `audit`: takes an event and its values for the audit log.
    `cluster_id`: "" while metadata has not answered that.
    """

    config: BookieConfig
    bookie_id: str
    life: Lifecycle
    metrics: Metrics
    disks: DiskReports
    gc: GcAdmin
    read_only: ReadOnlyAdmin
    set_read_only: Callable[[bool], Awaitable[None]]
    audit: Callable[..., object]
    cluster_id: Callable[[], str]
    log_level: LogLevel
