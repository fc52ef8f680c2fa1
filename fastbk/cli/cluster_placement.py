"""`fastbk cluster placement show|set|check`: the rule of the cluster, where bookies are, and what lies otherwise."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_common,
    add_confirmation,
    add_verb,
    add_verbs,
    exit_without_consent,
    metadata_uri,
    note,
    opened_store,
    print_answer,
    some_of,
    table,
)
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError
from fastbk.exit_codes import DONE, FAILED
from fastbk.placement.config import PlacementConfig, check_labels, check_location
from fastbk.placement.rules import (
    ACK_COUNTS,
    ACK_RACKS,
    ACK_REGIONS,
    ACK_ZONES,
    COUNTED,
    COUNTS,
    DEFAULT_RULE,
    DESIRED_ZONES,
    FIELDS,
    NOUNS,
    RACKS,
    REGIONS,
    ZONES,
    ClusterRules,
    rule_text,
)
from fastbk.units import format_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from fastbk.admin.placement_check import (
        FragmentPlacement,
        LedgerPlacement,
        Misplaced,
        PlacementReport,
    )
    from fastbk.client.placement_judge import PlacementJudge

POLICIES = tuple(COUNTED)
GROUP_KINDS = ("soft", "hard")
NO_GROUP = "none"
OPTIONS = {
    RACKS: "racks",
    REGIONS: "regions",
    ZONES: "zones",
    DESIRED_ZONES: "desired-zones",
    ACK_RACKS: "ack-racks",
    ACK_REGIONS: "ack-regions",
    ACK_ZONES: "ack-zones",
}
"""The options of `set` for the counts of a rule."""
HOW_TO_SAY = "`[bookie] location`, or `placement set --location ID=/region/rack`"
LOCATIONS_BYTES_MAX = 4 * 1024 * 1024
LIMIT = 20
SOURCES = {
    "table": "the cluster's table",
    "pulsar": "Pulsar's node",
    "bookie": "the bookie",
    "default": "nobody",
    "unknown": "not registered",
}
"""Who says where a bookie is."""


def add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs below `fastbk cluster placement`."""
    verbs = add_verbs(parser)
    text = (
        "the cluster's rule, where each bookie is and who says so, and what the bookies cannot keep"
    )
    add_verb(verbs, "show", show, text)
    text = "change the cluster's rule, and its table of where bookies are"
    _add_set_arguments(add_verb(verbs, "set", change, text))
    text = "fragments whose copies lie otherwise than their ledger's rule wants it; reads metadata only"
    _add_check_arguments(add_verb(verbs, "check", check, text))
    add_common(verbs)


def rule_facts(rule: PlacementConfig) -> dict[str, object]:
    """Return a rule for JSON: all its fields."""
    return {name: getattr(rule, name) for name in FIELDS}


def warnings_of(judge: PlacementJudge, rule: PlacementConfig) -> list[str]:
    """Return what is not as the rule wants it with the bookies that there are."""
    warnings = []
    if rule.policy != "spread" and (unlocated := judge.unlocated()):
        noun = rule.policy
        if any(place.source in ("table", "pulsar", "bookie") for place in judge.places.values()):
            named = ", ".join(some_names(unlocated))
            warnings.append(
                f"nobody says where these are, so they count as one {noun}: {named} ({HOW_TO_SAY})"
            )
        else:
            warnings.append(
                f"nobody says where any bookie is, so all count as one {noun}; what is not enforced does nothing"
                f" ({HOW_TO_SAY})"
            )
    for unmet in judge.unmet(rule):
        if unmet.is_enforced:
            warnings.append(f"new ledgers are refused: {unmet.reason}")
        elif len(judge.unlocated()) < len(judge.places):
            warnings.append(f"the rule is kept as far as possible only: {unmet.reason}")
    return warnings


def some_names(names: list[str], count_max: int = 10) -> list[str]:
    """Return the first of many names, and how many more there are."""
    more = len(names) - count_max
    return [*names[:count_max], *([f"{more} more"] if more > 0 else [])]


# --- show ---------------------------------------------------------------------------------------------------------


