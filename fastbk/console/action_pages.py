"""The pages of actions: what will happen, the confirmation, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.console.actions import ACTIONS, Action, Wanted
from fastbk.console.actions import perform as perform_action
from fastbk.console.guards import read_form
from fastbk.console.rendering import link
from fastbk.errors import ConfigError, Error

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context

TARGET_CHARACTERS_MAX = 1000


async def confirmation(context: Context) -> Response:
    """Show what an action does, and ask for the target's name."""
    name, action = _action(context)
    wanted = Wanted(context.query("target")[:TARGET_CHARACTERS_MAX], context.query("position"))
    return _form(context, name, action, wanted)


async def perform(context: Context) -> Response:
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
        done = await perform_action(context, name, wanted)
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
