"""One recipe, several times: what chance decides is decided anew, the data stay as they are."""

from __future__ import annotations

from pate.pipeline.recipe import Recipe

_SEEDS = 2**32  # a student's seed is below it


def with_seed(recipe: Recipe, number: int) -> Recipe:
    """The recipe's repetition ``number``; 0 is the recipe as it is.

    Records go to other shards, teachers and student start elsewhere, random inputs to ask about are
    others; and since the settings differ, noise is drawn anew. The split into private, public and
    test records stays: accuracies of all repetitions are on the same test records.

    Guarantees:
        A repetition is a run of its own with a charge of its own: within each, one record still
        reaches one teacher. The key of the hash and all seeds are public.

    >>> recipe = Recipe.model_validate(
    ...     {
    ...         "data": {"name": "digits"},
    ...         "teachers": {"count": 5, "model": "ridge"},
    ...         "aggregate": {"scale": 2.0},
    ...         "student": {"model": "ridge", "seed": 7},
    ...     }
    ... )
    >>> third = with_seed(recipe, 2)
    >>> third.partition.key, third.teachers.seed, third.student.seed
    ('pate, again 2', 2, 9)
    >>> with_seed(recipe, 0) == recipe
    True
    """
    if number == 0:
        return recipe
    partition, aggregate = recipe.partition, recipe.aggregate
    changed = {
        "partition": partition.model_copy(update={"key": f"{partition.key}, again {number}"}),
        "teachers": recipe.teachers.model_copy(update={"seed": recipe.teachers.seed + number}),
        "student": recipe.student.model_copy(
            update={"seed": (recipe.student.seed + number) % _SEEDS}
        ),
    }
    if aggregate.choose == "random":
        order = {"choose_seed": aggregate.choose_seed + number}
        changed["aggregate"] = aggregate.model_copy(update=order)
    return recipe.model_copy(update=changed)