def show(options: argparse.Namespace) -> int:
    """Print the rule, the bookies, and warnings."""
    from fastbk.client.placement_judge import read_judge
    from fastbk.meta.records import collected_bad_records

    with opened_store(metadata_uri(options)) as store, collected_bad_records() as bad:
        judge = read_judge(store)
    rule, racks = judge.rules.rule, _by_location(judge)
    warnings = [*(f"nobody can read {record}" for record in bad), *warnings_of(judge, rule)]
    facts = {
        "rule": rule_facts(rule),
        "is_default": _is_default(rule),
        "locations": dict(judge.rules.locations),
        "bookies": [
            {
                "bookie_id": bookie_id,
                "state": place.state,
                "location": place.location,
                "source": place.source,
                "labels": sorted(place.view.labels),
            }
            for bookie_id, place in judge.places.items()
        ],
        "racks": racks,
        "warnings": warnings,
    }
    lines = [f"rule: {rule_text(rule)}{' (the default)' if _is_default(rule) else ''}"]
    if judge.places:
        rows = [("bookie", "state", "location", "according to", "labels")]
        for place in sorted(
            judge.places.values(), key=lambda place: (not place.location, place.location)
        ):
            labels = ", ".join(sorted(place.view.labels))
            words = (painted(place.state), place.location or "-", SOURCES[place.source])
            rows.append((place.view.bookie_id, *words, labels or "-"))
        lines += [*table(rows, "<<<<<"), ""]
    lines += [
        f"{location}: {format_count(len(members), 'bookie')}: {', '.join(some_names(members))}"
        for location, members in racks.items()
    ]
    lines += [f"{painted('warning')}: {text}" for text in warnings]
    return print_answer(options, facts, *lines)


def _is_default(rule: PlacementConfig) -> bool:
    return rule_facts(rule) == rule_facts(DEFAULT_RULE)


def _by_location(judge: PlacementJudge) -> dict[str, list[str]]:
    """Return the bookies of each location, by region and rack."""
    located: dict[str, list[str]] = {}
    for bookie_id, place in judge.places.items():
        if place.location:
            located.setdefault(place.location, []).append(bookie_id)
    return dict(sorted(located.items()))


# --- set ----------------------------------------------------------------------------------------------------------


def _add_set_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        help="what copies are spread over: spread (any bookies), rack, region (and racks), zone",
    )
    parser.add_argument("--enforce", action="store_true", default=None, dest="enforce",
                        help="refuse a ledger or a change that breaks a minimum")  # fmt: skip
    parser.add_argument("--no-enforce", action="store_false", default=None, dest="enforce",
                        help="keep minimums as far as possible")  # fmt: skip
    for name, option in OPTIONS.items():
        what = f"{NOUNS[name]}s that each write set spans at least"
        if name == DESIRED_ZONES:
            what = "zones of each write set where possible"
        elif name in ACK_COUNTS:
            what = f"{NOUNS[name]}s that an append is durable in before it is acknowledged (1)"
        parser.add_argument(f"--{option}", dest=name, type=int, metavar="N", help=what)
    parser.add_argument(
        "--group", metavar="LABEL", help=f"bookies with this label; {NO_GROUP}: all alike"
    )
    parser.add_argument(
        "--group-kind",
        choices=GROUP_KINDS,
        help="soft: others where the group has too few (default); hard: never others",
    )
    parser.add_argument(
        "--locations",
        metavar="FILE",
        help='a TOML table that replaces the cluster\'s: "bookie-7:3181" = "/eu/r2" or "10.1.*" = "/eu/r1" a row',
    )
    parser.add_argument(
        "--location",
        action="append",
        default=[],
        metavar="ID=/REGION/RACK",
        help="one row of the table: a bookie's id, its host, or the beginning of one and a *; ID= removes it; may be"
        " repeated",
    )
    parser.add_argument(
        "--script",
        metavar="FILE",
        help="run this once, with the hosts of the registered bookies: it prints a location for each, and these become"
        " rows of the table",
    )
    parser.add_argument(
        "--reset",
        action="store_true",
        help=f"begin with the default rule: {rule_text(DEFAULT_RULE)}; locations stay",
    )
    add_confirmation(parser)


