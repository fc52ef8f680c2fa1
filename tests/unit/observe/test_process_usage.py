"""Memory and processor time of processes, of others too, and where /proc hides them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from fastbk.observe.prometheus import OwnUsage, ProcessUsage, usage_lines
from fastbk.units import MIB

CHILD = """
import sys
from fastbk.native.process import confine
memory = bytearray(64 << 20)
while sum(range(1000)) and __import__("time").process_time() < 0.2:
    pass
confine()
print("there", flush=True)
sys.stdin.read()
"""
PARENT = f"""
import os, subprocess, sys
from fastbk.observe.prometheus import ProcessUsage
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
usage = ProcessUsage(child.pid)
child.stdout.readline()
assert not os.path.exists(f"/proc/{{child.pid}}/statm"), "hidden from its parent"
print(usage.resident_bytes(), usage.cpu_s())
child.communicate()
print(usage.resident_bytes(), usage.cpu_s())
"""


def test_own_memory_and_time() -> None:
    own = OwnUsage("janitor")
    before, before_s = own.usage.resident_bytes(), own.usage.cpu_s()
    assert before is not None
    assert before_s is not None
    memory = bytearray(b"x" * (64 * MIB))
    after = own.usage.resident_bytes()
    assert after is not None
    assert after - before > 60 * MIB
    assert abs(before_s - time.process_time()) < 5.0
    del memory
    labels = '{process="janitor",role="janitor"}'
    series = [one.split(" ")[0] for one in own.metric_lines() if not one.startswith("#")]
    assert series == [
        f"fastbk_process_resident_memory_bytes{labels}",
        f"fastbk_process_cpu_seconds_total{labels}",
    ]
    own.usage.close()


def test_a_process_that_is_gone_has_no_series() -> None:
    child = subprocess.Popen(["true"])
    usage = ProcessUsage(child.pid)
    child.wait()
    assert usage_lines([("worker.0", usage)]) == []
    usage.close()
    usage.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a /proc of its own")
def test_a_child_is_read_where_proc_hides_it() -> None:
    """systemd's ProtectProc=invisible is this option of the mount."""
    mounted = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
    found = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "-", sys.executable, "-c", PARENT],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    memory, cpu_s, *gone = found.stdout.split()
    assert int(memory) > 64 * MIB
    assert float(cpu_s) >= 0.2
    assert gone == ["None", "None"]
