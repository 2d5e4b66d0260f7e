"""Work on Ray: tasks and their files travel to a laptop's cores or a cluster's, and back.

The driver's side is :mod:`~pate.engines.on_ray.engine` (what is in flight), ``session`` (the
connection) and ``freight`` (what travels); a node's side is ``steward`` (one task) and ``folder``
(where its files are while it runs). Both use ``parcels``: files as bytes, with a digest.
"""
