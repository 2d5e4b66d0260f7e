"""One file for each stage: read the recipe, call the library, write artifacts."""
