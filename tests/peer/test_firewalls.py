"""Peers that only dial out, behind a firewall or an HTTP proxy: they are full members of a partial mesh."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from homophily.peer import certificates
from tests.patience import until
from tests.peer.namespaces import Network, SpreadField, obstacle, run

needs_nft = pytest.mark.skipif(obstacle("nft") is not None, reason=str(obstacle("nft")))
needs_proxy = pytest.mark.skipif(obstacle("socat", "tinyproxy") is not None, reason=str(obstacle("socat", "tinyproxy")))
STAR = {"topology": "star", "method": {"name": "random", "k": 2, "hops": 2}}
ONLY_OUTGOING = """table inet hph {
    chain arriving {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iifname lo accept
    }
}"""
PROXY = "Port 3128\nListen {host}\nMaxClients 20\nTimeout 600\nConnectPort 7447\n"


def change(file: Path, **keys: Any) -> None:
    """Change keys of [peer]."""
    table = tomllib.loads(file.read_text())
    file.write_text(tomli_w.dumps({**table, "peer": {**table["peer"], **keys}}))


@contextmanager
def process(*words: str) -> Iterator[None]:
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


@needs_nft
def test_peers_behind_firewalls_reach_each_other_through_a_peer_with_a_public_address(tmp_path: Path) -> None:
    """1 and 2 accept no connection and have no route to each other; 0 relays their models."""
    with Network(3, [(0, 1), (0, 2)]) as network, ExitStack() as stack:
        for inside in (1, 2):
            run("ip", "netns", "exec", network.spaces[inside], "nft", "-f", "-", text=ONLY_OUTGOING)
        peers = SpreadField(network, tmp_path / "field", **STAR)
        stack.callback(peers.close)
        for inside in (1, 2):
            change(peers.files[inside], listen=[])
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
        until(lambda: peers.status(1)["reachable"] == {"peer-0": 1, "peer-2": 2}, "two hops")
        until(lambda: peers.status(0)["bytes_served"] > 0, "the status counts what was relayed")
        assert peers.status(1)["refused"] == peers.status(2)["refused"] == {}
        peers.kill(0)  # and they find each other again when it is back
        peers.go_on(1, 2)
        peers.start(0)
        peers.all_meet(0, 1, 2)


@needs_proxy
def test_a_peer_that_reaches_the_others_through_an_http_proxy_only(tmp_path: Path) -> None:
    """2 has a route to the proxy, which is on the machine 1; socat on its machine passes connections on to it."""
    with Network(3, [(0, 1), (1, 2)]) as network, ExitStack() as stack:
        peers = SpreadField(network, tmp_path / "field", topology="star", method={"name": "random", "k": 2, "hops": 2})
        public, proxy = network.hosts[0], network.hosts[1]
        certs = peers.folder / "certs"
        for end in ("pem", "key"):
            (certs / f"peer-0.{end}").unlink()
        certificates.issue(certs, "peer-0", [public, "127.0.0.1"])
        (tmp_path / "proxy.conf").write_text(PROXY.format(host=proxy))
        words = shutil.which("tinyproxy"), "-d", "-c", str(tmp_path / "proxy.conf")
        stack.enter_context(process("ip", "netns", "exec", network.spaces[1], *map(str, words)))
        tunnel = "socat", "TCP-LISTEN:7447,bind=127.0.0.1,fork,reuseaddr", f"PROXY:{proxy}:{public}:7447,proxyport=3128"
        stack.enter_context(process("ip", "netns", "exec", network.spaces[2], *tunnel))
        stack.callback(peers.close)
        change(peers.files[2], listen=[], connect=["127.0.0.1:7447"])
        peers.start(0, 1, 2)
        peers.all_meet(0, 1, 2)
