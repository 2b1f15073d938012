"""What this process may use of the machine: memory and processors, with the limits of its control groups (containers) and its own.

Everything is read anew at each question and from files below `root`, "/" but for tests. What cannot be read limits nothing.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60
"""Bytes from which a limit is none: cgroup v1 writes the largest number of whole pages."""


@dataclass(frozen=True)
class Room:
    """Bytes that can be had, and what allows no more."""

    nbytes: int
    limit: str


@dataclass(frozen=True)
class Group:
    """The folder of a control group in one hierarchy."""

    folder: Path
    v2: bool
    name: str

    def text(self, file: str) -> str:
        return _text(self.folder / file)

    def number(self, file: str) -> int | None:
        """A file's number; None where it is not there or says that there is no limit."""
        return _number(self.text(file))

    def stat(self, *names: str) -> int:
        """The sum of lines of memory.stat."""
        found = dict(line.split() for line in self.text("memory.stat").splitlines() if len(line.split()) == 2)
        return sum(_number(found.get(name, "")) or 0 for name in names)

    def share(self) -> float | None:
        """Processors' time per time; None without a limit."""
        numbers = self.text("cpu.max").split() if self.v2 else [self.text("cpu.cfs_quota_us"), self.text("cpu.cfs_period_us")]
        match [_number(n) for n in numbers]:
            case [int(used), int(period)] if used > 0 and period > 0:
                return used / period
        return None


def memory(root: Path = ROOT) -> Room | None:
    """The memory that this process can still take before something stops or kills it; None where the system does not say."""
    return min(_rooms(root), key=lambda room: room.nbytes, default=None)


def memory_of_files(folder: Path, root: Path = ROOT) -> Room | None:
    """The memory that files of a folder can still take, where they lie in memory (tmpfs); None where they lie on a
    disk, or the system does not say."""
    device = os.stat(folder).st_dev
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        in_memory = after.split()[:1] in (["tmpfs"], ["ramfs"])
        if in_memory and fields[2:3] == [f"{os.major(device)}:{os.minor(device)}"]:
            return min(_rooms_of_all(root), key=lambda room: room.nbytes, default=None)
    return None


class Processors:
    """How many threads can run at once: the processors this process may use, or the share of them that its control groups allow.

    Made to be asked again and again: the groups are looked for anew only when the process has been moved.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._own, self._groups = root, "?", list[Group]()

    def tightest(self) -> tuple[float, Group] | None:
        """The processors' time per time that the control groups allow, and which of them allows no more; None without a limit."""
        own = _text(self._root / "proc/self/cgroup")
        if own != self._own:
            self._own, self._groups = own, list(groups(self._root, "cpu"))
        return min(((share, group) for group in self._groups if (share := group.share()) is not None), key=lambda found: found[0], default=None)

    def quota(self) -> float | None:
        """Processors' time per time that the control groups allow; None without a limit."""
        found = self.tightest()
        return None if found is None else found[0]

    def usable(self) -> int:
        """The processors this process may use."""
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def count(self) -> int:
        quota, usable = self.quota(), self.usable()
        return usable if quota is None else max(1, min(usable, int(quota + 0.5)))


def processors(root: Path = ROOT) -> int:
    """How many threads can run at once."""
    return Processors(root).count()


def quota(root: Path = ROOT) -> float | None:
    """Processors' time per time that the control groups allow; None without a limit."""
    return Processors(root).quota()


def _rooms(root: Path) -> Iterator[Room]:
    """What each limit leaves."""
    yield from _rooms_of_all(root)
    yield from _own_rooms(root)


def _rooms_of_all(root: Path) -> Iterator[Room]:
    """What the limits leave that are not this process's own."""
    host = dict(re.findall(r"^(\w+):\s+(\d+)", _text(root / "proc/meminfo"), re.MULTILINE))
    swap = int(host.get("SwapFree", 0)) * 1024
    if "MemAvailable" in host:
        yield Room(int(host["MemAvailable"]) * 1024 + swap, "the machine's memory")
    elif "SC_PHYS_PAGES" in os.sysconf_names:                    # no Linux: all there is, used or not
        yield Room(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "the machine's memory")
    for group in groups(root, "memory"):
        yield from _group_rooms(group, swap)


def _group_rooms(group: Group, swap: int) -> Iterator[Room]:
    """What a control group leaves: its limit less what is used, where the page cache counts as free."""
    if group.v2:
        cache = group.stat("inactive_file", "active_file")
        used, room = group.number("memory.current"), group.number("memory.swap.max")
        if room is not None:
            swap = min(swap, max(0, room - (group.number("memory.swap.current") or 0)))
        limits = [("memory.max", used, swap), ("memory.high", used, swap)]
    else:
        cache = group.stat("total_inactive_file", "total_active_file")
        limits = [("memory.limit_in_bytes", group.number("memory.usage_in_bytes"), swap),
                  ("memory.memsw.limit_in_bytes", group.number("memory.memsw.usage_in_bytes"), 0)]
    for file, used, more in limits:
        limit = group.number(file)
        if limit is not None and used is not None and limit < UNLIMITED:
            yield Room(max(0, limit - max(0, used - cache) + more), f"the limit of {limit:,} bytes of the control group {group.name} ({file})")


def _own_rooms(root: Path) -> Iterator[Room]:
    """What the limits of the process itself leave (`ulimit -v`, `ulimit -d`)."""
    try:
        import resource
    except ImportError:                                          # Windows
        return
    pages = _text(root / "proc/self/statm").split()
    for kind, column, name in ((resource.RLIMIT_AS, 0, "ulimit -v"), (resource.RLIMIT_DATA, 5, "ulimit -d")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and len(pages) > column:
            yield Room(max(0, limit - int(pages[column]) * os.sysconf("SC_PAGE_SIZE")), f"this process's limit of {limit:,} bytes ({name})")


def groups(root: Path, controller: str) -> Iterator[Group]:
    """The control groups that the process is in, innermost first, in the hierarchies that `controller` may limit it by."""
    own = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        v2 = kind[0] == "cgroup2"
        if not v2 and controller not in kind[-1].split(","):
            continue
        path = next((path for _, names, path in own if (names == "" if v2 else controller in names.split(","))), "/")
        mount = root / fields[4].lstrip("/")
        inner = mount / _below(path, fields[3])
        folder = inner if inner.is_dir() else mount              # inside a container paths may be those of the host
        while True:
            yield Group(folder, v2, "/" if folder == mount else f"/{folder.relative_to(mount)}")
            if folder == mount:
                break
            folder = folder.parent


def _below(path: str, mounted: str) -> str:
    """A group's path below the group that is mounted."""
    parts = [part for part in path.removeprefix(mounted if mounted != "/" else "").split("/") if part not in ("", ".")]
    return "" if ".." in parts else "/".join(parts)


def _text(path: Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall().decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d{1,30}", text) else None
