"""All stages, in their order."""

from __future__ import annotations

from pate.pipeline.stage import Stage
from pate.stages.account import ACCOUNT
from pate.stages.aggregate import AGGREGATE
from pate.stages.data import DATA
from pate.stages.distill import DISTILL
from pate.stages.encode import ENCODE
from pate.stages.encoder import ENCODER
from pate.stages.evaluate import EVALUATE
from pate.stages.partition import PARTITION
from pate.stages.teach import TEACH
from pate.stages.vote import VOTE

STAGES: tuple[Stage, ...] = (
    DATA,
    PARTITION,
    ENCODER,
    ENCODE,
    TEACH,
    VOTE,
    AGGREGATE,
    ACCOUNT,
    DISTILL,
    EVALUATE,
)
