"""Runs of a recipe: the plan, the ledger, the folder and the outcome. Loads no torch."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpsgd.plan import noise_for
from dpsgd.recipe import DpsgdRecipe
from dpsgd.schedules import Constant, Linear, Schedule
from pate._files import exclusive_lock, write_atomically
from pate._format import plural
from pate.accounting import Event, Guarantee, Ledger, Neighbours, Repeated, compose
from pate.accounting.calibrate import Method, dpsgd_step
from pate.accounting.events import event_from_json, relation_of
from pate.accounting.ledger.data_ledger import open_data_ledger, total_line
from pate.accounting.ledger.data_set import NOT_PRIVATE
from pate.accounting.ledger.terms import moment_for
from pate.artifacts import Artifact, Level, Store, StoreError, fingerprint
from pate.datasets.spec import WORDING
from pate.errors import InvalidInput, LedgerError, SpendNeeded

STAGE = "training"
CHECKPOINT = "checkpoint.safetensors"
EXAMPLES = "examples.npy"  # public records, with the model
COLUMNS = "columns.json"  # of a table
_HOME, _LOCK = "home.json", "lock"
_VERSION = 1  # raised when the same recipe would give another result
_TOLERANCE = 1e-5  # of calibrated noise, relative; on the side of more noise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Lots, steps and noise, all fixed before training; public."""

    lot_size: int  # 0: all records are summed once, for least squares
    sample_rate: float
    steps: int
    noise_multiplier: float
    learning_rate: Schedule | None  # None: least squares
    prior: tuple[Event, ...]  # a private PCA
    public_rate: bool  # the recipe states the number of records, or of users
    by_user: bool = False  # lots are drawn of users

    @property
    def one_sum(self) -> bool:
        """Whether there is one sum over all records in place of steps in lots."""
        return self.lot_size == 0

    @property
    def events(self) -> tuple[Event, ...]:
        make = dpsgd_step(self.sample_rate, public_rate=self.public_rate, per_user=self.by_user)
        step = make(self.noise_multiplier)
        return (*self.prior, Repeated(step, self.steps))

    def describe(self, unit: str = "user") -> str:
        """Return the plan in a few words; ``unit`` is the noun for a user."""
        noise = f"noise multiplier {self.noise_multiplier:.4g}"
        if self.one_sum:
            return f"least squares from sums over all records, {noise}"
        lot = f"{self.lot_size} {plural(unit)}" if self.by_user else f"{self.lot_size}"
        return f"{self.steps} steps in lots of {lot} on average, {noise}"


def plan_run(
    recipe: DpsgdRecipe, *, records: int, groups: Collection[str] | None = None
) -> RunPlan:
    """Return the plan for this many private records; calibrate the noise if the recipe names ε.

    ``groups`` are the users of the records. Where the recipe protects users, all is about them.

    Guarantees:
        Nothing here depends on the content of records. Where the recipe states
        ``training.records``, their true number decides nothing: costs are for one record added or
        removed. Otherwise that number decides the sampling rate and counts as public: costs are
        for zero-out. The same is true of ``training.users`` and the number of users.
    """
    if recipe.by_user:
        if groups is None:
            raise InvalidInput(
                'training.by is "group", and the data have no groups; name their column in '
                "data.group"
            )
        records = len(set(groups))
    return plan_for(recipe, count=records)


def plan_for(recipe: DpsgdRecipe, *, count: int) -> RunPlan:
    """Return the plan for this many private records, or users where the recipe protects users."""
    if recipe.least_squares:
        return _plan_sums(recipe)
    training, unit = recipe.training, "users" if recipe.by_user else "records"
    stated = training.users if recipe.by_user else training.records
    public_rate, records = stated is not None, stated or count
    lot_size = training.lot_size or max(1, round(math.sqrt(records)))  # Abadi et al. 2016, § 5.3
    if lot_size > records:
        raise InvalidInput(
            f"training.lot_size is {lot_size}, more than "
            f"{f'training.{unit}' if public_rate else f'there are private {unit}'}; choose less"
        )
    in_epoch = math.ceil(records / lot_size)
    steps = training.steps or in_epoch * (training.epochs or 0)
    rate = lot_size / records
    prior = _prior(recipe, public_rate=public_rate)
    change = training.learning_rate
    assert change is not None  # the recipe was checked
    learning_rate: Schedule = Constant(change.start)
    if change.end is not None and change.epochs is not None:
        steps_of_change = max(1, round(change.epochs * in_epoch))
        learning_rate = Linear(change.start, change.end, steps_of_change)
    return RunPlan(
        lot_size=lot_size,
        sample_rate=rate,
        steps=steps,
        noise_multiplier=_noise(recipe, sample_rate=rate, steps=steps, prior=prior),
        learning_rate=learning_rate,
        prior=prior,
        public_rate=public_rate,
        by_user=recipe.by_user,
    )


