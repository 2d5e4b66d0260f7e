"""JSON schema and reference page of recipes, generated from their models.

Regenerate the page with ``python -m pate.recipes.schema > docs/recipes.md``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# It changes no result, so it enters no fingerprint and no stored copy of a recipe.
Notes = Annotated[
    str,
    Field(
        exclude=True,
        description="What the recipe is for, in a first line, and remarks below it. Changes no "
        "result.",
    ),
]
