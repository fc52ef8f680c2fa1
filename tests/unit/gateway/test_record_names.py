"""Paths of records and what they name: every path that streams write is recognised, and nothing that only resembles."""

from __future__ import annotations

import pytest

from fastbk.gateway.record_names import Kind, RecordName, name_of
from fastbk.meta.replica_marks import path_of
from fastbk.meta.rollback import HOLD_PATH
from fastbk.stream import paths

NAMESPACE, STREAM = "1f07aa", "ab12cd"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (paths.namespace_path(NAMESPACE), RecordName(Kind.NAMESPACE, NAMESPACE)),
        (paths.namespace_path("root"), RecordName(Kind.NAMESPACE, "root")),
        (
            paths.entry_path(NAMESPACE, "für alle/x".replace("/", "-")),
            RecordName(Kind.ENTRY, NAMESPACE, "für alle-x"),
        ),
        (paths.names_path(NAMESPACE, "07"), RecordName(Kind.NAMES_FOLDER, NAMESPACE)),
        (paths.usage_path(NAMESPACE), RecordName(Kind.USAGE, NAMESPACE)),
        (paths.stored_path(NAMESPACE), RecordName(Kind.STORED, NAMESPACE)),
        (paths.stream_path(STREAM), RecordName(Kind.STREAM, STREAM)),
        (paths.chain_path(STREAM), RecordName(Kind.CHAIN, STREAM)),
        (f"{paths.pages_path(STREAM)}/0-0000000000000001", RecordName(Kind.PAGE, STREAM)),
        (
            f"{paths.producers_path(STREAM)}/3-0000000000000001",
            RecordName(Kind.PRODUCERS_PAGE, STREAM),
        ),
        (f"{paths.cursors_path(STREAM)}/mine", RecordName(Kind.CURSOR, STREAM)),
        (f"{paths.drafts_path(STREAM)}/0~a~b~c", RecordName(Kind.DRAFT, STREAM)),
        (paths.cursors_path(STREAM), RecordName(Kind.STREAM_FOLDER, STREAM)),
        (path_of(300), RecordName(Kind.MARK, "300")),
        (paths.service_path("serve-1.a"), RecordName(Kind.SERVICE, name="serve-1.a")),
        (paths.SERVICES, RecordName(Kind.SERVICES_FOLDER)),
    ],
)
def test_paths_of_streams_are_recognised(path: str, name: RecordName) -> None:
    assert name_of(path) == name


@pytest.mark.parametrize(
    "path",
    [
        "",
        HOLD_PATH,
        "streams",
        "streams/ab",
        "streams/cd/ab12cd/chain",
        "streams/ab/ab12cd/chain/more",
        "streams/ab/ab12cd/other",
        "streams/ab/ab12cd/cursors/a/b",
        "streams/ab/ab12cd/producers/3-1",
        "services/a/b",
        "services/a b",
        "namespaces/1f/1f07aa/00/a/b",
        "usage/1f/1f07aa/x",
        "under_replicated/00/000000000000012c",
        "under_replicated/2c/300",
        "elections/auditor",
        # Under the wrong one of the 64 folders nothing is found by its name.
        paths.names_path(NAMESPACE, "99") + "/a",
    ],
)
def test_what_only_resembles_one_is_none(path: str) -> None:
    assert name_of(path).kind is Kind.OTHER
