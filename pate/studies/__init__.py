"""Studies: sweeps, comparisons and private selections, and what choosing by their results costs.

study      the rule of a study: its folder, its tag, and the charges it may use
sweep      every combination of some settings as runs in one folder
selection  the best of a random number of tries, at an ε that covers the choice
compare    PATE and DP-SGD on one split, at the same (ε, δ); its recipe and points
tables     rows, and their JSON and CSV files
plots      accuracy over ε, as PNG and SVG
measure    time and memory that work took
"""
