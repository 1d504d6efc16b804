"""Private fingerprints: the families that kin finds with them, its false alarms, and the hospitals.

    python benchmarks/kin_private.py families      precision and recall against epsilon and samples
    python benchmarks/kin_private.py calibration   how often a difference is found although there is none
    python benchmarks/kin_private.py unequal       the same with unequal sizes only, 1,500 federations at each epsilon
    python benchmarks/kin_private.py continua      continua and families, with equal and unequal sizes, told apart
    python benchmarks/kin_private.py hospitals     the families of heart-disease clinics
    python benchmarks/kin_private.py clinics       the accuracy of methods at these clinics, at epsilon 4

Each writes results/privacy/NAME.jsonl, from which benchmarks/privacy_page.py writes results/privacy.md. The constants
of private kin were chosen on digits, but trial runs on MNIST and Fashion-MNIST influenced the choice too. So the
measurements are not on data that was unknown when the constants were chosen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hospitals
import torch
from kin_own import dealt, half_turned, turned
from kin_settings import NETWORK_OF, SHIFTS, config

import homophily
from homophily.data import sample_constants
from homophily.experiments.discovery import Discovery
from homophily.experiments.runner import as_config
from homophily.fingerprints.embedding import CompactEmbedding, Targets
from homophily.fingerprints.private import NUMBERS, Draw, clipped, clipping_norm, released, unpacked
from homophily.methods.kin.released import released_kinship
from homophily.privacy.gaussian import gaussian_noise
from homophily.simulation.training_setup import SetupCache, data_of
from homophily.simulation.user_objects import UserObjects

RESULTS = Path(__file__).resolve().parents[1] / "results" / "privacy"
EPSILONS = (1.0, 2.0, 4.0, 8.0)
ALMOST_NO_NOISE = 1000.0  # an epsilon that shows what the data itself would allow
SAMPLES = (50, 100, 200, 600)
DATA = ("mnist", "fashion-mnist")
DELTA = 1e-5
PEERS = 100
UNEQUAL = ((12, 50, 600), (60, 50, 600), (40, 20, 2000))
SIZES = ((100, 100), (200, 200), (600, 600), (50, 600))  # samples from, to
TRUTHS: dict[str, dict[str, Any]] = {
    "families": {name: SHIFTS[name] for name in ("rotations, 4", "label swaps, 4")},
    "continuum": {
        **{f"Dirichlet {alpha}": {"shift": "dirichlet", "alpha": alpha} for alpha in (0.1, 0.3, 1.0)},
        "an angle of one's own": turned,
        "mixtures, upside down": half_turned,
    },
}
CASES = ((12, 50, 50), (12, 200, 200), (12, 50, 600), (60, 50, 50), (60, 200, 200), (60, 50, 600))  # peers, from, to


def embedded(data: str, shift: Any, samples: int, seed: int, peers: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Clipped embedded samples [peers, samples, d], and the clusters [peers]. shift: a table, or a case of kin_own."""
    table = shift if isinstance(shift, dict) else {}
    asked = as_config(config(data, NETWORK_OF[data], samples, table, seed, peers))
    objects = UserObjects()
    if not isinstance(shift, dict):
        asked = as_config({"seed": seed, "model": "linear", "data": {"normalise": "standard"}})
        objects = UserObjects(data=dealt(data, [samples] * peers, seed, shift))
    _, shares = data_of(asked, objects, torch.device("cpu"), SetupCache())
    train, targets = shares.train, Targets(shares.classes)
    embed = CompactEmbedding(train.x[:1], train.y[:1], targets, seed, train.x.device, NUMBERS)
    e = clipped(embed, train.x, train.y, clipping_norm(embed, train, targets, seed))
    cluster = torch.zeros(peers, dtype=torch.int64) if shares.cluster is None else shares.cluster
    return e.view(peers, samples, -1), cluster


def draws(*keys: int) -> tuple[Draw, Draw]:
    chance = torch.Generator().manual_seed(hash(keys) % (1 << 62))

    def signs(n: int) -> torch.Tensor:
        return torch.rand(n, generator=chance, dtype=torch.float64)

    def noise(n: int) -> torch.Tensor:
        return torch.randn(n, generator=chance, dtype=torch.float64)

    return signs, noise


def answer(samples: list[torch.Tensor], cluster: torch.Tensor, epsilon: float, seed: int) -> Discovery:
    """What kin finds in private fingerprints of peers with these clipped samples."""
    multiplier, (signs, noise) = gaussian_noise(epsilon, DELTA), draws(seed, int(1000 * epsilon), len(samples[0]))
    vectors = torch.stack([released(e, multiplier, signs, noise) for e in samples])
    prints = unpacked(vectors, multiplier)
    found, _ = released_kinship(prints, torch.arange(len(samples)), seed)
    return Discovery(found, prints, cluster, (), 0.0, 0.0)


def found_in(one: Discovery) -> dict[str, Any]:
    """What a record says about one federation; families are null if none were found."""
    seen = one.conclusive and one.families is not None
    precision, recall = one.precision_and_recall() if seen else (None, None)
    number = len(one.families or ()) if seen else None
    return {"rank": one.kinship.rank, "families": number, "precision": precision, "recall": recall}


