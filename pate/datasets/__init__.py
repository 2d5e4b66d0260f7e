"""Data sets: named sets and the user's own files become private, public and test records.

spec       the ``[data]`` section of a recipe
loading    from the section to the three tables; readers of the named sets
table      a table of records, the three roles, and the division of one pool
catalogue  the named sets, and the folder that holds them
fetch      ``pate data fetch``
own        the user's own data, from files or from code; ``parts`` agrees on their classes
roles      who is protected, and that no record of the user's own data has two roles
files      readers of CSV, Parquet and numpy files, and of image folders
preview    the layout of such files, for a recipe to start from
"""
