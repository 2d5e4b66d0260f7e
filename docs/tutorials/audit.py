# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Audit what you publish
#
# A guarantee is a proof about code. An audit attacks what the code released, and measures how far
# real attacks get. It cannot show that a release is private, but it can show that it is not: a bug
# in the noise, a forgotten record, a model that memorises. Run one before you publish.
#
# An audit needs the private records, so its results are **for the owner of the data alone**.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

import pate

X, y = load_digits(return_X_y=True)
X = X / 16

# %% [markdown]
# ## First, a model without privacy
#
# A nearest-neighbour model that was trained on noisy labels keeps its records. Give half of the
# digits to it, with a quarter of their labels changed at random, and let an attacker guess who was
# in:

# %%
rng = np.random.default_rng(0)
noisy = np.where(rng.random(len(y)) < 0.25, rng.integers(0, 10, len(y)), y)
X_in, X_out, y_in, y_out = train_test_split(X, noisy, train_size=800, random_state=0)

leaky = KNeighborsClassifier(n_neighbors=3).fit(X_in, y_in)
found = pate.audit(leaky, members=(X_in, y_in), others=(X_out, y_out))
for finding in found.findings:
    print(f"{finding.attack}: advantage {finding.values['advantage']:.0%}")

# %% [markdown]
# The *advantage* is how much more often the attacker says "was in" of records that were in than of
# those that were not. 0 % is guessing; 100 % is certainty.
#
# ## The same attack on a private student

# %%
X_private, X_public = X_in[:700], X_in[700:]
clf = pate.PATEClassifier(votes="records", epsilon=1.0, classes=range(10))
clf.fit(X_private, y_in[:700], public=X_public)

private = pate.audit(
    clf.predict_proba,
    members=(X_private, y_in[:700]),
    others=(X_out, y_out),
    guarantee=clf.guarantee_,
)
leaky_advantage = max(each.values["advantage"] for each in found.findings)
private_advantage = max(each.values["advantage"] for each in private.findings)
plt.barh(["without privacy", "private student"], [leaky_advantage, private_advantage])
plt.xlabel("largest advantage of an attacker")
plt.show()

# %% [markdown]
# What an attack can reach at all follows from ε: the advantage is at most (e<sup>ε</sup> − 1) /
# (e<sup>ε</sup> + 1), which is 46 % at ε = 1. The student stays far below, as usual: a bound is
# about the worst attacker and the worst record. A few per cent are chance, with so many records.
#
# ## Audit a whole run
#
# For a run of the pipeline, `pate.audit` has stronger attacks. It leaves out each record in turn
# and computes exactly how much the released votes depended on it; it plants canaries; it trains
# shadow models. The run is that of the recipe `digits`, record votes at ε = 1:

# %%
run = pate.run("digits", engine="serial", data_root=".")
run

# %%
audit = pate.audit(run, shadows=0)  # shadow models make it stronger, and slower
for finding in audit.findings:
    bound = "" if finding.epsilon is None else f"ε at least {finding.epsilon:.2f}"
    print(f"{finding.attack:38} {finding.target:28} {bound}")
print()
print(audit.verdict)

# %% [markdown]
# Look at *leave-one-out*: it knows every record but one, and its lower bound reaches the claimed ε
# of 1. So the claim is tight: the noise could not have been smaller. *Canaries* are planted records
# whose presence is guessed; their bound holds at 95 % confidence, so that of sound code it may
# exceed the claim now and then. The verdict takes that into account, and `audit.contradictions`
# lists what does not go together with the claim: a reason not to publish. There is none:

# %%
audit.contradictions

# %% [markdown]
# The attacks on the models have no ε; they have an advantage. The audit fits the student's model to
# the private labels themselves, too, and attacks it in the same way:

# %%
membership = [each for each in audit.findings if "advantage" in each.values]
for target, colour in [("model without privacy", "tab:red"), ("student", "tab:blue")]:
    own = [each for each in membership if each.target == target]
    plt.barh(
        [each.attack for each in own],
        [each.values["advantage"] for each in own],
        color=colour,
        height=0.6 if target == "student" else 0.8,
        label=target,
    )
plt.xlabel("advantage of the attacker")
plt.legend()
plt.show()

# %% [markdown]
# `audit.write("private-audit")` writes all of it as a page. It shows facts about private records:
# keep it with them.
#
# ## What to read next
#
# * [Audit](../how-to/audit.md): every attack, what it can show, and how to read a page.
# * [Releasing](../how-to/releasing.md): the model card, checksums, and how others verify a
#   release.
# * [Threat model](../explanation/threat-model.md): whom a guarantee defends against.
