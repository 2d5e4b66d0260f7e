"""Students: models trained on released labels and public inputs only, which may be published.

spec             the ``[student]`` section of a recipe
train            train a student by the method its section names; the method ``supervised``
self_training    the method ``self-training``; ``propagation`` spreads labels over a graph
semi_supervised  the methods ``fixmatch``, ``mixmatch`` and ``gan``
training         the training loop of torch students, and its checkpoints
networks         small networks; ``augment`` changes images
"""
