"""What `fastbk` itself offers: every error that it raises, and the values that calls of streams take and give."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import fastbk
import fastbk.sync
from fastbk import errors


def test_every_error_has_its_name_there() -> None:
    kinds = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, errors.Error | Warning)
    ]
    assert len(kinds) > 30
    for kind in kinds:
        assert getattr(fastbk, kind.__name__) is kind
        assert kind.__name__ in fastbk.__all__


def test_all_that_is_promised_is_there() -> None:
    assert all(getattr(fastbk, name) is not None for name in fastbk.__all__)
    assert fastbk.DLSN(1, 2, 3) < fastbk.DLSN(1, 3, 0)
    assert len(set(fastbk.__all__)) == len(fastbk.__all__)


def test_errors_have_codes_of_their_own() -> None:
    kinds = [one for one in vars(errors).values() if inspect.isclass(one)]
    codes = [one.code for one in kinds if issubclass(one, errors.Error)]
    assert len(set(codes)) == len(codes)


def test_nothing_is_imported_before_it_is_used() -> None:
    code = "import sys, fastbk; assert [n for n in sys.modules if n.startswith('fastbk.')] == ['fastbk.version']"
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("module", ["fastbk", "fastbk.sync", "fastbk.arrow", "fastbk.spark"])
def test_completion_finds_every_public_name_before_its_first_use(module: str) -> None:
    code = f"""
import {module} as module
names = dir(module)
assert not set(module.__all__) - set(names), set(module.__all__) - set(names)
assert names == sorted(set(names))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 0


def test_names_without_await_are_the_same_where_both_have_them() -> None:
    both = {"Client", "Cursor", "Namespace", "Stream", "StreamReader", "StreamWriter"}
    both |= {"LedgerReader", "LedgerWriter", "connect"}
    assert both <= set(fastbk.__all__) & set(fastbk.sync.__all__)
    assert all(getattr(fastbk.sync, name) is not getattr(fastbk, name) for name in both)
    with pytest.raises(AttributeError):
        _ = fastbk.sync.Streams  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["sync.connect", "testing.LocalCluster", "coordination.Lease"])
def test_public_modules_need_no_import_of_their_own(name: str) -> None:
    code = f"import fastbk; assert callable(fastbk.{name}); assert '{name}'.split('.')[0] in dir(fastbk)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
