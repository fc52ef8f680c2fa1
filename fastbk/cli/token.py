"""`fastbk token key|create|show`: keys that sign tokens, and tokens that clients authenticate themselves with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_json,
    add_metadata,
    add_verb,
    add_verbs,
    metadata_uri,
    note,
    opened_store,
    print_answer,
    run_verb,
)
from fastbk.errors import ConfigError, os_errors_as
from fastbk.safe_files import FILE_MODE, replaced
from fastbk.units import parse_duration_us

if TYPE_CHECKING:
    import argparse

PUBLIC_MODE = 0o644
OPERATIONS = "read,add,recover"
LIFETIME = "24h"
run = run_verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    verbs = add_verbs(parser)
    key = add_verb(verbs, "key", _key, "make a key that signs tokens")
    key.add_argument("file", type=Path, help="the private key goes here; it must not exist")
    key.add_argument(
        "--public", type=Path, required=True, metavar="FILE",
        help="add its public half to this file of the bookies ([authentication] token_keys_file or tag_keys_file)",
    )  # fmt: skip
    key.add_argument("--key-id", default="", help="default: a random one")
    create = add_verb(verbs, "create", _create, "sign a token")
    create.add_argument(
        "--key-file", required=True, metavar="FILE", help="as `fastbk token key` made it"
    )
    create.add_argument(
        "--subject",
        required=True,
        help="whose token it is: in logs, and in lists of who is revoked",
    )
    create.add_argument(
        "--operations", default=OPERATIONS,
        help="of read, add, recover (fence, and add copies), and at a gateway delete, truncate, serve (announce a"
        " write service) and admin;"
        f" default: {OPERATIONS}, for a writer",
    )  # fmt: skip
    create.add_argument(
        "--namespaces", metavar="PATTERNS",
        help="only ledgers and streams of these namespaces, such as orders,orders/*; default: all",
    )  # fmt: skip
    create.add_argument(
        "--lifetime", default=LIFETIME, help=f"such as 10min or 30d; default: {LIFETIME}"
    )
    create.add_argument(
        "--audience", default="", help="default: the id of the cluster at --metadata"
    )
    create.add_argument(
        "--for", dest="kind", choices=("bookies", "gateways", "pages"),
        help="it is good at servers of this kind only; default: at all of the cluster",
    )  # fmt: skip
    create.add_argument(
        "--out", type=Path, metavar="FILE", help="the token replaces this file; default: stdout"
    )
    add_metadata(create)
    show = add_verb(verbs, "show", _show, "print what a token says; its signature is not verified")
    show.add_argument("file", help="a file with a token")
    for verb in (key, create, show):
        add_json(verb)


def _key(options: argparse.Namespace) -> int:
    from fastbk.security.tokens import TokenKey, public_entries

    made = TokenKey.generate(options.key_id)
    others = public_entries(str(options.public)) if options.public.exists() else []
    if any(other["kid"] == made.key_id for other in others):
        raise ConfigError(
            f"{options.public} has a key {made.key_id!r} already: choose another --key-id"
        )
    if options.file.exists():
        raise ConfigError(f"{options.file} exists: it may be a key that is in use")
    with os_errors_as(ConfigError, f"{options.file}, {options.public}: cannot be written"):
        _write(options.file, made.text(), FILE_MODE)
        _write(options.public, made.public_text(others), PUBLIC_MODE)
    note(
        f"key {made.key_id}: {options.file} signs, {options.public} ({len(others) + 1} keys) is for the bookies"
    )
    facts = {"key_id": made.key_id, "file": str(options.file), "public": str(options.public)}
    return print_answer(options, facts)


def _create(options: argparse.Namespace) -> int:
    from fastbk.security.tokens import TokenKey

    key = TokenKey.load(options.key_file)
    try:
        lifetime_s = parse_duration_us(options.lifetime) / 1e6
    except ValueError as error:
        raise ConfigError(f"--lifetime: {error}") from error
    operations = [part.strip() for part in options.operations.split(",") if part.strip()]
    namespaces = None if options.namespaces is None else options.namespaces.split(",")
    audience = options.audience or _cluster_id(options)
    if options.kind is not None:
        audience = f"{audience}/{options.kind}"
    token = key.sign(
        options.subject, operations, audience, lifetime_s=lifetime_s, namespaces=namespaces
    )
    if options.out is None:
        return print_answer(options, {"token": token}, token)
    with os_errors_as(ConfigError, f"{options.out}: cannot be written"):
        _write(options.out, token + "\n", FILE_MODE)
    end = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() + lifetime_s))
    where = f" in {options.namespaces}" if namespaces else ""
    note(f"{options.out}: {options.subject} may {', '.join(operations)}{where} until {end}")
    return print_answer(options, {"file": str(options.out), "subject": options.subject, "end": end})


def _write(path: Path, text: str, mode: int) -> None:
    with replaced(path) as draft:
        draft.chmod(mode)
        draft.write_text(text)


def _show(options: argparse.Namespace) -> int:
    import jwt

    from fastbk.security.credentials import Credentials

    token = Credentials(token_file=options.file).token()
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
        shown = {"key": jwt.get_unverified_header(token).get("kid"), **claims}
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise ConfigError(f"{options.file} is no token: {error}") from None
    return print_answer(options, shown, json.dumps(shown, indent=2))


def _cluster_id(options: argparse.Namespace) -> str:
    uri = metadata_uri(options)
    with opened_store(uri) as store:
        cluster_id = store.instance_id()
    if not cluster_id:
        raise ConfigError(
            f"the cluster at {uri} has no id: give --audience, and the bookies token_audience"
        )
    return cluster_id
