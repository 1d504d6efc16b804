"""Writes the LoRA adapters of one peer's model in the format of peft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from homophily.atomic_io import write_json, write_tensors, writing
from homophily.config.schema import Lora
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.models.lora import factor_pairs

TENSORS = "adapter_model.safetensors"
_BELOW = "base_model.model."  # peft's names of the network's own modules begin with this


def write_adapter(folder: Path, lora: Lora, layout: Layout, state: dict[str, Tensor], round: int) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``.

    state: the state dict of the peer's model; round: after which it is so.
    """
    pairs = factor_pairs(state)
    factors = {name for pair in pairs for name in pair}
    targets = [name.rpartition(".")[0] for name, _ in pairs]
    trained = {c.name.rpartition(".")[0] for c in layout.columns if c.parameter and c.name not in factors}
    full = {name for name in trained if not any(_inside(name, other) for other in trained - {name})}
    saved = _saved_modules(full, state)
    _refuse_adapted(saved, targets)
    whole = {name: t for name, t in state.items() if any(_inside(name, module) for module in saved)}
    tensors = {f"{_BELOW}{name}.weight": state[name] for name in factors} | {_BELOW + n: t for n, t in whole.items()}
    # transformers.Conv1D holds its weight as [inputs, outputs].
    shapes = {
        (tuple(state[f"{path}.weight"].shape), len(state[b])) for path, (_, b) in zip(targets, pairs, strict=True)
    }
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "modules_to_save": sorted(full) or None,
        "fan_in_fan_out": any(shape[0] != outputs for shape, outputs in shapes),
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / TENSORS, tensors, {"format": "pt", "round": str(round)})
    write_json(folder / "adapter_config.json", config)


def _saved_modules(full: set[str], names: Iterable[str]) -> set[str]:
    """Return the modules that peft saves for ``modules_to_save``: those whose names end with one of these names."""
    parts = [name.split(".") for name in names]
    known = {".".join(one[:length]) for one in parts for length in range(1, len(one))}
    return {name for name in full if not name} | {name for name in known if name.endswith(tuple(full))}


def _refuse_adapted(saved: Iterable[str], targets: Sequence[str]) -> None:
    """Raise a UserError if a module that is saved as a whole has a layer with adapters: peft cannot load that."""
    for module in sorted(saved):
        inside = [target for target in targets if _inside(target, module)]
        if inside:
            which = f"module {module!r}" if module else "the network itself"
            raise UserError(
                f"model.lora.train: {which} has parameters that are trained in full, and adapters in {inside[0]!r}; a "
                "folder for peft cannot hold both, so export the whole model instead"
            )


def _inside(name: str, module: str) -> bool:
    """Whether a name is that of the module or of something in it; the name of the network itself is empty."""
    return not module or name == module or name.startswith(f"{module}.")
