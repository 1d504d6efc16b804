"""Small federations of two groups for each kind of task, and networks that can learn them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import homophily
from homophily.data.task_kinds import IGNORED

WORDS, TAGS, LENGTH = 12, 3, 8
FEATURES, LABELS = 6, 4


class Tagger(nn.Module):
    """A class for each token, from the token and the one before it: outputs [b, TAGS, LENGTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.conv = nn.Conv1d(8, 16, 3, padding=1)
        self.head = nn.Conv1d(16, TAGS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.embedding(x).mT).relu())


class LanguageModel(nn.Module):
    """A causal transformer that predicts the next token: outputs [b, WORDS, LENGTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, 16), nn.Parameter(torch.zeros(LENGTH, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, dropout=0.0)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, WORDS)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.embedding(x) + self.position
        seen = seen + self.attention(seen, seen, seen, attn_mask=self.later, need_weights=False)[0]
        return self.head(self.norm(seen)).mT


def labeller() -> nn.Module:
    """One logit for each label."""
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, LABELS))


def _lengths(rng: np.random.Generator, y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The targets with padding after a random length."""
    length = rng.integers(3, LENGTH + 1, size=(len(y), 1))
    return np.where(np.arange(LENGTH) < length, y, IGNORED)


def tagging(peers: int = 8, samples: int = 60, seed: int = 0) -> list[homophily.PeerData]:
    """Tags are the token modulo TAGS; in the second group the tags are shifted by one."""
    rng, out = np.random.default_rng(seed), []
    for i in range(peers):
        x = rng.integers(0, WORDS, size=(samples + i, LENGTH))
        out.append(homophily.PeerData(x, _lengths(rng, (x + i % 2) % TAGS), cluster=i % 2))
    return out


def language(peers: int = 8, samples: int = 60, seed: int = 0) -> list[homophily.PeerData]:
    """Sentences that count up, or down in the second group, from a random word; the target is the next token."""
    rng, out = np.random.default_rng(seed), []
    for i in range(peers):
        steps = np.arange(LENGTH + 1) * (1 if i % 2 == 0 else -1)
        text = (rng.integers(0, WORDS, size=(samples + i, 1)) + steps) % WORDS
        out.append(homophily.PeerData(text[:, :-1], _lengths(rng, text[:, 1:]), cluster=i % 2))
    return out


def labelling(peers: int = 8, samples: int = 60, seed: int = 0) -> list[homophily.PeerData]:
    """Each label is the sign of a feature; in the second group it is the opposite sign."""
    rng, out = np.random.default_rng(seed), []
    for i in range(peers):
        x = rng.normal(size=(samples + i, FEATURES)).astype(np.float32)
        out.append(homophily.PeerData(x, (x[:, :LABELS] > 0) ^ bool(i % 2), cluster=i % 2))
    return out


def made(name: str) -> tuple[nn.Module, list[homophily.PeerData]]:
    """The network and the data of a task."""
    torch.manual_seed(0)
    if name == "multi-label":
        return labeller(), labelling()
    return (Tagger(), tagging()) if name == "tagging" else (LanguageModel(), language())
