"""Teachers in several organisations: their noised votes are summed by Flower's SecAgg+.

    coordinator: public inputs ──▶ party: trains its teachers, counts their votes   (party.py)
                                   party: charges its ledger, adds its noise share  (party.py)
    coordinator: sum of noised votes ◀── SecAgg+ ── masked votes                    (secure_sum.py)
    coordinator: labels, student, ε                                                 (coordinator.py)

Flower carries the messages: ``app.py`` holds the ClientApp and the ServerApp, ``processes.py``
starts SuperNode and SuperLink. docs/how-to/federated.md has the threat model.
"""
