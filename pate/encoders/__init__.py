"""Encoders: features made without private data, by fixed steps or steps fitted on public inputs.

spec        the ``[encoder]`` section of a recipe
chain       fit, apply, save and load an encoder
step        the protocol of a step, and checks on the user's own
scattering, scaling, pca, diffusion   built-in steps
backbone    a trained torch network as a step
plugin      the user's own class or function as a step
"""
