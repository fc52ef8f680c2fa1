"""Apache's endpoints about AutoRecovery: its switch, its marks and its auditor, as metadata has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from fastbk.apache.http.answers import NOT_GET, answer, boolean, json_object, text
from fastbk.errors import ConfigError, Error
from fastbk.meta.api import check_delay
from fastbk.model.ids import check_bookie_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.apache.http.bookie_facts import StoreThreads
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.replica_marks import UnderreplicatedLedger
    from fastbk.model.ids import BookieId
    from fastbk.web.page_server import Page, Request, Response

LEDGERS_LISTED_MAX = 100_000
NOT_PUT = "Not found method. Should be PUT method"
NOT_HERE = (
    "a bookie makes no copies: `fastbk autorecovery --http` answers this, as do the commands"
    " `fastbk bookie recover ID` and `fastbk bookie decommission ID`"
)


class Recoveries(Protocol):
    """Who recovers bookies in the background."""

    def recover(self, bookie_ids: Sequence[BookieId], *, delete_cookie: bool) -> None:
        """Begin. Raises ConfigError if that cannot be begun now."""

    def decommission(self, bookie_id: BookieId) -> None:
        """Begin. Raises ConfigError if that cannot be begun now."""


class AutoRecoveryPages:
    """Those of one metadata store."""

    def __init__(self, metadata: StoreThreads, recoveries: Recoveries | None = None) -> None:
        """`recoveries`: in the process that recovers bookies; None: here nobody does."""
        self._metadata = metadata
        self._recoveries = recoveries

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {
            "status": self._status,
            "list_under_replicated_ledger": self._ledgers,
            "who_is_auditor": self._auditor,
            "trigger_audit": self._trigger,
            "lost_bookie_recovery_delay": self._delay,
            "bookie": self._recover,
            "decommission": self._decommission,
        }

    async def _status(self, request: Request) -> Response:
        if request.method == "PUT":
            if "enabled" not in request.query:
                return text(400, f"Param 'enabled' not found in {request.query}")
            is_wanted = boolean("enabled", request.query["enabled"])
            await self._metadata.call(
                lambda store: (
                    store.coordination.enable() if is_wanted else store.coordination.disable()
                )
            )
        elif request.method != "GET":
            return text(404, "Not found method. Should be GET or PUT method")
        return answer(
            {"enabled": await self._metadata.call(lambda store: store.coordination.is_enabled())}
        )

    async def _ledgers(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        missing = request.query.get("missingreplica", "").strip()
        excluded = request.query.get("excludingmissingreplica", "").strip()

        def is_wanted(ledger: UnderreplicatedLedger) -> bool:
            return (not missing or missing in ledger.missing) and (
                not excluded or excluded not in ledger.missing
            )

        def listed(store: MetadataStore) -> list[UnderreplicatedLedger]:
            found = []
            for one in filter(is_wanted, store.marks.under_replicated()):
                found.append(one)
                if len(found) > LEDGERS_LISTED_MAX:
                    raise ConfigError(f"more than {LEDGERS_LISTED_MAX:,} ledgers")
            return found

        try:
            ledgers = await self._metadata.call(listed)
        except Error as error:
            return text(404, f"Exception when get.{error}")
        if not ledgers:
            return text(404, "No under replicated ledgers found")
        if "printmissingreplica" in request.query:
            return answer({str(one.ledger_id): list(one.missing) for one in ledgers})
        return answer([one.ledger_id for one in ledgers])

    async def _auditor(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        try:
            auditor = await self._metadata.call(lambda store: store.coordination.auditor())
        except Error as error:
            return text(404, f"Exception when get.{error}")
        return (
            text(404, "No auditor elected") if auditor is None else text(200, f"Auditor: {auditor}")
        )

    async def _trigger(self, request: Request) -> Response:
        if request.method != "PUT":
            return text(404, NOT_PUT)
        try:
            await self._metadata.call(lambda store: store.coordination.trigger_audit())
        except Error as error:
            return text(404, f"Exception when do operation.{error}")
        return text(200, "Success trigger audit.")

    async def _delay(self, request: Request) -> Response:
        if request.method == "GET":
            try:
                seconds = await self._metadata.call(
                    lambda store: store.coordination.lost_bookie_delay_s()
                )
            except Error as error:
                return text(404, f"Exception when get lostBookieRecoveryDelay.{error}")
            if seconds is None:
                return text(404, "Exception when get lostBookieRecoveryDelay.It was never set")
            return text(200, f"lostBookieRecoveryDelay value: {seconds}")
        if request.method != "PUT":
            return text(404, NOT_PUT)
        if not request.body:
            return text(404, "Null request body for lostBookieRecoveryDelay.")
        asked = json_object(request)
        if "delay_seconds" not in asked:
            return text(404, "Request body not contains lostBookieRecoveryDelay.")
        try:
            delay_s = check_delay(asked["delay_seconds"])
        except ConfigError as error:
            return text(400, f"Bad Request: {error}")
        await self._metadata.call(lambda store: store.coordination.set_lost_bookie_delay(delay_s))
        return text(200, f"Success set lostBookieRecoveryDelay to {delay_s}")

    async def _recover(self, request: Request) -> Response:
        if self._recoveries is None or request.method != "PUT":
            return text(404, NOT_HERE if request.method == "PUT" else NOT_PUT)
        if not request.body:
            return text(404, "No request body provide.")
        try:
            wanted = msgspec.json.decode(request.body, type=_Recovery)
            bookie_ids = [check_bookie_id(one) for one in wanted.bookie_src]
            if not bookie_ids:
                return text(404, "ERROR parameters: bookie_src names no bookie")
            self._recoveries.recover(bookie_ids, delete_cookie=wanted.delete_cookie)
        except ValueError as error:
            return text(404, f"ERROR parameters: {error}")
        return text(200, "Success send recovery request command.")

    async def _decommission(self, request: Request) -> Response:
        if self._recoveries is None or request.method != "PUT":
            return text(404, NOT_HERE if request.method == "PUT" else NOT_PUT)
        if not request.body:
            return text(404, "Null request body for DecommissionService.")
        asked = json_object(request)
        if "bookie_src" not in asked:
            return text(404, "Request body not contains bookie_src.")
        try:
            bookie_id = check_bookie_id(msgspec.convert(asked["bookie_src"], str))
            self._recoveries.decommission(bookie_id)
        except (msgspec.ValidationError, ConfigError) as error:
            return text(404, f"Exception when send decommission command.{error}")
        return text(200, f"Success send decommission Bookie command {bookie_id}")


class _Recovery(msgspec.Struct):
    bookie_src: list[str]
    delete_cookie: bool = False