def change(options: argparse.Namespace) -> int:
    """Change the cluster's rules, and print what has changed."""
    from fastbk.client.bookie_locations import locations_by_script
    from fastbk.client.placement_judge import read_judge
    from fastbk.meta.placement_record import change_rules, read_rules
    from fastbk.meta.records import collected_bad_records

    change_of(options)  # what it refuses without the cluster it refuses before
    with opened_store(metadata_uri(options)) as store:
        rows = {} if options.script is None else locations_by_script(store, options.script)
        changed = change_of(options, rows)
        with collected_bad_records() as bad:
            before = read_rules(store)
        after = changed(before)
        changes = changes_between(before, after)
        changes += [f"a record that nobody can read is written anew: {record}" for record in bad]
        judge = read_judge(store, after)
        warnings = warnings_of(judge, after.rule)
        facts = {"changes": changes, "rule": rule_facts(after.rule), "warnings": warnings}
        if not changes:
            return print_answer(options, facts, "nothing is to be changed: all is so already")
        known = {
            unmet.minimum
            for unmet in read_judge(store, before).unmet(before.rule)
            if unmet.is_enforced
        }
        refused = [
            unmet.reason
            for unmet in judge.unmet(after.rule)
            if unmet.is_enforced and unmet.minimum not in known
        ]
        if options.dry_run or refused:
            action = f"change the cluster's rules of placement ({'; '.join(changes)})"
            if refused:
                action += f", and new ledgers would be refused: {'; '.join(refused)}"
            if (code := exit_without_consent(options, action, facts)) is not None:
                return code
        after = change_rules(store, changed)
    facts["rule"] = rule_facts(after.rule)
    note(
        "clients go by it within ten seconds; `fastbk cluster placement check` lists what lies otherwise"
    )
    lines = [*changes, *(f"{painted('warning')}: {text}" for text in warnings)]
    return print_answer(options, facts, *lines)


def change_of(
    options: argparse.Namespace, script_rows: Mapping[str, str] | None = None
) -> Callable[[ClusterRules], ClusterRules]:
    """Return the change that the options ask for, of whatever is stored. Raises ConfigError.

    `script_rows`: what --script says.
    """
    counts = {name: getattr(options, name) for name in COUNTS if getattr(options, name) is not None}
    is_of_rule = (options.policy, options.enforce, options.group, options.group_kind) != (None,) * 4
    is_of_table = bool(options.locations or options.location or options.script)
    if not (is_of_rule or counts or is_of_table or options.reset):
        raise ConfigError(
            "nothing to set: give --policy, --enforce, --racks, --regions, --zones, --ack-racks, --group, --location,"
            " --script or"
            " --reset"
        )
    for name, count in counts.items():
        if not 1 <= count <= 64:
            raise ConfigError(f"--{OPTIONS[name]} {count}: must be 1..64")
    if options.group not in (None, NO_GROUP):
        check_labels([options.group])
    file = None if options.locations is None else read_locations(options.locations)
    rows = [_row(text) for text in options.location]

    def changed(rules: ClusterRules) -> ClusterRules:
        rule = _changed_rule(DEFAULT_RULE if options.reset else rules.rule, options, counts)
        locations = {**(rules.locations if file is None else file), **(script_rows or {})}
        for name, location in rows:
            if location:
                locations[name] = location
            elif locations.pop(name, None) is None:
                raise ConfigError(f"--location {name}=: the table has no such row")
        return ClusterRules(rule, locations, rules.pulsar)

    return changed


def _changed_rule(
    rule: PlacementConfig, options: argparse.Namespace, counts: Mapping[str, int]
) -> PlacementConfig:
    policy = options.policy or rule.policy
    for name in counts:
        if name not in COUNTED[policy]:
            having = " or ".join(each for each in POLICIES if name in COUNTED[each])
            raise ConfigError(
                f"--{OPTIONS[name]} {counts[name]}: {policy} counts no {NOUNS[name]}s; give --policy {having}"
            )
    plain = PlacementConfig()
    # What another policy counts is not kept: it would come back with that policy, and surprise.
    fields = {
        name: counts.get(name, getattr(rule if name in COUNTED[policy] else plain, name))
        for name in COUNTS
    }
    if DESIRED_ZONES not in counts:
        fields[DESIRED_ZONES] = max(fields[DESIRED_ZONES], fields[ZONES])
    elif fields[DESIRED_ZONES] < fields[ZONES]:
        raise ConfigError(
            f"--desired-zones {fields[DESIRED_ZONES]}: at least {fields[ZONES]}, as --zones has it"
        )
    for name, bound in ACK_COUNTS.items():
        if fields[name] > fields[bound]:
            raise ConfigError(
                f"--{OPTIONS[name]} {fields[name]}: each write set has to span as many: give --{OPTIONS[bound]}"
                f" {fields[name]}, too"
            )
    group = rule.group if options.group is None else options.group
    group = None if group == NO_GROUP else group
    if group is None and options.group_kind is not None:
        raise ConfigError(
            f"--group-kind {options.group_kind}: there is no group; give --group LABEL"
        )
    is_hard = rule.group_is_hard if options.group_kind is None else options.group_kind == "hard"
    enforce = rule.enforce if options.enforce is None else options.enforce
    return replace(
        rule,
        policy=policy,
        enforce=enforce,
        group=group,
        group_is_hard=group is not None and is_hard,
        **fields,
    )


