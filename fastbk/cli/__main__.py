"""The command `fastbk`: one module a noun, imported only when it is used, so that `--help` is
quick.

`fastbk/exit_codes.py` has the exit codes. With `--json` stdout holds JSON and nothing else; progress and
messages go to stderr.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn

import fastbk
from fastbk import exit_codes
from fastbk.cli import terminal
from fastbk.cli.terminal import Deadline, add_run_options, repeated

COMMANDS = {
    "dev": "bookies and metadata on this machine, for trying out and developing",
    "bookie": "run one bookie by its configuration file; look at, check, repair, extend or replace one",
    "config": "what a bookie's file comes to, key by key; convert a file of Apache's",
    "ledger": "create, write, read, tail, list, show, delete ledgers",
    "namespace": "namespaces of streams: create, list, set what their streams inherit, watch, rename, delete",
    "stream": "create, append, read, tail, look at, truncate, rename, seal, delete streams",
    "coordination": "leases, counters and configurations of a namespace: list, show, release, delete",
    "object": "store, read, list, verify and delete write-once objects with names",
    "spark": "jobs over the whole data of a cluster on Spark: archive, audit, restore and others",
    "janitor": "keep the streams of a cluster in order: end what is idle, apply retention, delete",
    "serve": "append to streams for many producers: take over those that are asked for, and hand them over",
    "autorecovery": "bring back the copies of lost bookies, and check that all others are there",
    "context": "clusters by name: store how to reach one, choose which one commands use",
    "gateway": "metadata for clients by HTTPS: each may create, close, truncate and delete as its rights say",
    "console": "a web page that shows a cluster, and changes it",
    "token": "keys and signed tokens, which clients authenticate themselves with",
    "audit": "check the chain of a bookie's or gateway's audit log",
    "metadata": "make, format or show the place where a cluster's metadata is",
    "top": "the whole cluster on one screen, the sickest bookie first: rates, disks, hot ledgers, cursors, healing",
    "cluster": "who is up, how full, and what misses copies",
    "inspect": "show what is in a bookie's files, without a bookie; salvage entries",
    "shell": "the verbs of Apache BookKeeper's `bookkeeper shell`",
    "doctor": "what is wrong with a machine, a bookie's settings and directories, and the cure",
    "support-bundle": "collect what those need who help, in one file without secrets",
    "disk": "measure what a disk takes to commit",
    "bench": "measure appends and reads of a bookie",
    "version": "which version this is, and which versions of all formats it reads and writes",
    "completion": "print a script with which a shell completes fastbk's commands",
}
"""Each is a module of `fastbk.cli`, or `command.py` in a folder of it, with `add_arguments(parser)` and
`run(options) -> int`."""

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_WRONG_VERB = re.compile(r"argument [^-]\S*: invalid choice: '([^']*)'")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    before, words = _split_options(words)
    if not words or words[0] not in COMMANDS:
        return _top(words)
    name = words[0]
    module = module_of(name)
    parser = CommandParser(prog=f"fastbk {name}", description=COMMANDS[name])
    module.add_arguments(parser)
    options = parser.parse_args(words[1:])
    for option, value in vars(before).items():
        if value and not hasattr(options, option):
            name = {"deadline_s": "timeout"}.get(option, option)
            parser.error(f"--{name} has no meaning for `fastbk {' '.join(words[:2])}`")
        if value and not getattr(options, option):
            setattr(options, option, value)
    return _guarded(module.run, options)


def _split_options(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options that may also stand before the command, and the words from the command on."""
    count = 0
    while count < len(words) and words[count].startswith("-"):
        if (
            words[count] not in ("-q", "--quiet", "--context", "--timeout")
            and "=" not in words[count]
        ):
            return argparse.Namespace(), words
        count += 2 if words[count] in ("--context", "--timeout") else 1
    parser = CommandParser(prog="fastbk", usage="fastbk [OPTION ...] COMMAND ...", add_help=False)
    parser.add_argument("--context")
    add_run_options(parser)
    return parser.parse_args(words[:count]), words[count:]


