"""PATE against DP-SGD: one split of the data, the same (ε, δ), several repetitions.

recipe     what is compared, as TOML
points     a recipe of either kind for each ε and repetition; PATE's noise is found for it
answers    which models in the folder were paid for, and which charges paid for others
costs      what all of it costs, before anything is charged and after
measuring  how long work took and how much memory, kept with the run
running    does it all, or goes on where it was
rows       the table: means and spreads over the repetitions, and what needs no privacy
notes      what differs between the methods, in words
picture    accuracy over ε
writing    the table in words, its files and the picture
"""
