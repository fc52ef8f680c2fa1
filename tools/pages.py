"""`./dev docs`: writes the pages that come from code, so that neither can say what the other does not.

docs/settings.md, docs/metric-names.md, docs/commands.md, the table of Apache's keys in docs/configuration.md, and the
dashboards in monitoring/grafana. It also wraps the paragraphs of all other pages that are too wide.
`tests/style/test_docs.py` compares them with what this module returns.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import inspect

from fastbk.apache.configuration import keys
from fastbk.cli.completion import parsers_below, whole_parser
from fastbk.config import key_of
from fastbk.observe.names import NAMES
from fastbk.server.admin.apache_metrics import SUMMARIES, TOTALS, VALUES
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.example import setting_texts, value_text
from tests.style.tree import ROOT, walk
from tools.dashboards import DASHBOARDS
from tools.grafana import json_of

WIDTH = 100
BEGIN = "<!-- written by ./dev docs -->"
END = "<!-- end -->"

SETTINGS_INTRODUCTION = """\
# Settings of a bookie

A bookie reads one file when it starts. Sizes and times have units:

```toml
[bookie]
listen = "127.0.0.1:3181"

[journal]
file_size = "128MiB"
```

`fastbk bookie --example` prints such a file with all defaults. `fastbk config show FILE` prints
what a file sets. An unknown key is an error. [configuration.md](configuration.md) shows how a bookie
reads Apache's files.

`./dev docs` writes this page from the code.
"""

METRICS_INTRODUCTION = """\
# Names of metrics

A bookie counts these. [metrics.md](metrics.md) explains both families, what differs from Apache's
values, and the janitor's metrics. A histogram `X` has the series `X_bucket`, `X_sum` and `X_count`.
Metrics with "limit" have a series from their first event on, those of Apache's protocols
(`_v2_`, `_v3_`) from their first client on.

`./dev docs` writes this page from the code.
"""

COMMANDS_INTRODUCTION = """\
# Commands

```
export FASTBK_METADATA=zk://127.0.0.1:2181/ledgers
fastbk ledger list
fastbk stream append --create shop/orders orders.txt
```

`fastbk COMMAND --help` prints the same on the terminal, and `fastbk completion bash` completes it.
[exit-codes.md](exit-codes.md) lists exit codes, [shell.md](shell.md) Apache's verbs.

Most commands take these options. Only the others are listed below. [cli.md](cli.md) explains them.

- `--metadata URI`: the cluster. The default is the variable `FASTBK_METADATA`, then the context.
- `--context NAME`: a cluster by its name. The default is `FASTBK_CONTEXT`, then the context in use.
- `--json`: print JSON on stdout. Messages go to stderr. [json.md](json.md) has the shapes.
- `--yes`, `-y`: do not ask for confirmation before something is deleted.
- `--quiet`, `-q`: print no messages and no progress, only errors.
- `--timeout SECONDS`: end after that time with exit code 75, as Ctrl-C would end it.
- `--watch [SECONDS]`, where a command only shows something: show it again every 2 seconds, or so many.

