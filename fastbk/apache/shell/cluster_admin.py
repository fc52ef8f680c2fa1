"""Verbs that make and remove clusters in ZooKeeper: metaformat, initnewcluster, nukeexistingcluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb, flag
from fastbk.apache.shell.context import fail
from fastbk.errors import MetadataConflict

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.meta.uri import ZooKeeperLocation


def _location(context: Context, words: CommandLine) -> ZooKeeperLocation:
    return context.need_zookeeper(f"{words.verb} works (elsewhere: `fastbk metadata`)")


def _format(context: Context, words: CommandLine) -> int:
    location = _location(context, words)
    from fastbk.meta import zookeeper_admin

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
    from fastbk.meta import zookeeper_admin

    try:
        instance_id = zookeeper_admin.init(location)
    except MetadataConflict as error:
        fail(str(error))
        return 1
    print(f"Successfully initiated cluster. {location.uri} instanceId: {instance_id}")
    return 0


def _nuke(context: Context, words: CommandLine) -> int:
    location = _location(context, words)
    from fastbk.meta import zookeeper_admin

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
