"""Eight ranks of a random model choose what one chooses, where nothing is rounded to BF16."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ddtree.graph.model import load
from ddtree.runtime.decoder import Sampling
from ddtree.runtime.load import cpu_decoder, folders
from tests.fixtures.wide import wide_model
from tests.runtime.decoders import GOLDENS


def choices(yaml: Path, ranks: int) -> list[int]:
    """The token behind prompts of several lengths."""
    model = load(yaml, draft=False, ranks=ranks)
    d, made = cpu_decoder(model, folders(model, None, None)), []
    for golden in GOLDENS[:4]:
        for extra in (0, 11, 40):
            slot, token = d.start(golden["prompt_ids"] + golden["greedy_ids"][:extra], Sampling(), 1)
            d.end(slot)
            made.append(token)
    return made


def test_eight_ranks_choose_what_one_chooses(tmp_path: Path) -> None:
    yaml = wide_model(tmp_path)
    alone = choices(yaml, 1)
    assert choices(yaml, 8) == alone and len(np.unique(alone)) > 6
