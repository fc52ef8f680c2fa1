"""Apache's endpoints about the cluster, as metadata has it: who is there, what AutoRecovery does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.apache.http.answers import NOT_GET, answer, text

if TYPE_CHECKING:
    from fastbk.apache.http.bookie_facts import StoreThreads
    from fastbk.meta.api import MetadataStore
    from fastbk.web.page_server import Page, Request, Response


class ClusterPages:
    """Those of one metadata store."""

    def __init__(self, metadata: StoreThreads) -> None:
        self._metadata = metadata

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {"list_bookies": self._list_bookies, "cluster_info": self._cluster_info}

    async def _list_bookies(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        found = await self._metadata.call(lambda store: store.list_bookies())
        is_named = request.query.get("print_hostnames") == "true"
        listed: dict[str, str | None] = {}
        for one in found:
            if one.writable is (request.query.get("type") != "ro"):
                endpoint = one.service.client_endpoint()
                listed[one.service.bookie_id] = (
                    endpoint.host if endpoint is not None and is_named else None
                )
        return answer(listed)

    async def _cluster_info(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, "Only GET is supported.")
        counts = await self._metadata.call(_counts)
        auditor, is_marked, is_enabled = await self._metadata.call(_recovery_facts)
        return answer(
            {
                "auditorElected": auditor is not None,
                "auditorId": auditor or "",
                "clusterUnderReplicated": is_marked,
                "ledgerReplicationEnabled": is_enabled,
                **counts,
            }
        )


def _recovery_facts(store: MetadataStore) -> tuple[str | None, bool, bool]:
    is_marked = next(store.marks.under_replicated(), None) is not None
    return store.coordination.auditor(), is_marked, store.coordination.is_enabled()


def _counts(store: MetadataStore) -> dict[str, int]:
    registered = store.list_bookies()
    alive = {one.service.bookie_id for one in registered}
    total = alive | {one.bookie_id for one in store.list_identities()}
    writable = sum(one.writable for one in registered)
    return {
        "totalBookiesCount": len(total),
        "writableBookiesCount": writable,
        "readonlyBookiesCount": len(registered) - writable,
        "unavailableBookiesCount": len(total - alive),
    }
