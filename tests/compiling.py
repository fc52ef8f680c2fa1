"""`python -m tests.compiling PART OF`: writes this part of all compiled modules, before any test is collected.

On a fresh checkout every process of every phase would compile the same files at the same time. Rewriting the asserts of
tests, which pytest does, is most of what collecting them takes.
"""

from __future__ import annotations

import compileall
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parent.parent

PRODUCT = ("fastbk", "pyspark_fastbk", "loadtest", "demo", "tools")


def is_rewritten(path: Path) -> bool:
    """Return whether pytest rewrites the asserts of this file."""
    return path.name.startswith("test_") or path.name == "conftest.py"


def write_rewritten(path: Path) -> Path:
    """Write what pytest would write for this file at its first import, unless it is there; return its path."""
    target = rewrite.get_cache_dir(path) / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
    fresh = (
        importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(path.read_bytes())
    )
    if target.exists() and target.read_bytes()[:16] == fresh:
        return target
    source_hash, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]
    target.parent.mkdir(parents=True, exist_ok=True)
    rewrite._write_pyc(SimpleNamespace(trace=print), code, source_hash, target)  # type: ignore[arg-type]
    return target


def sources(folders: Sequence[str]) -> list[Path]:
    """Return all files of the product, and of the tests what lies in these folders or is shared."""
    places = [ROOT / one for one in PRODUCT] + [ROOT / "tests" / one for one in folders]
    found = [path for place in places for path in place.rglob("*.py")]
    return sorted({*found, *(ROOT / "tests").glob("*.py")})


def main() -> int:
    """Compile every OF-th file, from the PART-th on; the other arguments are folders of tests."""
    part, parts = int(sys.argv[1]), int(sys.argv[2])
    for path in sources(sys.argv[3:])[part::parts]:
        if is_rewritten(path):
            write_rewritten(path)
        else:
            compileall.compile_file(
                str(path), quiet=2
            )  # whoever imports it says what is wrong with it
    return 0


if __name__ == "__main__":
    sys.exit(main())
