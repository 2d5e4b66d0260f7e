"""The durable record of what a private data set has spent.

ledger       charges, budget and transactions
schema       the SQLite file
terms        the budget and the rule of composition, fixed when a ledger is created
running_total  the sum of all charges at the ledger's λ
data_set     the total over both ledgers of one data set
data_ledger  opening the ledger of a data set, and its state in a sentence
studies      plans of releases that are looked at together
study_costs  the cost of such a study, in one ledger or two
"""

from pate.accounting.ledger.ledger import Charge, Ledger
from pate.accounting.ledger.terms import Basis, Mode, Terms

__all__ = ["Basis", "Charge", "Ledger", "Mode", "Terms"]
