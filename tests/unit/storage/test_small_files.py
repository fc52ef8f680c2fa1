"""`explicit_lacs.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.native.disk import Disk
from fastbk.native.ffi import FormatTooNewError
from fastbk.storage import small_files
from fastbk.storage.small_files import (
    EXPLICIT_LACS_NAME,
    ExplicitLacs,
    read_explicit_lacs,
    write_explicit_lacs,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    disk = Disk(str(tmp_path), "plain")
    assert read_explicit_lacs(disk, str(tmp_path)) == []
    write_explicit_lacs(disk, str(tmp_path), [b"\x00" * 36, b"second"])
    assert read_explicit_lacs(disk, str(tmp_path)) == [b"\x00" * 36, b"second"]


@pytest.mark.parametrize("at", [3, 20, -4])
def test_a_damaged_one_is_as_good_as_none(tmp_path: Path, at: int) -> None:
    disk = Disk(str(tmp_path), "plain")
    write_explicit_lacs(disk, str(tmp_path), [b"first", b"second"])
    raw = bytearray((tmp_path / EXPLICIT_LACS_NAME).read_bytes())
    raw[at] ^= 1
    (tmp_path / EXPLICIT_LACS_NAME).write_bytes(raw)
    assert read_explicit_lacs(disk, str(tmp_path)) == []


def test_one_that_is_whole_and_no_base64_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / EXPLICIT_LACS_NAME).write_bytes(small_files.encode(ExplicitLacs(bodies=("!",))))
    assert read_explicit_lacs(Disk(str(tmp_path), "plain"), str(tmp_path)) == []


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / EXPLICIT_LACS_NAME).write_bytes(small_files.encode(ExplicitLacs(format=2)))
    with pytest.raises(FormatTooNewError):
        read_explicit_lacs(Disk(str(tmp_path), "plain"), str(tmp_path))
