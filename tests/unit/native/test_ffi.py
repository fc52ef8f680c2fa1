"""Statuses become the right exceptions."""

from __future__ import annotations

import errno
import re
from types import SimpleNamespace

import msgspec
import pytest

from fastbk.errors import Error, ProtocolError, StorageError
from fastbk.native import ffi
from fastbk.native._bookie import ffi as bookie
from fastbk.native._client import lib
from fastbk.native.build_native import NATIVE


def test_no_error_passes_through() -> None:
    assert ffi.check(0, "x") == 0
    assert ffi.check(7, "x") == 7


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOENT, FileNotFoundError), (errno.EEXIST, FileExistsError), (errno.EIO, OSError)],
)
def test_errno(number: int, kind: type[OSError]) -> None:
    with pytest.raises(kind) as caught:
        ffi.check(-number, "open", "/some/file")
    assert caught.value.errno == number
    assert caught.value.filename == "/some/file"
    assert "open" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (lib.FBK_E_CORRUPT, ffi.CorruptDataError),
        (lib.FBK_E_TOO_NEW, ffi.FormatTooNewError),
        (lib.FBK_E_FULL, ffi.NativeFullError),
        (lib.FBK_E_POISONED, ffi.PoisonedError),
        (lib.FBK_E_STOPPED, ffi.NativeStoppedError),
        (lib.FBK_E_PROTOCOL, ProtocolError),
        (lib.FBK_E_LAYOUT, ffi.LayoutError),
    ],
)
def test_statuses(status: int, kind: type[Error]) -> None:
    with pytest.raises(kind, match="the call /a/path"):
        ffi.check(status, "the call", "/a/path")


def test_every_status_of_the_boundary_has_an_error() -> None:
    listed = {getattr(lib, name) for name in dir(lib) if name.startswith("FBK_E_")}
    assert listed == set(ffi.STATUS_ERRORS)


def test_an_unknown_status_is_an_error_too() -> None:
    with pytest.raises(Error, match="-10999"):
        ffi.check(-10999, "call")
    assert issubclass(ffi.CorruptDataError, StorageError)


# --- options of C objects ----------------------------------------------------------------------------------------


class Merging(msgspec.Struct, frozen=True):
    """A part of `struct fbk_merge_options`."""

    merged_file_id: int


def test_settings_fill_the_fields_of_their_names() -> None:
    raw = bookie.new("struct fbk_merge_options *")
    first = SimpleNamespace(created_s=2)
    second = SimpleNamespace(created_s=9, forget_deleted_before_s=3)
    ffi.fill_struct(raw, Merging(1), settings=(first, second))
    assert (raw.merged_file_id, raw.created_s, raw.forget_deleted_before_s) == (1, 2, 3)
    with pytest.raises(AttributeError, match="C takes forget_deleted_before_s, and no setting"):
        ffi.fill_struct(raw, Merging(1), settings=(first,))


def test_c_reads_each_of_its_options() -> None:
    """None is left behind by what once read it."""
    sources = "".join(path.read_text() for path in (NATIVE / "src").rglob("*.[ch]"))
    options = {
        name: {field for field, _ in bookie.typeof(name).fields}
        for name in (f"struct {struct}" for struct in bookie.list_types()[1])
        if name.endswith("_options")
    }
    assert len(options) >= 8
    unread = {
        f"{name}.{field}"
        for name, fields in options.items()
        for field in fields
        if not re.search(rf"options(\.|->){field}\b", sources)
    }
    assert not unread
