"""Decommissioning one of Apache's bookies takes its cookie, too, so that its old directories start no bookie again."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient

from fastbk.admin.bookie_identity import free_id
from fastbk.cli.__main__ import main
from fastbk.errors import MetadataConflict
from fastbk.meta.zookeeper.admin import Cookies
from fastbk.model.ids import BookieId
from tests.fixtures.zookeeper import ZooKeeperPlace

GONE = BookieId("10.0.0.7:3181")
COOKIE = b'5\nbookieHost: "10.0.0.7:3181"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'


@pytest.fixture(autouse=True)
def _cookie(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    zookeeper.uri()  # makes the cluster
    peek.ensure_path(zookeeper.path("cookies"))
    peek.create(zookeeper.path(f"cookies/{GONE}"), COOKIE)


def test_the_command_deletes_the_cookie(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    words = ["bookie", "decommission", GONE, "--yes", "--metadata", zookeeper.uri()]
    assert main(words) == 0
    assert peek.exists(zookeeper.path(f"cookies/{GONE}")) is None
    assert main(words) == 0  # again: there is nothing left to do


def test_recover_leaves_it(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    words = ["bookie", "recover", GONE, "--metadata", zookeeper.uri()]
    assert main(words) == 0
    assert peek.exists(zookeeper.path(f"cookies/{GONE}")) is not None


def test_only_the_cookie_that_was_seen_is_deleted(zookeeper: ZooKeeperPlace) -> None:
    with Cookies(zookeeper.location()) as cookies:
        with pytest.raises(MetadataConflict, match="changed"):
            cookies.delete(GONE, only=b"what another one said")
        assert cookies.read(GONE) == COOKIE
        cookies.delete(GONE, only=COOKIE)
        assert cookies.read(GONE) is None


def test_an_id_without_anything_is_free(zookeeper: ZooKeeperPlace, peek: KazooClient) -> None:
    free_id(zookeeper.uri(), BookieId("bookie-9"))
    assert peek.exists(zookeeper.path(f"cookies/{GONE}")) is not None
