# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own teachers
#
# PATE splits private records into disjoint shards and trains one model, a *teacher*, on each.
# Teachers vote on public inputs, and only noisy majorities leave. **Any model can be a teacher**:
# in this tutorial you bring your own, look at how the votes come about, and release labels step by
# step.
#
# The records are scikit-learn's breast-cancer data: 569 tumours, 30 measurements of each, benign
# or malignant. Measurements have very different scales; the scaler is fitted on public records, so
# it costs no privacy.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import pate

X, y = load_breast_cancer(return_X_y=True)  # 0: malignant, 1: benign
X_private, X_rest, y_private, y_rest = train_test_split(X, y, train_size=320, random_state=0)
X_public, X_test, _, y_test = train_test_split(X_rest, y_rest, train_size=130, random_state=0)

scaler = StandardScaler().fit(X_public)
X_private, X_public, X_test = map(scaler.transform, (X_private, X_public, X_test))

# %% [markdown]
# ## Write a teacher
#
# A teacher has `fit(X, y)` and `predict(X)`. Labels are 0, 1, … This one remembers the mean of
# each class and predicts the nearest one, which suits shards of eight records:


# %%
class NearestMean:
    def fit(self, X, y):
        self.labels = np.unique(y)
        self.means = np.array([X[y == label].mean(axis=0) for label in self.labels])

    def predict(self, X):
        distances = np.linalg.norm(X[:, None] - self.means, axis=2)
        return self.labels[distances.argmin(axis=1)]


# %% [markdown]
# Before a long run, let the contract suite try it on made-up data. It raises `AssertionError` with
# the rule that is broken; silence means that all is well.

# %%
from pate.testing import check_teacher

check_teacher(NearestMean)

# %% [markdown]
# ## Train forty of them, and let them vote

# %%
teachers = pate.train_teachers(
    NearestMean, X_private, y_private, teachers=40, classes=[0, 1], random_state=0
)
votes = pate.vote(teachers, X_public)
teachers, votes.counts[:5]

# %% [markdown]
# Each row has the votes of one public record: for malignant, and for benign. **Both the teachers
# and these counts are private.** You see them because these records are not secret; in earnest, do
# not publish them, nor choose settings by them.
#
# The gap between the two counts decides how much noise an answer survives:

# %%
agreement = votes.counts.max(axis=1)
plt.hist(agreement, bins=np.arange(20, 42), align="left", rwidth=0.9)
plt.xlabel("teachers who agree with the majority, of 40")
plt.ylabel("public records")
plt.show()

# %% [markdown]
# Nearly all teachers agree on most records. Noise with a standard deviation of 10 votes will
# seldom change such an answer.
#
# ## Release noisy answers
#
# A mechanism adds the noise and returns the winner. We ask about 20 public records, a number fixed
# beforehand.

# %%
mechanism = pate.GaussianNoisyMax(sigma=10.0)
asked = pate.Votes(counts=votes.counts[:20])
answer = mechanism.release(asked, rng=pate.secure_generator())
print(answer.labels)
print("as the majority says:", int((answer.labels == asked.counts.argmax(axis=1)).sum()), "of 20")

# %% [markdown]
# The release carries its *events*, from which the accountant computes what it cost:

# %%
guarantee = pate.compose(answer.events).guarantee(delta=1e-4)
guarantee

# %% [markdown]
# One vote changes if one record does, so "one record replaced" is what this ε is about. The
# student is any model of yours, fitted to public records and released labels. Nothing that happens
# from here on costs privacy.

# %%
from sklearn.linear_model import LogisticRegression

student = LogisticRegression(C=0.1).fit(X_public[:20], answer.labels)
accuracy = student.score(X_test, y_test)
print(f"{accuracy:.1%} of {len(y_test)} test records right, from 20 noisy labels")

# %% [markdown]
# ## The same in one call
#
# `PATEClassifier` does all of this: it takes the same teachers, finds how many questions an ε has
# room for, and can charge a ledger. Scikit-learn's estimators are teachers as they are:

# %%
from sklearn.pipeline import make_pipeline

for name, model in [
    ("nearest mean", NearestMean),
    ("logistic regression", LogisticRegression(max_iter=1000)),
    ("scaled logistic", make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))),
]:
    clf = pate.PATEClassifier(teachers=40, teacher=model, epsilon=2.0, delta=1e-4, classes=[0, 1])
    clf.fit(X_private, y_private, public=X_public)
    print(f"{name:20} {clf.plan_.queries} questions, {clf.score(X_test, y_test):.1%} right")

# %%
clf.guarantee_

# %% [markdown]
# Twenty labels are few, and each is noisy: run the cells again and accuracies move by several per
# cent. On real private records you would not try three teachers and keep the best: that choice
# costs all three releases. Choose the model on public data, or by the size of a shard.
#
# ## What to read next
#
# * [Choosing ε: plan before you spend](choosing_epsilon.py): how many teachers, how much noise.
# * [Your own teacher](../how-to/own-teacher.md): torch modules, boosted trees, teachers in
#   recipes.
# * [Record votes](../explanation/record-votes.md): why single records often do better than
#   teachers where records are few.
