"""Tokens of those who change a bookie by its pages: `Authorization: Bearer TOKEN`, as the console sends it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fastbk.auth.tokens import TokenError
from fastbk.server.network.auth_files import AuthFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.auth.rights import Principal
    from fastbk.server.configuration.authentication import AuthenticationSettings


class PageTokens:
    """Verifies tokens by the files of [authentication], which are read anew when they change."""

    def __init__(self, settings: AuthenticationSettings, cluster_id: Callable[[], str]) -> None:
        """`cluster_id`: the audience where the settings name none; "" while it is not known. Raises ConfigError."""
        self._settings = settings
        self._cluster_id = cluster_id
        self._files = AuthFiles(settings)
        self._refreshed_s = time.monotonic()

    def principal(self, token: bytes) -> tuple[Principal | None, str]:
        """Return whose token it is, else why it is not accepted."""
        now_s = time.monotonic()
        if now_s - self._refreshed_s >= self._settings.refresh_interval_s:
            self._refreshed_s = now_s
            self._files.has_changed()
        audience = self._settings.token_audience or self._cluster_id()
        if self._files.keys is None or not audience:
            return None, "this bookie does not know the cluster's id yet"
        try:
            found = self._files.keys.verify(token, audience)
        except TokenError as error:
            return None, str(error)
        reason = self._files.why_revoked(found)
        return (None, reason) if reason else (found, "")
