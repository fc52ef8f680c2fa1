"""The typed face of the disk backends: the same on io_uring, plain and fake."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastbk.errors import ConfigError
from fastbk.native.disk import Disk
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.os_errors import fails_with


@pytest.fixture(params=["io_uring", "plain", "fake"])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Disk]:
    monkeypatch.chdir(tmp_path)
    if request.param == "fake":
        with FakeDisk() as fake:
            yield fake.disk()
        return
    try:
        made = Disk(".", request.param)
    except PermissionError:
        pytest.skip("needs io_uring: refused here")
    with made:
        yield made


def test_bytes_of_any_size_and_alignment(disk: Disk) -> None:
    file = disk.open("data", create=True)
    model = bytearray()
    for size, offset in ((5, 0), (4096, 3), (100_000, 50), (1, 200_000), (0, 9)):
        data = bytes((size + i) % 256 for i in range(size))
        disk.write_all(file, data, offset, durable=size % 2 == 0)
        if data:
            model.extend(bytes(max(0, offset + size - len(model))))
            model[offset : offset + size] = data
    disk.sync(file)
    assert disk.size(file) == len(model)
    assert disk.read(file, len(model) + 100) == model
    assert disk.read(file, 7, 4093) == model[4093:4100]
    assert disk.read(file, 10, len(model) + 5) == b""
    assert disk.read(file, 0) == b""
    disk.close(file)


def test_direct_file_and_preallocation(disk: Disk) -> None:
    block = disk.block_size_bytes
    file = disk.open("journal", create=True, direct=True, lock=True)
    disk.preallocate(file, 0, 64 * block)
    assert disk.size(file) == 64 * block
    disk.write_all(file, b"x" * block, 3 * block, durable=True)
    assert disk.read(file, 3, 3 * block - 1) == b"\0xx"
    disk.close(file)


def test_a_file_is_cut_and_never_made_longer(disk: Disk) -> None:
    block = disk.block_size_bytes
    file = disk.open("journal", create=True, direct=True, lock=True)
    disk.preallocate(file, 0, 8 * block)
    disk.write_all(file, b"x" * (2 * block), 2 * block, durable=True)
    disk.close(file)
    reader = disk.open("journal", direct=True, read_only=True)
    assert disk.cut("journal", 12 * block) == 8 * block
    assert disk.cut("journal", 3 * block) == 3 * block
    assert disk.size(reader) == 3 * block
    assert disk.read(reader, 8 * block) == bytes(2 * block) + b"x" * block
    assert disk.read(reader, block, 5 * block) == b""
    disk.close(reader)
    with pytest.raises(FileNotFoundError) as caught:
        disk.cut("nowhere", 1)
    assert caught.value.filename == "nowhere"


def test_names(disk: Disk) -> None:
    disk.make_directory("logs")
    disk.make_directory("logs")
    disk.close(disk.open("logs/a", create=True))
    disk.rename("logs/a", "logs/ü")
    disk.sync_directory("logs")
    assert disk.list("logs") == ["ü"]
    disk.unlink(Path("logs/ü"))
    assert disk.list("logs") == []
    with pytest.raises(FileNotFoundError) as caught:
        disk.open("logs/ü")
    assert caught.value.filename == "logs/ü"
    with pytest.raises(FileNotFoundError):
        disk.list("nowhere")


def test_more_names_than_the_first_buffer_holds(disk: Disk) -> None:
    disk.make_directory("many")
    wanted = {f"{i:04d}-{'n' * 180}" for i in range(400)}
    for name in wanted:
        disk.close(disk.open(f"many/{name}", create=True))
    assert set(disk.list("many")) == wanted


def test_replace_file(disk: Disk) -> None:
    disk.replace_file("x", b"one")
    disk.replace_file("x", b"")
    assert disk.read_file("x") == b""
    disk.close(disk.open("x.new", create=True))  # left by a crash
    disk.replace_file("x", b"three")
    assert disk.read_file("x") == b"three"
    assert "x.new" not in disk.list(".")


def test_lock_is_exclusive_and_bounded(disk: Disk) -> None:
    file = disk.open("lock", create=True, lock=True)
    disk.set_lock_timeout(20)
    with pytest.raises(TimeoutError):
        disk.open("lock", lock=True)
    disk.close(file)
    disk.close(disk.open("lock", lock=True))


def test_read_only(disk: Disk) -> None:
    disk.replace_file("x", b"one")
    file = disk.open("x", read_only=True)
    with fails_with(errno.EBADF):
        disk.write_all(file, b"two")
    disk.close(file)


def test_destroyed_means_destroyed(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "plain")
    disk.destroy()
    disk.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        _ = disk.name


def test_the_environment_decides_instead_of_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTBK_IO", "plain")
    with Disk(tmp_path) as disk:
        assert disk.name == "plain"
    monkeypatch.setenv("FASTBK_IO", "floppy")
    with pytest.raises(ConfigError, match="floppy"):
        Disk(tmp_path)
    with Disk(tmp_path, "plain") as disk:
        assert disk.name == "plain"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for backend in ("auto", "plain", "io_uring"):
        with fails_with(errno.ENOENT):
            Disk(tmp_path / "nowhere", backend)


def test_nothing_is_left_behind_by_the_probe(tmp_path: Path) -> None:
    for backend in ("auto", "plain"):
        with Disk(tmp_path, backend):
            pass
    assert os.listdir(tmp_path) == []


def test_another_disk_of_a_directory_is_as_the_first_without_a_probe(tmp_path: Path) -> None:
    with Disk(tmp_path, "plain") as first:
        known = (first.name, first.sync_mode, first.block_size_bytes, first.depth_max)
        changed_ns = os.stat(tmp_path).st_mtime_ns
        second = first.another(tmp_path)
        assert os.stat(tmp_path).st_mtime_ns == changed_ns
    with second:  # on its own
        assert (second.name, second.sync_mode, second.block_size_bytes, second.depth_max) == known
        file = second.open(tmp_path / "x", create=True, direct=True)
        second.write_all(file, bytes(second.block_size_bytes), durable=True)
        second.close(file)


def test_another_disk_is_opened_for_itself_where_the_first_tried_nothing(tmp_path: Path) -> None:
    with Disk(tmp_path, "plain") as first:
        first.fallback_reason = "no room"
        with first.another(tmp_path, only_reads=True) as second:
            assert second.fallback_reason == ""


def test_only_a_plain_disk_has_another(tmp_path: Path) -> None:
    try:
        disk = Disk(tmp_path, "io_uring")
    except OSError:
        pytest.skip("no io_uring here")
    with disk, fails_with(errno.EINVAL):
        disk.another(tmp_path)


REFUSED = """
import ctypes, struct, sys
# A filter that answers EPERM to io_uring_setup, as a container's default profile does.
filters = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in filters))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filters), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit(77)
from fastbk.native.disk import Disk
with Disk(sys.argv[1]) as disk:
    print(disk.name, disk.sync_mode)
try:
    Disk(sys.argv[1], "io_uring")
except PermissionError:
    print("refused")
"""


def test_auto_is_plain_where_io_uring_is_refused(tmp_path: Path) -> None:
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    result = subprocess.run(
        [sys.executable, "-c", REFUSED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if result.returncode == 77:
        pytest.skip("needs io_uring to be forbidden by seccomp: refused here")
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith("plain ")
    assert second == "refused"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
@pytest.mark.parametrize("backend", ["plain", "io_uring"])
def test_what_is_no_file_is_not_opened(
    tmp_path: Path, backend: str, make: Callable[[Path], None]
) -> None:
    """INV-D4: opening a pipe waited for a writer without end."""
    make(tmp_path / "name")
    try:
        disk = Disk(tmp_path, backend)
    except OSError:
        pytest.skip("no io_uring here")
    with disk:
        for read_only in (True, False):
            with pytest.raises(OSError, match="name"):
                disk.open(tmp_path / "name", read_only=read_only)


def test_a_file_that_is_larger_than_any_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "name").open("wb") as file:
        file.truncate(1 << 40)
    with Disk(tmp_path, "plain") as disk, pytest.raises(OSError, match="such a file has"):
        disk.read_file(tmp_path / "name")
