"""systemd's units: understood by systemd, closed as far as their processes allow, and run in a container of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.wait import DEADLINE_S, wait_until
from tests.fixtures.zookeeper import QuorumServer, ZooKeeperPlace, free_ports
from tests.packaging.units import SERVICES, UNITS, unit
from tests.style.tree import ROOT

PROMETHEUS = ROOT / "monitoring" / "prometheus" / "prometheus.yml"
EXPOSURE_MAX = 20
"""Of systemd's own count, in tenths: 0 gives up everything, 100 nothing."""
BOOKIE = """[bookie]
id = "b1"
listen = "127.0.0.1:3181"
[metadata]
uri = "sqlite:/var/lib/fastbk/metadata.sqlite"
[journal]
directory = "/var/lib/fastbk/journal"
[ledgers]
directories = ["/var/lib/fastbk/ledgers"]
[http]
listen = "127.0.0.1:8000"
"""


def placed(folder: Path, name: str) -> Path:
    """Copy a unit, with a program that is there and without pages that are not."""
    text = (UNITS / name).read_text()
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text)
    file = folder / name.replace("@.", "@x.")
    file.write_text(re.sub(r"(?m)^Documentation=.*\n", "", text))
    return file


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", SERVICES)
def test_systemd_understands_each_line_and_finds_it_closed(name: str, tmp_path: Path) -> None:
    file = placed(tmp_path, name)
    checks = (
        ("verify", "--recursive-errors=no"),
        ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}"),
    )
    for check in checks:
        found = subprocess.run(
            ["systemd-analyze", *check, "--no-pager", str(file)],
            capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "SYSTEMD_COLORS": "0"},
        )  # fmt: skip
        assert found.returncode == 0, found.stdout + found.stderr
        if check[0] == "verify":
            assert found.stderr == ""


@pytest.mark.parametrize("name", SERVICES)
def test_units_restart_what_may_start_again(name: str) -> None:
    service = unit(UNITS / name)["Service"]
    assert service["Type"] == ["notify"]
    assert service["Restart"] == ["on-failure"]
    assert service["RestartPreventExitStatus"] == ["2 78"], "docs/exit-codes.md"
    limits = {
        key: value
        for key, value in unit(UNITS / name)["Unit"].items()
        if key.startswith("StartLimit")
    }
    assert limits == {"StartLimitIntervalSec": ["0"]}, "a metadata store may be away for hours"
    assert service["User"] == ["fastbk"]
    assert int(service["WatchdogSec"][0]) >= 30


@pytest.mark.parametrize("role", ["autorecovery", "janitor", "console"])
def test_a_service_answers_where_prometheus_looks_as_it_is_installed(role: str) -> None:
    """On loopback, until an operator says who else may read its metrics: with the same port, as the unit proposes."""
    name = f"fastbk-{role}.service"
    (port,) = set(re.findall(rf"job_name: fastbk-{role}\n.*\n.*?:(\d+)\"", PROMETHEUS.read_text()))
    assert unit(UNITS / name)["Service"]["Environment"] == [
        f'"FASTBK_OPTIONS=--http 127.0.0.1:{port}"'
    ]
    proposed = f"#   FASTBK_OPTIONS=--http 0.0.0.0:{port} --http-public health metrics\n"
    assert proposed in (UNITS / name).read_text()


AS_INSTALLED = """
set -e
mount -t tmpfs tmpfs "$1"; mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp "$2/fastbk.sysusers" "$1/root/usr/lib/sysusers.d/fastbk.conf"
cp "$2/fastbk.tmpfiles" "$1/root/usr/lib/tmpfiles.d/fastbk.conf"
cp "$3" "$1/root/postinst"
rm -rf "$1/root/run/systemd/system"
chroot "$1/root" sh /postinst configure
chroot "$1/root" stat -c '%n %a %U %G' /etc/fastbk /var/lib/fastbk /var/log/fastbk
"""
CAN_CHROOT = os.geteuid() == 0 and all(
    map(shutil.which, ("unshare", "systemd-tmpfiles", "systemd-sysusers"))
)


