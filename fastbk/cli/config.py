"""`fastbk config VERB`: what a bookie's file comes to, in our own format or in Apache's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbk.cli.options import (
    add_json,
    add_verb,
    add_verbs,
    note,
    print_answer,
    print_json,
    run_verb,
)
from fastbk.cli.terminal import painted
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    import argparse

    from fastbk.apache.configuration.config_builder import Report
    from fastbk.server.configuration.bookie_file import BookieFile

WIDTH = 100
run = run_verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verbs = add_verbs(parser)
    text = "whether a bookie would start with a file, and what becomes of each of Apache's keys"
    check = add_verb(verbs, "check", _check, text)
    text = "every setting that holds with a file, and where it comes from"
    show = add_verb(verbs, "show", _show, text)
    convert = add_verb(verbs, "convert", _convert, "print a file of Apache's as our TOML")
    for one in (check, show, convert):
        one.add_argument("file", type=Path, metavar="FILE", help="TOML, or Apache's format (.conf)")
    text = "what one of Apache's keys, or a setting of ours, means here"
    explain = add_verb(verbs, "explain", _explain, text)
    explain.add_argument(
        "key",
        metavar="KEY",
        nargs="?",
        help="like journalMaxSizeMB, or journal.file_size; without: all of Apache's",
    )
    for one in (check, show, convert, explain):
        add_json(one)


def _check(options: argparse.Namespace) -> int:
    report, problems = _examined(options.file)
    lines: list[str] = []
    for finding in report.findings if report is not None else ():
        became = f"  -> {', '.join(map(_spelt, finding.settings))}" if finding.settings else ""
        key = f"{painted(f'{finding.verdict:<10}')} {finding.key.name}"
        lines.append(f"{key} = {finding.shown}{became}  ({finding.origin})")
        if finding.reason:
            lines.append(_wrapped(finding.reason))
    if report is not None:
        lines += [f"{painted('note')}       {text}" for text in report.notes]
        lines += [f"{painted('warning')}    {text}" for text in report.remarks]
    lines += [f"{painted('PROBLEM')}    {problem}" for problem in problems]
    if not problems:
        lines.append(f"{options.file}: a bookie would start with it")
        lines.append(
            "  where its files and directories are good: `fastbk doctor --config` looks at them"
        )
    facts = {"file": str(options.file), "ok": not problems, "problems": problems}
    print_answer(options, {**facts, **_answer(report)}, *lines)
    return 1 if problems else 0


def _examined(path: Path) -> tuple[Report | None, list[str]]:
    """Return what became of Apache's keys (None in a file of ours), and why a bookie would not start."""
    from fastbk.apache.configuration import source
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.checks import check

    try:
        if source.is_apache(path):
            _, report = bookie_file.examine(path)
            return report, report.problems
        check(bookie_file.load(path))
    except ConfigError as error:
        return None, [str(error)]
    return None, []


