# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Choosing ε: plan before you spend
#
# Privacy is spent once: what has been released cannot be called back, and settings that were
# chosen by private results leak through that choice. So decide first, with public numbers alone.
# This tutorial plans a release, sets a budget, and sees the budget enforced. No private record is
# opened until the last section.

# %%
import matplotlib.pyplot as plt
import numpy as np

import pate

# %% [markdown]
# ## What does an answer cost?
#
# Suppose that 250 teachers vote, and each answer is the class whose count is largest after
# Gaussian noise of σ votes was added. The price of many answers depends on σ and their number, and
# on nothing else. Plot it before asking anybody:

# %%
counts = [10, 30, 100, 300, 1000]


def cost(sigma, answers):
    events = pate.GaussianNoisyMax(sigma=sigma).caps(queries=answers, answers=answers)
    return pate.compose(events).guarantee(delta=1e-5).epsilon


for sigma in (20, 40, 80):
    plt.loglog(counts, [cost(sigma, n) for n in counts], "o-", label=f"σ = {sigma} votes")
plt.axhspan(0.05, 1, color="green", alpha=0.1)
plt.text(150, 0.06, "strong: ε up to 1")
plt.xlabel("answers")
plt.ylabel("ε at δ = 10⁻⁵")
plt.legend()
plt.show()

# %% [markdown]
# Twice the noise buys about four times as many answers. But noise must stay well below the
# majority: with 250 teachers σ = 40 is safe where most of them agree, and with 50 teachers it
# drowns every answer.
#
# By common practice an ε of up to 1 counts as strong, and one up to 8 as moderate. δ should be
# well below one over the number of people, because it is roughly the probability that the bound
# fails.
#
# ## Let the planner look
#
# `pate.plan` compares numbers of teachers and mechanisms for a recipe. It never opens the recipe's
# data: it takes public numbers, and your guess of how good one teacher may be. Here we guess that
# one of 250 teachers, with 240 records each, gets 80 % of the digits of MNIST right:

# %%
planned = pate.plan(
    "mnist-teachers", epsilon=2.0, accuracy={250: 0.8}, teachers=[100, 250], mechanisms=["gnmax"]
)
for each in planned.proposal.over_teachers:
    print(
        f"{each.teachers} teachers, σ = {each.spec.sigma:g}: {each.answered:.0f} answers, "
        f"{each.label_accuracy:.0%} of them right, ε = {each.plan.guarantee.epsilon:.2f}"
    )
print("proposed:", planned.proposal.best.teachers, "teachers")

# %% [markdown]
# A plan states what it rests on. Read that before you trust it:

# %%
for sentence in planned.assumptions[:2]:
    print("•", sentence)

# %% [markdown]
# ## Rehearse on public data
#
# Better than a guess is a rehearsal on public data that resemble yours. Let scikit-learn's digits
# stand in for them: split them into "private", public and test records, and try the whole pipeline
# at several ε. All of this is free, since nobody's data are at stake.

# %%
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
X = X / 16


def rehearse(epsilon, seed):
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=1200, random_state=seed)
    X_public, X_test, _, y_test = train_test_split(X_rest, y_rest, train_size=300, random_state=0)
    clf = pate.PATEClassifier(votes="records", epsilon=epsilon, classes=range(10))
    return clf.fit(X_train, y_train, public=X_public).score(X_test, y_test)


epsilons = [0.05, 0.1, 0.2, 0.5, 1, 2]
trials = np.array([[rehearse(epsilon, seed) for seed in range(5)] for epsilon in epsilons])
plt.errorbar(epsilons, trials.mean(axis=1), trials.std(axis=1), fmt="o-", capsize=3)
plt.xscale("log")
plt.xlabel("ε")
plt.ylabel("student's accuracy, mean of 5")
plt.show()

# %% [markdown]
# The curve is steep at first and then flat: beyond ε = 0.5, more privacy loss buys little. So we
# settle on **ε = 0.5**, and have chosen it without one private record.
#
# ## Set a budget, and let it be kept
#
# A ledger with a budget refuses whatever goes beyond it. Create it once, for the private data set:

# %%
budget = pate.Guarantee(epsilon=1.0, delta=1e-5)
pate.Ledger.open("patients.ledger", budget=budget).close()

X_private, X_rest, y_private, y_rest = train_test_split(X, y, train_size=1200, random_state=99)
X_public, X_test, _, y_test = train_test_split(X_rest, y_rest, train_size=300, random_state=99)

clf = pate.PATEClassifier(votes="records", epsilon=0.5, classes=range(10))
clf.fit(X_private, y_private, public=X_public, ledger="patients.ledger")
accuracy = clf.score(X_test, y_test)
print(f"{accuracy:.1%} right")
clf.guarantee_

# %% [markdown]
# A second release, at ε = 0.7, does not fit into what is left. It is refused before any noise is
# drawn, and nothing is charged:

# %%
try:
    clf.set_params(epsilon=0.7).fit(X_private, y_private, public=X_public, ledger="patients.ledger")
except pate.BudgetExceeded as refusal:
    print(refusal)

# %%
with pate.Ledger.open("patients.ledger") as ledger:
    spent, published = ledger.spent(), ledger.guarantee()
print(f"spent so far: ε = {spent.epsilon:g}")
published

# %% [markdown]
# What may be published about this ledger is its budget, ε = 1: it was fixed beforehand, and holds
# whatever is still released within it.
#
# ## What to read next
#
# * [PATE or DP-SGD? Compare on your data](compare_dpsgd.py).
# * [Calculator](../how-to/calculator.md): costs of every mechanism, budgets and ledgers in detail.
# * [Studies](../how-to/studies.md): what it costs to choose by private results, and how to pay for
#   it.
# * [Sharp edges](../explanation/sharp-edges.md): what no ε covers.
