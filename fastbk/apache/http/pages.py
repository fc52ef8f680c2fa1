"""Every path of Apache's, and the pages about a bookie, about ledgers' metadata, about the cluster and AutoRecovery.

`add_pages` and `add_auto_recovery_pages` have the paths. The pages behind them come in this order: the bookie alone
(its state, files, garbage and settings), ledgers' metadata (bounded by what one answer may hold), the cluster as
metadata has it, and AutoRecovery: its switch, its marks and its auditor.

Decision 63.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from fastbk.apache.configuration.keys import KEYS, Verdict
from fastbk.apache.http.answers import NOT_GET, answer, boolean, guarded, integer, json_object, text
from fastbk.config import split_address
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.meta.api import VersionedLedger, all_ids, check_delay
from fastbk.model.ids import check_bookie_id
from fastbk.model.ledger import FORMAT_VERSION
from fastbk.native.disk import Disk
from fastbk.observe import logs
from fastbk.observe.logs import LimitLog
from fastbk.security.credentials import Credentials
from fastbk.security.tls import TlsOptions
from fastbk.server.directories import disk_bytes
from fastbk.server.gc_messages import LEDGERS, MAJOR, MINOR
from fastbk.server.supervision.lifecycle import State
from fastbk.storage.directories import JOURNALS, LOCATIONS, LOGS
from fastbk.storage.manifest import ManifestSlots
from fastbk.units import format_apache_size
from fastbk.web.page_server import Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.apache.http.answers import BookieFacts, StoreThreads
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.replica_marks import UnderreplicatedLedger
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.web.page_server import Page, PageServer, Request, Response

BOOKIE = "/api/v1/bookie/"
LEDGER = "/api/v1/ledger/"
AUTO_RECOVERY = "/api/v1/autorecovery/"


def add_pages(server: PageServer, facts: BookieFacts, metadata: StoreThreads) -> None:
    """Have `server` answer Apache's paths for this bookie."""
    bookie, by_client = BookiePages(facts), ClientPages(facts)
    server.add_page("/heartbeat", guarded(_heartbeat))
    server.add_page("/api/v1/config/server_config", guarded(bookie.settings))
    for prefix, pages in (
        (BOOKIE, bookie.pages()),
        (BOOKIE, ClusterPages(metadata).pages()),
        (BOOKIE, by_client.bookie_pages()),
        (LEDGER, by_client.ledger_pages()),
        (LEDGER, LedgerPages(metadata).pages()),
    ):
        for name, page in pages.items():
            server.add_page(prefix + name, guarded(page))
    add_auto_recovery_pages(server, AutoRecoveryPages(metadata))


def add_auto_recovery_pages(server: PageServer, pages: AutoRecoveryPages) -> None:
    """Have `server` answer Apache's paths about AutoRecovery."""
    for name, page in pages.pages().items():
        server.add_page(AUTO_RECOVERY + name, guarded(page))


async def _heartbeat(_: Request) -> Response:
    return text(200, "OK\n")


NO_PUT = "Settings are read once at a start here: change the configuration and restart the bookie."
NO_PAIRS = "Request body not found. should contains k-v pairs"
FILES_NAMED_MAX = 20_000
"""Maximum files of each kind in the answer of `list_disk_file`."""