def _row(text: str) -> tuple[str, str]:
    """Return a row of the table: its name, and a location or ""."""
    name, equals, location = text.rpartition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--location {text}: write ID=/region/rack, or ID= to remove the row")
    return name.strip(), check_location(location) if location.strip() else ""


def read_locations(path: str) -> dict[str, str]:
    """Return the table of a TOML file. Raises ConfigError."""
    import tomllib

    try:
        with open(path, "rb") as file:
            raw = file.read(LOCATIONS_BYTES_MAX + 1)
        if len(raw) > LOCATIONS_BYTES_MAX:
            raise ConfigError(f"--locations {path}: larger than {LOCATIONS_BYTES_MAX:,} bytes")
        rows = tomllib.loads(raw.decode())
    except OSError as error:
        raise ConfigError(f"--locations {path}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--locations {path}: no valid TOML: {error}") from error
    for name, location in rows.items():
        if isinstance(location, dict):
            raise ConfigError(
                f"--locations {path}: [{name}] is a section: write one row for each bookie, as"
                ' "bookie-7:3181" = "/eu/r2"'
            )
    try:
        return dict(ClusterRules(locations=rows).locations)
    except ConfigError as error:
        raise ConfigError(f"--locations {path}: {error.message}") from error


def changes_between(before: ClusterRules, after: ClusterRules) -> list[str]:
    """Return what changes, a line each."""
    changes = []
    if rule_facts(before.rule) != rule_facts(after.rule):
        changes.append(f"rule: {rule_text(before.rule)} -> {rule_text(after.rule)}")
    for name in sorted(before.locations.keys() | after.locations.keys()):
        was, will_be = before.locations.get(name, "-"), after.locations.get(name, "-")
        if was != will_be:
            changes.append(f"location of {name}: {was} -> {will_be}")
    return changes


# --- check --------------------------------------------------------------------------------------------------------


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", action="store_true", help="also ledgers that are open")
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT,
        metavar="N",
        help=f"list at most so many fragments of each kind; counts are of all ({LIMIT})",
    )
    parser.add_argument(
        "--explain",
        type=int,
        metavar="LEDGER",
        help="of this ledger: where each copy is, which rule counts and why, and which bookies could take a place",
    )


def check(options: argparse.Namespace) -> int:
    """Print what is misplaced; exit code 1 if anything is."""
    from fastbk.admin.placement_check import check_placement, explain_ledger
    from fastbk.client.placement_judge import read_judge

    if not 1 <= options.limit <= 100_000:
        raise ConfigError(f"--limit {options.limit}: must be 1..100000")
    with opened_store(metadata_uri(options)) as store:
        judge = read_judge(store)
        if options.explain is not None:
            metadata = store.read_ledger(options.explain).metadata
            explained = explain_ledger(judge, options.explain, metadata)
            _print_explained(options, explained)
            return DONE if explained.is_well else FAILED
        report = check_placement(store, judge, with_open=options.open, listed_max=options.limit)
    _print_report(options, judge, report)
    return DONE if report.is_well else FAILED


def _print_report(
    options: argparse.Namespace, judge: PlacementJudge, report: PlacementReport
) -> None:
    facts = {
        "rule": rule_facts(judge.rules.rule),
        **asdict(report),
        "warnings": warnings_of(judge, judge.rules.rule),
    }
    print_answer(options, facts, as_lines=lambda _: _report_lines(judge, report))


