"""Audits: attacks on what a run publishes, and their distance to the guarantee. PRIVATE.

An attack shows a lower bound on ε, never a proof of an upper one. Results look at private records,
so they are for the owner of the data alone.
"""
