"""Memory and processors as control groups, versions 1 and 2, leave them: on trees of files like those of containers."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from tileflow.kernels.machine import limits, pool

GB = 1 << 30
NO_LIMIT_V1 = 9223372036854771712


class Machine:
    """A file system with the files that matter."""

    def __init__(self, folder: Path, available: int = 8 * GB, swap: int = 0) -> None:
        self.root = folder
        self.write("proc/meminfo", f"MemTotal: 16777216 kB\nMemAvailable: {available // 1024} kB\nSwapFree: {swap // 1024} kB\n")

    def write(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="ascii")

    def v2(self, path: str, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"0::{path}")
        self.write("proc/self/mountinfo", f"31 23 0:28 {mounted} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")

    def v1(self, path: str, mounted: str = "/") -> None:
        self.write("proc/self/cgroup", f"4:memory:{path}\n3:cpu,cpuacct:{path}\n0::/")
        self.write("proc/self/mountinfo", "\n".join([
            f"35 31 0:32 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            f"32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"]))

    def group(self, folder: str, **files: object) -> None:
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{folder}/{name.replace('__', '.')}", text)

    @property
    def memory(self) -> int:
        found = limits.memory(self.root)
        assert found is not None
        return found.nbytes


def test_without_groups_the_machines_memory(tmp_path: Path):
    assert Machine(tmp_path / "a").memory == 8 * GB
    assert Machine(tmp_path / "b", swap=GB).memory == 9 * GB
    assert limits.quota(tmp_path) is None


def test_files_that_lie_in_memory(tmp_path: Path):
    """They take the machine's, and a control group's: limits on this process alone do not count them."""
    machine = Machine(tmp_path)
    machine.v2("/a")
    machine.group("a", memory__max=GB, memory__current=0)
    device = os.stat(tmp_path).st_dev
    groups = (tmp_path / "proc/self/mountinfo").read_text()
    for kind, where, room in (("ext4", device, None), ("tmpfs", device + 1, None), ("tmpfs", device, GB),
                              ("ramfs", device, GB)):
        mounted = f"40 23 {os.major(where)}:{os.minor(where)} / /t rw - {kind} none rw"
        machine.write("proc/self/mountinfo", groups + mounted)
        machine.write("proc/self/statm", "9999999 1 1 1 1 9999999 1")
        found = limits.memory_of_files(tmp_path, tmp_path)
        assert (found and found.nbytes) == room, (kind, where)


def test_version_2(tmp_path: Path):
    machine = Machine(tmp_path)
    machine.v2("/system.slice/a.service")
    machine.group("system.slice/a.service", memory__max=4 * GB, memory__current=3 * GB, memory__high="max",
                  memory__stat=f"anon 5\ninactive_file {GB // 2}\nactive_file {GB // 4}\nslab 7")
    assert machine.memory == GB + 3 * (GB // 4)
    assert limits.memory(tmp_path) == limits.Room(
        machine.memory, "the limit of 4,294,967,296 bytes of the control group /system.slice/a.service (memory.max)")
    machine.group("system.slice/a.service", memory__high=7 * GB // 2)
    assert machine.memory == GB // 2 + 3 * (GB // 4)
    machine.group("system.slice", memory__max=3 * GB, memory__current=3 * GB)           # the group above allows less
    assert machine.memory == 0
    machine.group("system.slice", memory__max="max")
    machine.group("system.slice/a.service", memory__max="max", memory__high="max")
    assert machine.memory == 8 * GB


def test_swap_counts_as_far_as_it_may_be_used(tmp_path: Path):
    machine = Machine(tmp_path, swap=3 * GB)
    machine.v2("/a")
    machine.group("a", memory__max=2 * GB, memory__current=GB)
    assert machine.memory == 4 * GB
    machine.group("a", memory__swap__max=GB, memory__swap__current=GB // 2)
    assert machine.memory == GB + GB // 2
    machine.group("a", memory__swap__max=0)
    assert machine.memory == GB


@pytest.mark.parametrize(("path", "mounted"), [("/docker/f00", "/docker/f00"), ("/docker/f00", "/"), ("/", "/")])
def test_inside_a_container_the_mount_is_the_group(tmp_path: Path, path: str, mounted: str):
    """With the host's path and its own mount, with the host's path and a mount that lacks it, and with a namespace."""
    for version in (1, 2):
        machine = Machine(tmp_path / str(version))
        if version == 2:
            machine.v2(path, mounted)
            machine.group(".", memory__max=2 * GB, memory__current=GB, cpu__max="50000 100000")
        else:
            machine.v1(path, mounted)
            machine.group("memory", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=GB)
            machine.group("cpu,cpuacct", cpu__cfs_quota_us=50000, cpu__cfs_period_us=100000)
        assert machine.memory == GB
        assert limits.quota(machine.root) == 0.5
        assert limits.processors(machine.root) == 1


def test_version_1(tmp_path: Path):
    machine = Machine(tmp_path, swap=GB)
    machine.v1("/a/b")
    machine.group("memory/a/b", memory__limit_in_bytes=4 * GB, memory__usage_in_bytes=3 * GB, memory__stat=f"total_inactive_file {GB // 2}\ncache 5")
    assert machine.memory == 2 * GB + GB // 2
    machine.group("memory/a/b", memory__memsw__limit_in_bytes=4 * GB, memory__memsw__usage_in_bytes=3 * GB)         # swap does not help
    assert machine.memory == GB + GB // 2
    machine.group("memory/a", memory__limit_in_bytes=GB, memory__usage_in_bytes=0, memory__memsw__limit_in_bytes=GB, memory__memsw__usage_in_bytes=0)
    assert machine.memory == GB
    for folder in ("memory/a", "memory/a/b"):
        machine.group(folder, memory__limit_in_bytes=NO_LIMIT_V1, memory__memsw__limit_in_bytes=NO_LIMIT_V1)
    assert machine.memory == 9 * GB


@pytest.mark.parametrize(("text", "share"), [("max 100000", None), ("250000 100000", 2.5), ("broken", None), ("0 0", None), ("100 0", None)])
def test_quotas_of_version_2(tmp_path: Path, text: str, share: float | None):
    machine = Machine(tmp_path)
    machine.v2("/a/b")
    machine.group("a/b", cpu__max=text)
    assert limits.quota(tmp_path) == share
    machine.group("a", cpu__max="20000 10000")
    assert limits.quota(tmp_path) == 2.0
    assert limits.Processors(tmp_path).tightest() == (2.0, limits.Group(tmp_path / "sys/fs/cgroup/a", True, "/a"))


def test_quotas_of_version_1(tmp_path: Path):
    machine = Machine(tmp_path)
    machine.v1("/a")
    machine.group("cpu,cpuacct/a", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert limits.quota(tmp_path) is None
    machine.group("cpu,cpuacct/a", cpu__cfs_quota_us=150000)
    assert limits.quota(tmp_path) == 1.5
    assert limits.Processors(tmp_path).tightest() == (1.5, limits.Group(tmp_path / "sys/fs/cgroup/cpu,cpuacct/a", False, "/a"))


def test_the_number_of_workers_follows_the_quota(monkeypatch: pytest.MonkeyPatch):
    """Where NUMBA_NUM_THREADS does not say otherwise; the option threads goes before both, as far as there are threads."""
    monkeypatch.setattr(limits, "processors", lambda: 1)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    assert pool.start_threads() == 2
    monkeypatch.delenv("NUMBA_NUM_THREADS")
    assert pool.start_threads() == 1
    assert pool.start_threads(2) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity: Linux makes it run")
def test_affinity_limits_the_number_of_workers():
    done = subprocess.run([sys.executable, "-c", "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
                           "from tileflow.kernels.machine import limits; print(limits.processors())"],
                          cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc: Linux makes it run")
@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_the_process_own_limits(kind: str):
    script = f"""
import resource
from tileflow.kernels.machine import limits
before = limits.memory()
resource.setrlimit(resource.{kind}, (1 << 29, 1 << 29))
room = limits.memory()
assert 0 < room.nbytes < 1 << 29, room
print(room.limit)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert done.stdout.strip() == f"this process's limit of 536,870,912 bytes (ulimit -{'v' if kind == 'RLIMIT_AS' else 'd'})", done.stderr
