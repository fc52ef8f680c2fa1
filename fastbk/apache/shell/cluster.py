"""Verbs about a whole cluster and its bookies: listbookies, endpointinfo, bookieinfo, clusterinfo, whatisinstanceid;
and those that make and remove clusters in ZooKeeper: metaformat, initnewcluster, nukeexistingcluster.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from fastbk.apache.shell.context import CommandLine, Option, Verb, address_line, fail, flag
from fastbk.errors import Error, MetadataConflict
from fastbk.units import format_apache_size

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.meta.api import BookieRegistration, BookieService, MetadataStore
    from fastbk.meta.uri import ZooKeeperLocation

INFO_TIMEOUT_S = 5.0


def known_services(store: MetadataStore, zookeeper_cookies: list[str]) -> list[BookieService]:
    """Return every bookie that ever was and was not taken out of the cluster, with its address if it is up."""
    from fastbk.meta.api import BookieService

    alive = {bookie.service.bookie_id: bookie.service for bookie in store.list_bookies()}
    names = {identity.bookie_id for identity in store.list_identities()} | set(zookeeper_cookies)
    return [alive.get(name) or BookieService(name, 0, ()) for name in sorted(names)]


def cookie_names(context: Context) -> list[str]:
    """Return the bookies that have a cookie in ZooKeeper; none where the metadata is elsewhere."""
    location = context.zookeeper
    if location is None:
        return []
    from fastbk.meta.zookeeper.admin import Cookies

    with Cookies(location) as cookies:
        return cookies.names()


def _list_bookies(context: Context, words: CommandLine) -> int:
    chosen = [key for key in ("readwrite", "readonly", "all") if words.has(key)]
    if len(chosen) != 1:
        fail("One and only one of -readwrite, -readonly and -all must be specified")
        return 1
    with context.store() as store:
        if words.has("all"):
            services = known_services(store, cookie_names(context))
        else:
            is_wanted = words.has("readwrite")
            services = [
                bookie.service for bookie in store.list_bookies() if bookie.writable == is_wanted
            ]
    if not services:
        fail("No bookie exists!")
        return 0
    titles = {"readwrite": "ReadWrite", "readonly": "Readonly", "all": "All"}
    print(f"{titles[chosen[0]]} Bookies :")
    for service in services:
        print(address_line(service))
    return 0


def _endpoint_info(context: Context, words: CommandLine) -> int:
    bookie_id = words.text("bookieid")
    with context.store() as store:
        services = known_services(store, cookie_names(context))
    found = next((service for service in services if service.bookie_id == bookie_id), None)
    if found is None:
        known = ", ".join(service.bookie_id for service in services)
        fail(f"Bookie {bookie_id} does not exist, only [{known}]")
        return -1
    print(f"BookiedId: {bookie_id}")
    if found.properties:
        print("Properties")
        for key, value in found.properties.items():
            print(f"{key} : {value}")
    if not found.endpoints:
        fail("Bookie did not publish any endpoint info. Maybe it is down")
        return -1
    for endpoint in found.endpoints:
        print(f"Endpoint: {endpoint.name}")
        print(f"Protocol: {endpoint.protocol}")
        print(f"Address: {endpoint.host} : {endpoint.port}")
        print(f"Extensions: [{', '.join(endpoint.extensions)}]")
    return 0


def _bookie_info(context: Context, _: CommandLine) -> int:
    return asyncio.run(_ask_all(context))


async def _ask_all(context: Context) -> int:
    from fastbk.client.bookie_requests import bookie_info

    async with context.client() as client:

        async def asked(one: BookieRegistration) -> tuple[BookieService, int, int] | None:
            try:
                info = await bookie_info(client.pool, one.service.bookie_id, INFO_TIMEOUT_S)
            except Error as error:
                fail(f"{one.service.bookie_id}: {error}")
                return None
            return one.service, info.disk_free_bytes, info.disk_total_bytes

        answers = await asyncio.gather(*(asked(bookie) for bookie in await client.list_bookies()))
    found = [answer for answer in answers if answer is not None]
    if not found:
        print("Failed to retrieve bookie information from any of the bookies")
        return 0
    print("Free disk space info:")
    for service, free, total in found:
        print(
            f"{address_line(service)}: \tFree: {format_apache_size(free)}\tTotal: {format_apache_size(total)}"
        )
    print(
        f"Total free disk space in the cluster:\t{format_apache_size(sum(free for _, free, _ in found))}"
    )
    print(
        f"Total disk capacity in the cluster:\t{format_apache_size(sum(total for _, _, total in found))}"
    )
    return 0


def _cluster_info(context: Context, _: CommandLine) -> int:
    with context.store() as store:
        bookies = store.list_bookies()
        known = len(known_services(store, cookie_names(context)))
        auditor = store.coordination.auditor()
        is_marked = next(store.marks.under_replicated(), None) is not None
        is_enabled = store.coordination.is_enabled()
    writable = sum(bookie.writable for bookie in bookies)
    info = {
        "auditorElected": auditor is not None,
        "auditorId": auditor or "",
        "clusterUnderReplicated": is_marked,
        "ledgerReplicationEnabled": is_enabled,
        "totalBookiesCount": known,
        "writableBookiesCount": writable,
        "readonlyBookiesCount": len(bookies) - writable,
        "unavailableBookiesCount": known - len(bookies),
    }
    print("--------- Cluster Info ---------")
    print(json.dumps(info, indent=2))
    return 0


def _instance_id(context: Context, _: CommandLine) -> int:
    with context.store() as store:
        print(f"Metadata Service Uri: {context.uri} InstanceId: {store.instance_id()}")
    return 0


def _location(context: Context, words: CommandLine) -> ZooKeeperLocation:
    return context.need_zookeeper(f"{words.verb} works (elsewhere: `fastbk metadata`)")


def _format(context: Context, words: CommandLine) -> int:
    location = _location(context, words)
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    if zookeeper_admin.exists(location):
        if words.has("nonInteractive"):
            is_wanted = words.has("force")
        else:
            is_wanted = context.confirmed(
                "Ledger root already exists. Are you sure to format bookkeeper metadata? This may cause data loss."
            )
        if not is_wanted:
            return 1
        instance_id = zookeeper_admin.format_cluster(location)
    else:
        instance_id = zookeeper_admin.init(location)
    print(f"Successfully formatted BookKeeper metadata, InstanceId: {instance_id}")
    return 0


def _init(context: Context, words: CommandLine) -> int:
    location = _location(context, words)
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    try:
        instance_id = zookeeper_admin.init(location)
    except MetadataConflict as error:
        fail(str(error))
        return 1
    print(f"Successfully initiated cluster. {location.uri} instanceId: {instance_id}")
    return 0


def _nuke(context: Context, words: CommandLine) -> int:
    location = _location(context, words)
    from fastbk.meta.zookeeper import admin as zookeeper_admin

    if words.has("force") == words.has("instanceid"):
        fail("Either force option or instanceid should be specified (but not both)")
        return 1
    root = words.text("zkledgersrootpath")
    if root != location.root:
        fail(f"Provided ledgerRootPath {root} is not matching with {location.root} of the cluster")
        return 1
    try:
        was_there = zookeeper_admin.nuke(location, words.text("instanceid") or None)
    except MetadataConflict as error:
        fail(str(error))
        return 1
    print(f"Successfully nuked {location.uri}" if was_there else "There is no existing cluster")
    return 0


VERBS = (
    Verb(
        "listbookies",
        "List the bookies that are up, or all that were not taken out of the cluster.",
        _list_bookies,
        (
            flag("rw", "readwrite", text="those that take new entries"),
            flag("ro", "readonly", text="those that are read-only"),
            flag("a", "all", text="all that have a cookie"),
            flag("h", "hostnames", text="without effect: names are printed anyway"),
        ),
    ),
    Verb(
        "endpointinfo",
        "Get all end point information about a given bookie.",
        _endpoint_info,
        (Option(("b", "bookieid"), "Bookie Id", "ID", is_required=True),),
    ),
    Verb("bookieinfo", "Free and total disk space of all bookies.", _bookie_info),
    Verb("clusterinfo", "Auditor, AutoRecovery and the number of bookies.", _cluster_info),
    Verb("whatisinstanceid", "Print the instance id of the cluster.", _instance_id),
    Verb(
        "metaformat",
        "Forget all ledgers and bookies in ZooKeeper and make a new cluster.",
        _format,
        (
            flag("n", "nonInteractive", text="do not ask: refuse where there is a cluster"),
            flag("f", "force", text="with -nonInteractive: format also then"),
        ),
    ),
    Verb("initnewcluster", "Make a new cluster; refuses where there is something.", _init),
    Verb(
        "nukeexistingcluster",
        "Remove a cluster from ZooKeeper.",
        _nuke,
        (
            Option(("p", "zkledgersrootpath"), "its path, again", "PATH", is_required=True),
            Option(("i", "instanceid"), "its instance id", "ID"),
            flag("f", "force", text="instead of its instance id"),
        ),
    ),
)
