"""What `./dev compat` runs, part by part; each part has clusters of its own.

ONLY=words takes cells whose names contain one of these words (commas between); PARTS=words takes parts by name.
To see that the cells themselves are right, AGAINST=apache runs the Java cells on Apache's bookies instead of ours, and
AGAINST=ours the Python cells on ours in our own protocol. Tests of other projects run only where PARTS names them;
AGAINST=apache runs them on Apache's bookies, RESUME=1 without the classes that passed in an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.compat.autorecovery import autorecovery_cells
from tests.compat.by_conf import conf_cells, limit_cells
from tests.compat.full_disk import disk_full_cells
from tests.compat.jars import NotAvailable, Programs, programs
from tests.compat.java_cells import CELLS_MAIN, run_cells
from tests.compat.kills import kill_rounds, python_kill_rounds
from tests.compat.marks import mark_cells
from tests.compat.placement import placement_cells
from tests.compat.pulsar_rig import pulsar_cells, pulsar_heal, pulsar_kills, pulsar_move
from tests.compat.python_cells import python_cells
from tests.compat.recover import recover_cells
from tests.compat.results import Result
from tests.compat.rig import Rig
from tests.compat.rolling import rolling_cells
from tests.compat.sasl import sasl_cells
from tests.compat.shared_healing import shared_healing
from tests.compat.shell import shell_cells
from tests.compat.suite import SUITES, suite_tests
from tests.compat.tls import tls_cells
from tests.compat.unconfirmed import unconfirmed_cells

Section = Callable[[Rig], Iterator[Result]]
PULSAR_MAIN = "fastbk.compat.ManagedLedgerCells"
PROTOCOLS = ("v3", "v2")
BY_NAME_ONLY = {
    *SUITES,
    "pulsar",
    "pulsar-v3",
    "pulsar-mixed",
    "pulsar-kills",
    "pulsar-move",
    "pulsar-heal",
}
"""Parts that take ten minutes or more."""


def chosen_sections(environment: Mapping[str, str]) -> list[tuple[str, Section]]:
    """Return the parts that are asked for, in their order, each with its name."""
    only = [word for word in environment.get("ONLY", "").split(",") if word]
    parts = [word for word in environment.get("PARTS", "").split(",") if word]
    rounds, seed = int(environment.get("ROUNDS", "") or 10), int(environment.get("SEED", "") or 1)
    is_resumed = environment.get("RESUME", "") == "1"
    apache = environment.get("AGAINST", "") == "apache"
    all_parts: dict[str, Section] = {
        "java": lambda rig: group(rig, only, "client", kind="apache" if apache else "ours"),
    }
    if environment.get("AGAINST", "") == "ours":
        all_parts = {"python": lambda rig: python_cells(rig, only, kind="ours")}
    elif apache:
        all_parts["distributedlog-cells"] = lambda rig: group(
            rig, only, "distributedlog", kind="apache"
        )
        all_parts["managed-ledger-cells"] = lambda rig: managed_ledgers(rig, only, kind="apache")
        all_parts["autorecovery"] = lambda rig: autorecovery_cells(rig, only, kind="apache")
        all_parts["limits"] = lambda rig: limit_cells(rig, only, kind="apache")
        all_parts["kills"] = lambda rig: kill_rounds(rig, rounds, seed, kind="apache")
    else:
        all_parts["mixed"] = lambda rig: group(rig, only, "client", kind="mixed")
        all_parts["tls"] = lambda rig: tls_cells(rig, only)
        all_parts["sasl"] = lambda rig: sasl_cells(rig, only)
        all_parts["conf"] = lambda rig: conf_cells(rig, only)
        all_parts["limits"] = lambda rig: limit_cells(rig, only, kind="ours")
        all_parts["unconfirmed"] = lambda rig: unconfirmed_cells(rig, only)
        all_parts["disk-full"] = lambda rig: disk_full_cells(rig, only)
        all_parts["python"] = lambda rig: python_cells(rig, only, kind="apache")
        all_parts["python-mixed"] = lambda rig: python_cells(rig, only, kind="mixed")
        all_parts["autorecovery"] = lambda rig: autorecovery_cells(rig, only, kind="ours")
        all_parts["autorecovery-mixed"] = lambda rig: autorecovery_cells(rig, only, kind="mixed")
        all_parts["autorecovery-shared"] = lambda rig: shared_healing(rig, rounds, seed)
        all_parts["placement"] = lambda rig: placement_cells(rig, only, rounds, seed)
        all_parts["recover"] = lambda rig: recover_cells(rig, only)
        all_parts["marks"] = lambda rig: mark_cells(rig, only)
        all_parts["rolling"] = lambda rig: rolling_cells(rig, only)
        all_parts["shell"] = lambda rig: shell_cells(rig, only)
        all_parts["distributedlog-cells"] = lambda rig: group(
            rig, only, "distributedlog", kind="ours"
        )
        all_parts["managed-ledger-cells"] = lambda rig: managed_ledgers(rig, only, kind="ours")
        all_parts["kills"] = lambda rig: kill_rounds(rig, rounds, seed, kind="mixed")
        all_parts["python-kills"] = lambda rig: python_kill_rounds(rig, rounds, seed)
    if environment.get("AGAINST", "") != "ours":
        kind = "apache" if apache else "ours"
        all_parts |= _pulsar(only, kind, rounds, seed)
        all_parts |= {name: _suite(name, only, kind, is_resumed) for name in SUITES}
    unknown = set(parts) - set(all_parts)
    if unknown:
        raise SystemExit(
            f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(all_parts)}"
        )
    if only and not parts:
        parts = [name for name in ("java", "python") if name in all_parts]
    return [
        (name, section)
        for name, section in all_parts.items()
        if name in (parts or set(all_parts) - BY_NAME_ONLY)
    ]


def _pulsar(only: list[str], kind: str, rounds: int, seed: int) -> dict[str, Section]:
    return {
        "pulsar": lambda rig: pulsar_cells(rig, only, kind=kind),
        "pulsar-v3": lambda rig: pulsar_cells(rig, only, kind=kind, protocol="v3"),
        "pulsar-mixed": lambda rig: pulsar_cells(rig, only, kind="mixed"),
        "pulsar-kills": lambda rig: pulsar_kills(rig, rounds, seed, kind=kind),
        "pulsar-move": pulsar_move,
        "pulsar-heal": lambda rig: pulsar_heal(rig, kind=kind),
    }


def _suite(name: str, only: list[str], kind: str, is_resumed: bool) -> Section:
    return lambda rig: suite_tests(rig, name, only, kind=kind, is_resumed=is_resumed)


def group(rig: Rig, only: list[str], name: str, *, kind: str) -> Iterator[Result]:
    """Cells of Apache's Java client, or of what is built on it, on four bookies: ours, Apache's, or two of each."""
    yield from _both_protocols(rig, rig.programs, [name, *only], kind, CELLS_MAIN)


def managed_ledgers(rig: Rig, only: list[str], *, kind: str) -> Iterator[Result]:
    """Pulsar's managed-ledger library, if Maven has its jars."""
    try:
        pulsar = programs("pulsar-pom.xml", "java-pulsar", beside=rig.programs)
    except NotAvailable as error:
        yield Result(
            f"pulsar > {kind}", "managed-ledger", "skip", 0.0, f"its jars cannot be had: {error}"
        )
        return
    yield from _both_protocols(rig, pulsar, ["managed-ledger", *only], kind, PULSAR_MAIN)


def _both_protocols(
    rig: Rig, java: Programs, arguments: list[str], kind: str, main_class: str
) -> Iterator[Result]:
    counts = {"ours": (4, 0), "apache": (0, 4), "mixed": (2, 2)}[kind]
    with rig.cluster(
        ours=counts[0], apache=counts[1], is_made_by_apache=kind == "mixed"
    ) as cluster:
        for protocol in PROTOCOLS:
            words = [cluster.metadata_uri, protocol, *arguments]
            yield from run_cells(
                f"java {protocol} > {kind}", cluster, java, words, main_class=main_class
            )
