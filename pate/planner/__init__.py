"""``pate plan``: teachers or record votes, and their noise, for an ε, from public quantities only.

    facts (k, classes, public inputs) → a consensus profile for each k → search → proposal → recipe

A *consensus profile* holds how teachers might agree: votes of teachers of another, public data set
(:mod:`pate.planner.surrogate`), or of a simple model (:mod:`pate.planner.profile`). Record votes
are cast by the records of that data set (:mod:`pate.planner.record_table`). The private
data set is never opened: settings that were tuned on its votes would depend on them, and no ε
accounts for that.
"""
