"""`fastbk context add|use|ls|show|rm`: clusters by name, so that commands need no URI and no paths of credentials."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.cli import contexts
from fastbk.cli.options import (
    add_json,
    add_verb,
    add_verbs,
    note,
    print_answer,
    run_verb,
    table,
)
from fastbk.errors import ConfigError
from fastbk.meta.uri import URI_VARIABLE, check_uri
from fastbk.safe_files import read_public, read_secret

if TYPE_CHECKING:
    import argparse

run = run_verb

_FILES = {
    "tls_ca_file": ("--tls-ca", "certificates of the authority that signs for bookies"),
    "tls_certificate_file": (
        "--tls-certificate",
        "this client's certificate, for bookies that want one",
    ),
    "tls_key_file": ("--tls-key", "the certificate's private key"),
    "tls_key_password_file": ("--tls-key-password-file", "a file with the key's password"),
    "token_file": ("--token-file", "a signed token"),
    "user_password_file": ("--user-password-file", "a file with the password of --user"),
    "zookeeper_file": (
        "--zookeeper-file",
        "how to authenticate to ZooKeeper (docs/zookeeper-security.md)",
    ),
}
_PUBLIC = ("tls_ca_file", "tls_certificate_file")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs."""
    verbs = add_verbs(parser)
    add = add_verb(verbs, "add", _add, "store a context, in the place of one with the same name")
    add.add_argument("name", metavar="NAME", help="letters, digits, dots, dashes and underscores")
    add.add_argument("--metadata", metavar="URI", required=True, help="the cluster's metadata")
    add.add_argument(
        "--tls",
        action="store_true",
        help="TLS to bookies, by the system's authorities unless --tls-ca",
    )
    for name, (option, text) in _FILES.items():
        add.add_argument(option, dest=name, metavar="FILE", default="", help=text)
    add.add_argument(
        "--user", default="", metavar="NAME", help="the user's name, for SASL to Apache's bookies"
    )
    add.add_argument("--use", action="store_true", help="use it from now on")
    use = add_verb(verbs, "use", _use, "have commands use a context unless they name a cluster")
    use.add_argument("name", metavar="NAME", nargs="?", help="which; with --none: leave it out")
    use.add_argument("--none", action="store_true", help="use no context from now on")
    listing = add_verb(verbs, "list", _list, "all contexts, and which is in use", "ls")
    show = add_verb(verbs, "show", _show, "one context, and the variables that it stands for")
    show.add_argument("name", metavar="NAME", nargs="?", help="which (default: the one in use)")
    remove = add_verb(
        verbs, "remove", _remove, "forget a context; the files that it names stay", "rm"
    )
    remove.add_argument("name", metavar="NAME", help="which")
    for verb in (add, use, listing, show, remove):
        add_json(verb)


def _add(options: argparse.Namespace) -> int:
    name = contexts.checked_name(options.name)
    check_uri(options.metadata)
    files = {field: _checked_file(field, getattr(options, field)) for field in _FILES}
    if bool(options.user) != bool(files["user_password_file"]):
        raise ConfigError("--user and --user-password-file go together: give both or none")
    if bool(files["tls_certificate_file"]) != bool(files["tls_key_file"]):
        raise ConfigError("--tls-certificate and --tls-key go together: give both or none")
    new = contexts.Context(metadata=options.metadata, tls=options.tls, user=options.user, **files)
    with contexts.changed() as found:
        if name not in found.contexts and len(found.contexts) >= contexts.CONTEXTS_MAX:
            raise ConfigError(f"there are {contexts.CONTEXTS_MAX:,} contexts: remove some first")
        found.contexts[name] = new
        if options.use:
            found.current = name
        is_used = found.current == name
    text = f"context {name} is stored" + (
        " and in use" if is_used else f"; `fastbk context use {name}` uses it"
    )
    return print_answer(options, {"name": name, "in_use": is_used}, text)


def _checked_file(field: str, given: str) -> str:
    """Return the absolute path of a file that a client can read, empty for none. Raises ConfigError."""
    if not given:
        return ""
    file = os.path.abspath(os.path.expanduser(given))
    if any(ord(one) < 32 or ord(one) == 127 for one in file):
        raise ConfigError(
            f"{_FILES[field][0]} {file!r}: a path with control characters cannot be stored"
        )
    (read_public if field in _PUBLIC else read_secret)(file)
    return file


def _use(options: argparse.Namespace) -> int:
    if options.none == (options.name is not None):
        raise ConfigError("give the NAME of a context, or --none")
    with contexts.changed() as found:
        if options.name is not None:
            found.named(options.name)
        found.current = options.name or ""
    if (other := os.environ.get(URI_VARIABLE)) and options.name:
        note(f"{URI_VARIABLE}={other} is set here and comes first: run `unset {URI_VARIABLE}`")
    text = f"context {options.name} is in use" if options.name else "no context is in use"
    return print_answer(options, {"name": options.name, "in_use": options.name is not None}, text)


def _list(options: argparse.Namespace) -> int:
    found = contexts.load()
    facts = [
        {"name": name, "metadata": one.metadata, "in_use": name == found.current}
        for name, one in sorted(found.contexts.items())
    ]
    if not facts:
        return print_answer(
            options, facts, "no contexts; `fastbk context add NAME --metadata URI` makes one"
        )
    rows = [
        ("*" if fact["in_use"] else "", str(fact["name"]), str(fact["metadata"])) for fact in facts
    ]
    return print_answer(options, facts, *table([("", "context", "metadata"), *rows], "<<<"))


def _show(options: argparse.Namespace) -> int:
    found = contexts.load()
    name = options.name or found.current
    if not name:
        raise ConfigError(
            "no context is in use: give the NAME of one; `fastbk context list` has all"
        )
    variables = found.named(name).environment()
    facts = {"name": name, "in_use": name == found.current, "environment": variables}
    return print_answer(options, facts, *(f"{key}={value}" for key, value in variables.items()))


def _remove(options: argparse.Namespace) -> int:
    with contexts.changed() as found:
        found.named(options.name)
        del found.contexts[options.name]
        if found.current == options.name:
            found.current = ""
    return print_answer(
        options, {"name": options.name, "removed": True}, f"context {options.name} is removed"
    )
