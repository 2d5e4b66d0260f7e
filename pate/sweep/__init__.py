"""Many settings of one recipe side by side, in one run folder, and what looking at them costs.

values     values of a setting on the command line
grid       every combination, read and checked before anything runs
order      what points share, and the order in which that is made once
sweeping   the points as runs in one folder
costing    what all of them cost: planned before anything is charged, and afterwards
running    point after point; goes on where it was killed
results    a row for each point, as JSON and CSV
plotting   accuracy over ε
selecting  the best of a random number of tries, at an ε that covers the choice
trying     one try after the other, in private
"""