def families(seeds: range) -> Iterator[dict[str, Any]]:
    for data in DATA:
        for shift in ("rotations, 4", "label swaps, 4"):
            made = [embedded(data, SHIFTS[shift], max(SAMPLES), seed, PEERS) for seed in seeds]
            for samples in SAMPLES:
                for epsilon in EPSILONS:
                    for seed, (e, cluster) in zip(seeds, made, strict=True):
                        found = found_in(answer(list(e[:, :samples]), cluster, epsilon, seed))
                        asked = {"data": data, "shift": shift, "samples": samples, "epsilon": epsilon, "seed": seed}
                        yield {**asked, "peers": PEERS, "delta": DELTA, **found}


def calibration(cases: Sequence[tuple[int, int, int]], seeds: range) -> Iterator[dict[str, Any]]:
    for data in DATA:
        pools = [embedded(data, {"shift": "iid"}, 20000, seed, 1)[0][0] for seed in range(3)]
        for epsilon in EPSILONS:
            for peers, low, high in cases:
                false = 0
                for seed in seeds:
                    chance = torch.Generator().manual_seed(seed)
                    order = torch.randperm(20000, generator=chance)
                    counts = [low + (high - low) * i // (peers - 1) for i in range(peers)]
                    parts = [
                        pools[seed % 3][order[torch.randint(20000, (count,), generator=chance)]] for count in counts
                    ]
                    cluster = torch.zeros(peers, dtype=torch.int64)
                    false += answer(parts, cluster, epsilon, seed).kinship.rank > 0
                sizes = {"peers": peers, "least_samples": low, "most_samples": high}
                asked = {"data": data, "epsilon": epsilon, **sizes, "delta": DELTA}
                yield {**asked, "federations": len(seeds), "rank_above_0": false}


def continua(seeds: range) -> Iterator[dict[str, Any]]:
    """What kin says of families and of continua. Unequal sizes are evenly spread, in an order that follows a seed."""
    for data in DATA:
        for truth, cases in TRUTHS.items():
            for case, shift in cases.items():
                for seed in seeds:
                    e, cluster = embedded(data, shift, max(high for _, high in SIZES), seed, PEERS)
                    place = torch.randperm(PEERS, generator=torch.Generator().manual_seed(seed)).tolist()
                    for low, high in SIZES:
                        some = [own[: low + (high - low) * i // (PEERS - 1)] for own, i in zip(e, place, strict=True)]
                        for epsilon in EPSILONS:
                            asked = {"data": data, "truth": truth, "case": case, "least_samples": low}
                            asked |= {"most_samples": high, "epsilon": epsilon, "seed": seed, "peers": PEERS}
                            yield {**asked, "delta": DELTA, **found_in(answer(some, cluster, epsilon, seed))}


def hospital_families(seeds: range) -> Iterator[dict[str, Any]]:
    for train, sizes in hospitals.CLINICS.items():
        for epsilon in (*EPSILONS, ALMOST_NO_NOISE):
            for seed in seeds:
                asked = hospitals.config(train, seed, hospitals.NETWORKS["linear"])
                one = homophily.kin({**asked, "privacy": {"epsilon": epsilon, "delta": DELTA}}, device="cpu")
                assert one.private is not None
                needed = one.private.samples_needed
                case = {"samples": train, "peers": sum(sizes), "epsilon": epsilon, "seed": seed, "delta": DELTA}
                yield {**case, **found_in(one), "samples_needed": needed}


def clinics(seeds: range) -> Iterator[dict[str, Any]]:
    """Constants of inputs come from all hospitals together, and count as public."""
    scale = sample_constants("heart-disease", {}, {}, None, 0).table
    for train, sizes in hospitals.CLINICS.items():
        for method in ("local", "random", "oracle", "kin"):
            for epsilon in (4.0, None):
                for seed in seeds:
                    asked = hospitals.config(train, seed, hospitals.NETWORKS["linear"])
                    asked["data"] |= {"scale": scale}
                    training = {"batch": train // 4, "epochs": 1, "lr": 0.5, "momentum": 0.0, "schedule": "constant"}
                    keys = {**asked, "rounds": 40, "record": False, "method": method, "training": training}
                    keys |= {"privacy": {"epsilon": epsilon, "delta": DELTA}} if epsilon else {}
                    with tempfile.TemporaryDirectory() as folder:
                        accuracy = homophily.run(keys, out=Path(folder) / "run", device="cpu").summary["accuracy"]
                    case = {"samples": train, "peers": sum(sizes), "method": method, "epsilon": epsilon, "seed": seed}
                    yield {**case, "accuracy": accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["families", "calibration", "unequal", "continua", "hospitals", "clinics"])
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the result file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--federations", type=int, default=250, help="calibration: per row of peers and samples")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.seeds)
    studies: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "families": lambda: families(seeds),
        "calibration": lambda: calibration(CASES, range(options.federations)),
        "unequal": lambda: calibration(UNEQUAL, range(1000, 1000 + 2 * options.federations)),
        "continua": lambda: continua(range(1000, 1000 + options.seeds)),
        "hospitals": lambda: hospital_families(seeds),
        "clinics": lambda: clinics(seeds),
    }
    records = []
    for record in studies[options.study]():
        print(json.dumps(record), flush=True)
        records.append(record)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{options.study}.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


if __name__ == "__main__":
    main()
