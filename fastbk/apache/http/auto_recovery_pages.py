"""Apache's endpoints about AutoRecovery: its switch, its marks and its auditor, as metadata has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.apache.http.answers import NOT_GET, answer, json_object, text
from fastbk.errors import ConfigError, Error

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import StoreThreads
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.replica_marks import UnderreplicatedLedger
    from fastbk.server.admin.http import Page, Request, Response

LEDGERS_LISTED_MAX = 100_000
NOT_PUT = "Not found method. Should be PUT method"
BY_HAND = "copies are made by `fastbk bookie recover ID` or `fastbk bookie decommission ID`, not over HTTP"


class AutoRecoveryPages:
    """Those of one metadata store."""

    def __init__(self, metadata: StoreThreads) -> None:
        self._metadata = metadata

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {
            "status": self._status,
            "list_under_replicated_ledger": self._ledgers,
            "who_is_auditor": self._auditor,
            "trigger_audit": self._trigger,
            "lost_bookie_recovery_delay": self._delay,
            "bookie": self._by_hand,
            "decommission": self._by_hand,
        }

    async def _status(self, request: Request) -> Response:
        if request.method == "PUT":
            if "enabled" not in request.query:
                return text(400, f"Param 'enabled' not found in {request.query}")
            is_wanted = request.query["enabled"].lower() == "true"
            await self._metadata.call(
                lambda store: (
                    store.coordination.enable() if is_wanted else store.coordination.disable()
                )
            )
        elif request.method != "GET":
            return text(404, "Not found method. Should be GET or PUT method")
        return answer({"enabled": await self._metadata.call(lambda store: store.coordination.is_enabled())})

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
                seconds = await self._metadata.call(lambda store: store.coordination.lost_bookie_delay_s())
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
        delay_s = msgspec.convert(asked["delay_seconds"], int)
        await self._metadata.call(lambda store: store.coordination.set_lost_bookie_delay(delay_s))
        return text(200, f"Success set lostBookieRecoveryDelay to {delay_s}")

    async def _by_hand(self, request: Request) -> Response:
        return text(404, BY_HAND if request.method == "PUT" else NOT_PUT)
