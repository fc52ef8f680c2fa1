"""Contexts: clusters by name, so that commands need no URI and no paths of credentials; `fastbk context` edits them.

    current = "production"

    [contexts.production]
    metadata = "zk+hierarchical://zk1:2181;zk2:2181/ledgers"
    tls_ca_file = "/etc/fastbk/ca.pem"
    token_file = "/etc/fastbk/production.token"

The file is `$XDG_CONFIG_HOME/fastbk/contexts.toml`. It holds no secrets, only paths of files that do. A command applies
a context by setting the variables that clients read (`FASTBK_METADATA`, `FASTBK_TLS_...`), so that processes which it
starts use the same cluster. Order, the first that names a cluster:

1. `--metadata URI`: contexts do not count at all.
2. `--context NAME`: the context alone; variables that name a cluster, certificates or credentials do not count.
3. `FASTBK_METADATA`: contexts do not count at all.
4. `FASTBK_CONTEXT`, then the context in use. A variable that is set wins over the context's value.

So credentials of a context never go to a cluster that was named in another way.

Decision 127.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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
from fastbk.safe_files import FILE_MODE, make_directory, read_public, read_secret, replaced
from fastbk.units import format_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, MutableMapping

NAME_VARIABLE = "FASTBK_CONTEXT"
CONTEXTS_MAX = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How to reach one cluster. All but `metadata`, `user` and `tls` are absolute paths of files; empty: not given."""

    metadata: str
    tls: bool = False
    """TLS to bookies with the system's authorities; any of the next paths switches TLS on, too."""
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_key_password_file: str = ""
    token_file: str = ""
    user: str = ""
    user_password_file: str = ""
    zookeeper_file: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables that clients read, for what this context gives."""
        variables = {
            VARIABLES[name]: str(getattr(self, name)) for name in VARIABLES if getattr(self, name)
        }
        if self.tls or any(name.startswith("tls_") and getattr(self, name) for name in VARIABLES):
            variables["FASTBK_TLS"] = "1"
        return variables


VARIABLES = {
    "metadata": URI_VARIABLE,
    "tls_ca_file": "FASTBK_TLS_CA_FILE",
    "tls_certificate_file": "FASTBK_TLS_CERTIFICATE_FILE",
    "tls_key_file": "FASTBK_TLS_KEY_FILE",
    "tls_key_password_file": "FASTBK_TLS_KEY_PASSWORD_FILE",
    "token_file": "FASTBK_TOKEN_FILE",
    "user": "FASTBK_USER",
    "user_password_file": "FASTBK_USER_PASSWORD_FILE",
    "zookeeper_file": "FASTBK_ZOOKEEPER_FILE",
}
"""The variable that a client reads for each value of a context; FASTBK_TLS comes beside them."""
_REPLACED = (*VARIABLES.values(), "FASTBK_TLS", "FASTBK_TLS_CA_PASSWORD_FILE", "FASTBK_TLS_VERIFY_NAME",
             "FASTBK_SASL_WITHOUT_TLS", "FASTBK_GATEWAY_TOKEN_FILE", "FASTBK_PAGES_TOKEN_FILE")  # fmt: skip
"""Variables that `--context` removes where the context does not set them."""


class Contexts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file. `current`: the context in use, empty for none."""

    current: str = ""
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)

    def named(self, name: str) -> Context:
        """Return a context. Raises ConfigError."""
        if (context := self.contexts.get(name)) is None:
            raise ConfigError(
                f"no context {name!r} in {path()}; there are: {format_names(self.contexts)}."
                " `fastbk context add` makes one"
            )
        return context


