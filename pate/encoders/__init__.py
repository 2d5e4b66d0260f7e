"""Encoders: features made without private data, by fixed steps or steps fitted on public inputs.

spec       the ``[encoder]`` section of a recipe
chain      fit, apply, save and load an encoder
step       the base of all steps
scattering, scaling, reduction   built-in steps
user_code  a trained torch network, or the user's own class or function, as a step
"""
