"""A file is one concept, whole: a module that only its neighbour imports is a chapter of it, and belongs into it.

`./dev structure` prints how the tree is cut.
"""

from __future__ import annotations

from functools import cache

from tools import ROOT
from tools.structure import lone_modules, read_modules

# Modules with one importer in their own folder that stay on their own: path below fastbk/ -> why.
STAY: dict[str, str] = {
    "replication/member_health.py": "with it the writer's machine has more than 1,000 lines",
    "spark/readers.py": "one of Spark's two faces, whole: reading",
    "spark/sink.py": "one of Spark's two faces, whole: writing",
    "spark/source.py": "pyspark is imported with its first use",
    "stream/producer/service_links.py": "connections that all producers of a client share",
    "stream/reader/read_plan.py": "decides without I/O; `test_read_plan` calls it by itself",
    "stream/writer/segment_lifecycle.py": "beside the way of an append; with it the engine has 1,300 lines",
    "arrow/appends.py": "loaded at the first use of a name of fastbk.arrow",
    "arrow/readers.py": "loaded at the first use of a name of fastbk.arrow",
    "autorecovery/placement_mending.py": "moves of copies; the worker is about repairs",
    "autorecovery/repair_order.py": "a pure decider, which tests call by itself",
    "cli/bookie/recover.py": "three verbs that copy",
    "cli/bookie/stopped.py": "the verbs about a stopped bookie; command.py only lists all verbs",
    "cli/ledger.py": "a command; the one of Spark prints an audit in the same way",
    "cli/cluster_placement.py": "three verbs; with them cluster.py would have 1,300 lines",
    "cli/cluster_rebalance.py": "a verb; with it cluster.py would have 1,100 lines",
    "cli/cluster_upgrade.py": "two verbs; cluster.py would have 1,000 lines",
    "cli/stream_append.py": "a verb, twice: by the writer and by a producer; with it stream.py has 1,000 lines",
    "coordination/tenure.py": "the rules of a lease, pure; a simulated world breaks them one by one",
    "console/actions.py": "all that the console changes, beside the pages that only show",
    "console/pages.py": "all pages that show; the process is about the port, signals, users and paths",
    "doctor/bookie.py": "checks of one bookie; examine.py calls all parts",
    "doctor/machine.py": "checks of the machine; examine.py calls all parts",
    "gateway/ledger_rules.py": "pure rules; rules.py has those of records, and no room for these",
    "gateway/operations.py": "what clients do; the service is about who they are, and how many at once",
    "gateway/service.py": "requests of clients; the process is about ports, signals and pages",
    "gc/compaction_choice.py": "a pure decider, which tests call by itself",
    "gc/report.py": "counters and lines of the log for all that gc does",
    "meta/sqlite/coordination.py": "AutoRecovery's votes, locks and sessions",
    "meta/zookeeper/ledgers.py": "ids, ledgers and deleted ids; with it the store has 1,000 lines",
    "pipelines/sink.py": "what is appended and what the log says; with it the pipeline has 1,100 lines",
    "producers/owner.py": "one stream, whole; the process is about the port, signals, pages and other services",
    "producers/service.py": "connections; with it the process has 1,000 lines",
    "server/index/maintenance.py": "what runs in the background thread; flush.py is what commits",
    "server/index/replay.py": "the start; with it and the scrub the process has 1,500 lines",
    "server/index/scrub.py": "the scrub; with it and the replay the process has 1,500 lines",
    "server/network/acceptor.py": "TLS handshakes, beside the loop of the worker",
    "server/network/ledger_tags.py": "the worker's half of INV-N4",
    "server/network/network.py": "the loop of the worker; the process is about its start and end",
    "server/network/principals.py": "whom a connection belongs to, and quotas by that",
    "server/supervision/slow_reports.py": "a pure decider, which tests call by itself",
    "server/supervisor.py": "imported by `__main__` when the configuration is known to be good",
    "wire/flatbuffers_plain.py": "must be imported before the generated messages",
}


@cache
def lone() -> dict[str, str]:
    """Return path below fastbk/ -> the path of its importer, of all such modules."""
    found = lone_modules(read_modules(ROOT))
    return {path.removeprefix("fastbk/"): importer for path, importer in found.items()}


def test_a_module_that_only_a_neighbour_imports_has_a_reason_to_stay() -> None:
    unexplained = [f"{path} -> {importer}" for path, importer in lone().items() if path not in STAY]
    listing = "\n".join(unexplained)
    assert not unexplained, f"merge it into its importer:\n{listing}"


def test_each_module_that_stays_is_one_that_only_a_neighbour_imports() -> None:
    gone = STAY.keys() - lone()
    assert not gone, f"remove these from STAY, they are gone, or have more importers: {gone}"
