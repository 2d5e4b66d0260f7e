"""Data sets: named sets and the user's own files become private, public and test records.

spec       the ``[data]`` section of a recipe
loading    from the section to the three tables
table      a table of records, and the three roles
split      one pool divided by a keyed hash of each record's name
catalogue  the named sets, and the folder that holds them
named      readers of the named sets
fetch      ``pate data fetch``
files      readers of arrays and images; ``tabular`` reads CSV and Parquet
plugin     data from the user's own code, ``"module:attr"``
parts      records of one source, and their assembly into tables
"""
