"""Objects as files of fsspec, `fastbk://namespace/name`: nothing half is ever there."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator

import fsspec
import pytest

import fastbk.sync
from fastbk.model.ledger import OBJECT_KEY
from fastbk.objects.filesystem import FastbkFileSystem
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until

DATA = bytes(range(256)) * 9000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, write_services=0) as running:
        yield running


@pytest.fixture
def uri(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("FASTBK_METADATA", cluster.metadata_uri)
    fsspec.register_implementation("fastbk", FastbkFileSystem, clobber=True)
    with fastbk.sync.connect() as client:
        client.namespace("tenant/app").create()
        client.namespace("backups").create()
        yield cluster.metadata_uri
        client.namespace("tenant").delete(recursive=True)
        client.namespace("backups").delete(recursive=True)


def names(uri: str, namespace: str = "backups") -> list[str]:
    with fastbk.sync.connect(uri) as client:
        objects = fastbk.sync.Objects(client.namespace(namespace))
        return [info.name for info in objects.list()]


def object_ledgers(uri: str) -> list[int]:
    with fastbk.sync.connect(uri) as client:
        return [one.ledger_id for one in client.list_ledgers() if OBJECT_KEY in one.metadata.custom]


def test_files_come_back(uri: str) -> None:
    for path in ("fastbk://backups/checkpoints/17", "fastbk://tenant%2Fapp/checkpoints/17"):
        with fsspec.open(path, "wb") as file:
            file.write(DATA[:1])
            file.write(DATA[1:])
        with fsspec.open(path, "rb") as file:
            assert file.read(10) == DATA[:10]
            file.seek(1 << 20)
            assert file.read() == DATA[1 << 20 :]
        with pytest.raises(FileExistsError), fsspec.open(path, "wb"):
            pass
    assert names(uri, "tenant/app") == names(uri) == ["checkpoints/17"]
    with fsspec.open("fastbk://backups/text", "w") as file:
        file.write("ä\n")
    with fsspec.open("fastbk://backups/text", "r") as file:
        assert file.read() == "ä\n"
    with fsspec.open("fastbk://backups/text", "wb", replace=True) as file:
        file.write(b"new")
    with fsspec.open("fastbk://backups/text", "rb") as file:
        assert file.read() == b"new"


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_exception_inside_fsspec_open_publishes_nothing(uri: str, mode: str) -> None:
    """INV-O1: fsspec closes the file at the end of the block, and says nothing of the exception."""
    data = DATA if mode == "wb" else "text"
    with (
        pytest.raises(ZeroDivisionError),
        fsspec.open("fastbk://backups/x", mode) as file,
    ):
        file.write(data)
        raise ZeroDivisionError
    assert names(uri) == []
    with pytest.raises(FileNotFoundError), fsspec.open("fastbk://backups/x", "rb"):
        pass
    with fsspec.open("fastbk://backups/x", mode) as file:  # the name is free
        file.write(data)
    assert names(uri) == ["x"]


def test_other_ends_of_a_file(uri: str) -> None:
    system = fsspec.filesystem("fastbk")
    with pytest.raises(ZeroDivisionError), system.open("backups/a", "wb") as file:
        file.write(DATA)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), system.open("backups/a", "w") as file:
        file.write("text")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), io.BufferedWriter(system.open("backups/a", "wb")) as raw:
        raw.write(DATA)
        raise ZeroDivisionError
    file = system.open("backups/a", "wb")
    file.write(DATA)
    del file
    gc.collect()
    assert names(uri) == []
    wait_until(lambda: not object_ledgers(uri), "the upload of a file that nobody closed is ended")
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        with fsspec.open("fastbk://backups/a", "wb") as file:  # it is older than the file
            file.write(DATA)
    assert names(uri) == ["a"]
    file = system.open("backups/b", "wb")
    with pytest.raises(ZeroDivisionError) as raised:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            file.close()  # nobody can tell this from a block's end, so it is not silent
    assert "nothing was stored" in str(raised.value.__notes__)
    assert names(uri) == ["a"]


def test_the_tree_of_names(uri: str) -> None:
    system = fsspec.filesystem("fastbk")
    system.pipe_file("backups/a/1", b"one")
    system.pipe_file("backups/a/b/2", b"two")
    system.pipe_file("backups/ab", b"three")
    assert sorted(system.ls("", detail=False)) == ["backups", "tenant"]
    assert system.ls("fastbk://backups", detail=False) == ["backups/a", "backups/ab"]
    assert sorted(system.ls("backups/a", detail=False)) == ["backups/a/1", "backups/a/b"]
    assert system.isdir("backups/a") and system.isfile("backups/ab")
    assert not system.exists("backups/c") and not system.exists("nowhere/c")
    assert sorted(system.find("backups")) == ["backups/a/1", "backups/a/b/2", "backups/ab"]
    assert system.cat_file("backups/ab", -3, -1) == b"re"
    assert system.cat(["backups/a/1", "backups/a/b/2"]) == {
        "backups/a/1": b"one",
        "backups/a/b/2": b"two",
    }
    assert system.glob("fastbk://backups/a/*") == ["backups/a/1", "backups/a/b"]
    assert len(system.checksum("backups/ab")) == 64
    system.cp_file("backups/ab", "backups/copy")
    system.rm("backups/a", recursive=True)
    assert names(uri) == ["ab", "copy"]
    with pytest.raises(ValueError, match="mode ab"):
        system.open("backups/ab", "ab")


def test_arrow_writes_and_reads_parquet(uri: str) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"number": list(range(10_000))})
    system = fsspec.filesystem("fastbk")
    with system.open("backups/table.parquet", "wb") as file:
        parquet.write_table(table, file)
    assert parquet.read_table("backups/table.parquet", filesystem=system) == table
    dataset.write_dataset(table, "backups/set", format="parquet", filesystem=system)
    assert dataset.dataset("backups/set", filesystem=system).to_table() == table
