"""What goes wrong with a teacher."""

from __future__ import annotations

from pate.errors import PateError


class TeacherError(PateError):
    """A teacher cannot be trained, or breaks the rules of a teacher.

    Guarantees:
        The text names the rule and places in code; it holds no record, label or prediction.
    """
