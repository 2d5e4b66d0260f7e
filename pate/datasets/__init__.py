"""Data sets: named sets and the user's own files become private, public and test records.

spec       the ``[data]`` section of a recipe
loading    from the section to the three tables; readers of the named sets
table      a table of records, the three roles, and the division of one pool
catalogue  the named sets, and the folder that holds them
fetch      ``pate data fetch``
own        the user's own data, from files or from code; ``parts`` agrees on their classes
files      readers of CSV, Parquet and numpy files, and of image folders
"""
