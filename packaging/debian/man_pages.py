"""`./dev man`: manual pages in build/man, from the parsers of the command line: fastbk(1), and one for each command.

argparse-manpage was tried: its NAME lines are none that `whatis` reads, its titles put the command where the section
belongs, and pages carry the day on which they were built. This is shorter than what would mend that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "man"
ENVIRONMENT = {
    "FASTBK_METADATA": "The cluster's metadata URI, where no option names a cluster.",
    "FASTBK_CONTEXT": "The context to use, where neither an option nor FASTBK_METADATA names a cluster.",
    "FASTBK_TLS_CA_FILE, FASTBK_TLS_CERTIFICATE_FILE, FASTBK_TLS_KEY_FILE": "TLS to bookies.",
    "FASTBK_TOKEN_FILE": "A file with a signed token.",
    "FASTBK_ZOOKEEPER_FILE": "How to authenticate to ZooKeeper.",
    "FASTBK_LOG_LEVEL": "debug, info, warning or error.",
    "NO_COLOR": "Leave colours out.",
}
FILES = {
    "$XDG_CONFIG_HOME/fastbk/contexts.toml": "Contexts, as `fastbk context` stores them.",
    "/etc/fastbk/": "Bookies' configuration files, one for each systemd unit fastbk-bookie@NAME.",
}
EXIT_STATUS = {
    "0": "Done.",
    "1": "The command ran but failed, or what it examined is not well.",
    "2": "Wrong arguments. Nothing was done.",
    "75": "The cluster does not answer, or --timeout was reached. The same command may succeed later.",
    "78": "A bookie's file or directories do not allow a start.",
    "130": "Ctrl-C ended the command.",
}


def page(name: str, text: str, parts: list[str], version: str) -> str:
    """Return a whole page. `name`: as in fastbk-ledger; `text`: its line in `whatis`; `parts`: sections in roff."""
    others = ".BR fastbk (1)" if name != "fastbk" else ".I /usr/share/doc/fastbk/docs/cli.md"
    return "\n".join(
        [
            f'.TH {_roff(name.upper())} 1 "" "fastbk {version}" "User Commands"',
            ".nh",
            ".ad l",
            ".SH NAME",
            f"{_roff(name)} \\- {_roff(text)}",
            *parts,
            ".SH SEE ALSO",
            others,
            "",
        ]
    )


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    import fastbk
    from fastbk.cli.__main__ import COMMANDS
    from fastbk.cli.completion import parsers_below, whole_parser

    version = fastbk.__version__
    sections: dict[str, list[str]] = {name: [] for name in COMMANDS}
    for parser, text in parsers_below(whole_parser()):
        name = parser.prog.split(" ")[1]
        sections[name] += _of_parser(parser, text, is_command=parser.prog.count(" ") == 1)
    found = {
        f"fastbk-{name}.1": page(f"fastbk-{name}", COMMANDS[name], parts, version)
        for name, parts in sections.items()
    }
    parts = [
        ".SH SYNOPSIS",
        ".B fastbk\n[\\fB\\-\\-context\\fR \\fINAME\\fR] [\\fB\\-\\-quiet\\fR] [\\fB\\-\\-timeout\\fR \\fISECONDS\\fR]"
        " \\fICOMMAND\\fR ...",
        ".SH COMMANDS",
        *(_item(f"\\fBfastbk\\-{_roff(name)}\\fR(1)", text) for name, text in COMMANDS.items()),
    ]
    for title, facts in (
        ("EXIT STATUS", EXIT_STATUS),
        ("ENVIRONMENT", ENVIRONMENT),
        ("FILES", FILES),
    ):
        parts += [
            f".SH {title}",
            *(_item(f"\\fB{_roff(name)}\\fR", text) for name, text in facts.items()),
        ]
    return {"fastbk.1": page("fastbk", "a distributed log store", parts, version), **found}


def _of_parser(parser: argparse.ArgumentParser, text: str, *, is_command: bool) -> list[str]:
    """Return the sections of a command, or the subsection of one of its verbs."""
    usage = " ".join(parser.format_usage().split()).removeprefix(f"usage: {parser.prog}").strip()
    listed = sorted(parser._actions, key=lambda action: bool(action.option_strings))
    options = [line for action in listed for line in _option(action)]
    synopsis = f".B {_roff(parser.prog)}\n{_roff(usage)}"
    if not is_command:
        return [f".SS {_roff(parser.prog)}", _roff(_sentence(text)), ".PP", synopsis, *options]
    has_verbs = any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)
    parts = [".SH SYNOPSIS", synopsis, ".SH DESCRIPTION", _roff(_sentence(text))]
    parts += [".SH OPTIONS", *options] if options else []
    return [*parts, *([".SH VERBS"] if has_verbs else [])]


def _option(action: argparse.Action) -> list[str]:
    if (
        isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        or action.help is argparse.SUPPRESS
    ):
        return []
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or "|".join(map(str, action.choices or ())) or action.dest)
    names = [f"\\fB{_roff(name)}\\fR" for name in action.option_strings]
    head = ", ".join(names) + (f" \\fI{_roff(value)}\\fR" if value else "")
    return [_item(head.strip(), (action.help or "") % {**vars(action), "prog": "fastbk"})]


def _item(head: str, text: str) -> str:
    return f".TP\n{head}\n{_roff(_sentence(text))}" if text else f".TP\n{head}\n"


def _sentence(text: str) -> str:
    joined = " ".join(text.split())
    return joined and joined[0].upper() + joined[1:] + (
        "" if joined.endswith((".", ":", "?")) else "."
    )


def _roff(text: str) -> str:
    """Return text as roff shows it: no word of it is a request or an escape."""
    plain = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    )
    plain = plain.replace("~", "\\(ti").replace("^", "\\(ha").replace('"', "\\(dq")
    return f"\\&{plain}" if plain.startswith(".") else plain


def write_pages(folder: Path) -> list[Path]:
    """Write all pages into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages().items():
        (folder / name).write_text(text)
        written.append(folder / name)
    return written


if __name__ == "__main__":
    for path in OUT.glob("*.1"):
        path.unlink()
    print(
        f"{len(write_pages(OUT))} pages in {OUT.relative_to(ROOT)}; `man -l {OUT.relative_to(ROOT)}/fastbk.1`"
    )
    sys.exit(0)
