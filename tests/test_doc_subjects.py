"""The pages by subject are complete: each names all that its subject has, and readers find the field's words."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from homophily import Callback, PeerData
from homophily.config.schema import Training
from homophily.data.task_kinds import TASK_KINDS
from homophily.federation.merging import merges
from homophily.federation.similarity import MetricCost, Pairs
from homophily.methods import methods
from homophily.training.score_metrics import score_metrics

DOCS = Path(__file__).resolve().parents[1] / "docs"
CALLBACK = [name for name in vars(Callback) if not name.startswith("_")]
PAIRS = [name for name in vars(Pairs) if not name.startswith("_")]

NAMED = {
    "choosing-a-method.md": [*methods],
    "communication.md": [*methods],
    "robustness.md": [*merges],
    "your-data.md": [field.name for field in dataclasses.fields(PeerData)],
    "tasks.md": [*score_metrics, *(f'"{kind}"' for kind in TASK_KINDS), "headline", "data.task", "training.stop_on"],
    "training.md": [*Training.model_fields],
    "extending.md": [*CALLBACK, *PAIRS, *(field.name for field in dataclasses.fields(MetricCost))],
}


@pytest.mark.parametrize("page", NAMED)
def test_a_page_names_all_of_its_subject(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    missing = [name for name in NAMED[page] if not re.search(rf"`{re.escape(name)}[`(]", text)]
    assert not missing, f"docs/{page} does not mention {missing}"


@pytest.mark.parametrize(
    "word",
    [
        "aggregation",
        "Byzantine",
        "callback",
        "communication",
        "freeze",
        "gossip",
        "heterogeneity",
        "non-IID",
        "participation",
        "robust",
    ],
)
def test_a_word_of_the_field_is_found(word: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")]
    assert any(re.search(rf"\b{word}", page) for page in pages), f"no page under docs/ says {word}"
