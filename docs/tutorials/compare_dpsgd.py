# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # PATE or DP-SGD? Compare on your data
#
# PATE trains a student on noisy labels of public inputs. DP-SGD trains a model on the private
# records themselves, with noise in every step. Which is better depends on your data: how many
# records there are, how many public inputs, how hard the task is. `pate.compare` trains both on
# one split, at the same ε and δ, and puts them side by side.
#
# We pretend that scikit-learn's breast-cancer data are a file of our own:

# %%
import pandas as pd
from sklearn.datasets import load_breast_cancer

import pate

data = load_breast_cancer(as_frame=True)
table = data.data.assign(diagnosis=data.target_names[data.target])
table.to_csv("tumours.csv", index=False)
table.iloc[:3, [0, 1, 2, -1]]

# %% [markdown]
# ## A recipe for a comparison
#
# A recipe says which part of the file is what, at which ε to compare, and how each method is set
# up. 150 records become public inputs and 119 are for the test; the people in these two parts are
# not protected, which `accept_unprotected` confirms. The others are private.

# %%
recipe = """
kind = "compare"

[data]
name = "tumours"
source = "tumours.csv"
label = "diagnosis"
classes = ["benign", "malignant"]
public = 150
test = 119
accept_unprotected = true

[compare]
epsilons = [0.5, 2]
seeds = 2                     # repetitions of each method
delta = 1e-4

[record_votes.encoder]        # fitted on public inputs: free
steps = ["standardise"]

[record_votes.student]
model = "sklearn.linear_model:LogisticRegression"
params = { max_iter = 2000 }
inputs = "features"

[dpsgd.features]              # the same for DP-SGD
steps = ["standardise"]

[dpsgd.model]
hidden = [16]

[dpsgd.training]
epochs = 20
lot_size = 50
learning_rate = 1.0

[dpsgd.clipping]
max_norm = 1.0
"""
with open("compare.toml", "w") as file:
    file.write(recipe)

# %% [markdown]
# ## What would it cost?
#
# This comparison makes eight releases: two methods at two ε, twice. Whoever looks at all of
# them, or picks the best, has spent all of them together. The data set's ledgers record that, and
# a line below the table states it.

# %%
found = pate.compare("compare.toml", engine="serial", data_root=".")
found

# %%
found.plot()

# %% [markdown]
# Look at the intervals before you look at the points: with 119 test records they are wide, and a
# difference that is smaller than them means nothing. At ε = 2 the two methods are close here; at
# ε = 0.5 both lose, and repetitions (the dots) spread. On images, with few private records, record
# votes are far ahead ([results](../results.md)), which is why you compare on data like yours.
#
# ## The numbers
#
# `table()` has the rows for a DataFrame. Its times and memory, and rows that are not publishable,
# are for your eyes only.

# %%
rows = pd.DataFrame(found.table())
rows = rows[rows["publishable"]]
rows[["name", "target", "epsilon", "accuracy", "low", "high"]].round(3)

# %%
best = rows.dropna(subset=["target"]).pivot(index="target", columns="name", values="accuracy")
best.round(3)

# %% [markdown]
# ## What it cost to know
#
# The guarantee of the whole table, both ledgers together:

# %%
found.cost.together

# %% [markdown]
# That is the price of choosing on private data. To avoid it, compare on **public data like
# yours**, fix the method and its ε, and make one release from the private records.
#
# ## What to read next
#
# * [From Opacus to dpsgd](from_opacus.py): if you have a training loop already.
# * [Audit what you publish](audit.py): attack all methods of a comparison.
# * [Studies](../how-to/studies.md): comparisons and sweeps in full, and choosing by private
#   results.
# * [Results](../results.md): comparisons on MNIST, Fashion-MNIST and more.
