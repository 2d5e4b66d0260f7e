# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From Opacus to dpsgd
#
# If you have trained models with Opacus, you know the names in this tutorial. You keep your
# training loop, see what differs, and then see what a `Trainer` adds: a ledger, checkpoints, and a
# guarantee that states for whom it holds.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16, y, train_size=1400, random_state=0)
train = TensorDataset(torch.tensor(X_train, dtype=torch.float32), torch.tensor(y_train))
inputs, labels = torch.tensor(X_test, dtype=torch.float32), torch.tensor(y_test)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def accuracy_of(model):
    model.eval()
    with torch.no_grad():
        return (model(inputs).argmax(dim=1) == labels).float().mean().item()


# %% [markdown]
# ## Your loop, one import changed
#
# Where your program says `from opacus import PrivacyEngine`, write `from dpsgd.compat import
# PrivacyEngine`. The rest stays:

# %%
from dpsgd.compat import PrivacyEngine

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(train, batch_size=140),
    target_epsilon=4.0,
    target_delta=1e-4,
    epochs=15,
    max_grad_norm=1.0,
)

history = []
for _ in range(15):
    model.train()
    for batch, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    history.append((engine.get_epsilon(1e-4), accuracy_of(model)))

epsilon, accuracy = history[-1]
print(f"ε = {epsilon:.2f}, {accuracy:.1%} of the test digits right")

# %%
plt.plot(*zip(*history, strict=True), "o-")
plt.xlabel("ε spent so far, at δ = 10⁻⁴")
plt.ylabel("accuracy on test digits")
plt.show()

# %% [markdown]
# Three things are different, all on the side of safety:
#
# * noise and lots come from a secure generator, always; there is no `secure_mode` to forget;
# * the module is not wrapped, so `model.state_dict()` has the keys that you know;
# * what cannot be honoured is refused, with the remedy, rather than done in another way:

# %%
from pate import PateError

try:
    PrivacyEngine().make_private(
        module=make_model(),
        optimizer=torch.optim.SGD(make_model().parameters(), lr=1.0),
        data_loader=DataLoader(train, batch_size=140),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
except PateError as refusal:
    print(refusal)

# %% [markdown]
# ## For whom does ε hold?
#
# Opacus returns a number. A guarantee here states between which data sets it holds:

# %%
engine.guarantee(delta=1e-4)

# %% [markdown]
# The sampling rate is the lot size over the *number of records*, so that number is taken to be
# public, and ε is for one record's contribution removed. If the number of records is itself a
# secret, agree on a public one, such as a rounded one, and pass `records=`. Then ε is for one
# record added or removed, the relation that PATE's guarantees have.
#
# ## Without a loop
#
# `dpsgd.make_private` takes Opacus' names, too, and returns a `Trainer`, which has the loop:

# %%
import dpsgd

model = make_model()
trainer = dpsgd.make_private(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    dataset=train,
    lot_size=140,
    max_grad_norm=1.0,
    target_epsilon=4.0,
    target_delta=1e-4,
    epochs=15,
    records=1400,  # agreed on beforehand
)
trainer.fit(epochs=15)
trainer_accuracy = accuracy_of(model)
print(f"{trainer_accuracy:.1%} of the test digits right")

# %%
guarantee = trainer.epsilon()
guarantee

# %% [markdown]
# ## A model that Opacus would reject, too
#
# Batch normalisation mixes the records of a lot, so no per-record guarantee covers it. `problems`
# lists what is wrong with a model, and `fix` replaces it:

# %%
mixed = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
for problem in dpsgd.problems(mixed):
    print(problem)

# %%
dpsgd.fix(mixed)

# %% [markdown]
# ## What to read next
#
# * [DP-SGD](../how-to/dpsgd.md): clipping rules, ledgers, checkpoints, users, large models.
# * [PATE or DP-SGD? Compare on your data](compare_dpsgd.py).
# * [Sharp edges](../explanation/sharp-edges.md): what a training loop can leak around the engine.
