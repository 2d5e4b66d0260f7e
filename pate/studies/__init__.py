"""What sweeps and comparisons share: runs that are made to be looked at together.

seeds    one recipe, other shards, teachers and students: for an honest spread
memory   the most memory that a piece of work took, with all its processes
files    tables as JSON and CSV, whole or not at all, for their owner only
charges  which charges paid for what lies in a folder, and whose mark they bear
figure   pictures as PNG and SVG, the same on every machine
"""

from pate.studies.memory import PeakMemory
from pate.studies.seeds import with_seed

__all__ = ["PeakMemory", "with_seed"]
