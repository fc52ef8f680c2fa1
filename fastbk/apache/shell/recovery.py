"""Verbs that copy what a bookie held to others: recover, decommissionbookie."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb, flag
from fastbk.apache.shell.context import fail
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.admin.bookie_recovery import RecoveryPlan
    from fastbk.admin.ledger_progress import Progress
    from fastbk.apache.shell.context import Context
    from fastbk.client import Client
    from fastbk.model.ids import BookieId

LISTED_MAX = 20


def _recover(context: Context, words: CommandLine) -> int:
    from fastbk.model.ids import check_bookie_id

    if not words.arguments:
        raise ConfigError("'bookieSrc' argument required")
    if len(words.arguments) > 1:
        fail(f"The provided bookie dest {words.arguments[1]} will be ignored!")
    bookie_ids = [check_bookie_id(one) for one in words.arguments[0].split(",")]
    if not words.has("force"):
        print(f"Bookies : [{', '.join(bookie_ids)}]")
        if not context.confirmed("Are you sure to recover them : (Y/N)"):
            fail("Give up!")
            return -1
    if words.has("query"):
        return asyncio.run(_query(context, bookie_ids))
    code = asyncio.run(_recover_all(context, words, bookie_ids))
    if code == 0 and words.has("deleteCookie") and not words.has("dryrun"):
        for one in bookie_ids:
            if not forget(context, one):
                fail(f"No cookie to remove for {one}")
    return code


async def _query(context: Context, bookie_ids: Sequence[BookieId]) -> int:
    print("NOTE: Bookies in inspection list are marked with '*'.")
    async with context.client() as client:
        async for info in client.list_ledgers():
            counts = {
                one.first_entry_id: sum(each in bookie_ids for each in one.ensemble)
                for one in info.metadata.fragments
            }
            if not any(counts.values()):
                continue
            print(f"ledger {context.shown(info.ledger_id)} : {info.metadata.state.name}")
            for one in info.metadata.fragments:
                shown = (f"{each}*" if each in bookie_ids else each for each in one.ensemble)
                print(f"{one.first_entry_id}:\t{'  '.join(shown)}")
            summary = ", ".join(f"{first}={count}" for first, count in counts.items())
            print(f"summary: [{summary}]")
    print("Done")
    return 0


async def _recover_all(context: Context, words: CommandLine, bookie_ids: Sequence[BookieId]) -> int:
    from fastbk.admin.bookie_recovery import BookieRecovery, RecoveryPlan

    only = words.text("ledger")
    plan = RecoveryPlan(
        bytes_per_s=float(max(0, words.integer("replicationRate", 0, least=-1))),
        open_ledgers="skip" if words.has("skipOpenLedgers") else "close",
        # Several at once that are alive would be given each other's data.
        even_if_alive=len(bookie_ids) == 1,
        ledger_ids=(context.ledger_id(only),) if only else None,
    )
    failed = 0
    async with context.client() as client:
        runs = [BookieRecovery(client, one, plan) for one in bookie_ids]
        for one, run in zip(bookie_ids, runs, strict=True):
            await run.check_gone()
            if words.has("dryrun"):
                for ledger_id, size_bytes in await run.find():
                    shown = context.shown(ledger_id)
                    print(f"ledger {shown}: about {size_bytes} bytes of {one} would be copied")
                continue
            failed += await _run(client, one, plan)
    return -1 if failed and not words.has("skipUnrecoverableLedgers") else 0


async def _run(client: Client, bookie_id: BookieId, plan: RecoveryPlan) -> int:
    """Recover one bookie; return how many ledgers still name it."""
    from fastbk.admin.bookie_recovery import BookieRecovery

    run = BookieRecovery(client, bookie_id, plan)
    progress: Progress = await run.run()
    print(
        f"{bookie_id}: {progress.ledgers_done} of {progress.ledgers} ledgers recovered,"
        f" {progress.entries_copied} entries copied, {progress.entries_lost} lost"
    )
    for ledger_id, reason in list({**progress.failed, **progress.parked}.items())[:LISTED_MAX]:
        fail(f"ledger {ledger_id} still names {bookie_id}: {reason}")
    return progress.failed_count + progress.parked_count


def forget(context: Context, bookie_id: BookieId) -> bool:
    """Delete a bookie's cookie, and what fastbk knows of it; return False if there was none."""
    from fastbk.admin.cookies import free_id

    return free_id(context.uri, bookie_id) is None


def _decommission(context: Context, words: CommandLine) -> int:
    from fastbk.model.ids import check_bookie_id

    bookie_id = check_bookie_id(words.text("bookieid").strip() or context.bookie_id())
    left = asyncio.run(_empty(context, bookie_id))
    if left:
        fail(f"{left} ledgers still name {bookie_id}: run this again")
        return -1
    print(
        f"The ledgers stored in the given decommissioning bookie: {bookie_id} are properly replicated"
    )
    if not forget(context, bookie_id):
        fail(
            f"No cookie to remove for the decommissioning bookie: {bookie_id}, it could be deleted already"
        )
    print(f"Cookie of the decommissioned bookie: {bookie_id} is deleted successfully")
    return 0


async def _empty(context: Context, bookie_id: BookieId) -> int:
    """Copy all that the bookie held; return how many ledgers name it then. Raises ConfigError if it is up."""
    from fastbk.admin.bookie_recovery import BookieRecovery, RecoveryPlan

    plan = RecoveryPlan()
    async with context.client() as client:
        failed = await _run(client, bookie_id, plan)
        return failed or len(await BookieRecovery(client, bookie_id, plan).find())


VERBS = (
    Verb(
        "recover",
        "Copy what a lost bookie held to others, and name them in its place.",
        _recover,
        (
            flag("q", "query", text="only list the ledgers that name the bookies"),
            flag("dr", "dryrun", text="only tell what would be copied"),
            flag("f", "force", text="do not ask"),
            Option(("l", "ledger"), "only this ledger", "ID"),
            flag("sk", "skipOpenLedgers", text="leave ledgers alone that are not closed"),
            flag("d", "deleteCookie", text="delete the bookies' cookies at the end"),
            flag("sku", "skipUnrecoverableLedgers", text="ledgers that fail are no failure"),
            Option(("rate", "replicationRate"), "bytes a second at most", "BYTES"),
        ),
        "<bookie-id>[,<bookie-id>...]",
    ),
    Verb(
        "decommissionbookie",
        "Copy what a stopped bookie holds to others, then delete its cookie.",
        _decommission,
        (Option(("bookieid",), "its id; without: the bookie of the file", "ID"),),
    ),
)
