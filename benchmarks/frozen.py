"""Time and memory of training adapters, or a head, on a frozen backbone that all peers share; prints one JSON object.

    python benchmarks/frozen.py                                # 100 peers, DistilBERT shape, LoRA, on the CPU
    python benchmarks/frozen.py --shape vit-b --peers 1000 --device cuda --batch 4 --image 64 --steps 3
    python benchmarks/frozen.py --shape vit-b --train head --peers 20 --image 64 --steps 5 [--no-cache]

The backbone has random weights: nothing is downloaded. Every peer has its own random samples. A step is one batch of
every peer. The first round of --steps steps is not timed; the times are medians of --repeats more rounds. Memory on the
CPU is the peak resident set size of the process, without what it had after the imports; on a GPU it is the peak that
torch has allocated. `activations_gib` is what autograd saves for one peer's batch, times the peers computed at a time.
With --whole, a complete run of one round is measured instead: setup, training, scoring, checkpoint and run folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import homophily
from homophily.experiments.runner import chosen_device, machine, torch_settings
from homophily.simulation.configuration import make
from homophily.simulation.rounds import Experiment
from homophily.simulation.setup import prepare
from homophily.simulation.user_objects import UserObjects
from homophily.training.probe import probe

WORDS, CLASSES = 30522, 2
TARGETS = {"distilbert": ["q_lin", "v_lin"], "vit-b": ["q_proj", "v_proj", "query", "value"]}
HEADS = {"distilbert": ["pre_classifier", "classifier"], "vit-b": ["classifier"]}


def network(shape: str, arguments: argparse.Namespace) -> Any:
    """The backbone with a head, from the default config of transformers, without dropout."""
    import transformers

    torch.manual_seed(0)
    if shape == "distilbert":
        settings = transformers.DistilBertConfig(dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0)
        return transformers.DistilBertForSequenceClassification(settings)
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=arguments.image, patch_size=16))


def peers(arguments: argparse.Namespace) -> list[homophily.PeerData]:
    """The samples of every peer: as many as its steps need, and one test sample."""

    def samples(count: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(count) % CLASSES
        if arguments.shape == "distilbert":
            return torch.randint(1, WORDS, (count, arguments.length)), y
        return torch.randn(count, 3, arguments.image, arguments.image), y

    made = []
    for _ in range(arguments.peers):
        (x, y), (test_x, test_y) = samples(arguments.batch * arguments.steps), samples(1)
        made.append(homophily.PeerData(x, y, test_x=test_x, test_y=test_y))
    return made


def config(arguments: argparse.Namespace, model: Any) -> dict[str, Any]:
    names = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    targets = [pattern for pattern in TARGETS[arguments.shape] if any(pattern in name.split(".") for name in names)]
    lora = {"rank": arguments.rank, "targets": targets, "train": HEADS[arguments.shape]}
    heads = HEADS[arguments.shape]
    frozen = sorted({name.split(".")[0] for name, _ in model.named_parameters()} - set(heads))
    training = {"batch": arguments.batch, "epochs": 1, "lr": 0.001}
    return {
        "rounds": 1, "method": "local", "training": training, "engine": arguments.engine,
        "precision": arguments.precision,
        "model": {"lora": lora} if arguments.train == "lora" else {"frozen": frozen, "cache_features": arguments.cache},
    }  # fmt: skip


def rss() -> float:
    """The peak resident set size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def timed(experiment: Experiment, repeats: int, steps: int) -> list[float]:
    """The seconds of one step of all peers, in each repeat; the first round is not counted."""
    federation, everyone = experiment.start.copy(), torch.arange(len(experiment.start.rows))
    everyone = everyone.to(federation.rows.device)
    found = []
    for number in range(repeats + 1):
        _synchronise(everyone.device)
        began = time.perf_counter()
        experiment.engine.train(federation.rows, federation.kept, everyone, number + 1)
        _synchronise(everyone.device)
        found.append((time.perf_counter() - began) / steps)
    return found[1:]


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of the steps of all peers, without the rest of a run."""
    device = chosen_device(arguments.device)
    before, began = rss(), time.perf_counter()
    objects = UserObjects(model=network(arguments.shape, arguments), data=peers(arguments))
    made = time.perf_counter()
    experiment, full, plan = prepare(make(config(arguments, objects.model)), objects, device)
    ready = time.perf_counter()
    task = experiment.engine.task
    x, y = task.batch(torch.arange(8, device=device).clamp(max=len(task.data.train.x) - 1))
    saved = probe(task.module, task.loss, x, y).saved_bytes * arguments.batch * plan.chunk
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with torch_settings(full, plan, device):
        seconds = timed(experiment, arguments.repeats, arguments.steps)
    memory = {"peak_rss_beyond_imports_gib": round(rss() - before, 2)}
    if device.type == "cuda":
        memory = {"peak_gpu_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2)}
    return {
        "parameters": sum(p.numel() for p in experiment.task.module.parameters()),
        "trained": task.layout.trainable,
        "engine": plan.engine,
        "why": plan.why,
        "chunk": plan.chunk,
        "features_gib": round(plan.features / 2**30, 3),
        "step_of_all_peers_s": round(statistics.median(seconds), 4),
        "samples_per_s": round(arguments.peers * arguments.batch / statistics.median(seconds), 1),
        "network_and_data_s": round(made - began, 1),
        "setup_s": round(ready - made, 1),
        "activations_gib": round(saved / 2**30, 3),
        **memory,
    }


def whole_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time and memory of a complete run of one round."""
    before, began = rss(), time.perf_counter()
    model, data = network(arguments.shape, arguments), peers(arguments)
    with TemporaryDirectory() as folder:
        keys = config(arguments, model)
        run = homophily.run(keys, model=model, data=data, out=f"{folder}/run", device=arguments.device)
        files = [path for path in run.path.rglob("*") if path.is_file()]
        return {
            "engine": run.about["plan"]["engine"],
            "chunk": run.about["plan"]["chunk"],
            "run_s": round(time.perf_counter() - began, 1),
            "peak_rss_beyond_imports_gib": round(rss() - before, 2),
            "run_folder_gib": round(sum(path.stat().st_size for path in files) / 2**30, 2),
        }


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["distilbert", "vit-b"], default="distilbert")
    parser.add_argument("--train", choices=["lora", "head"], default="lora")
    parser.add_argument("--peers", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1, help="steps of every peer in a round")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--length", type=int, default=16, help="tokens of a sample")
    parser.add_argument("--image", type=int, default=224, help="height and width of an image")
    parser.add_argument("--engine", choices=["auto", "vectorised", "one-by-one"], default="auto")
    parser.add_argument("--precision", choices=["full", "fast", "bf16"], default="full")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, help="torch threads; default: torch's own")
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="do not cache features (--train head)")
    parser.add_argument("--whole", action="store_true", help="measure a complete run of one round instead")
    parser.add_argument("--out", type=Path, help="a JSON file for the object")
    arguments = parser.parse_args(words)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found = {
        "command": shlex.join(["python", "benchmarks/frozen.py", *(sys.argv[1:] if words is None else words)]),
        "date": str(date.today()),
        "machine": machine(chosen_device(arguments.device)),
        "torch": torch.__version__,
        "homophily": homophily.__version__,
        **(whole_run(arguments) if arguments.whole else measured(arguments)),
    }
    print(json.dumps(found, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
