"""``pate plan``: teachers, mechanism, noise and queries for an ε, from public quantities only.

    facts (k, classes, public inputs) → a consensus profile for each k → search → proposal → recipe

A *consensus profile* holds how teachers might agree: votes of teachers of another, public data set
(:mod:`pate.planner.surrogate`), or of a simple model (:mod:`pate.planner.profile`). The private
data set is never opened: settings that were tuned on its votes would depend on them, and no ε
accounts for that.
"""
