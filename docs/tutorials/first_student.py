# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your first private student
#
# You have **private** records with labels, and **public** inputs without labels. At the end of
# this page you have a classifier that may be published, and a number, ε, that bounds what it
# reveals about any one private record.
#
# The data are the handwritten digits that come with scikit-learn: 1 797 images of 8 × 8 pixels.
# Nothing is downloaded.

# %%
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pate

X, y = load_digits(return_X_y=True)
X = X / 16  # pixels from 0 to 1

X_private, X_rest, y_private, y_rest = train_test_split(X, y, train_size=1200, random_state=0)
X_public, X_test, _, y_test = train_test_split(X_rest, y_rest, train_size=300, random_state=0)

clf = pate.PATEClassifier(votes="records", epsilon=1.0, classes=range(10))
clf.fit(X_private, y_private, public=X_public)
clf.guarantee_

# %% [markdown]
# That is all. The 1 200 private digits voted for the labels of the 300 public ones, noise was
# added to the counts, and a student was trained on the noisy labels. Only the student, its labels
# and this guarantee are kept.
#
# Read the guarantee like this: whoever sees everything that was released can hardly tell whether
# any one record was among the 1 200. With it or without it, the probability of every outcome
# changes by a factor of at most e<sup>ε</sup>, which is 2.72 here.
#
# How good is the student? Ask it about digits that neither it nor the voters have seen:

# %%
accuracy = clf.score(X_test, y_test)
print(f"{accuracy:.1%} of {len(y_test)} test digits right")

# %% [markdown]
# The noise is drawn afresh each time, from a secure source, so your number differs a little from
# the one above. About 90 % is usual. Here are the first test digits with the student's answers:

# %%
import matplotlib.pyplot as plt

answers = clf.predict(X_test)
figure, axes = plt.subplots(2, 10, figsize=(10, 2.6))
for axis, image, answer, truth in zip(axes.flat, X_test, answers, y_test, strict=False):
    axis.imshow(image.reshape(8, 8), cmap="gray_r")
    axis.set_title(answer, color="green" if answer == truth else "red")
    axis.axis("off")
plt.show()

# %% [markdown]
# ## What privacy costs
#
# A smaller ε means more noise. Fit again at several values, and compare with a model that was
# trained on the private records directly, which has no privacy at all. We may do this freely
# because these digits are not secret: on real private records **every call of `fit` is a release
# of its own, and their costs add up**.

# %%
from sklearn.neighbors import KNeighborsClassifier

epsilons = [0.1, 0.3, 1, 3]
scores = []
for epsilon in epsilons:
    trial = pate.PATEClassifier(votes="records", epsilon=epsilon, classes=range(10))
    scores.append(trial.fit(X_private, y_private, public=X_public).score(X_test, y_test))
direct = KNeighborsClassifier().fit(X_private, y_private).score(X_test, y_test)

plt.semilogx(epsilons, scores, "o-", label="private student")
plt.axhline(direct, linestyle="--", color="gray", label="without privacy")
plt.xlabel("ε")
plt.ylabel("accuracy on test digits")
plt.legend()
plt.show()

# %% [markdown]
# ## Keep a ledger
#
# The guarantee above has a note: nothing has recorded it. On real data, give `fit` a ledger, a
# file that belongs to the private data set. Each release is charged to it before any noise is
# drawn.

# %%
first = pate.PATEClassifier(votes="records", epsilon=1.0, classes=range(10))
first.fit(X_private, y_private, public=X_public, ledger="digits.ledger")

second = pate.PATEClassifier(votes="records", epsilon=0.5, classes=range(10))
second.fit(X_private, y_private, public=X_public, ledger="digits.ledger")

with pate.Ledger.open("digits.ledger") as ledger:
    total = ledger.guarantee()
total

# %% [markdown]
# The two releases together cost what the ledger states, and a reader who gets both students is
# told that number, not the smaller one of either.
#
# ## What to read next
#
# * [Your own teachers](own_teachers.py): let models of your choice vote instead of single records.
# * [Choosing ε: plan before you spend](choosing_epsilon.py).
# * [Concepts](../explanation/concepts.md): what ε means, between which data sets it holds, and
#   what it does not cover.
# * [Your own data](../how-to/own-data.md) and [tables with text and gaps](../how-to/tables.md).