`./dev docs` writes this page from the code.
"""

COMMON = {"--metadata", "--context", "--json", "--yes", "--quiet", "--watch"}


def settings() -> str:
    """Return docs/settings.md: each section, and each setting's default, range and text."""
    texts = setting_texts()
    lines = [SETTINGS_INTRODUCTION]
    for section in msgspec.structs.fields(BookieConfig):
        lines += [f"## [{section.name}]", ""]
        types = {one.name: one.type for one in _fields(section.type)}
        for field in msgspec.structs.fields(section.type):
            key, unit = key_of(field.name)
            facts = (
                f"**`{key}`** = {_default(field.default, unit)}{_range(types[field.name], unit)}"
            )
            lines += _item(facts, texts[f"{section.name}.{field.name}"])
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def metric_names() -> str:
    """Return docs/metric-names.md: the `fastbk_*` names by process, then Apache's."""
    lines = [METRICS_INTRODUCTION]
    for role in dict.fromkeys(name.role for name in NAMES):
        lines += [f"## fastbk_{role}_*", ""]
        for name in NAMES:
            if name.role == role and name.is_own:
                kind = f"{name.kind}, limit" if name.is_limit else name.kind
                lines += _item(f"`{name.metric}` ({kind})", name.text)
        lines.append("")
    lines += ["## Apache's names", ""]
    for apaches in sorted((*SUMMARIES, *TOTALS, *VALUES), key=lambda one: one.metric):
        kind = getattr(apaches, "kind", "summary")
        legacy = getattr(apaches, "legacy", "")
        kind += f", also `{legacy}`" if legacy else ""
        lines += _item(f"`{apaches.metric}` ({kind})", apaches.text)
    return "\n".join(lines).rstrip() + "\n"


def commands() -> str:
    """Return docs/commands.md: each command and verb with its arguments and options."""
    lines = [COMMANDS_INTRODUCTION]
    for parser, text in parsers_below(whole_parser()):
        depth = min(parser.prog.count(" ") + 1, 4)
        lines += [f"{'#' * depth} {parser.prog}", "", _wrapped(_sentence(text)), ""]
        listed = sorted(parser._actions, key=lambda action: bool(action.option_strings))
        options = [line for action in listed for line in _option(action)]
        lines += [*options, ""] if options else []
    return "\n".join(lines).rstrip() + "\n"


def _reference() -> str:
    """Return the Markdown between the two marks, marks included."""
    lines = [BEGIN, "", "| Apache's key | its default | | ours | |", "|---|---|---|---|---|"]
    for row in keys.SETTINGS:
        ours = ", ".join(f"`{_spelt(each)}`" for each in row.setting.split())
        lines.append(
            f"| `{row.name}` | {_code(row.default)} | {row.verdict} | {ours} | {row.note} |"
        )
    lines += [
        "",
        "Refused, unless the value asks for nothing:",
        "",
        "| key | because |",
        "|---|---|",
    ]
    lines += [f"| `{row.name}` | {row.note} |" for row in keys.REFUSED]
    lines += ["", "Ignored, and reported when they are set:", "", "| keys | because |", "|---|---|"]
    for reason, names in keys.IGNORED:
        listed = ", ".join(f"`{each.partition('=')[0]}`" for each in names.split())
        lines.append(f"| {listed} | {reason} |")
    return "\n".join([*lines, "", END])


def _spelt(setting: str) -> str:
    section, _, field = setting.partition(".")
    return f"[{section}] {key_of(field)[0]}"


def _code(default: str) -> str:
    return f"`{default}`" if default and " " not in default else default


