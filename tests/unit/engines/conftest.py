"""Ray clusters for the tests of the Ray engine."""

from __future__ import annotations

import pytest
from ray_cluster import new_cluster


@pytest.fixture(scope="session")
def cluster():
    with new_cluster() as made:
        yield made


@pytest.fixture
def mortal_cluster():
    """One to kill."""
    with new_cluster() as made:
        yield made
