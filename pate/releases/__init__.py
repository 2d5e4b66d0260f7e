"""Releases: a student, its guarantee, and what somebody else needs to check both.

    a finished run and its charges (run) ─▶ export ─▶ documents (card, page) ─▶ write ─▶ OUT/
                                                                                  │
                         student.load_student ◀── OUT/ ──▶ verify ◀───────────────┘

:func:`pate.releases.write.write_release`, :func:`pate.releases.verify.verify` and
:func:`pate.releases.student.load_student` are ``pate.release``, ``pate.verify`` and
``pate.load_student``.
"""
