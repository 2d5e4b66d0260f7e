"""What may leave: a student, its guarantee, and what somebody else needs to check both.

a finished run ── finished ─▶ covering (ledger) ─▶ contents ─▶ writing ─▶ OUT/
                                                                    │
                   load_student (student)  ◀── OUT/ ──▶ checking ◀──┘
"""

from __future__ import annotations

from pate.release.student import ReleasedStudent, load_student

__all__ = ["ReleasedStudent", "load_student"]