def _answer(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {}
    return {
        "keys": [
            {
                "key": finding.key.name,
                "value": finding.shown,
                "origin": finding.origin,
                "verdict": str(finding.verdict),
                "settings": [_spelt(setting) for setting in finding.settings],
                "reason": finding.reason,
            }
            for finding in report.findings
        ],
        "unknown": report.unknown(),
        "notes": report.notes,
        "warnings": report.remarks,
    }


def _show(options: argparse.Namespace) -> int:
    import msgspec

    from fastbk.config import key_of
    from fastbk.server.configuration import bookie_file
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.configuration.example import value_text

    file = bookie_file.read(options.file)
    rows: list[dict[str, Any]] = []
    for section in msgspec.structs.fields(BookieConfig):
        for field in msgspec.structs.fields(section.type):
            key, unit = key_of(field.name)
            value = getattr(getattr(file.config, section.name), field.name)
            origin = file.origin(f"{section.name}.{field.name}")
            rows.append(
                {
                    "setting": f"{section.name}.{key}",
                    "value": value_text(value, unit),
                    "origin": origin,
                }
            )
    if options.json:
        import json

        for row in rows:
            row["value"] = json.loads(row["value"])
        print_json({"file": str(options.file), "settings": rows})
        return 0
    for row in rows:
        print(f"{row['setting']:<38} = {row['value']:<28} {row['origin'] or 'default'}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from fastbk.apache.configuration import keys

    if options.key is None:
        return _list(options)
    name: str = options.key
    found = _own(name) if "." in name and name not in keys.KEYS else None
    if found is None:
        key = keys.key_of(name)
        if keys.is_unknown(key):
            raise ConfigError(f"{name}: no setting of ours like journal.file_size, and {key.note}")
        found = {
            "key": key.name,
            "verdict": str(key.verdict),
            "apache_default": key.default,
            "settings": [_setting(each) for each in key.setting.split()],
            "text": key.note,
            "harmless": list(key.harmless),
        }
    if "verdict" not in found:
        lines = [found["key"], f"  default    {found['default']}"]
        if found["apache_keys"]:
            lines.append(f"  Apache's   {', '.join(found['apache_keys'])}")
    else:
        apaches = found["apache_default"] or "(not set)"
        lines = [f"{found['key']}: {found['verdict']}", f"  in Apache  {apaches}"]
        for each in found["settings"]:
            lines.append(f"  here       {each['setting']}, {each['default']} where nothing sets it")
        if any(found["harmless"]):
            lines.append(f"  allowed    {', '.join(one for one in found['harmless'] if one)}")
    if found["text"]:
        lines.append(_wrapped(found["text"], "  "))
    return print_answer(options, found, *lines)


def _list(options: argparse.Namespace) -> int:
    """Print all of Apache's keys, one a line, and what becomes of each."""
    from fastbk.apache.configuration import keys

    rows = sorted(keys.KEYS.values(), key=lambda row: row.name.lower())
    facts = [
        {"key": row.name, "verdict": str(row.verdict), "apache_default": row.default}
        for row in rows
    ]
    lines = (
        f"{row.verdict:<10} {row.name:<56} {', '.join(map(_spelt, row.setting.split()))}".rstrip()
        for row in rows
    )
    return print_answer(options, facts, *lines)


def _own(name: str) -> dict[str, Any] | None:
    """Return what there is to say about a setting of ours, by its key in the file or its field's name."""
    from fastbk.apache.configuration import keys
    from fastbk.server.configuration.example import setting_texts

    for setting, text in setting_texts().items():
        if name in (setting, _spelt(setting)):
            return {
                "key": _spelt(setting),
                "default": _setting(setting)["default"],
                "apache_keys": [
                    key.name for key in keys.KEYS.values() if setting in key.setting.split()
                ],
                "text": text,
            }
    return None


def _setting(setting: str) -> dict[str, str]:
    """Return the name and default of `section.field` as the file has them."""
    from fastbk.config import key_of
    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.configuration.example import value_text

    section, _, field = setting.partition(".")
    default = getattr(getattr(BookieConfig(), section), field)
    return {"setting": _spelt(setting), "default": value_text(default, key_of(field)[1])}


def _spelt(setting: str) -> str:
    """Return `section.field` with the key that the file has."""
    from fastbk.config import key_of

    section, _, field = setting.partition(".")
    return f"{section}.{key_of(field)[0]}"


def _convert(options: argparse.Namespace) -> int:
    from fastbk.apache.configuration import source
    from fastbk.server.configuration import bookie_file

    if not source.is_apache(options.file):
        raise ConfigError(
            f"{options.file} is not in Apache's format: its name would end in {' or '.join(source.SUFFIXES)}"
        )
    file = bookie_file.read(options.file)
    assert file.report is not None
    text = toml_text(file)
    print_answer(options, {"toml": text, "warnings": file.report.remarks}, text.rstrip("\n"))
    for remark in file.report.remarks:
        note(f"fastbk: {remark}")
    return 0


def _wrapped(text: str, indent: str = " " * 11) -> str:
    import textwrap

    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def toml_text(file: BookieFile) -> str:
    """Return the text of a TOML file that configures the same bookie. `file` is one of Apache's."""
    import textwrap

    from fastbk.apache.configuration.keys import Verdict
    from fastbk.config import key_of
    from fastbk.server.configuration.bookie_file import differences
    from fastbk.server.configuration.example import value_text

    assert file.report is not None, "only a file of Apache's is converted"
    lines = [
        f"# From {file.path.name}. What is not here has fastbk's default (`fastbk bookie --example`).",
        "# Address and id are those of the machine where this was made.",
        "",
    ]
    for section, settings in differences(file.config).items():
        lines.append(f"[{section}]")
        for name, value in settings.items():
            key, unit = key_of(name)
            origin = file.origin(f"{section}.{name}")
            if origin:
                lines.append(f"# {origin}")
            lines.append(f"{key} = {value_text(value, unit)}")
        lines.append("")
    left_out: dict[str, list[str]] = {}
    for finding in file.report.findings:
        if finding.verdict is Verdict.IGNORED:
            left_out.setdefault(finding.reason, []).append(finding.key.name)
    if left_out:
        lines.append("# Left out:")
    for reason, names in left_out.items():
        text = f"{', '.join(names)}: {reason}"
        lines += textwrap.wrap(
            text, WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_long_words=False
        )
    return "\n".join(lines).rstrip() + "\n"