def path() -> Path:
    """Return where the file is, whether it is there or not."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if home.startswith("/") else Path.home() / ".config"
    return folder / "fastbk" / "contexts.toml"


def load() -> Contexts:
    """Return what the file holds; nothing where there is none. Raises ConfigError."""
    file = path()
    if not file.exists():
        return Contexts()
    try:
        return msgspec.convert(tomllib.loads(read_public(str(file)).decode()), Contexts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{file} is damaged: {error}. Mend it by hand, or remove it") from error


@contextmanager
def changed() -> Iterator[Contexts]:
    """Give the contexts to change, and replace the file with them at the end; one process at a time.

    Raises ConfigError, OSError.
    """
    file = path()
    make_directory(file.parent)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        contexts = load()
        yield contexts
        with replaced(file) as draft:
            draft.chmod(FILE_MODE)
            draft.write_text(_text(contexts), encoding="utf-8")
    finally:
        os.close(folder)


def checked_name(name: str) -> str:
    """Return a name that a context may have. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a context's name: use up to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def apply(options: argparse.Namespace, environment: MutableMapping[str, str]) -> None:
    """Have `environment` name the cluster of the context that counts, if one does. Raises ConfigError."""
    if options.context is not None:
        if options.metadata:
            raise ConfigError("--context and --metadata both name a cluster: give one of them")
        chosen = load().named(options.context)
        for name in _REPLACED:
            environment.pop(name, None)
        environment.update(chosen.environment())
        return
    if options.metadata or environment.get(URI_VARIABLE):
        return
    contexts = load()
    if name := environment.get(NAME_VARIABLE) or contexts.current:
        for variable, value in contexts.named(name).environment().items():
            environment.setdefault(variable, value)


def _text(contexts: Contexts) -> str:
    """Return the file's text. A JSON string without control characters is a TOML string."""
    lines = [f"current = {json.dumps(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]"]
        lines += [
            f"{key} = {json.dumps(value)}" for key, value in msgspec.to_builtins(context).items()
        ]
    return "\n".join(lines).lstrip() + "\n"


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
    name = checked_name(options.name)
    check_uri(options.metadata)
    files = {field: _checked_file(field, getattr(options, field)) for field in _FILES}
    if bool(options.user) != bool(files["user_password_file"]):
        raise ConfigError("--user and --user-password-file go together: give both or none")
    if bool(files["tls_certificate_file"]) != bool(files["tls_key_file"]):
        raise ConfigError("--tls-certificate and --tls-key go together: give both or none")
    new = Context(metadata=options.metadata, tls=options.tls, user=options.user, **files)
    with changed() as contexts:
        if name not in contexts.contexts and len(contexts.contexts) >= CONTEXTS_MAX:
            raise ConfigError(f"there are {CONTEXTS_MAX:,} contexts: remove some first")
        contexts.contexts[name] = new
        if options.use:
            contexts.current = name
        is_used = contexts.current == name
    text = f"context {name} is stored" + (
        " and in use" if is_used else f"; `fastbk context use {name}` uses it"
    )
    return print_answer(options, {"name": name, "in_use": is_used}, text)


def _checked_file(field: str, given: str) -> str:
    """Return the absolute path of a file that a client can read, empty for none. Raises ConfigError."""
    if not given:
        return ""
    file = os.path.abspath(os.path.expanduser(given))
    if any(ord(character) < 32 or ord(character) == 127 for character in file):
        raise ConfigError(
            f"{_FILES[field][0]} {file!r}: a path with control characters cannot be stored"
        )
    (read_public if field in _PUBLIC else read_secret)(file)
    return file


def _use(options: argparse.Namespace) -> int:
    if options.none == (options.name is not None):
        raise ConfigError("give the NAME of a context, or --none")
    with changed() as contexts:
        if options.name is not None:
            contexts.named(options.name)
        contexts.current = options.name or ""
    if (other := os.environ.get(URI_VARIABLE)) and options.name:
        note(f"{URI_VARIABLE}={other} is set here and comes first: run `unset {URI_VARIABLE}`")
    text = f"context {options.name} is in use" if options.name else "no context is in use"
    return print_answer(options, {"name": options.name, "in_use": options.name is not None}, text)


def _list(options: argparse.Namespace) -> int:
    contexts = load()
    facts = [
        {"name": name, "metadata": context.metadata, "in_use": name == contexts.current}
        for name, context in sorted(contexts.contexts.items())
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
    contexts = load()
    name = options.name or contexts.current
    if not name:
        raise ConfigError(
            "no context is in use: give the NAME of one; `fastbk context list` has all"
        )
    variables = contexts.named(name).environment()
    facts = {"name": name, "in_use": name == contexts.current, "environment": variables}
    return print_answer(options, facts, *(f"{key}={value}" for key, value in variables.items()))


def _remove(options: argparse.Namespace) -> int:
    with changed() as contexts:
        contexts.named(options.name)
        del contexts.contexts[options.name]
        if contexts.current == options.name:
            contexts.current = ""
    return print_answer(
        options, {"name": options.name, "removed": True}, f"context {options.name} is removed"
    )
