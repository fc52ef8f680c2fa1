"""All that the console changes. Each action is done as the user, after a confirmation, with two lines in the audit log.

A bookie's page gets the user's token and decides by itself. Healing and streams are metadata: the console decides by
the token's rights (`access.py`), and changes them with its own access.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.admin.page_client import find_bookie
from fastbk.autorecovery.state import ClusterState
from fastbk.cli.stream_options import start_of, stream_of
from fastbk.console.http_engine import read_form
from fastbk.console.rendering import link
from fastbk.console.sessions import why_not_change
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.security.rights import Right
from fastbk.stream.paths import split_stream_path

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.admin.page_client import AdminClient
    from fastbk.console.context import Context

TIMEOUT_S = 30.0
HEALING = "healing"
"""The target of actions on AutoRecovery."""
READ_ONLY_PATH = "/api/v1/bookie/state/readonly"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An action of a user. `target`: a bookie's id, a stream's path or HEALING. `position`: of a truncation."""

    target: str
    position: str = ""


Perform = Callable[["Context", Wanted], Awaitable[str]]
"""Does it and returns what was done, as a sentence. Raises Error."""


@dataclass(frozen=True, slots=True)
class Action:
    """One kind of action.

    Attributes:
        title: on buttons. effect: what will happen, as a sentence with {target}.
        kind: what its target is: `bookie`, `stream` or `healing`.
        is_final: it cannot be undone.
        is_grave: it takes something from users or from safety, so its buttons are red on all pages.
    """

    title: str
    effect: str
    kind: str
    perform: Perform
    is_final: bool = False
    is_grave: bool = False
    needs_position: bool = False

    def why_refused(self, context: Context, wanted: Wanted) -> str:
        """Return why this user may not do it; "": allowed. Raises ConfigError for what is no target."""
        if self.kind == "stream":
            namespace, _ = split_stream_path(wanted.target)
            return why_not_change(context.principal, namespace, Right.TRUNCATE)
        if self.kind == "healing" and wanted.target != HEALING:
            raise ConfigError(f"{wanted.target!r} is not {HEALING}")
        return why_not_change(context.principal, None)

    def check(self, wanted: Wanted) -> None:
        """Raise ConfigError for an order that cannot be carried out."""
        if not wanted.target:
            raise ConfigError("the action does not name what it is about")
        if self.needs_position and start_of(wanted.position or "?") == "earliest":
            raise ConfigError(
                "nothing lies before `earliest`: name the first record that is to stay"
            )


async def perform(context: Context, name: str, wanted: Wanted) -> str:
    """Do an action and return what was done. Raises Error, also when it cannot be noted: then nothing was changed."""
    action = ACTIONS[name]
    values = {"address": context.address, "principal": context.principal.name, "operation": name}
    values |= {"target": wanted.target} | ({"position": wanted.position} if wanted.position else {})
    audit = context.console.audit
    if reason := action.why_refused(context, wanted):
        audit.note("console.denied", **values, reason=reason)
        raise ConfigError(reason)
    action.check(wanted)
    if not audit.note("console.action_begun", **values):
        raise StorageError(
            "the audit log cannot be written, so nothing was changed: see the console's log"
        )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            done = await action.perform(context, wanted)
    except (Error, TimeoutError) as error:
        reason = str(error) or f"not done within {TIMEOUT_S:g} s; it may still happen"
        audit.note("console.action_failed", **values, reason=reason)
        raise StorageError(reason) from error
    audit.note("console.action_done", **values, verdict=done)
    return done


async def _bookie_page(context: Context, bookie_id: str) -> AdminClient:
    client = await asyncio.to_thread(find_bookie, context.console.uri, bookie_id)
    client.token = context.session.token
    return client


async def _run_gc(context: Context, wanted: Wanted) -> str:
    client = await _bookie_page(context, wanted.target)
    await asyncio.to_thread(client.post, "/gc/run", {"what": ["ledgers", "minor", "major"]})
    return f"Bookie {wanted.target} checks for deleted ledgers now, and compacts."


async def _set_read_only(context: Context, bookie_id: str, *, read_only: bool) -> None:
    client = await _bookie_page(context, bookie_id)
    await asyncio.to_thread(client.put, READ_ONLY_PATH, {"readOnly": read_only})


async def _read_only(context: Context, wanted: Wanted) -> str:
    await _set_read_only(context, wanted.target, read_only=True)
    return f"Bookie {wanted.target} is read-only: it refuses adds, and goes on with reads and recovery."


