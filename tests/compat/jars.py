"""Apache's jars by Maven, and our Java programs compiled against them; both are kept in build/compat."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.style.tree import ROOT

HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "compat"
MAVEN_TIMEOUT_S = 900
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class NotAvailable(Exception):
    """These jars cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """What a `java` command needs to run our programs and Apache's."""

    class_path: str
    arguments: str
    """Names the class path on a command line."""

    def behind_jars(self) -> Programs:
        """Return the same, but of a class that a jar has too, the jar's is taken."""
        paths = sorted(self.class_path.split(":"), key=lambda path: not path.endswith(".jar"))
        class_path = ":".join(paths)
        return Programs(class_path, _argument_file(Path(paths[-1], "java-behind-jars"), class_path))

    def command(self, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """Return a command line; its Java has a small heap and starts fast unless `options` say otherwise."""
        return [
            "java",
            *(options or JAVA_OPTIONS),
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
            "-Dzookeeper.sasl.client=false",
            self.arguments,
            main_class,
            *arguments,
        ]


def programs(pom: str = "pom.xml", *sources: str, beside: Programs | None = None) -> Programs:
    """Return the programs of the folders `sources` (`java`), compiled with the jars of `pom`. Raises NotAvailable.

    beside: programs that they call; their jars are those of `pom`, too, as far as names agree.
    """
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            raise NotAvailable(f"there is no {tool} on PATH")
    name = Path(pom).stem
    jars = _jars(HERE / pom, BUILD / f"{name}.classpath")
    folders = sources or ("java",)
    files = sorted(file for folder in folders for file in (HERE / folder).rglob("*.java"))
    classes = BUILD / f"{folders[-1]}-{_hash([HERE / pom, *files])}"
    also = f":{beside.class_path.split(':')[0]}" if beside is not None else ""
    if not classes.exists():
        half = classes.with_suffix(f".{os.getpid()}")
        half.mkdir(parents=True)
        # "try": Apache's handles may be interrupted while they close, and so may our cells. "path": jars name others,
        # which a class path by Maven does not have beside them.
        lint = "-Xlint:all,-try,-path,-serial,-processing,-classfile"
        arguments = _argument_file(half / "javac", jars + also)
        command = ["javac", arguments, lint, "-Werror", "-d", str(half), *map(str, files)]
        subprocess.run(command, check=True, timeout=300)
        try:
            half.rename(classes)
        except OSError:  # another run was first
            shutil.rmtree(half)
    class_path = f"{classes}{also}:{jars}"
    return Programs(class_path, _argument_file(classes / "java", class_path))


def _argument_file(path: Path, class_path: str) -> str:
    """Keep a class path in a file, in the words of Java's launchers: command lines stay short."""
    path.write_text(f'-cp "{class_path}"\n')
    return f"@{path}"


def _jars(pom: Path, kept: Path) -> str:
    stamp = kept.with_suffix(".pom")
    if not kept.exists() or not stamp.exists() or stamp.read_text() != pom.read_text():
        BUILD.mkdir(parents=True, exist_ok=True)
        print(f"asking Maven for the jars of {pom.name}", flush=True)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={kept}"]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *goal],
            check=False,
            timeout=MAVEN_TIMEOUT_S,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise NotAvailable(errors[0][:300] if errors else f"Maven ended with {done.returncode}")
        stamp.write_text(pom.read_text())
    return kept.read_text().strip()


def _hash(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for each in files:
        digest.update(each.name.encode() + each.read_bytes())
    return digest.hexdigest()[:12]
