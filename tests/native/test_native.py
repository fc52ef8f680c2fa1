"""Builds and runs the C test programs, without Python in them, under sanitizers.

A new program is one line in PROGRAMS, a new fuzz harness one in FUZZERS. A program is a plain `main` that exits
0 (passed), 1 (failed) or 77 (skipped: its last line of output says "needs io_uring ..."). It runs in an empty
folder of its own. A fuzz harness has `LLVMFuzzerTestOneInput`; here it gets a short seeded run under
ASan and UBSan by `fuzz_driver.c`, and with `./dev fuzz` as long as one likes under libFuzzer.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastbk.native.build_native import KIND_FLAGS, STORE_SOURCES
from tests.native.build_fake_disk import SOURCES as FAKE_DISK_SOURCES
from tests.native.compile import KINDS, URING, build_program

SKIPPED = 77
FUZZ_RUNS = {"fast": 10_000, "ci": 10_000, "all": 2_000_000}
"""Each tree draws its own in CI, where all harnesses run; `./dev fuzz` is the search."""


@dataclass(frozen=True)
class Program:
    """A C test: its file here, the files of fastbk/native/src it is linked with, the kinds of build it runs in."""

    file: str
    sources: tuple[str, ...]
    kinds: tuple[str, ...] = ("asan",)
    libraries: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


IO_SOURCES = (
    *FAKE_DISK_SOURCES,
    "io/common.c",
    "io/plain.c",
    "io/uring.c",
    "io/uring_queue.c",
    "base/segment.c",
)

# kinds: add "tsan" where threads meet. libraries: ("-l:liburing.a",) for what calls liburing.
STORE_NEEDS = (
    "base/checksum.c",
    "base/digest.c",
    "base/journal_header.c",
    "base/mac.c",
    "base/run.c",
    "base/segment.c",
    "io/common.c",
    "io/plain.c",
)
JOURNAL_SOURCES = (
    "io/delayed.c",
    "journal/journal.c",
    "journal/ledgers.c",
    "journal/drain.c",
    "journal/runs.c",
    "journal/commit.c",
    "journal/publish.c",
    "journal/flight.c",
    "journal/status.c",
    "journal/scan.c",
    "journal/format.c",
    "base/flight.c",
    "journal/decide.c",
    "base/journal_header.c",
    "base/ledgers.c",
    "base/run.c",
    "base/segment.c",
    "base/checksum.c",
)
WIRE_SOURCES = (
    "wire/responses.c",
    "wire/requests.c",
    "wire/client.c",
    "wire/verify.c",
    "base/digest.c",
    "base/mac.c",
    "base/checksum.c",
)
APACHE_SOURCES = (
    "apache/protobuf.c",
    "apache/messages.c",
    "apache/requests.c",
    "apache/replies.c",
    "apache/entry_list.c",
    "apache/client.c",
)
TRANSLATION_SOURCES = (
    *APACHE_SOURCES,
    "client/apache_pending.c",
    "client/apache_translation.c",
    "client/apache_requests.c",
    "client/apache_answers.c",
    *WIRE_SOURCES,
)
WORKER_SOURCES = (
    *APACHE_SOURCES,
    "worker/apache.c",
    "worker/contexts.c",
    "worker/digests.c",
    "worker/count.c",
    "worker/rights.c",
    "worker/audit.c",
    "worker/quota.c",
    "worker/tags.c",
    "base/flight.c",
    "worker/worker.c",
    "worker/wake.c",
    "worker/answers.c",
    "worker/receive.c",
    "worker/dispatch.c",
    "worker/lanes.c",
    "worker/connections.c",
    "worker/input.c",
    "worker/output.c",
    "base/segment.c",
    *WIRE_SOURCES,
)
GOLDEN = Path(__file__).parent.parent / "golden"
PROGRAMS = [
    Program("test_wire.c", WIRE_SOURCES),
    Program("test_client.c", ("client/client.c", "client/entry_columns.c", *WIRE_SOURCES)),
    Program("test_frame.c", WIRE_SOURCES, arguments=(str(GOLDEN / "frames"),)),
    *(
        Program("test_worker.c", WORKER_SOURCES, arguments=(str(seed), "30000"))
        for seed in range(1, 4)
    ),
    Program("test_worker_digests.c", WORKER_SOURCES),
    Program("test_worker_spin.c", WORKER_SOURCES, ("asan", "tsan")),
    Program("test_worker_quotas.c", WORKER_SOURCES),
    *(
        Program("test_worker_apache.c", WORKER_SOURCES, arguments=(str(seed), "20000"))
        for seed in range(1, 3)
    ),
    Program("test_store.c", (*STORE_SOURCES, *STORE_NEEDS), ("asan", "tsan")),
    Program("test_compact.c", (*STORE_SOURCES, *STORE_NEEDS)),
    Program("test_journal.c", JOURNAL_SOURCES),
    Program("test_journal_verdicts.c", JOURNAL_SOURCES),
    Program("test_journal_scan.c", JOURNAL_SOURCES),
    Program("test_journal_spin.c", JOURNAL_SOURCES),
    Program("test_journal_hostile.c", JOURNAL_SOURCES),
    *(
        Program(
            "test_journal_bells.c",
            tuple(dict.fromkeys((*JOURNAL_SOURCES, *IO_SOURCES))),
            ("tsan",),
            URING,
            (backend,),
        )
        for backend in ("uring", "plain")
    ),
    Program("test_checksum.c", ("base/checksum.c",)),
    Program("test_write_cache.c", ("index/write_cache.c", "base/checksum.c", "base/segment.c")),
    Program("test_read_queue.c", ("store/read_queue.c",)),
    Program("test_pace.c", ("index/pace.c",)),
    Program("test_hot_ledgers.c", ("index/hot_ledgers.c",)),
    Program("test_ledgers.c", ("base/ledgers.c", "base/segment.c")),
    Program("test_io.c", IO_SOURCES, libraries=URING, arguments=("uring",)),
    Program("test_io.c", IO_SOURCES, libraries=URING, arguments=("plain",)),
    Program("test_io.c", IO_SOURCES, ("asan", "tsan"), URING, ("fake",)),
    Program("test_confine.c", (*IO_SOURCES, "base/confine.c"), libraries=(*URING, "-lpthread")),
    Program("test_ring.c", ("base/checksum.c", "base/segment.c"), ("asan", "tsan")),
]


@dataclass(frozen=True)
class Fuzzer:
    """A fuzz harness, its sources, the folder of its seed inputs under tests/golden if any, and what found faults.

    `found` holds pairs of (runs, seed), each of which found a fault that was mended since. `cost`: how many runs of
    another harness take as long as one of this one.
    """

    file: str
    sources: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    corpus: str = ""
    found: tuple[tuple[int, int], ...] = ()
    cost: int = 1


FUZZERS: list[Fuzzer] = [
    Fuzzer("fuzz_frame.c", WIRE_SOURCES, corpus="frames"),
    Fuzzer("fuzz_apache.c", APACHE_SOURCES, corpus="apache"),
    Fuzzer("fuzz_auth.c", APACHE_SOURCES),
    Fuzzer("fuzz_apache_translation.c", TRANSLATION_SOURCES, found=((100_000, 1569555891),)),
    Fuzzer("fuzz_worker.c", WORKER_SOURCES, found=((2500, 1395960478),), cost=40),
    Fuzzer("fuzz_stream.c", ("stream/codec.c",), corpus="stream"),
    Fuzzer(
        "fuzz_stream_columns.c", ("stream/codec.c", "stream/columns.c"), corpus="stream_columns"
    ),
    Fuzzer("fuzz_stream_gather.c", ("stream/gather.c", "stream/codec.c")),
    Fuzzer("fuzz_serve.c", ("serve/serve.c", "stream/codec.c", *WIRE_SOURCES), corpus="frames"),
    Fuzzer("fuzz_locations.c", (*STORE_SOURCES, *STORE_NEEDS), corpus="fuzz_locations", cost=4),
    Fuzzer("fuzz_entry_log.c", (*STORE_SOURCES, *STORE_NEEDS), corpus="fuzz_entry_log"),
    Fuzzer("fuzz_journal_log.c", (*STORE_SOURCES, *STORE_NEEDS), corpus="fuzz_journal_log"),
    Fuzzer("fuzz_journal_scan.c", JOURNAL_SOURCES, corpus="fuzz_journal_scan", cost=3),
    Fuzzer("fuzz_journal_take.c", JOURNAL_SOURCES, corpus="fuzz_journal_take", cost=8),
]


def run(program: Path, arguments: list[str], folder: Path) -> None:
    """Run a built program in `folder`; fail or skip the test by its exit code."""
    environment = dict(
        {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        TMPDIR=str(folder),
        ASAN_OPTIONS="detect_leaks=1:abort_on_error=0",
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
        TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1",
    )
    command = [str(program), *arguments]
    for attempt in (command, ["setarch", "-R", *command]):
        result = subprocess.run(
            attempt,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=110,
        )
        # gcc 12's ThreadSanitizer does not know the widest address randomisation of newer kernels.
        if "unexpected memory mapping" not in result.stdout:
            break
    if result.returncode == SKIPPED:
        lines = result.stdout.strip().splitlines()
        pytest.skip(lines[-1] if lines else "for no reason")
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout[-8000:]}"


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        pytest.param(
            program,
            kind,
            id="-".join([Path(program.file).stem, *program.arguments, kind]),
            # With one build of each FAST sees that a change broke something.
            marks=[pytest.mark.slow] if kind != program.kinds[0] else [],
        )
        for program in PROGRAMS
        for kind in program.kinds
    ],
)
def test_c_program(program: Program, kind: str, tmp_path: Path) -> None:
    built = build_program([program.file], program.sources, kind, program.libraries)
    run(built, list(program.arguments), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fuzzer", [pytest.param(fuzzer, id=Path(fuzzer.file).stem) for fuzzer in FUZZERS]
)
def test_seeded_fuzz_run_finds_nothing(fuzzer: Fuzzer, tmp_path: Path, seed: int) -> None:
    built = build_program([fuzzer.file, "fuzz_driver.c"], fuzzer.sources, "asan", fuzzer.libraries)
    runs = FUZZ_RUNS[os.environ.get("FASTBK_TIER", "fast")] // fuzzer.cost
    corpus = Path(__file__).parent.parent / "golden" / fuzzer.corpus
    files = (
        sorted(str(file) for file in corpus.rglob("*") if file.is_file()) if fuzzer.corpus else []
    )
    assert bool(files) == bool(fuzzer.corpus), f"no seed inputs in {corpus}"
    run(built, [str(runs), str(seed), *files], tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fuzzer", "runs", "seed"),
    [
        pytest.param(fuzzer, runs, seed, id=f"{Path(fuzzer.file).stem}-{seed}")
        for fuzzer in FUZZERS
        for runs, seed in fuzzer.found
    ],
)
def test_a_seed_that_found_a_fault_finds_nothing_now(
    fuzzer: Fuzzer, runs: int, seed: int, tmp_path: Path
) -> None:
    built = build_program([fuzzer.file, "fuzz_driver.c"], fuzzer.sources, "asan", fuzzer.libraries)
    run(built, [str(runs), str(seed)], tmp_path)


def test_every_program_and_harness_is_listed() -> None:
    listed = {entry.file for entry in [*PROGRAMS, *FUZZERS]}
    here = {
        file.name
        for pattern in ("test_*.c", "fuzz_*.c")
        for file in Path(__file__).parent.glob(pattern)
    }
    assert here - {"fuzz_driver.c"} == listed


def test_the_fuzz_driver_finds_a_fault(tmp_path: Path, seed: int) -> None:
    built = build_program(["broken_harness.c", "fuzz_driver.c"], (), "asan")
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        run(built, ["1000", str(seed)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [[], ["twice"], ["connections=64"], ["entry=16384"], ["entry=100", "file=25165824"]],
    ids=["once", "twice", "apart", "large", "small"],
)
def test_the_bare_chain_answers_all_that_is_sent(more: list[str], tmp_path: Path) -> None:
    """The floor of `./dev bench`: a window of 64 is durable in fewer batches than adds."""
    built = build_program(["bench_chain.c"], [], "release", URING)
    command = [str(built), str(tmp_path / "journal"), "64", "0.3", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["adds"] > answer["batches"] > 0
    assert (
        0
        < answer["latency_us"]["p50"]
        <= answer["latency_us"]["p99"]
        <= answer["latency_us"]["p99.9"]
    )
    assert all(spent > 0 for spent in answer["cpu_us_per_entry"].values())
    entry_bytes = next((int(word[6:]) for word in more if word.startswith("entry=")), 1024)
    # What was under way when the measuring began may have been written before, and is acknowledged behind it.
    written = answer["disk_bytes_per_entry"] * answer["adds"]
    assert written >= (answer["adds"] - 64) * entry_bytes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_bare_chain_takes_files_that_are_there_and_leaves_them(tmp_path: Path) -> None:
    built = build_program(["bench_chain.c"], [], "release", URING)
    paths = [tmp_path / "journal", tmp_path / "journal.flush"]
    size_bytes = 32 << 20
    for path in paths:
        path.write_bytes(bytes(size_bytes))
    for seconds in ("0.3", "1", "4", "16"):  # on a busy machine it has nothing to flush so soon
        command = [str(built), str(paths[0]), "64", seconds, "twice", f"file={size_bytes}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode == SKIPPED:
            pytest.skip(done.stdout.strip())
        assert done.returncode == 0, done.stderr
        assert [path.stat().st_size for path in paths] == [size_bytes] * 2, "nothing grows"
        if any(paths[1].read_bytes()):
            break
    assert any(paths[1].read_bytes()), "the flush wrote to its own"
    paths[1].write_bytes(b"")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "a file that is too small" in done.stderr


def test_a_failing_program_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit 1"):
        run(Path("/bin/false"), [], tmp_path)


@pytest.mark.parametrize("kinds", [KINDS, KIND_FLAGS], ids=["tests", "extensions"])
def test_no_build_goes_on_after_undefined_behaviour(kinds: dict[str, list[str]]) -> None:
    """Without this flag the sanitizer of undefined behaviour prints a line, and the program passes."""
    checked = [flags for flags in kinds.values() if any("undefined" in flag for flag in flags)]
    assert checked
    for flags in checked:
        assert "-fno-sanitize-recover=all" in flags


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("asan", "debug"), ("asan", "asan"), ("asan", "undefined"), ("tsan", "tsan")],
)
def test_each_kind_of_build_catches_its_faults(kind: str, fault: str, tmp_path: Path) -> None:
    """A build without its sanitizer would pass everything: each is shown a fault that it has to report."""
    built = build_program(["broken.c"], (), kind, ("-lpthread",))
    with pytest.raises(AssertionError, match=r"exit [1-9-]"):
        run(built, [fault], tmp_path)
