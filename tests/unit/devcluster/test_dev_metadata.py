"""A folder's cluster keeps the metadata store that it began with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.devcluster import DevMetadata
from fastbk.devcluster import cluster as server_module
from fastbk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.zookeeper import ZooKeeperPlace


def test_a_folder_keeps_the_zookeeper_it_began_with(
    zookeeper: ZooKeeperPlace, tmp_path: Path
) -> None:
    uri = zookeeper.location().uri
    assert DevMetadata(tmp_path, uri).start() == uri
    # The same folder without the option, and with it again: the same ledgers.
    assert DevMetadata(tmp_path).start() == uri
    assert DevMetadata(tmp_path, uri).start() == uri
    with pytest.raises(ConfigError, match="choose another --data"):
        DevMetadata(tmp_path, "local")


def test_a_folder_that_began_with_sqlite_keeps_that(tmp_path: Path) -> None:
    assert DevMetadata(tmp_path).start() == f"sqlite:{tmp_path}/metadata.sqlite"
    (tmp_path / "metadata.sqlite").touch()
    with pytest.raises(ConfigError, match="in sqlite"):
        DevMetadata(tmp_path, "zk://h:2181/ledgers")


def test_a_machine_without_zookeeper_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(server_module.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="libzookeeper-java"):
        DevMetadata(tmp_path / "data", "local").start()
    monkeypatch.delenv(server_module.JARS_VARIABLE)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no java on PATH"):
        DevMetadata(tmp_path / "data", "local").start()


def test_jars_with_versions_in_their_names_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["zookeeper-3.9.5", "zookeeper-jute-3.9.5", "slf4j-api-2.0.17", "metrics-core-4.2.37"]
    for name in [*names, "snappy-java-1.1.10.8", "zookeeper-it-3.9.5"]:
        (tmp_path / f"{name}.jar").touch()
    monkeypatch.setenv(server_module.JARS_VARIABLE, f"{tmp_path / 'none'}:{tmp_path}")
    found = {jar.name for jar in server_module.find_jars()}
    assert found == {f"{name}.jar" for name in [*names, "snappy-java-1.1.10.8"]}
