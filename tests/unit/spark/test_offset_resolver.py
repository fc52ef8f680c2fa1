"""Planning goes on where metadata or bookies are away for a while, and not for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastbk.errors import ConfigError, Error, MetadataUnavailable, NotEnoughBookies
from fastbk.spark import offset_resolver
from fastbk.spark.offset_resolver import OffsetResolver
from fastbk.spark.options import read_options

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pyspark")


def failing(errors: list[Error]) -> Callable[[], str]:
    """Return a question that fails so often, and then is answered."""

    def ask() -> str:
        if errors:
            raise errors.pop(0)
        return "answered"

    return ask


def cluster(**options: str) -> OffsetResolver:
    return OffsetResolver(read_options({"stream": "shop/orders", **options}, streaming=True))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_resolver, "AGAIN_S", 0.0)


def test_what_is_away_for_a_while_is_asked_again() -> None:
    away: list[Error] = [
        MetadataUnavailable("away"),
        NotEnoughBookies("away"),
        MetadataUnavailable("away"),
    ]
    assert cluster().patiently(failing(list(away))) == "answered"
    left = list(away)
    with pytest.raises(MetadataUnavailable):
        cluster().patiently(failing(left), retries=0)
    assert len(left) == 2
    with pytest.raises(MetadataUnavailable):
        cluster(retries="2").patiently(failing(list(away)))
    assert cluster(retries="3").patiently(failing(list(away)), retries=0) == "answered"


def test_what_is_wrong_is_told_at_once() -> None:
    left: list[Error] = [ConfigError("wrong"), ConfigError("wrong")]
    with pytest.raises(ConfigError):
        cluster().patiently(failing(left))
    assert len(left) == 1


def test_the_client_is_made_as_the_options_say(tmp_path_factory: pytest.TempPathFactory) -> None:
    metadata = f"sqlite:{tmp_path_factory.mktemp('looking')}/metadata.sqlite"
    plain, same = cluster(metadata=metadata).client, cluster(metadata=metadata).client
    given = cluster(metadata=metadata, readTimeout="30s", speculativeReadMs="0").client
    assert plain is same and given is not plain
    assert (given.config.read_timeout, given.config.speculative_read) == (30.0, 0.0)
    assert (
        plain.config.read_timeout
        == cluster(metadata=metadata, retries="1").client.config.read_timeout
    )
