"""`fastbk completion bash|zsh|tcsh`: print a script with which the shell completes commands, verbs and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fastbk.cli.terminal import add_run_options

STORED = tuple(f"fastbk context {verb}" for verb in ("use", "show", "remove"))
"""Verbs whose NAME is a context that there is."""
SHELLS = ("bash", "zsh", "tcsh")
EPILOG = """\
bash: fastbk completion bash > ~/.local/share/bash-completion/completions/fastbk
zsh:  fastbk completion zsh > "${fpath[1]}/_fastbk"
tcsh: fastbk completion tcsh > ~/.fastbk.completion.csh, then source that file in ~/.tcshrc
"""

_NAMES = 'fastbk context list --json 2>/dev/null | grep -o \'"name": "[^"]*"\' | cut -d \'"\' -f 4'
_CONTEXTS = {
    "bash": "_fastbk_contexts",
    "zsh": "_fastbk_contexts",
    "preamble": {
        "bash": f'_fastbk_contexts() {{ compgen -W "$({_NAMES})" -- "$1"; }}',
        "zsh": f'_fastbk_contexts() {{ local -a names; names=("${{(@f)$({_NAMES})}}"); compadd -- $names }}',
    },
}
"""How a shell completes the name of a context that there is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    parser = whole_parser()
    # Those that may stand before the command, too.
    parser.add_argument("--context", metavar="NAME", help="a cluster by its name")
    add_run_options(parser)
    for one in (parser, *(verb for verb, _ in parsers_below(parser))):
        for action in one._actions:
            if action.dest == "context" or (action.dest == "name" and one.prog in STORED):
                action.complete = _CONTEXTS  # type: ignore[attr-defined]
            if kind := {"FILE": shtab.FILE, "PATH": shtab.FILE, "DIR": shtab.DIRECTORY}.get(
                str(action.metavar)
            ):
                action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser with all commands and their verbs; the command line itself loads only one of them."""
    from fastbk.cli.__main__ import COMMANDS, CommandParser, module_of

    parser = CommandParser(prog="fastbk")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        module_of(name).add_arguments(commands.add_parser(name, help=text, description=text))
    return parser


def parsers_below(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield the parsers below this one with their texts, each before its own verbs; other names of a verb are left out.

    For pages that are written from the parsers.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest.split(" ")[0]: one.help or "" for one in action._choices_actions}
            for name, verb in action.choices.items():
                if name in helps:
                    yield verb, verb.description or helps[name]
                    yield from parsers_below(verb)
