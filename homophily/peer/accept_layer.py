"""Bounds the connections of strangers: a process of its own accepts connections before zenoh does.

zenoh binds the port, because it tells other peers the addresses that it has bound. The accept process then listens on
the same port (SO_REUSEPORT), and a filter of the kernel gives it all connections except those that it makes itself.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path

from homophily.peer.refusals import Refusals

_PROGRAM = Path(__file__).with_name("accept_process.py")
_BACKLOG = 1024
_RESTART_SECONDS = 1.0
_SO_ATTACH_REUSEPORT_CBPF = 51
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a classic BPF program
_HEADER = 0xFFF00000  # offset of the header of the network layer
_ZENOH, _ACCEPT_PROCESS = 0, 1  # sockets of a port in the order in which they began to listen


class AcceptLayer:
    """The accept process, and what it is told and tells."""

    def __init__(self, doors: list[tuple[socket.socket, str, str]], refusals: Refusals) -> None:
        """doors: for each port the listening socket, and from where and to where connections go on."""
        self._doors, self._refusals = doors, refusals
        self._closing, self._lock = threading.Event(), threading.Lock()  # lock: no process starts after the last
        self._process = self._start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self) -> subprocess.Popen[str]:
        arguments = json.dumps([(door.fileno(), source, target) for door, source, target in self._doors])
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[door.fileno() for door, _, _ in self._doors],
            text=True,
            bufsize=1,
        )

    def _read(self) -> None:
        """Count what the process refuses, and start it again if it ends."""
        while True:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                for reason, times in json.loads(line).items():
                    self._refusals.add(reason, times=times)
            self._process.wait()
            self._closing.wait(_RESTART_SECONDS)
            with self._lock:
                if self._closing.is_set():
                    return
                with suppress(OSError):  # no memory or no descriptor is left: tried again
                    self._process = self._start()

    def established(self, address: str) -> None:
        """Tell the process that zenoh has established the connection from this address."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError, ValueError):  # the process has just ended
            stdin.write(f"{address}\n")

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            self._process.kill()
        self._reader.join()
        for door, _, _ in self._doors:
            door.close()


def accept_before_zenoh(ports: Collection[int], refusals: Refusals, log: logging.Logger) -> AcceptLayer | None:
    """Accept the connections to ports on which zenoh listens in this process; None if there are none, or it cannot be.

    refusals: counts connections that are refused.
    """
    doors: list[tuple[socket.socket, str, str]] = []
    try:
        with ExitStack() as stack:  # all are found before the first door is made, which would be found too
            doors += map(_take_over, _listening_sockets(ports, stack))
        return AcceptLayer(doors, refusals) if doors else None
    except OSError as error:
        log.warning("connections of strangers are not bounded: %s", error)
        for door, _, _ in doors:
            door.close()
        return None


def _listening_sockets(ports: Collection[int], stack: ExitStack) -> list[socket.socket]:
    """Copies of this process's sockets that listen on these ports; the stack closes them.

    Other threads open and close descriptors meanwhile, so that one of the list may be a copy made here.
    """
    found: dict[int, socket.socket] = {}  # by inode
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as copy:
                    listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if listens and copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getsockname()[1] in ports:
                        kept = socket.socket(fileno=os.dup(number))  # dup() of a socket would make both blocking
                        found.setdefault(os.fstat(kept.fileno()).st_ino, stack.enter_context(kept))
    return list(found.values())


def _take_over(zenoh: socket.socket) -> tuple[socket.socket, str, str]:
    """Listen on the port of zenoh's socket; returns the socket, and from where and to where connections go on."""
    host, port = zenoh.getsockname()[:2]
    if zenoh.family == socket.AF_INET:
        source = f"127.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        target = "127.0.0.1" if host == "0.0.0.0" else host
    else:
        source, target = "::1", "::1" if host == "::" else host
    zenoh.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    door = socket.socket(zenoh.family)
    try:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            door.setsockopt(socket.SOL_SOCKET, option, 1)
        if zenoh.family == socket.AF_INET6:
            only = zenoh.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        door.bind((host, port))
        door.listen(_BACKLOG)
        _give_to_zenoh_only(door, source)
    except OSError:
        door.close()
        raise
    return door, source, target


def _give_to_zenoh_only(door: socket.socket, source: str) -> None:
    """Let the kernel give connections from one address to zenoh's socket, and all others to this one."""
    offset = 12 if door.family == socket.AF_INET else 8  # of the source address in the header
    address = socket.inet_pton(door.family, source)
    words = struct.unpack(f"!{len(address) // 4}I", address)
    program = []
    for at, word in enumerate(words):
        rest = 2 * (len(words) - at - 1)
        program += [(_LOAD, 0, 0, _HEADER + offset + 4 * at), (_EQUAL, 0, rest + 1, word)]
    program += [(_RETURN, 0, 0, _ZENOH), (_RETURN, 0, 0, _ACCEPT_PROCESS)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    pointer = struct.pack("HP", len(program), ctypes.addressof(code))
    door.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, pointer)
