"""Builds the extension modules: boundary fragments -> cffi source -> objects -> `fastbk/native/_*.abi3.so`.

`MODULES` says what belongs where. `setup.py` uses `BuildNative` for wheels;
`python -m fastbk.native.build_native` builds in place, recompiling only what changed.
FASTBK_BUILD=release|wheel|debug|asan chooses the kind of build; objects of different kinds live in different folders.
FASTBK_CLIENT_ONLY=1 leaves out what only a bookie needs, liburing with it.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cffi import FFI
from cffi.model import ArrayType, EnumType, PointerType, PrimitiveType, VoidType
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from fastbk.observe.names import slots_header

# What each extension module is made of: a new C file or boundary fragment is one line here.


# C files that more than one extension needs. None of them may need liburing or Linux.
COMMON_SOURCES = [
    "base/checksum.c",
    "base/digest.c",
    "base/mac.c",
    "wire/verify.c",
    "wire/client.c",
    "apache/protobuf.c",
    "apache/messages.c",
    "apache/requests.c",
    "apache/replies.c",
    "apache/entry_list.c",
]

WORKER_SOURCES = [
    "wire/responses.c",
    "wire/requests.c",
    "worker/apache.c",
    "worker/contexts.c",
    "worker/digests.c",
    "worker/count.c",
    "worker/rights.c",
    "worker/audit.c",
    "worker/quota.c",
    "worker/tags.c",
    "worker/worker.c",
    "worker/wake.c",
    "worker/answers.c",
    "worker/receive.c",
    "worker/dispatch.c",
    "worker/lanes.c",
    "worker/connections.c",
    "worker/input.c",
    "worker/output.c",
]

# Statically, so that a build runs where no liburing is installed; and its names stay inside, so that another
# liburing in the process keeps its own. FASTBK_LIBURING names an archive of hidden names in place of the system's.
LIBURING_ARCHIVE = os.environ.get("FASTBK_LIBURING")
LIBURING = [LIBURING_ARCHIVE] if LIBURING_ARCHIVE else ["-l:liburing.a", "-Wl,--exclude-libs,ALL"]


STORE_SOURCES = [
    "store/file_set.c",
    "store/store.c",
    "store/readers.c",
    "store/read_queue.c",
    "store/read_ahead.c",
    "store/location_cursor.c",
    "store/lookup.c",
    "store/lookup_list.c",
    "store/walk.c",
    "store/run_fetch.c",
    "store/entry_fetch.c",
    "store/open_logs.c",
    "store/read_cache.c",
    "store/block_cache.c",
    "store/locations.c",
    "store/locations_write.c",
    "store/merge.c",
    "store/log_runs.c",
    "store/compact.c",
    "store/compact_read.c",
    "store/flush.c",
    "store/entry_log.c",
    "store/file_writer.c",
    "store/log_scan.c",
    "store/locations_check.c",
]

INDEX_SOURCES = [
    "index/index.c",
    "index/publish.c",
    "index/apply.c",
    "index/adopted.c",
    "index/check.c",
    "index/reply.c",
    "index/requests.c",
    "index/disk.c",
    "index/bulk.c",
    "index/pace.c",
    "index/hot_ledgers.c",
    "index/stream.c",
    "index/read.c",
    "index/read_batch.c",
    "index/list.c",
    "index/wait.c",
    "index/ledgers.c",
    "index/drop.c",
    "index/forget.c",
    "index/unconfirmed.c",
    "index/replay.c",
    "index/step.c",
    "index/write_cache.c",
]


@dataclass(frozen=True)
class NativeModule:
    """One extension module: what Python may see of it and what it is made of.

    Fragments of the boundary and sources are names in `boundary` and `src`, or absolute paths.
    """

    name: str
    boundary: list[str]
    sources: list[str]
    libraries: list[str] = field(default_factory=list)
    linux_only: bool = False
    package: str = "fastbk.native"


MODULES = [
    NativeModule(
        name="_client",
        boundary=[
            "checksum.h",
            "wire.h",
            "status.h",
            "client.h",
            "serve.h",
            "apache.h",
            "apache_translation.h",
            "stream.h",
            "stream_gather.h",
            "stream_columns.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "client/client.c",
            "client/entry_columns.c",
            "wire/responses.c",
            "wire/requests.c",
            "apache/client.c",
            "client/apache_pending.c",
            "client/apache_translation.c",
            "client/apache_requests.c",
            "client/apache_answers.c",
            "stream/codec.c",
            "stream/gather.c",
            "stream/columns.c",
            "serve/serve.c",
        ],
    ),
    NativeModule(
        name="_bookie",
        linux_only=True,
        boundary=[
            "checksum.h",
            "base.h",
            "disk.h",
            "journal.h",
            "journal_scan.h",
            "decide.h",
            "status.h",
            "process.h",
            "confine.h",
            "fault.h",
            "store.h",
            "scrub.h",
            "index.h",
            "wire.h",
            "worker.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "base/run.c",
            "base/journal_header.c",
            "base/segment.c",
            "base/segment_stats.c",
            "base/flight.c",
            "base/shard.c",
            "base/ledgers.c",
            "journal/decide.c",
            "index/decide_table.c",
            "io/common.c",
            "io/plain.c",
            "io/uring.c",
            "io/uring_queue.c",
            "io/disk.c",
            "io/delayed.c",
            "base/process.c",
            "base/confine.c",
            "base/fault.c",
            "journal/journal.c",
            "journal/ledgers.c",
            "journal/drain.c",
            "journal/runs.c",
            "journal/commit.c",
            "journal/publish.c",
            "journal/flight.c",
            "journal/status.c",
            "journal/prewrite.c",
            "journal/scan.c",
            "journal/format.c",
            *STORE_SOURCES,
            *WORKER_SOURCES,
            *INDEX_SOURCES,
        ],
        libraries=LIBURING,
    ),
    NativeModule(
        name="_bench",
        linux_only=True,
        boundary=[
            "status.h",
            "load.h",
        ],
        sources=[
            *COMMON_SOURCES,
            "apache/client.c",
            "load/load.c",
            "load/probe.c",
        ],
    ),
]


NATIVE = Path(__file__).resolve().parent
ROOT = NATIVE.parent.parent

COMMON_FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-g",
]
WARNING_FLAGS = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Wvla",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wundef",
]
# No -O3, -march=native or link-time optimisation: CRC32C picks its hardware path at run time, and a wheel has
# to run on a machine other than the one that built it.
RELEASE_FLAGS = [
    "-O2",
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
]
KIND_FLAGS = {
    "release": RELEASE_FLAGS,
    # A quarter of the size. Stack traces and profiles still have the functions' names.
    "wheel": [*RELEASE_FLAGS, "-g0"],
    "debug": ["-O0", "-DFBK_DEBUG"],
    "asan": [
        "-O1",
        "-DFBK_DEBUG",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
}
# Tables of addresses are read-only once everything is linked, which is at once.
RELEASE_LINK_FLAGS = ["-Wl,-z,relro,-z,now,-z,noexecstack"]
KIND_LINK_FLAGS = {
    "release": RELEASE_LINK_FLAGS,
    "wheel": RELEASE_LINK_FLAGS,
    "debug": [],
    "asan": ["-fsanitize=address,undefined"],
}
# cffi writes the glue; its warnings are not ours.
GENERATED_FLAGS = ["-w"]


def build_kind() -> str:
    """Return FASTBK_BUILD, `release` unless set; refuse an unknown one."""
    kind = os.environ.get("FASTBK_BUILD") or "release"
    if kind not in KIND_FLAGS:
        raise SystemExit(f"FASTBK_BUILD={kind}: must be one of {', '.join(KIND_FLAGS)}")
    return kind


def ffi_of(module: NativeModule) -> FFI:
    """Return the cffi builder of `module` with its boundary declared."""
    ffi = FFI()
    fragments = [NATIVE / "boundary" / name for name in module.boundary]
    ffi.cdef("\n".join(fragment.read_text() for fragment in fragments))
    includes = "".join(f'#include "{os.path.relpath(fragment, ROOT)}"\n' for fragment in fragments)
    ffi.set_source(
        f"{module.package}.{module.name}", "#include <stdint.h>\n#include <stddef.h>\n" + includes
    )
    return ffi


class NativeExtension(Extension):
    """A module as setuptools sees it."""

    def __init__(self, module: NativeModule) -> None:
        self.module = module
        super().__init__(
            f"{module.package}.{module.name}",
            sources=[os.path.relpath(NATIVE / "src" / name, ROOT) for name in module.sources],
            extra_link_args=list(module.libraries),
            py_limited_api=True,
        )


def extensions(modules: list[NativeModule] = MODULES) -> list[Extension]:
    """Return the setuptools extensions that this platform can have.

    With FASTBK_CLIENT_ONLY=1 these are only those that need no liburing.
    """
    bookie_too = sys.platform == "linux" and not os.environ.get("FASTBK_CLIENT_ONLY")
    return [NativeExtension(module) for module in modules if bookie_too or not module.linux_only]


class BuildNative(build_ext):
    """Compiles each C file on its own, and only when it or a header that it read has changed."""

    def build_extensions(self) -> None:
        """Build every module; one that does not compile leaves its older build in place and fails the end."""
        write_if_new(NATIVE / "src" / "base" / "slots.h", slots_header())
        failed = []
        for extension in self.extensions:
            try:
                self.build_extension(extension)
            except Exception as error:  # noqa: BLE001 - the others are still worth building
                print(f"{extension.name}: {error}", file=sys.stderr)
                failed.append(extension.name)
        if failed:
            raise SystemExit(f"not built: {', '.join(failed)}")

    def build_extension(self, extension: NativeExtension) -> None:
        """Write the cffi source of `extension`, compile what changed, link and put it in place by a rename."""
        kind = build_kind()
        module = extension.module
        folder = Path(self.build_temp) / kind
        folder.mkdir(parents=True, exist_ok=True)
        generated = folder / f"{module.name}.c"
        ffi_of(module).emit_c_code(str(generated))

        flags = [*COMMON_FLAGS, *KIND_FLAGS[kind]]
        objects = [self.compile_one(generated, folder, [*flags, *GENERATED_FLAGS])]
        for name in module.sources:
            source = NATIVE / "src" / name
            objects.append(self.compile_one(source, folder, [*flags, *WARNING_FLAGS]))

        target = Path(self.get_ext_fullpath(extension.name))
        flags = [*KIND_LINK_FLAGS[kind], *module.libraries]
        linked = Path(self.build_temp) / f"{module.name}.linked"
        # Times alone would keep a release build that is younger than the objects of the debug build asked for.
        content = "\n".join([str(target), *flags, *map(str, objects)])
        if (
            target.exists()
            and linked.exists()
            and linked.read_text() == content
            and all(target.stat().st_mtime_ns > o.stat().st_mtime_ns for o in objects)
        ):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
        self.compiler.link_shared_object(
            [str(o) for o in objects],
            str(fresh),
            extra_postargs=flags,
            target_lang="c",
        )
        # A process that has the old file mapped keeps it: never write into it.
        fresh.replace(target)
        linked.write_text(content)

    def compile_one(self, source: Path, folder: Path, flags: list[str]) -> Path:
        """Return the object of `source`, compiled if it is missing or older than anything it includes."""
        target = folder / f"{source.parent.name}-{source.stem}.o"
        depends = target.with_suffix(".d")
        include = self.compiler.include_dirs + self.include_dirs
        command = [
            *self.compiler.compiler_so,
            *(f"-I{path}" for path in include),
            *(f"-I{path}" for path in (ROOT, NATIVE, NATIVE / "src")),
            *flags,
            "-MMD",
            "-MF",
            str(depends),
            "-c",
            str(source),
            "-o",
            str(target),
        ]
        if is_fresh(target, depends, command):
            return target
        started_ns = time.time_ns()
        self.compiler.spawn(command)
        # As old as what the compiler read: a file saved while it ran makes the object out of date.
        os.utime(target, ns=(started_ns, started_ns))
        target.with_suffix(".command").write_text("\n".join(command))
        return target


def is_fresh(target: Path, depends: Path, command: list[str]) -> bool:
    """Return whether `command` made `target`, and it is newer than every file named in `depends`.

    A command names this checkout's folders. A build folder that was copied from another checkout is
    therefore made anew: its `depends` name the other checkout's files, and say nothing of this one's.
    """
    noted = depends.with_suffix(".command")
    if not (target.exists() and depends.exists() and noted.exists()):
        return False
    if noted.read_text() != "\n".join(command):
        return False
    made = target.stat().st_mtime_ns
    names = re.split(r"\s+", depends.read_text().replace("\\\n", " ").partition(":")[2].strip())
    return all(Path(name).exists() and Path(name).stat().st_mtime_ns < made for name in names)


def write_if_new(target: Path, text: str) -> None:
    """Write `target` unless it says so already: what is made from it is newer then."""
    if not target.exists() or target.read_text() != text:
        target.write_text(text)


def build_in_place(modules: list[NativeModule]) -> None:
    """Build the modules that this platform can have, each in the folder of its package."""
    os.chdir(ROOT)
    # Two builds at once would write each other's objects: the second waits, and finds nothing left to do.
    Path("build").mkdir(exist_ok=True)
    lock = os.open("build/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    distribution = Distribution(
        {
            "name": "fastbk",
            "packages": ["fastbk", *{module.package for module in modules}],
            "ext_modules": extensions(modules),
            "cmdclass": {"build_ext": BuildNative},
        }
    )
    command = distribution.get_command_obj("build_ext")
    command.inplace = True
    command.ensure_finalized()
    command.run()


def main() -> None:
    """Build every module of this platform beside this file, and write the stubs of all modules."""
    build_in_place(MODULES)
    for module in MODULES:
        write_if_new(NATIVE / f"{module.name}.pyi", stub_text(ffi_of(module)))


# --- stubs -------------------------------------------------------------------------------------------------------
#
# Writes the type stubs of the extension modules from the boundary that cffi parsed.
#
# `build_native` calls this at each build in place; the stubs are committed, and a test compares them with the
# boundary. So mypy knows the name, the number of arguments and the kind of each argument of every C function.


HEADER = '''\
"""Generated by fastbk/native/build_native.py from fastbk/native/boundary; do not edit."""

from fastbk.native.ffi import BytesPointer, CData, ForeignInterface, Pointer

__all__ = ["ffi", "lib"]

class _Library:
'''


def parameter_type(ctype: Any) -> str:
    """Return the annotation of a parameter of this C type."""
    if isinstance(ctype, PointerType | ArrayType):
        item = ctype.totype if isinstance(ctype, PointerType) else ctype.item
        is_bytes = isinstance(item, VoidType) or (
            isinstance(item, PrimitiveType)
            and item.name in ("char", "int8_t", "uint8_t", "unsigned char")
        )
        return "BytesPointer" if is_bytes else "Pointer"
    return value_type(ctype)


def value_type(ctype: Any) -> str:
    """Return the annotation of a C value that Python receives or passes by value."""
    if isinstance(ctype, VoidType):
        return "None"
    if isinstance(ctype, EnumType):
        return "int"
    if isinstance(ctype, PrimitiveType):
        if ctype.is_float_type():
            return "float"
        return "bool" if ctype.name == "_Bool" else "int"
    return "CData"


def stub_text(ffi: FFI) -> str:
    """Return the stub of the extension whose boundary `ffi` has parsed."""
    # cffi has no public list of what it parsed; the version is pinned, and a test builds this file.
    parser: Any = vars(ffi)["_parser"]
    declarations = parser._declarations
    constants = {name.split()[1] for name in declarations if name.startswith("macro ")}
    constants.update(parser._int_constants)
    lines = [f"    {name}: int\n" for name in sorted(constants)]
    for key in sorted(declarations):
        kind, _, name = key.partition(" ")
        ctype = declarations[key][0]
        if kind == "function":
            arguments = [f"arg{i}: {parameter_type(arg)}" for i, arg in enumerate(ctype.args)]
            listed = ", ".join(["self", *arguments, "/"] if arguments else ["self"])
            lines.append(f"    def {name}({listed}) -> {value_type(ctype.result)}: ...\n")
    return HEADER + "".join(lines) + "\nlib: _Library\nffi: ForeignInterface\n"


if __name__ == "__main__":
    main()