def _plan_sums(recipe: DpsgdRecipe) -> RunPlan:
    """Return the plan of least squares: one Gaussian mechanism, whatever the number of records."""
    prior = _prior(recipe, public_rate=True)
    return RunPlan(
        lot_size=0,
        sample_rate=1.0,
        steps=1,
        noise_multiplier=_noise(recipe, sample_rate=1.0, steps=1, prior=prior),
        learning_rate=None,
        prior=prior,
        public_rate=True,
        by_user=recipe.by_user,
    )


def _prior(recipe: DpsgdRecipe, *, public_rate: bool) -> tuple[Event, ...]:
    """Return the cost of a PCA, in the relation of the run."""
    pca = recipe.features.pca
    if pca is None:
        return ()
    return (dpsgd_step(pca.sample_rate, public_rate=public_rate)(pca.noise_multiplier),)


def _noise(
    recipe: DpsgdRecipe, *, sample_rate: float, steps: int, prior: tuple[Event, ...]
) -> float:
    """Return the noise multiplier that the recipe states, or the smallest for its ε.

    A ledger adds up log-moments, by which the tightest accountant's plan costs more. Where that
    alone passes the recipe's budget, the noise is the smallest for the same ε by log-moments.
    Public settings decide, and never what the ledger holds.
    """
    privacy = recipe.privacy
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    assert privacy.epsilon is not None  # the recipe was checked
    search = partial(
        noise_for,
        target_epsilon=privacy.epsilon,
        delta=privacy.delta,
        sample_rate=sample_rate,
        steps=steps,
        prior=prior,
        tolerance=_TOLERANCE,
    )
    budget = privacy.budget if privacy.accountant == "tightest" else None
    if budget is None or budget > privacy.epsilon:
        found = search(accountant=privacy.accountant)
        events = (*prior, Repeated(dpsgd_step(sample_rate)(found), steps))
        if budget is None or compose(events).guarantee(delta=privacy.delta).epsilon <= budget:
            return found
    return search(accountant=Method.MOMENTS)


def ledger_path(recipe: DpsgdRecipe, data_root: Path, insecure_seed: int | None = None) -> Path:
    """Return the path of the data set's ledger, beside the data: deleting a run refunds nothing.

    It is not the ledger of ``pate``: costs of votes hold for one record replaced, costs of lots for
    one added, removed or zeroed out, and these do not add up moment by moment. Runs that no
    guarantee covers (a seed, shuffled lots, noise that is not cryptographic) have a ledger of their
    own: no budget covers them.
    """
    covered = recipe.training.sampling == "poisson" and recipe.privacy.noise == "secure"
    private = covered and insecure_seed is None
    kind = "dpsgd.ledger" if private else f"dpsgd.{NOT_PRIVATE}"
    return data_root / "ledgers" / f"{recipe.data.name}.{kind}"


def open_ledger(recipe: DpsgdRecipe, plan: RunPlan, path: Path) -> Ledger:
    """Open the data set's ledger, or create it with the recipe's budget.

    Without a budget it is an odometer, which refuses nothing; its λ is then the best one for the
    first plan, which was made without reading any record, and so it is where that plan may use up
    the whole budget, or fits into it at no other λ. It takes charges for one record added or
    removed, and for zero-out; after one of the latter its totals are for zero-out. So it does for
    users; after charges for both, its totals are for users of one record.
    """
    privacy = recipe.privacy
    budget, best = privacy.budget, compose(plan.events).guarantee(delta=privacy.delta)
    whole = budget in (None, privacy.epsilon)
    if budget is not None and best.epsilon <= budget:
        moment = moment_for(Guarantee(epsilon=budget, delta=privacy.delta))
        at_budget = compose(plan.events, [moment]).guarantee(delta=privacy.delta)
        whole = whole or at_budget.epsilon > budget
    return open_data_ledger(
        path,
        budget=privacy.budget,
        delta=privacy.delta,
        neighbours=Neighbours.USER_ADD_REMOVE if plan.by_user else Neighbours.ADD_REMOVE,
        moment=best.moment if whole else None,
    )


def private_folder(folder: Path, made_from: str) -> Path:
    """Return the folder of a run's PCA and checkpoint."""
    return folder / Level.PRIVATE.folder / made_from[:20]


