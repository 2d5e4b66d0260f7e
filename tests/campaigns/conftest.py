"""Campaigns: long, random and seeded. ``PATE_CAMPAIGN_SEED`` chooses another course of events.

The seed is printed with every failure. Kills fall where the machine's speed lets them fall, so a
seed repeats their plan, not their exact moments.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

SEED = int(os.environ.get("PATE_CAMPAIGN_SEED", "14"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here is a campaign."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.campaign)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Of the campaign's seed and the test's name."""
    print(f"PATE_CAMPAIGN_SEED={SEED}")
    return random.Random(f"{SEED} {request.node.name}")
