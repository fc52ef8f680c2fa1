"""`/api/v1/config/server_config`: what this bookie runs with, by its own names and by Apache's where one is alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.apache.configuration.key_table import KEYS
from fastbk.apache.configuration.keys import Verdict
from fastbk.apache.http.answers import answer, text
from fastbk.server.configuration.process_config import split_address

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import BookieFacts
    from fastbk.server.admin.http import Request, Response
    from fastbk.server.configuration.process_config import BookieConfig

NO_PUT = "Settings are read once at a start here: change the configuration and restart the bookie."


class SettingsPage:
    """One bookie's."""

    def __init__(self, facts: BookieFacts) -> None:
        self._facts = facts

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        if request.method == "GET":
            return answer(settings_of(self._facts.config))
        if request.method == "PUT":
            return text(400, NO_PUT)
        return text(404, "Request body not found. should contains k-v pairs")


def settings_of(config: BookieConfig) -> dict[str, Any]:
    """Return every setting as `section.name`, then those of Apache's keys that have the same meaning here."""
    own: dict[str, Any] = {}
    for section, fields in msgspec.to_builtins(config).items():
        own.update({f"{section}.{name}": value for name, value in fields.items()})
    _, port = split_address(config.bookie.listen, "[bookie] listen")
    apache: dict[str, Any] = {
        "bookiePort": port,
        "metadataServiceUri": config.metadata.uri,
        "journalDirectories": ",".join(config.journal.all_directories),
        "ledgerDirectories": ",".join(config.ledgers.all_directories),
    }
    for name, key in KEYS.items():
        if (
            key.verdict is Verdict.HONOURED
            and not key.rule
            and (value := own.get(key.setting)) is not None
        ):
            apache[name] = (
                value if isinstance(value, bool | str) or not key.times else value // key.times
            )
    return own | apache