def require_consent(recipe: DpsgdRecipe, folder: Path, private: Path) -> None:
    """Refuse to train and pay in a folder where another recipe was trained."""
    runs = folder / Level.PRIVATE.folder
    # A checkpoint is written just before the charge: without one nothing was paid.
    others = [file.parent for file in runs.glob(f"*/{CHECKPOINT}") if file.parent != private]
    if not others:
        return
    newest = max(others, key=lambda path: path.stat().st_mtime)
    try:
        before = json.loads((newest / _HOME).read_text())["recipe"]
    except (OSError, ValueError, KeyError, TypeError):
        before = {}
    now = recipe.model_dump(mode="json")
    changed = [key for key, value in _leaves(now) if dict(_leaves(before)).get(key) != value]
    what = f"{', '.join(changed[:3])} changed" if changed and before else "other settings"
    raise SpendNeeded(
        f"{folder} holds a run of another recipe ({what}); training again costs again: choose "
        "another --out, or add --spend to train and pay here"
    )


def require_unpaid(ledger: Ledger, recipe: DpsgdRecipe, insecure_seed: int | None) -> None:
    """Refuse settings that a ledger has paid for, in whatever folder."""
    digest = digest_of_settings(recipe, insecure_seed)
    if any(digest in each.settings for each in ledger.charges()):
        raise paid_before(ledger.path)


def paid_before(ledger: Path) -> SpendNeeded:
    """Return the error of training with settings that a ledger has paid for."""
    return SpendNeeded(
        f"the ledger at {ledger} has already paid for training with these settings; resume in the "
        "folder where that was begun, or, to train another model and pay again, add --spend"
    )


