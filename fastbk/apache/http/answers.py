"""How Apache's bookies answer over HTTP: JSON as Jackson prints it, plain sentences, and 500 for what went wrong."""

from __future__ import annotations

import asyncio
import json
import traceback
from typing import TYPE_CHECKING, Any

from fastbk.errors import Error
from fastbk.observe.logs import LimitLog
from fastbk.server.admin.http import JSON, ROUTE_TIMEOUT_S, TEXT, Request, Response, decoded_object

if TYPE_CHECKING:
    from fastbk.server.admin.http import Page

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


def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body. Raises ConfigError."""
    return decoded_object(request.body)


def integer(request: Request, name: str, default: int) -> int:
    """Return a number of the query. Raises ValueError."""
    return int(request.query[name]) if name in request.query else default


_faults = LimitLog("http.page_failed", level="error")


def guarded(page: Page) -> Page:
    """Return `page` with what it raises, or what takes too long, answered as 500: the reason follows Apache's words."""

    async def guarded_page(request: Request) -> Response:
        try:
            async with asyncio.timeout(ROUTE_TIMEOUT_S):
                return await page(request)
        except TimeoutError:
            reason = f"not done after {ROUTE_TIMEOUT_S:.0f} s"
        except (Error, ValueError, OSError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a page's fault must not end the server
            _faults.note(type(error).__name__, reason=repr(error), trace=traceback.format_exc(limit=-8))
            reason = f"a fault of this bookie's: {error!r}; see its log"
        return text(500, f"{INTERNAL_ERROR}: {reason}")

    return guarded_page