def configuration() -> str:
    """Return docs/configuration.md with the table of Apache's keys as the code has it."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    before, _, rest = page.partition(BEGIN)
    return before + _reference() + rest.partition(END)[2]


PAGES: dict[str, Callable[[], str]] = {
    "docs/settings.md": settings,
    "docs/metric-names.md": metric_names,
    "docs/commands.md": commands,
    "docs/configuration.md": configuration,
    **{f"monitoring/grafana/{one.name}.json": partial(json_of, one) for one in DASHBOARDS},
}


def _fields(kind: type) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _default(value: object, unit: str | None) -> str:
    if value is msgspec.NODEFAULT:
        return "(has to be given)"
    return f"`{value_text(value, unit)}`"


def _range(kind: inspect.Type, unit: str | None) -> str:
    """Return the allowed values, empty where any value of the type is allowed."""
    if isinstance(kind, inspect.LiteralType):
        return ", one of " + ", ".join(f"`{value_text(one, None)}`" for one in kind.values)
    if not isinstance(kind, inspect.IntType | inspect.FloatType):
        return ""
    low = f"at least {value_text(kind.ge, unit)}" if kind.ge is not None else ""
    low = f"above {value_text(kind.gt, unit)}" if kind.gt is not None else low
    is_bounded = kind.le is not None and kind.le < 1 << 50  # what a size may be at most: no news
    high = f"at most {value_text(kind.le, unit)}" if is_bounded else ""
    both = ", ".join(one.replace('"', "") for one in (low, high) if one)
    return f" ({both})" if both else ""


def _option(action: argparse.Action) -> list[str]:
    """Return an argument or option as an item of a list; none for verbs and for --help."""
    hidden = isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    hidden |= action.dest == "deadline_s"  # a --timeout of a command's own is listed
    if hidden or action.help is argparse.SUPPRESS or COMMON & set(action.option_strings):
        return []
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest)
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    text = (action.help or "") % {**vars(action), "prog": "fastbk"}
    return _item(", ".join(f"`{name}`" for name in names), text)


def _item(facts: str, text: str) -> list[str]:
    """Return one item of a list: its facts, and its text on lines of their own."""
    if not text:
        return [f"- {facts}"]
    return [f"- {facts}\\", textwrap.indent(_wrapped(text, WIDTH - 2), "  ")]


def _sentence(text: str) -> str:
    """Return a help text as a sentence: the terminal's begin without a capital and a full stop."""
    return text[0].upper() + text[1:] + ("" if text.rstrip().endswith((".", ":", "?")) else ".")


def _wrapped(text: str, width: int = WIDTH) -> str:
    """Return text without the breaks that it had for the terminal; `<` and `*` as Markdown spells them."""
    plain = re.sub(r"(?<!`)<(?=\w)", r"\\<", " ".join(text.split()))
    return textwrap.fill(plain, width, break_on_hyphens=False, break_long_words=False)


_ITEM = re.compile(r" *(?:[-*+>]|\d+[.)]) +")
_NO_PROSE = re.compile(r" *(?:\||#|<!--|\[[^\]]+\]:|---)")
"""Tables, headings, comments, targets of links and rules stay as they are."""
_BREAKS = ("\\", "  ")
"""What a line ends with whose end is meant."""


def wrapped_page(text: str) -> str:
    """Return a page whose paragraphs have no line beyond `WIDTH`; those that have none already are not touched."""
    lines: list[str] = []
    paragraph: list[str] = []
    is_code = False

    def end_paragraph() -> None:
        lines.extend(
            _wrapped_paragraph(paragraph)
            if any(len(one) > WIDTH for one in paragraph)
            else paragraph
        )
        paragraph.clear()

    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        if is_fence or is_code or not line.strip() or _NO_PROSE.match(line):
            end_paragraph()
            lines.append(line)
            is_code ^= is_fence
            continue
        if _ITEM.match(line) or (paragraph and paragraph[-1].endswith(_BREAKS)):
            end_paragraph()
        paragraph.append(line)
    end_paragraph()
    return "\n".join(lines)


def _wrapped_paragraph(lines: list[str]) -> list[str]:
    """Return its lines anew. Code between backticks stays in one line.

    No line begins as a list or a heading does.
    """
    item = _ITEM.match(lines[0])
    first = item[0] if item else lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    rest = " " * (len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else len(first))
    end = next((one for one in _BREAKS if lines[-1].endswith(one)), "")
    words = " ".join([lines[0][len(first) :], *lines[1:]]).split()
    text = re.sub(r"`[^`]+`", lambda found: found[0].replace(" ", "\0"), " ".join(words))
    text = re.sub(r" (?=(?:[-*+>#|]+|\d+[.)])(?: |$))", "\0", text)
    filled = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    filled[-1] += end if end.isspace() else ""
    return [one.replace("\0", " ") for one in filled]


if __name__ == "__main__":
    for page, written in PAGES.items():
        (ROOT / page).write_text(written())
    for relative, path in walk((".md",)):
        if relative not in PAGES:
            path.write_text(wrapped_page(path.read_text()))