def module_of(name: str) -> ModuleType:
    """Import the module of a command."""
    found = importlib.import_module(f"fastbk.cli.{name.replace('-', '_')}")
    return (
        importlib.import_module(f"{found.__name__}.command")
        if hasattr(found, "__path__")
        else found
    )


def _top(words: list[str]) -> int:
    """Handle everything that is not a command: help, version, a wrong word."""
    width = max(len(name) for name in COMMANDS)
    listing = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="fastbk",
        usage="fastbk [--context NAME] [--quiet] [--timeout SECONDS] COMMAND ...",
        description="A distributed log store.",
        epilog=f"commands:\n{listing}\n\n`fastbk COMMAND --help` says more. FASTBK_METADATA, or a context, names"
        " the cluster\nfor all of them (`fastbk context add`).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastbk {fastbk.__version__}")
    if words and not words[0].startswith("-"):
        close = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(COMMANDS)}"
        print(f"fastbk: no command {words[0]!r}: {hint}", file=sys.stderr)
        return exit_codes.USAGE
    parser.parse_args(words)
    parser.print_help(sys.stderr if not words else sys.stdout)
    return exit_codes.USAGE


def _guarded(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run a command; turn what it raises into one line and an exit code."""
    from fastbk.cli import context
    from fastbk.errors import Error
    from fastbk.observe import library_log, logs

    # Warnings of the client library; services configure their own level afterwards.
    is_quiet = bool(getattr(options, "quiet", False))
    logs.configure(level=os.environ.get("FASTBK_LOG_LEVEL") or ("error" if is_quiet else "warning"))
    library_log.forward()
    terminal.configure(is_quiet=is_quiet)
    deadline = Deadline(getattr(options, "deadline_s", None))
    try:
        if hasattr(options, "context"):
            context.apply(options, os.environ)
        with deadline:
            code = repeated(run, options)
        if deadline.reason and code == exit_codes.INTERRUPTED:
            raise KeyboardInterrupt  # a verb that Ctrl-C is the usual end of
        sys.stdout.flush()
    except Error as error:
        # Read by scripts: one line, whatever the message holds.
        print(f"fastbk: {' '.join(str(error).split())}", file=sys.stderr)
        return exit_codes.of_command(error)
    except KeyboardInterrupt:
        print(f"fastbk: {deadline.reason or 'interrupted'}", file=sys.stderr)
        return exit_codes.UNREACHABLE if deadline.reason else exit_codes.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough.
        _drop_output()
        return exit_codes.FAILED
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        _drop_output()
        print(f"fastbk: the output cannot be written: {error.strerror}", file=sys.stderr)
        return exit_codes.FAILED
    finally:
        terminal.configure()  # --quiet was for this command
    return code


def _drop_output() -> None:
    """What is in stdout's buffer goes nowhere: the interpreter must not complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class CommandParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that names the nearest verb or option. Its subparsers are of this class, too."""

    _is_mixing = False

    # argparse calls it for the parser of a verb, too, and hands unknown words up to a parser without its options.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Do the same, but refuse words that are not known; exits with code 2.

        Words of which there may be several, or none, may also stand behind an option: argparse takes those before it
        for all.
        """
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        if self._may_mix():
            self._is_mixing = True
            try:
                found, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_mixing = False
        else:
            found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [action for action in self._option_string_actions if action.startswith("--")]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], options, n=1)
            hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists the options"
            self.error(f"unrecognized arguments: {' '.join(unknown)}: {hint}")
        return found, unknown

    def _may_mix(self) -> bool:
        counts = [action.nargs for action in self._get_positional_actions()]
        return any(count in ("?", "*", "+") for count in counts) and not any(
            count in (argparse.PARSER, argparse.REMAINDER) for count in counts
        )

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and end with code 2."""
        wrong = _WRONG_VERB.match(message)
        verbs = [name for action in self._actions for name in _verbs_of(action)]
        if wrong and verbs:
            near = difflib.get_close_matches(wrong[1], verbs, n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(verbs)}"
            message = f"no verb {wrong[1]!r}: {hint}"
        super().error(message)


def _verbs_of(action: argparse.Action) -> list[str]:
    return list(action.choices) if isinstance(action, argparse._SubParsersAction) else []


if __name__ == "__main__":
    raise SystemExit(main())
