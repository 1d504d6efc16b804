"""Leases: which process plays which run of a folder that several processes, also on several machines, share.

A lease of a name is a file NAME.GENERATION, created with O_EXCL. The holder is the process that created the highest
generation, as long as it lives: it updates the time of the file, and a process of the same machine can be looked up.
Whoever finds the highest generation abandoned creates the next. The highest generation is never deleted, so no two
processes can hold a name.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homophily.atomic_io import writing

STALE = 120.0  # seconds without a sign of life after which a process on another machine counts as dead
_BEAT = 10.0  # seconds between two signs of life
_POLL = 0.05  # seconds between two attempts to get a lease that is held briefly


@dataclass(frozen=True)
class Lease:
    """A name that this process holds."""

    name: str
    path: Path

    @property
    def lost(self) -> bool:
        """Whether another process has taken over, because this one gave no sign of life for too long."""
        following = self.path.with_name(f"{self.name}.{_number(self.path) + 1}")
        return following.exists() or not self.path.exists()


class Leases:
    """The leases of a folder. stale: seconds without a sign of life after which a lease is abandoned."""

    def __init__(self, folder: Path, stale: float = STALE) -> None:
        self._folder, self._stale = folder, stale
        self._held: dict[str, Lease] = {}
        self._touching = threading.Lock()  # a sign of life after the release would undo it
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Give signs of life for the leases that are held, and release all at the end."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(_BEAT):
                for lease in list(self._held.values()):
                    with self._touching, suppress(OSError):
                        if self._held.get(lease.name) == lease:
                            os.utime(lease.path)

        thread = threading.Thread(target=beat, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for lease in list(self._held.values()):
                self.release(lease)

    def take(self, name: str) -> Lease | None:
        """The lease of a name; None if another process holds it."""
        last = self._last(name)
        if last is not None and self._alive(last):
            return None
        path = self._folder / f"{name}.{_number(last) + 1 if last else 1}"
        with writing(path):
            try:
                file = path.open("x", encoding="utf-8")
            except FileExistsError:
                return None
            with file:
                json.dump(_this_process(), file)
        if self._last(name) != path:  # based on an outdated look
            path.unlink(missing_ok=True)
            return None
        self._held[name] = Lease(name, path)
        for old in self._generations(name)[:-1]:
            old.unlink(missing_ok=True)
        return self._held[name]

    def release(self, lease: Lease) -> None:
        """Let others take the name. The file stays and looks abandoned."""
        with self._touching, suppress(OSError):
            self._held.pop(lease.name, None)
            os.utime(lease.path, (0, 0))

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Hold a name for a moment; wait for it if another process holds it."""
        while (lease := self.take(name)) is None:
            time.sleep(_POLL)
        try:
            yield
        finally:
            self.release(lease)

    def holder(self, name: str) -> str | None:
        """Host and process that hold a name; None if it is free."""
        last = self._last(name)
        if last is None or not self._alive(last):
            return None
        found = _content(last)[0]
        return f"{found.get('host', '?')}, process {found.get('pid', '?')}"

    def _generations(self, name: str) -> list[Path]:
        pattern = re.compile(rf"{re.escape(name)}\.(\d+)")
        found = [path for path in self._folder.iterdir() if pattern.fullmatch(path.name)]
        return sorted(found, key=_number)

    def _last(self, name: str) -> Path | None:
        found = self._generations(name)
        return found[-1] if found else None

    def _alive(self, path: Path) -> bool:
        """Whether the process that created a lease file still works."""
        content, touched = _content(path)
        if touched == 0:
            return False
        mine = _this_process()
        if content.get("machine") == mine["machine"] and mine["started"] is not None:
            return _started(content.get("pid", 0)) == content.get("started")
        return self._now() - touched < self._stale

    def _now(self) -> float:
        """The time of the file system, whose clock may differ from this machine's."""
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".clock-") as file:
            os.utime(file.name)
            return os.stat(file.name).st_mtime


def _number(path: Path) -> int:
    return int(path.suffix[1:])


def _content(path: Path) -> tuple[dict[str, Any], float]:
    """What a lease file says and when its holder last gave a sign of life; opened, so that no old copy is read."""
    try:
        with path.open(encoding="utf-8") as file:
            touched = os.fstat(file.fileno()).st_mtime
            found = json.load(file)
    except FileNotFoundError:
        return {}, 0.0
    except ValueError:  # its holder is about to write it
        return {}, touched
    return found if isinstance(found, dict) else {}, touched


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}


def _machine() -> str:
    """What distinguishes machines, boots of a machine, and containers: process numbers are unique within one."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process of this machine started, in clock ticks; None if it does not run, or if there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]
