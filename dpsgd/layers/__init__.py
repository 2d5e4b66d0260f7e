"""Per-example gradients, one module for each kind of layer.

A rule takes a layer and what one backward pass left at it, and gives a trace: the length of every
example's gradient, and the sum for given factors. Layers without a rule take the slow path of
:mod:`dpsgd.layers.fallback`.
"""

from dpsgd.layers.rules import rule_for
from dpsgd.layers.trace import Call, Materialised, Site, Trace
from dpsgd.layers.unsuitable import UnsuitableModel

__all__ = ["Call", "Materialised", "Site", "Trace", "UnsuitableModel", "rule_for"]