@pytest.mark.skipif(not CAN_CHROOT, reason="needs root and systemd's programs")
def test_the_package_is_configured_in_a_chroot_without_proc(tmp_path: Path) -> None:
    """As an installer of images has it: this machine's files below, and nothing mounted."""
    text = (ROOT / "packaging/debian/build_deb.py").read_text()
    (tmp_path / "postinst").write_text(text.partition('POSTINST = """')[2].partition('"""')[0])
    (tmp_path / "tree").mkdir()
    found = subprocess.run(
        ["unshare", "--mount", "sh", "-c", AS_INSTALLED, "-", tmp_path / "tree", UNITS, tmp_path / "postinst"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-3:] == [
        "/etc/fastbk 750 root fastbk", "/var/lib/fastbk 700 fastbk fastbk", "/var/log/fastbk 700 fastbk fastbk",
    ]  # fmt: skip


CAN_BOOT = os.geteuid() == 0 and all(map(shutil.which, ("systemd-nspawn", "mmdebstrap", "nsenter")))


class Machine:
    """A container with a systemd of its own."""

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-a"]

    def __call__(self, *words: str) -> str:
        found = subprocess.run(
            [*self._enter, *words], capture_output=True, text=True, timeout=60, check=False
        )
        return found.stdout + found.stderr

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        said = self("sh", "-c", f"cat > {path} <<'END'\n{text}\nEND")
        assert said == "", said

    def shows(self, service: str, name: str) -> str:
        """Return one property."""
        return self("systemctl", "show", "-p", name, "--value", service).strip()

    def until_shows(self, service: str, name: str, value: str, deadline_s: float) -> None:
        self.until(service, lambda: self.shows(service, name) == value, deadline_s)

    def until(
        self, service: str, is_so: Callable[[], bool], deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait for it; fail with the service's journal."""
        try:
            wait_until(is_so, service, deadline_s)
        except AssertionError as error:
            raise AssertionError(
                self("journalctl", "--no-pager", "-n", "50", "-u", service)
            ) from error


def systemd_below(pid: int) -> list[int]:
    """Return the process of a container that is its systemd, once it is there."""
    below = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    names = {one: Path(f"/proc/{one}/comm").read_text().strip() for one in below}
    return [one for one in below if names[one] == "systemd"] or [
        two for one in below for two in systemd_below(one)
    ]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A Debian with the package installed, and nothing else of ours. It has this machine's network."""
    tmp_path = tmp_path_factory.mktemp("machine")
    build = [sys.executable, ROOT / "packaging/debian/build_deb.py"]
    built = subprocess.run(build, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    package = ROOT / built.stdout.partition(":")[0]
    root = tmp_path / "root"
    release = dict(
        line.split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    sources = [one for one in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("debian*.sources"))
               if one.exists()]  # fmt: skip
    made = subprocess.run(
        # Its mounts end with it, also where it is killed: nobody's clean-up may walk into a /proc below a folder.
        ["unshare", "--mount", "mmdebstrap", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,procps",
         f"--customize-hook=upload {package} /fastbk.deb",
         '--customize-hook=chroot "$1" apt-get install -q -y --no-install-recommends /fastbk.deb',
         release["VERSION_CODENAME"].strip('"'), str(root), *map(str, sources)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    (root / "etc/fastbk/bookie.toml").write_text(BOOKIE)
    (root / "etc/fastbk/wrong.toml").write_text("[nonsense]\n")
    drop_in = root / "etc/systemd/system/fastbk-bookie@.service.d"
    drop_in.mkdir()
    (drop_in / "quick.conf").write_text("[Service]\nWatchdogSec=8\nRestartSec=1\n")
    boot = subprocess.Popen(
        ["systemd-nspawn", "-q", "-D", str(root), f"--machine=fastbk-{os.getpid()}", "--register=no", "--keep-unit",
         # Its own list of calls lacks them.
         "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self", "--boot"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: bool(systemd_below(boot.pid)), "the container's systemd")
        found = Machine(systemd_below(boot.pid)[0])
        wait_until(
            lambda: found("systemctl", "is-system-running").strip() == "running",
            "the container is up",
        )
        yield found
        found("systemctl", "poweroff")
        boot.wait(timeout=60)
    finally:
        boot.kill()
        boot.wait()
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(not CAN_BOOT, reason="needs root, systemd-nspawn and mmdebstrap")
def test_all_units_wait_for_zookeeper_under_a_real_systemd(
    machine: Machine, tmp_path: Path
) -> None:
    """As tests/integration/test_systemd.py has it without systemd, with the units' own times."""
    server = QuorumServer(tmp_path / "zookeeper", session_timeout_max_s=3.0)
    server.start()
    try:
        uri = ZooKeeperPlace(server).uri()
        server.stop()
        one, *others = free_ports(5)
        folder = "/var/lib/fastbk/waiting"
        machine.write(
            "/etc/fastbk/waiting.toml",
            f"""[bookie]
id = "waiting"
listen = "127.0.0.1:{one}"
[metadata]
uri = "{uri}"
[journal]
directory = "{folder}/journal"
[ledgers]
directories = ["{folder}/ledgers"]""",
        )
        gateway, *pages = others
        machine.write("/etc/fastbk/gateway.toml",
                      f'[gateway]\nlisten = "127.0.0.1:{gateway}"\n[metadata]\nuri = "{uri}"')  # fmt: skip
        words = {"janitor": "--http", "autorecovery": "--http", "console": "--listen"}
        for (name, option), port in zip(words.items(), pages, strict=True):
            machine.write(f"/etc/fastbk/{name}.conf",
                          f"FASTBK_METADATA={uri}\nFASTBK_OPTIONS={option} 127.0.0.1:{port}")  # fmt: skip
        services = [name.removesuffix(".service").replace("@", "@waiting") for name in SERVICES]
        machine("systemctl", "start", "--no-block", *services)
        for service in services:
            machine.until_shows(service, "NRestarts", "2", 120.0)
            assert machine.shows(service, "ActiveState") == "activating"
        server.start()
        for service in services:
            machine.until_shows(service, "ActiveState", "active", 60.0)
        restarts = machine.shows(services[0], "NRestarts")
        server.stop()
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 10.0, "sessions are over")
        server.start()
        write = f"echo served | fastbk ledger write --metadata gateway://127.0.0.1:{gateway} 2>/dev/null"
        machine.until(services[0], lambda: machine("sh", "-c", write).strip().isdigit())
        for service in services:
            machine.until_shows(service, "ActiveState", "active", 60.0)
        assert machine.shows(services[0], "NRestarts") == restarts, (
            "a bookie serves while metadata is away"
        )
        machine("systemctl", "stop", *services)
        for service in services:
            assert machine.shows(service, "Result") == "success"
    finally:
        server.stop()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif(not CAN_BOOT, reason="needs root, systemd-nspawn and mmdebstrap")
def test_the_debian_package_lives_under_a_real_systemd(machine: Machine) -> None:
    bookie, others = "fastbk-bookie@bookie", ("fastbk-janitor", "fastbk-autorecovery")
    for name in ("janitor", "autorecovery"):
        machine.write(
            f"/etc/fastbk/{name}.conf", "FASTBK_METADATA=sqlite:/var/lib/fastbk/metadata.sqlite"
        )
    machine("systemctl", "enable", "--now", bookie)  # makes the cluster that the others are for
    machine("systemctl", "enable", "--now", *others)
    for service in (bookie, *others):
        assert machine.shows(service, "ActiveState") == "active", machine(
            "journalctl", "--no-pager", "-u", service
        )
    assert machine.shows(bookie, "StatusText") == "writable: serving"
    log = machine("journalctl", "--no-pager", "-u", bookie)
    assert '"journal_backend":"io_uring"' in log
    assert "process.not_confined" not in log
    # In the container another id of the boot is shown than in services: a lease of the one is none of the other.
    told = machine(
        "systemd-run", "-q", "-P", "-p", "User=fastbk", "-p", "ProtectProc=invisible",
        "-E", "FASTBK_METADATA=sqlite:/var/lib/fastbk/metadata.sqlite",
        "sh", "-c", "echo hello | fastbk ledger write && fastbk ledger read 0",
    )  # fmt: skip
    assert "0\thello" in told, told

    machine("kill", "-9", machine.shows(bookie, "MainPID"))
    machine.until(bookie, lambda: machine.shows(bookie, "NRestarts") == "1")
    machine.until(bookie, lambda: machine.shows(bookie, "ActiveState") == "active")

    journal = machine("pgrep", "-f", "fastbk.server.journal.process").split()[0]
    machine("kill", "-STOP", journal)
    # Its /proc is hidden from the supervisor: ProtectProc, and no process of a bookie is dumpable.
    machine.until(
        bookie, lambda: "stopped by a signal" in machine("journalctl", "--no-pager", "-u", bookie)
    )
    machine.until(bookie, lambda: machine.shows(bookie, "NRestarts") == "2")
    machine.until(bookie, lambda: machine.shows(bookie, "ActiveState") == "active")
    assert "Failed with result 'watchdog'" in machine("journalctl", "--no-pager", "-u", bookie)

    machine("systemctl", "start", "fastbk-bookie@wrong")
    assert machine.shows("fastbk-bookie@wrong", "ExecMainStatus") == "78"
    began_s = time.monotonic()
    machine("systemctl", "stop", bookie, *others)
    assert time.monotonic() - began_s < 60
    for service in (bookie, *others):
        assert machine.shows(service, "Result") == "success"
    assert machine.shows("fastbk-bookie@wrong", "NRestarts") == "0"
    assert machine.shows("fastbk-bookie@wrong", "ActiveState") == "failed"

    machine("systemctl", "start", bookie)
    machine("apt-get", "remove", "-y", "-q", "fastbk")
    assert machine("pgrep", "-f", "fastbk") == "", "its services are stopped"
    assert "journal" in machine("ls", "/var/lib/fastbk"), "and data stays"