async def _writable(context: Context, wanted: Wanted) -> str:
    await _set_read_only(context, wanted.target, read_only=False)
    return f"Bookie {wanted.target} takes adds again."


async def _pause_healing(context: Context, _: Wanted) -> str:
    await context.view.client.call_store(lambda store: store.coordination.disable())
    return "AutoRecovery is paused: lost copies are not made anew until somebody resumes it."


async def _resume_healing(context: Context, _: Wanted) -> str:
    client = context.view.client
    await client.call_store(lambda store: store.coordination.enable())
    await ClusterState(client.records).release()
    return "AutoRecovery works; bookies that are lost now are held no longer."


async def _truncate(context: Context, wanted: Wanted) -> str:
    trim = await stream_of(context.view.client, wanted.target).truncate(start_of(wanted.position))
    return (
        f"Stream {wanted.target} begins at {trim}. The janitor deletes segments that lie before it."
    )


ACTIONS: dict[str, Action] = {
    "read-only": Action(
        "Make read-only",
        "Bookie {target} will refuse new entries until it is made writable or restarted. Writers replace it in their"
        " ensembles. Reads and recovery go on.",
        "bookie",
        _read_only,
        is_grave=True,
    ),
    "writable": Action(
        "Make writable", "Bookie {target} will take new entries again.", "bookie", _writable
    ),
    "gc": Action(
        "Run gc",
        "Bookie {target} will delete the data of ledgers that metadata does not list any more, and compact its entry"
        " logs. That takes disk bandwidth.",
        "bookie",
        _run_gc,
        is_final=True,
    ),
    "pause-healing": Action(
        "Pause healing",
        "AutoRecovery will make no copies anew in the whole cluster until it is resumed. Data that loses a copy"
        " meanwhile stays at risk.",
        "healing",
        _pause_healing,
        is_grave=True,
    ),
    "resume-healing": Action(
        "Resume healing",
        "AutoRecovery will make lost copies anew. Bookies that are lost now are held no longer.",
        "healing",
        _resume_healing,
    ),
    "truncate": Action(
        "Truncate",
        "All records of stream {target} before the position will be gone, for good and for all readers.",
        "stream",
        _truncate,
        is_final=True,
        is_grave=True,
        needs_position=True,
    ),
}


# --- their pages ------------------------------------------------------------------------------------------------------

TARGET_CHARACTERS_MAX = 1000


async def confirmation(context: Context) -> Response:
    """Show what an action does, and ask for the target's name."""
    name, action = _action(context)
    wanted = Wanted(context.query("target")[:TARGET_CHARACTERS_MAX], context.query("position"))
    return _form(context, name, action, wanted)


async def execute(context: Context) -> Response:
    """Do an action whose form brings the session's key and the target's name."""
    name, action = _action(context)
    fields = await read_form(context.request)
    wanted = Wanted(
        fields.get("target", "")[:TARGET_CHARACTERS_MAX], fields.get("position", "").strip()
    )
    if not context.console.sessions.is_form_key(context.session, fields.get("form_key", "")):
        error = "this form is of another session, or the console was started again: read it once more and confirm"
        return _form(context, name, action, wanted, error, 403)
    if fields.get("confirm", "").strip() != wanted.target:
        return _form(
            context, name, action, wanted, f"to confirm, type exactly: {wanted.target}", 400
        )
    try:
        done = await perform(context, name, wanted)
    except ConfigError as error:
        return _form(context, name, action, wanted, str(error), 403)
    except Error as error:
        return _form(context, name, action, wanted, str(error), 502)
    return context.page(
        "done.html", action=action, wanted=wanted, done=done, back=_back(action, wanted)
    )


def _action(context: Context) -> tuple[str, Action]:
    name = context.request.path_params["action"]
    if name not in ACTIONS:
        raise HTTPException(404, f"no action {name}")
    return name, ACTIONS[name]


def _form(
    context: Context, name: str, action: Action, wanted: Wanted, error: str = "", status: int = 200
) -> Response:
    refused = action.why_refused(context, wanted)
    values = {"name": name, "action": action, "wanted": wanted, "error": error, "refused": refused}
    return context.page("action.html", status, **values, back=_back(action, wanted))


def _back(action: Action, wanted: Wanted) -> str:
    return "/healing" if action.kind == "healing" else link(action.kind, wanted.target)
