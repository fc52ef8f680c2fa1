"""Verbs about the cookies of bookies in ZooKeeper: cookie_create, _delete, _update, _get, _generate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.apache.shell.arguments import CommandLine, Option, Verb
from fastbk.errors import ConfigError, os_errors_as

if TYPE_CHECKING:
    from fastbk.apache.shell.context import Context
    from fastbk.meta.zookeeper.admin import Cookies
    from fastbk.model.ids import BookieId


def _opened(context: Context) -> Cookies:
    location = context.need_zookeeper("cookies are changed by hand")
    from fastbk.meta.zookeeper.admin import Cookies

    return Cookies(location)


def _bookie_id(words: CommandLine) -> BookieId:
    from fastbk.model.ids import check_bookie_id

    if len(words.arguments) != 1:
        raise ConfigError("No bookie id or more bookie ids is specified")
    return check_bookie_id(words.arguments[0])


def _put(context: Context, words: CommandLine) -> int:
    bookie_id, path = _bookie_id(words), Path(words.text("cookie-file"))
    with os_errors_as(ConfigError, f"Cookie file '{path}'"):
        data = path.read_bytes()
    with _opened(context) as cookies:
        (cookies.create if words.verb == "cookie_create" else cookies.update)(bookie_id, data)
    return 0


def _delete(context: Context, words: CommandLine) -> int:
    bookie_id = _bookie_id(words)
    with _opened(context) as cookies:
        cookies.delete(bookie_id)
    return 0


def _get(context: Context, words: CommandLine) -> int:
    bookie_id = _bookie_id(words)
    with _opened(context) as cookies:
        found = cookies.read(bookie_id)
    if found is None:
        raise ConfigError(f"Cookie not found for bookie '{bookie_id}'")
    print(f"Cookie for bookie '{bookie_id}' is:\n---")
    print(found.decode("utf-8", "backslashreplace"))
    print("---")
    return 0


def _generate(context: Context, words: CommandLine) -> int:
    from fastbk.model.cookie import Cookie, encode

    bookie_id = _bookie_id(words)
    instance_id = words.text("instance-id")
    if not instance_id:
        with context.store() as store:
            instance_id = store.instance_id()
    cookie = Cookie(
        bookie_id,
        (words.text("journal-dirs"),),
        tuple(words.text("ledger-dirs").split(",")),
        instance_id,
    )
    indexes = words.text("index-dirs")
    path = Path(words.text("output-file"))
    with os_errors_as(ConfigError, path):
        path.write_bytes(encode(cookie, tuple(indexes.split(",")) if indexes else ()))
    print(f"Successfully saved the generated cookie to {path}")
    return 0


_FILE = Option(("cf", "cookie-file"), "The file to be uploaded as cookie", "FILE", is_required=True)
_ID = "<bookie-id>"
VERBS = (
    Verb("cookie_create", "Create a cookie for a given bookie.", _put, (_FILE,), _ID),
    Verb("cookie_update", "Update a cookie for a given bookie.", _put, (_FILE,), _ID),
    Verb("cookie_delete", "Delete a cookie for a given bookie.", _delete, (), _ID),
    Verb("cookie_get", "Retrieve a cookie for a given bookie.", _get, (), _ID),
    Verb(
        "cookie_generate",
        "Write the cookie of an Apache bookie with given directories to a file.",
        _generate,
        (
            Option(("i", "instance-id"), "of the cluster (that of this one)", "ID"),
            Option(("j", "journal-dirs"), "its journal directories", "DIR,...", is_required=True),
            Option(("l", "ledger-dirs"), "its ledger directories", "DIR,...", is_required=True),
            Option(("ix", "index-dirs"), "its index directories, if others", "DIR,..."),
            Option(("o", "output-file"), "where to write it", "FILE", is_required=True),
        ),
        _ID,
    ),
)