def _leaves(settings: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting by its dotted name."""
    if isinstance(settings, dict) and settings:
        for key, value in settings.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, settings


@contextlib.contextmanager
def locked_folder(private: Path, folder: Path) -> Iterator[None]:
    """Create the run's private folder if it is missing, and lock it for this process."""
    busy = InvalidInput(
        f"another process is training in {folder}; wait for it, or choose another --out"
    )
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            private.parent.mkdir(mode=0o700, exist_ok=True)
            private.parent.chmod(0o700)
            private.mkdir(mode=0o700, exist_ok=True)
            stack.enter_context(exclusive_lock(private / _LOCK, busy=busy))
        except OSError as error:
            raise StoreError(f"cannot write to {folder}: {error.strerror}") from error
        yield


def discard(private: Path) -> None:
    """Remove the files of a run that took no step; the lock stays, since it is held."""
    for file in private.iterdir():
        if file.name != _LOCK:
            with contextlib.suppress(OSError):
                file.unlink()


def bind_to_ledger(
    private: Path,
    recipe: DpsgdRecipe,
    ledger_file: Path,
    *,
    noise_multiplier: float,
    plugin_path: Path | None = None,
) -> None:
    """Record the ledger under which a run is begun, or refuse one begun under another.

    The places of the recipe and of the user's own code are recorded with it, and its noise.
    """
    if require_ledger(private, ledger_file) and (private / CHECKPOINT).exists():
        return
    places = {"recipe_file": recipe.data.file, "plugin_path": plugin_path}
    home = {
        "ledger": str(ledger_file.absolute()),
        **{name: str(place.absolute()) for name, place in places.items() if place is not None},
        "noise_multiplier": noise_multiplier,
        "recipe": recipe.model_dump(mode="json"),
    }
    write_atomically(private / _HOME, f"{json.dumps(home, indent=1)}\n".encode())


def as_begun(recipe: DpsgdRecipe, private: Path) -> DpsgdRecipe:
    """Return the recipe with the noise that a run was begun, and charged, with.

    A version that finds less noise for the same ε could not resume it otherwise.
    """
    if not (private / CHECKPOINT).exists() or recipe.privacy.epsilon is None:
        return recipe
    try:
        home = json.loads((private / _HOME).read_text())
        known = home.get("noise_multiplier")
        begun = home["recipe"]["privacy"] if "recipe" in home else recipe.privacy.model_dump()
        accountant, limited = begun["accountant"], begun["budget"] is not None
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise StoreError(f"{private / _HOME} is damaged; choose another --out") from error
    found: dict[str, Any] = {"epsilon": None, "noise_multiplier": known}
    if known is None:  # earlier versions found it by moments under a budget, and as now without
        by_moments = limited and accountant == "tightest"
        found = {"accountant": "moments" if by_moments else accountant, "budget": None}
    privacy = recipe.privacy.model_copy(update=found)
    return recipe.model_copy(update={"privacy": privacy})


def require_ledger(private: Path, ledger_file: Path) -> bool:
    """Return True if a run was begun here; refuse one begun under another ledger."""
    begun, ledger = _began_under(private), str(ledger_file.absolute())
    if begun is None:
        return False
    if begun != ledger:
        raise InvalidInput(
            f"this run was begun with the ledger at {begun}, not with the one at {ledger}; "
            "give its --data-root, or another --out"
        )
    return True


def _began_under(private: Path) -> str | None:
    path = private / _HOME
    if not path.exists():
        return None
    try:
        return str(json.loads(path.read_text())["ledger"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged; choose another --out") from error


def ledger_of_run(folder: Path, made_from: str) -> Path:
    """Return the ledger under which a run was begun."""
    begun = _began_under(private_folder(folder, made_from))
    if begun is None:
        raise StoreError(f"{folder} does not name the ledger of its run; train it elsewhere")
    return Path(begun)


def place_of_run(folder: Path, made_from: str, name: str) -> Path | None:
    """Return the ``recipe_file`` or ``plugin_path`` of a run where it is recorded and still there.

    Both may have moved since, and neither is needed for what ``pate release`` writes of most runs.
    """
    try:
        home = json.loads((private_folder(folder, made_from) / _HOME).read_text())
        place = Path(home[name])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return place if place.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingOutcome:
    """The outcome of a run; everything in it was released."""

    artifact: Artifact
    new: bool  # False: the run was complete before
    ledger: str | None  # the data set's total, in a sentence
    whole: tuple[float, float] | None = None  # ε and δ of the data set, if there are other releases
    charged: float | None = None  # the data set's ε, if there are none

    @property
    def report(self) -> dict[str, Any]:
        """The guarantee with its basis, and the accuracy of every epoch."""
        report: dict[str, Any] = self.artifact.json("guarantee.json")
        # The relation follows from the events: reports of early versions claimed a stronger one.
        events = map(event_from_json, report["events"])
        report["guarantee"]["neighbours"] = relation_of(events).value
        return report


def name_of_run(recipe: DpsgdRecipe, insecure_seed: int | None) -> str:
    """Return a fingerprint of the settings, into which nothing of the private records goes.

    The budget and wording change no result and are left out; so are unused keys added later.
    """
    settings = recipe.model_dump(mode="json", exclude={"data": WORDING})
    settings["privacy"].pop("budget")
    if settings["training"]["records"] is None:
        settings["training"].pop("records")
    _drop_unused(settings)
    return fingerprint("dpsgd train", _VERSION, settings, insecure_seed)


def digest_of_settings(recipe: DpsgdRecipe, insecure_seed: int | None) -> str:
    """Return a digest of everything that decides what is trained and what it costs.

    The location of the data is left out, since the digest is stored in the data set's own ledger;
    so are settings that do not change the result (the budget, the batch size, which epochs are
    tested).
    """
    settings = recipe.model_dump(mode="json", exclude={"evaluate": True, "data": WORDING})
    settings["privacy"].pop("budget")
    settings["training"].pop("batch_size")
    _drop_unused(settings)
    for key in ("source", "private_path", "public_path", "test_path"):
        settings["data"].pop(key)
    return fingerprint("dpsgd settings", settings, insecure_seed)[:40]


def _drop_unused(settings: dict[str, Any]) -> None:
    """Remove keys that were added later and are not used, so that fingerprints stay.

    The default accountant was ``moments`` before it was ``tightest``: what was trained and paid for
    by the same recipe then stays what it was, and is not paid for again.
    """
    if settings["privacy"]["accountant"] == Method.TIGHTEST:
        settings["privacy"]["accountant"] = Method.MOMENTS.value
    if not settings["model"]["fix"]:
        settings["model"].pop("fix")
    for key in ("by", "per_user", "users", "intercept"):
        if settings["training"][key] is None:
            settings["training"].pop(key)
    if settings["training"]["method"] == "sgd":
        settings["training"].pop("method")


def find_outcome(
    recipe: DpsgdRecipe,
    folder: Path,
    *,
    data_root: Path,
    insecure_seed: int | None = None,
    new: bool = False,
) -> TrainingOutcome | None:
    """Return the outcome of a recipe in a folder, its files checked; None if it is incomplete."""
    store, name = Store(root=folder), name_of_run(recipe, insecure_seed)
    if store.find(STAGE, name) is None:
        return None
    path = ledger_path(recipe, data_root, insecure_seed)
    require_ledger(private_folder(folder, name), path)
    artifact, line, whole, own = store.open(STAGE, name), None, None, None
    charged = set(artifact.facts.get("charges", ()))  # earlier versions did not record them
    if path.exists():
        with Ledger.open(path) as ledger:
            line = total_line(ledger, recipe.record_unit, user=recipe.unit)
            total, made = ledger.data_set_total(), ledger.releases()
            if len(total.shares) > 1 or not made <= charged:
                whole = total.epsilon, total.delta
            else:
                own = total.epsilon
            charged -= made
    if charged:
        raise LedgerError(
            f"the ledger at {path} lacks the charge of the model that is released in {folder}, so "
            "what was spent is not known: restore the ledger from a backup that was made after that"
        )
    return TrainingOutcome(artifact=artifact, new=new, ledger=line, whole=whole, charged=own)
