"""Builds `tests/native/_fake_disk.abi3.so`, the fake disk of the tests; no wheel has it.

It fills the table of operations of `fastbk/native/src/io/io.h`, so journal, index and store run on it as on any
backend. `./dev setup` calls this beside the product's build, in the same kind of build.
"""

from __future__ import annotations

from pathlib import Path

from fastbk.native.build_native import NativeModule, build_in_place

FOLDER = Path(__file__).resolve().parent / "fake_disk"
SOURCES = sorted(map(str, FOLDER.glob("*.c")))

if __name__ == "__main__":
    build_in_place(
        [
            NativeModule(
                name="_fake_disk",
                package="tests.native",
                boundary=[str(FOLDER / "boundary.h")],
                sources=[*SOURCES, "base/segment.c"],
                linux_only=True,
            )
        ]
    )
