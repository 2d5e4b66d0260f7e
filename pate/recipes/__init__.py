"""Recipes: read from TOML, overridden by ``--set``, checked and documented.

read     find a recipe, apply settings, validate it against its model
paths    paths relative to the recipe file, and the path of plug-ins
explain  describe a problem in one sentence: the key, its value, the rule and the line
schema   JSON schema and reference page, generated from the models
"""
