"""A run that ends itself as `kill -9` would, with the arguments tracker, folder and round."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import homophily


class Kill(homophily.Callback):
    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, run: Any, metrics: dict[str, Any]) -> None:
        if run.round == self.round:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    kind, out, round = sys.argv[1:]
    config = {
        "peers": 4, "rounds": 120, "checkpoint": 5, "method": {"name": "random", "k": 2}, "tracker": kind,
        "data": {"train": 6, "test": 10, "angles": [0, 180]},
    }  # fmt: skip
    homophily.run(config, callbacks=[Kill(int(round))], out=out)
