#!/bin/sh
# Written by `pate new --from own-votes`: labels from the votes of teachers that you trained
# yourself, released once and charged to a ledger. Run it again after a kill: nothing is drawn or
# paid for twice. Each private record must have reached one teacher alone.

votes=votes.npy         # (teachers, queries): the class, from 0, that each teacher gives each input
classes=10              # how many there are; public, never read off the votes
mechanism=gnmax         # Gaussian noise on the votes; or lnmax, gumbel (with --scale), confident
sigma=40                # noise, in votes: at most about a fifth of the teachers
delta=1e-5              # well below one over the number of private records
epsilon=2               # of this release: fewer queries are answered where all would cost more
ledger=votes.ledger     # of the private records: use one for all that is released about them
budget=4                # of that ledger, over all releases; fixed by the first one
labels=labels.npy       # the released labels, -1 without an answer; the guarantee goes beside it

pate aggregate-votes "$votes" --labels --classes "$classes" --mechanism "$mechanism" \
  --sigma "$sigma" --delta "$delta" --epsilon "$epsilon" \
  --ledger "$ledger" --budget "$budget" --out "$labels"