class BookiePages:
    """One bookie's."""

    def __init__(self, facts: BookieFacts) -> None:
        self._facts = facts

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {
            "state": self._state,
            "state/readonly": self._read_only,
            "is_ready": self._is_ready,
            "info": self._info,
            "last_log_mark": self._last_log_mark,
            "list_disk_file": self._list_disk_file,
            "expand_storage": self._expand_storage,
            "gc": self._gc,
            "gc_details": self._gc_details,
            "gc/suspend_compaction": self._suspend,
            "gc/resume_compaction": self._resume,
            "entry_location_compact": self._compact_locations,
        }

    # --- state

    @property
    def _is_read_only(self) -> bool:
        return self._facts.life.state is State.READ_ONLY or bool(self._facts.read_only.reason)

    @property
    def _is_running(self) -> bool:
        return self._facts.life.state in (State.WRITABLE, State.READ_ONLY)

    async def _state(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, "Only support GET method to retrieve bookie state.")
        takes_writes = self._is_running and not self._facts.life.crash_loop
        refuses_all = any(self._facts.metrics.value(name) >= 2 for name in _REFUSING_ALL)
        return answer(
            {
                "running": self._is_running,
                "readOnly": self._is_read_only,
                "shuttingDown": self._facts.life.state in (State.DRAINING, State.STOPPED),
                "availableForHighPriorityWrites": takes_writes and not refuses_all,
            }
        )

    async def _read_only(self, request: Request) -> Response:
        if request.method == "PUT":
            # No default: with a key that is misspelt a bookie would become writable.
            wanted = boolean("readOnly", json_object(request, "readOnly").get("readOnly"))
            if wanted != bool(self._facts.read_only.reason):
                if not wanted and self._facts.read_only.is_forced:
                    return text(
                        400, "Bookie is in forceReadOnly mode, cannot transit to writable mode"
                    )
                await self._facts.set_read_only(wanted)
        elif request.method != "GET":
            return text(404, "Unsupported method. Should be GET or PUT method")
        return answer({"readOnly": self._is_read_only})

    async def _is_ready(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, "Only support GET method check if bookie is ready.")
        if self._is_running:
            return text(200, "OK")
        return text(503, "Bookie is not fully started yet")

    async def settings(self, request: Request) -> Response:
        """Answer what the settings are."""
        if request.method == "GET":
            return answer(settings_of(self._facts.config))
        return text(400, NO_PUT) if request.method == "PUT" else text(404, NO_PAIRS)

    # --- disks

    async def _info(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, "Only GET is supported.")
        directories = self._facts.config.ledgers.all_directories
        free_bytes, total_bytes = await asyncio.to_thread(disk_bytes, directories)
        return answer({"freeSpace": free_bytes, "totalSpace": total_bytes})

    async def _last_log_mark(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        try:
            return answer(await asyncio.to_thread(self._marks))
        except (Error, OSError) as error:
            return text(404, f"ERROR handling request: {error}")

    def _marks(self) -> dict[str, str]:
        """Our mark is a number of a batch in the pair's journal; it stands where Apache's file and place would."""
        marks = {}
        for pair, directory in enumerate(self._facts.config.ledgers.all_directories):
            disk = Disk(directory, "plain", only_reads=True)
            try:
                mark = ManifestSlots(disk, directory).load().mark
            finally:
                disk.destroy()
            marks[f"LastLogMark: Journal Id - {pair}({pair:x}.txn)"] = f"Pos - {mark}"
        return marks

    async def _list_disk_file(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        wanted = request.query.get("file_type", "")
        return answer(await asyncio.to_thread(self._files, wanted))

    def _files(self, wanted: str) -> dict[str, str]:
        ledgers = self._facts.config.ledgers.all_directories
        logs = [f"{directory}/{LOGS.folder}" for directory in ledgers]
        locations = [f"{directory}/{LOCATIONS.folder}" for directory in ledgers]
        kinds: dict[str, tuple[str, list[str], Callable[[str], int | None]]] = {
            "journal": (
                "journal files",
                list(self._facts.config.journal.all_directories),
                JOURNALS.id_of,
            ),
            "entrylog": ("entrylog files", logs, LOGS.id_of),
            "index": ("index files", locations, LOCATIONS.id_of),
        }
        chosen = [kinds[wanted]] if wanted in kinds else kinds.values()
        return {title: _named(directories, id_of) for title, directories, id_of in chosen}

    async def _expand_storage(self, request: Request) -> Response:
        if request.method != "PUT":
            return text(404, "Not found method. Should be PUT method")
        return text(
            500,
            "Exception while updating cookie for storage expansion: directories are added to a stopped bookie here, by"
            " `fastbk bookie expand`",
        )

    # --- garbage

    async def _gc(self, request: Request) -> Response:
        if request.method == "GET":
            status: Any = await self._facts.gc.status({})
            asked = max(status["runs_asked"], status["runs_lost"])
            is_forced = asked > max(status.get("run_done", 0), status["runs_lost"])
            return answer({"is_in_force_gc": str(is_forced).lower()})
        if request.method != "PUT":
            return text(
                405,
                "Not allowed method. Should be PUT to trigger GC, Or GET to get Force GC state.",
            )
        try:
            asked_for = json_object(request) if request.body.strip() else {}
            suspended = set((await self._status())["suspended"])
            what = [LEDGERS]
            for kind, name in ((MINOR, "forceMinor"), (MAJOR, "forceMajor")):
                if boolean(name, asked_for.get(name, kind not in suspended)):
                    what.append(kind)
            await self._facts.gc.run({"what": what})
        except Error as error:
            return text(400, f"Failed to handle the request, exception: {error}")
        return answer(f"Triggered GC on BookieServer: {self._facts.bookie_id}")

    async def _status(self) -> dict[str, Any]:
        status: Any = await self._facts.gc.status({})
        return dict(status)

    async def _gc_details(self, request: Request) -> Response:
        if request.method != "GET":
            return text(
                404,
                "Only support GET method to retrieve GC details."
                " If you want to trigger gc, send a POST to gc endpoint.",
            )
        status = await self._status()
        running = {
            compaction["kind"]
            for compaction in status.get("compactions", ())
            if compaction["running"]
        }
        ended = status.get("ended", {})
        asked = await self._gc(Request("GET"))
        details = {
            "forceCompacting": b'"true"' in asked[2],
            "majorCompacting": MAJOR in running,
            "minorCompacting": MINOR in running,
            "lastMajorCompactionTime": ended.get(MAJOR, {}).get("last_ms", 0),
            "lastMinorCompactionTime": ended.get(MINOR, {}).get("last_ms", 0),
            "lastEntryLocationCompactionTime": 0,
            "majorCompactionCounter": ended.get(MAJOR, {}).get("count", 0),
            "minorCompactionCounter": ended.get(MINOR, {}).get("count", 0),
            "entryLocationCompactionCounter": self._facts.metrics.value("FBK_C_INDEX_MERGES"),
        }
        return answer([details])

    async def _suspend(self, request: Request) -> Response:
        if request.method == "GET":
            suspended = (await self._status())["suspended"]
            return answer(
                {
                    "isMajorGcSuspended": str(MAJOR in suspended).lower(),
                    "isMinorGcSuspended": str(MINOR in suspended).lower(),
                }
            )
        return await self._switch(request, "suspend")

    async def _resume(self, request: Request) -> Response:
        return await self._switch(request, "resume")

    async def _switch(self, request: Request, verb: str) -> Response:
        if request.method != "PUT":
            return text(
                404,
                f"Not found method. Should be PUT to {verb} major or minor compaction, Or GET to get compaction state.",
            )
        if not request.body:
            return text(400, "Empty request body")
        asked = json_object(request)
        major, minor = asked.get(f"{verb}Major"), asked.get(f"{verb}Minor")
        if major is None and minor is None:
            return text(400, f"No {verb}Major or {verb}Minor params found")
        said = ""
        for kind, is_asked, before in ((MAJOR, major, ""), (MINOR, minor, ", ")):
            if is_asked is not None and boolean(f"{verb}{kind.title()}", is_asked):
                action = self._facts.gc.suspend if verb == "suspend" else self._facts.gc.resume
                await action({"what": [kind]})
                said += f"{before}{verb.title()} {kind}GC on BookieServer: {self._facts.bookie_id}"
        return answer(said)

    async def _compact_locations(self, request: Request) -> Response:
        folders = [
            f"{directory}/{LOCATIONS.folder}"
            for directory in self._facts.config.ledgers.all_directories
        ]
        if request.method == "GET":
            return answer(dict.fromkeys(folders, False))
        if request.method != "PUT":
            return text(
                405,
                "Not found method. Should be PUT to trigger entry location compact,"
                " Or GET to get entry location compact state.",
            )
        if not request.body.strip():
            return text(400, "Empty request body")
        asked = json_object(request)
        if asked.get("entryLocationRocksDBCompact") is not True:
            return text(200, "Not trigger Entry Location RocksDB compact.")
        return text(
            400,
            "There is no RocksDB here: files of locations are merged as they come, by themselves.",
        )


_REFUSING_ALL = ("FBK_C_JOURNAL_LIMIT", "FBK_C_INDEX_READS_ONLY")


def _named(directories: list[str], id_of: Callable[[str], int | None]) -> str:
    names = []
    for directory in directories:
        with os.scandir(directory) as found:
            names += [one.name for one in found if id_of(one.name) is not None]
    return "".join(f"{name}\t" for name in sorted(names)[:FILES_NAMED_MAX])


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


PAGE_COUNT = 100
"""Ledgers a page of `list?print_metadata=true&page=N`; the first page has one fewer, as Apache's."""
IDS_LISTED_MAX = 500_000
METADATA_LISTED_MAX = 5_000


class LedgerPages:
    """Those of one metadata store."""

    def __init__(self, metadata: StoreThreads) -> None:
        self._metadata = metadata

    def pages(self) -> dict[str, Page]:
        """Return the pages by the ends of their paths."""
        return {"list": self._list, "metadata": self._show}

    async def _list(self, request: Request) -> Response:
        if request.method != "GET":
            return text(404, NOT_GET)
        if request.query.get("print_metadata") != "true":
            return answer(await self._metadata.call(_ids))
        page = integer(request, "page", -1)
        decode = request.query.get("decode_meta") == "true"
        return answer(
            await self._metadata.call(lambda store: _described(store, page, decode=decode))
        )

    async def _show(self, request: Request) -> Response:
        if request.method != "GET" or "ledger_id" not in request.query:
            return text(404, NOT_GET)
        ledger_id = integer(request, "ledger_id", 0, low=0)
        found = await self._metadata.call(lambda store: store.read_ledger(ledger_id))
        return answer({str(ledger_id): shown(ledger_id, found.metadata)})


def _ids(store: MetadataStore) -> dict[str, None]:
    listed: dict[str, None] = {}
    for ledger_id in all_ids(store):
        listed[str(ledger_id)] = None
        if len(listed) > IDS_LISTED_MAX:
            raise ConfigError(
                f"more than {IDS_LISTED_MAX:,} ledgers: `fastbk ledger list` lists them"
            )
    return listed


def _described(store: MetadataStore, page: int, *, decode: bool) -> dict[str, Any]:
    """Return id -> metadata of a page, counted from 1 as Apache does: ledgers 1-99, 100-199, ...; 0 or less: of all."""
    first, last = ((page - 1) * PAGE_COUNT, page * PAGE_COUNT - 1) if page > 0 else (0, None)
    chosen = []
    for number, ledger_id in enumerate(all_ids(store), 1):
        if last is not None and number > last:
            break
        if number >= first:
            chosen.append(ledger_id)
        if len(chosen) > METADATA_LISTED_MAX:
            raise ConfigError(
                f"more than {METADATA_LISTED_MAX:,} ledgers: ask for pages, page=1, 2 ..."
            )
    described: dict[str, Any] = {}
    for start in range(0, len(chosen), PAGE_COUNT):
        ids = chosen[start : start + PAGE_COUNT]
        for ledger_id, ledger in zip(ids, store.read_ledgers(ids), strict=True):
            if isinstance(ledger, VersionedLedger):
                metadata = ledger.metadata
                raw = metadata.to_bytes().decode("utf-8", "replace")
                described[str(ledger_id)] = shown(ledger_id, metadata) if decode else raw
    return described


def shown(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Return metadata by the names that Apache's JSON has. The password is never told."""
    digest = metadata.digest_type
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": FORMAT_VERSION,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if metadata.created_ms is None else metadata.created_ms,
        "digestType": None if digest is None else _DIGESTS[digest.name],
        "password": "",
        "customMetadata": {
            key: base64.b64encode(value).decode() for key, value in metadata.custom.items()
        },
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(fragment.first_entry_id): [{"id": bookie_id} for bookie_id in fragment.ensemble]
            for fragment in metadata.fragments
        },
        "ctoken": metadata.creation_token,
    }


_DIGESTS = {"CRC32": "CRC32", "HMAC": "MAC", "CRC32C": "CRC32C", "DUMMY": "DUMMY"}


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
    total = alive | {identity.bookie_id for identity in store.list_identities()}
    writable = sum(one.writable for one in registered)
    return {
        "totalBookiesCount": len(total),
        "writableBookiesCount": writable,
        "readonlyBookiesCount": len(registered) - writable,
        "unavailableBookiesCount": len(total - alive),
    }


# Apache's endpoints about AutoRecovery: its switch, its marks and its auditor, as metadata has
# them.

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


# --- endpoints that need a client -----------------------------------------------------------------

TOOL = "fastbk.admin.http_tool"
TOOLS_MAX = 2
PAGE_ENTRIES = 1000
"""Entries of a page of `ledger/read`."""


class ClientPages:
    """The pages of one bookie that need a client: entries, deletions, the disks of all bookies, the sanity test.

    A server has no client in it (`tests/style/test_layers.py`), and none of this may come near its data path: each
    request starts `python -m fastbk.admin.http_tool`, which is given a question on its standard input and ends with
    the answer. At most two run at a time; one that is not done in time is killed.

    The tool is a client of its own: it shows bookies what the environment of this one has, or this one's certificate.
    So who reads entries by it needs the right to do so (`Kind.ENTRIES` of `fastbk/web/page_admission.py`).
    """

    def __init__(self, facts: BookieFacts) -> None:
        self._facts = facts
        self._turns = asyncio.Semaphore(TOOLS_MAX)
        self._sanity_turn = asyncio.Lock()
        self._failures = LimitLog("http.sanity_failed")

    def bookie_pages(self) -> dict[str, Page]:
        """Return the pages about bookies by the ends of their paths."""
        return {"list_bookie_info": self._infos, "sanity": self._sanity}

    def ledger_pages(self) -> dict[str, Page]:
        """Return the pages about a ledger by the ends of their paths."""
        return {"read": self._read, "delete": self._delete}

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
            reason: str = await self._tool("sanity", bookie_id=self._facts.bookie_id)
        if reason:
            self._failures.note("sanity", reason=reason)
        return answer({"passed": not reason, "readOnly": False})

    async def _read(self, request: Request) -> Response:
        if request.method != "GET" or "ledger_id" not in request.query:
            return text(404, "Not found method. Should be GET method, with ledger_id provided")
        ledger_id = integer(request, "ledger_id", 0, low=0)
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
        namespaces = None if request.principal is None else request.principal.namespaces
        found = await self._tool(
            "read", ledger_id=ledger_id, first=first, last=last, namespaces=namespaces
        )
        if found is None:
            return text(403, f"ledger {ledger_id} is of no namespace that the token is limited to")
        return answer(said | found)

    async def _delete(self, request: Request) -> Response:
        if request.method != "DELETE":
            return text(404, "Not found method. Should be DELETE method")
        if "ledger_id" not in request.query:
            return text(404, "Not ledger found. Should provide ledger_id=<id>")
        ledger_id = integer(request, "ledger_id", 0, low=0)
        # By a client, which fences an open ledger (INV-S19): its writer may not go on being acknowledged.
        if await self._tool("delete", ledger_id=ledger_id):
            logs.warning("http.ledger_deleted", ledger_id=ledger_id)
        return answer(f"Deleted ledger: {ledger_id}")

    async def _tool(self, tool: str, **asked: object) -> Any:  # noqa: ANN401 -- what JSON has
        """Return what a tool answers. Raises StorageError with the reason why there is none."""
        question = {"tool": tool, "uri": self._facts.config.metadata.uri, **asked}
        async with self._turns:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", TOOL,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env=_tool_environment(self._facts.config),
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


def lends_credentials(config: BookieConfig) -> bool:
    """Return whether tools show bookies more than a stranger has: a token, a password or a certificate."""
    environment = _tool_environment(config)
    tls = TlsOptions.from_environment(environment)
    return Credentials.from_environment(environment) is not None or bool(
        tls and tls.certificate_file
    )


def _tool_environment(config: BookieConfig) -> dict[str, str]:
    """Return what a tool finds in its environment: TLS as [tls] has it, where nothing else is said."""
    environment = dict(os.environ)
    if config.tls.mode == "off" or any(name.startswith("FASTBK_TLS") for name in environment):
        return environment
    files = config.tls
    options = TlsOptions(ca_file=files.ca_file, ca_password_file=files.ca_password_file)
    # else nobody asks for it, and a key that is not used needs no reader
    if files.client_certificates != "none":
        options = TlsOptions(
            ca_file=files.ca_file,
            ca_password_file=files.ca_password_file,
            certificate_file=files.certificate_file,
            key_file=files.key_file,
            key_password_file=files.key_password_file,
        )
    return environment | options.environment()


def _space(free_bytes: int, total_bytes: int) -> str:
    free, total = map(format_apache_size, (free_bytes, total_bytes))
    return f"{{Free: {free}, Total: {total}}}"
