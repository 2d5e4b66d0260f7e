"""Recipes from TOML: read, overridden by ``--set``, checked; a mistake names its line and key.

recipes     from a name and settings to a checked recipe
kinds       which command a recipe is for
explaining  what is wrong, in one sentence
places      where in the file it is said
"""

from pate.reading.kinds import shipped_recipes
from pate.reading.recipes import find_recipe, read_recipe

__all__ = ["find_recipe", "read_recipe", "shipped_recipes"]
