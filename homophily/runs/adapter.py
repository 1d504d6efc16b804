"""Writes the LoRA adapters of one peer's model in the format of peft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from homophily.atomic_io import write_json, write_tensors, writing
from homophily.config.schema import Lora
from homophily.federation.layout import Layout
from homophily.models.lora import factor_pairs

_BELOW = "base_model.model."  # peft's names of the network's own modules begin with this


def write_adapter(folder: Path, lora: Lora, layout: Layout, state: dict[str, Tensor]) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``. state: the state dict of the peer's model."""
    pairs = factor_pairs(state)
    factors = {name for pair in pairs for name in pair}
    targets = [name.rpartition(".")[0] for name, _ in pairs]
    full = sorted({c.name.rpartition(".")[0] for c in layout.columns if c.parameter and c.name not in factors})
    whole = {name: t for name, t in state.items() if name not in factors and name.rpartition(".")[0] in full}
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
        "modules_to_save": full or None,
        "fan_in_fan_out": any(shape[0] != outputs for shape, outputs in shapes),
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "adapter_model.safetensors", tensors, {"format": "pt"})
    write_json(folder / "adapter_config.json", config)