def _report_lines(judge: PlacementJudge, report: PlacementReport) -> Iterator[str]:
    ledgers, fragments = report.ledgers, format_count(report.fragments, "fragment")
    yield f"the cluster's rule: {rule_text(judge.rules.rule)}"
    yield f"{format_count(ledgers, 'ledger')} with {fragments} checked"
    if report.open:
        yield f"{format_count(report.open, 'open ledger')} left out: --open checks them, too"
    if report.unreadable:
        yield (
            f"{format_count(report.unreadable, 'ledger')} with metadata that nobody can read:"
            " see `fastbk metadata bad-records`"
        )
    yield from _misplaced_lines("against an enforced rule", report.enforced)
    yield from _misplaced_lines("otherwise than wanted, not enforced", report.soft)
    if len(report.namespaces) > 1:
        rows = [("namespace", "enforced", "not enforced")]
        rows += [
            (name or "(none)", str(each.enforced), str(each.soft))
            for name, each in sorted(report.namespaces.items())
        ]
        yield "ledgers by namespace:"
        yield from (f"  {line}" for line in some_of(table(rows, "<>>"), LIMIT))
    if report.unsure:
        yield (
            f"{format_count(report.unsure, 'fragment')} not sure: bookies are not registered, and only they say where"
            " they are"
        )
    yield from (f"{painted('warning')}: {text}" for text in warnings_of(judge, judge.rules.rule))
    if report.is_well:
        yield "nothing is misplaced"
    else:
        yield "`fastbk cluster placement check --explain LEDGER` says why"


def _misplaced_lines(kind: str, misplaced: Misplaced) -> Iterator[str]:
    if not misplaced.ledgers:
        return
    fragments = format_count(misplaced.fragments, "fragment")
    yield f"{painted('problem')}: {format_count(misplaced.ledgers, 'ledger')}, {fragments} {kind}:"
    namespace = None
    for fragment in sorted(misplaced.first, key=lambda each: (each.namespace, each.ledger_id)):
        if fragment.namespace != namespace:
            namespace = fragment.namespace
            yield f"  namespace {namespace}:" if namespace else "  without a namespace:"
        for reason in fragment.reasons:
            yield f"    ledger {fragment.ledger_id} from entry {fragment.first_entry_id}: {reason}"
    if (more := misplaced.fragments - len(misplaced.first)) > 0:
        yield f"  and {more} more: --limit N lists more"


def _print_explained(options: argparse.Namespace, explained: LedgerPlacement) -> None:
    facts = {**asdict(explained), "rule": rule_facts(explained.rule)}
    print_answer(options, facts, as_lines=lambda _: _explained_lines(explained, options.limit))


def _explained_lines(explained: LedgerPlacement, limit: int) -> Iterator[str]:
    quorums = f"{explained.ensemble}/{explained.write_quorum}/{explained.ack_quorum}"
    namespace = f", namespace {explained.namespace}" if explained.namespace else ""
    yield f"ledger {explained.ledger_id}: {explained.state}, E/Qw/Qa {quorums}{namespace}"
    yield f"rule: {rule_text(explained.rule)}; it is {explained.rule_from}"
    for fragment in explained.fragments[:limit]:
        yield from _fragment_lines(fragment, limit)
    if (more := len(explained.fragments) - limit) > 0:
        yield f"and {more} more fragments: --limit N lists more"


def _fragment_lines(fragment: FragmentPlacement, limit: int) -> Iterator[str]:
    first, last = fragment.first_entry_id, fragment.last_entry_id
    if last is None:
        yield f"entries from {first} on:"
    elif last < first:
        yield f"from entry {first}, without entries:"
    else:
        yield f"entries {first} to {last}:"
    rows = [("bookie", "state", "location", "according to", "labels", "why it")]
    for member in fragment.members:
        words = (painted(member.state), member.location or "-", SOURCES[member.source])
        labels = ", ".join(member.labels) or "-"
        rows.append((member.bookie_id, *words, labels, member.reason or "-"))
    yield from (f"  {line}" for line in table(rows, "<<<<<<"))
    yield from (f"  {painted('problem')}: {reason} (enforced)" for reason in fragment.enforced)
    yield from (f"  {painted('problem')}: {reason} (not enforced)" for reason in fragment.soft)
    if fragment.is_unsure:
        yield "  not sure: it depends on where bookies are that are not registered"
    elif not (fragment.enforced or fragment.soft):
        yield "  as its rule wants it"
    others = [
        f"  {other.bookie_id} ({other.location or 'its location is unknown'}): {other.reason}"
        for other in fragment.others
    ]
    yield from some_of(others, limit)
