"""What goes wrong with a teacher, or with the place where it is trained."""

from __future__ import annotations

from pate.errors import PateError


class TeacherError(PateError):
    """A teacher cannot be trained, or breaks the rules of a teacher.

    Guarantees:
        The text names the rule and places in code; it holds no record, label or prediction.
    """


class OutOfMemory(PateError):
    """A device is too small for one network: the run stops, and no teacher abstains.

    Guarantees:
        Never taken for a teacher's failure: what else is on the device would then decide who
        votes.
    """
