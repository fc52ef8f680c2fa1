"""Builds the extension modules: boundary fragments -> cffi source -> objects -> `fastbk/native/_*.abi3.so`.

The tables in `build_modules.py` say what belongs where. `setup.py` uses `BuildNative` for wheels;
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
from pathlib import Path

from cffi import FFI
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

from fastbk.native.build_modules import MODULES, NativeModule
from fastbk.native.build_stubs import stub_text
from fastbk.observe.names import slots_header

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


if __name__ == "__main__":
    main()
