"""Membership inference: was this record trained on? Attacks on any fitted model.

Every attack gives each record a score, the higher the likelier a member, and returns a
:class:`~pate.audits.findings.Finding` with the ROC curve of members against others. Members and
others must come from one population, or the attack tells populations apart and not membership.

A model is an object with ``predict_proba(X)``, or that function itself; its columns are the classes
0 … classes − 1, and labels are their places. Label-only attacks make do with ``predict``.

=======================  ==========================================  =============================
attack                   the attacker has                            paper
=======================  ==========================================  =============================
threshold_attack         confidences                                 Yeom 2018; Salem 2019
shadow_attack            confidences, shadow models                  Shokri et al. 2017
lira_attack              confidences, shadow models                  Carlini et al. 2022
rmia_attack              confidences, a few shadows, a population    Zarifzadeh, Liu & Shokri 2024
robustness_attack        labels                                      Choquette-Choo et al. 2021
boundary_attack          labels, a population                        Choquette-Choo et al. 2021
=======================  ==========================================  =============================

A curve is compared with :func:`pate.audits.roc.most_tpr`. An attack bounds ε only where each record
was made a member by a fair coin (``coins=``): other scores of one model are no independent trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import rankdata

from pate._validate import check_choice, check_positive, check_whole
from pate.audits.findings import FIRM, Finding, FloatArray
from pate.audits.predictions import (
    Labelled,
    as_probabilities,
    check_labels,
    confidences,
    log_odds,
    negative_entropy,
    true_confidence,
)
from pate.audits.roc import roc
from pate.audits.shadow_models import Shadows
from pate.audits.statistics import audit_one_run
from pate.errors import InvalidInput

Perturb = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]

_PER_RECORD_VARIANCE = 64  # shadows from which each record has a variance of its own
_MOST_ROWS = 40_000  # predictions of shadows that an attack model is trained on


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Coins:
    """The statement that each judged record was a member by a fair coin of its own.

    Nobody but the coins decided which records are members and which are others; then an attack on
    one model bounds ε (Steinke, Nasr & Jagielski 2023), for one record added or removed.

    Parameters
    ----------
    delta : float
        δ of the bound.
    confidence : float
        The probability with which it holds.
    """

    delta: float
    confidence: float = 0.95


# --- one model, its confidences -------------------------------------------------------------------

# Scores of a threshold attack: the function, what the attacker knows, and the paper.
_THRESHOLDS: Final[dict[str, tuple[Callable[..., FloatArray], str, str]]] = {
    "loss": (log_odds, "confidences, and the record's label", "Yeom et al. 2018"),
    "confidence": (
        lambda table, _: as_probabilities(table).max(axis=1),
        "confidences, not the record's label",
        "Salem et al. 2019",
    ),
    "entropy": (
        lambda table, _: negative_entropy(table),
        "confidences, not the record's label",
        "Salem et al. 2019",
    ),
}


def threshold_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    score: str = "loss",
    target: str = "model",
    coins: Coins | None = None,
) -> Finding:
    """Call records members whose score is above a threshold.

    Parameters
    ----------
    model : object or callable
        The target: an object with ``predict_proba``, or that function.
    members : pair of arrays
        Records the model was trained on, and their labels.
    others : pair of arrays
        Records of the same population that it was not trained on, and their labels.
    score : {"loss", "confidence", "entropy"}
        The statistic: the loss at the record's own label (Yeom et al. 2018; as log-odds, which
        rank records alike but for rounding), or the largest probability or the entropy of the
        prediction, which need no label (Salem et al. 2019).
    target : str
        The name of the target in the finding.
    coins : Coins, optional
        Given where members were drawn by fair coins: the finding then bounds ε.

    >>> memory = {0.1, 0.2, 0.3}
    >>> def predict_proba(X):
    ...     sure = [0.99 if x in memory else 0.6 for x in X]
    ...     return np.column_stack([sure, np.subtract(1, sure)])
    >>> found = threshold_attack(
    ...     predict_proba, ([0.1, 0.2, 0.3], [0, 0, 0]), ([0.4, 0.5], [0, 0])
    ... )
    >>> found.attack, found.values["advantage"]
    ('threshold on the loss', 1.0)
    """
    statistic, knowledge, source = _THRESHOLDS[check_choice("score", score, _THRESHOLDS)]
    scores = [statistic(confidences(model, X, y), np.asarray(y)) for X, y in (members, others)]
    return finding(
        *scores,
        attack=f"threshold on the {score}",
        target=target,
        coins=coins,
        knowledge=knowledge,
        source=source,
    )


def finding(
    members: ArrayLike,
    others: ArrayLike,
    *,
    attack: str,
    target: str,
    knowledge: str,
    source: str,
    coins: Coins | None = None,
) -> Finding:
    """Return the finding of an attack from its scores: the values of its ROC, and perhaps ε.

    Parameters
    ----------
    members, others : array-like
        Scores, the higher the likelier a member.
    attack, target, knowledge, source : str
        As in :class:`~pate.audits.findings.Finding`.
    coins : Coins, optional
        Given where members were drawn by fair coins: the finding then bounds ε.

    Guarantees:
        ε is the larger of two bounds by :func:`pate.audits.statistics.audit_one_run`, each with
        half of the error: from guesses "in" and "out" at both ends, and from guesses "in" alone,
        which shows an attack that is sure of few members. Numbers of members and others that fair
        coins would hardly give are refused.
    """
    curve = roc(members, others)
    found = Finding(
        attack=attack,
        target=target,
        knowledge=knowledge,
        source=source,
        values=curve.values(),
        curve=curve,
    )
    if coins is None:
        return found
    ranks = rankdata(np.concatenate([np.asarray(members), np.asarray(others)]))  # all finite
    included = np.repeat([True, False], [curve.members, curve.others])
    # Equal scores are ordered by place, and members must not come first among them.
    order = np.random.default_rng().permutation(len(ranks))
    bounds = [
        audit_one_run(
            ranks[order],
            included[order],
            delta=coins.delta,
            confidence=(1 + coins.confidence) / 2,
            firm=(1 + FIRM) / 2,
            threshold=threshold,
        )
        for threshold in (None, 0.0)
    ]
    return replace(
        found,
        epsilon=max(bound.epsilon for bound in bounds),
        delta=coins.delta,
        confidence=coins.confidence,
        firm_epsilon=max(bound.firm_epsilon for bound in bounds),
        largest_possible=max(bound.largest_possible for bound in bounds),
    )


# --- with shadow models ---------------------------------------------------------------------------


def shadow_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    shadows: Shadows,
    target: str = "model",
    coins: Coins | None = None,
    seed: int = 0,
) -> Finding:
    """Train a classifier for each class that tells predictions on members from others.

    Its features are the log-probabilities, of the record's own class first and of the others in
    descending order; its examples are the shadows' predictions, with their membership. Gradient
    boosting takes the place of the small network of Shokri et al. 2017.

    Parameters
    ----------
    shadows : Shadows
        Shadow models of these records.
    seed : int
        Seeds the classifiers.
    model, members, others, target, coins
        As in :func:`threshold_attack`.
    """
    table = _judged(model, members, others, shadows)
    scores = shadow_scores(table, shadows, seed=seed)
    return finding(
        scores[: shadows.members],
        scores[shadows.members :],
        attack="shadow-model classifier",
        target=target,
        coins=coins,
        knowledge=f"confidences, {len(shadows)} shadow models",
        source="Shokri et al. 2017",
    )


def shadow_scores(probabilities: ArrayLike, shadows: Shadows, *, seed: int = 0) -> FloatArray:
    """Return the log-odds of membership by a classifier for each class, for the first records.

    Parameters
    ----------
    probabilities : array-like of shape (n_judged, n_classes)
        The target's predictions for the first records of the shadows.
    shadows : Shadows
        Shadow models.
    seed : int
        Seeds the classifiers.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    table = as_probabilities(probabilities)
    labels, usable = shadows.labels[: len(table)], shadows.trained_on
    rng = np.random.default_rng(seed)
    scores = np.zeros(len(table))
    for label in np.unique(labels):
        columns = np.flatnonzero(usable & (shadows.labels == label))
        wanted = labels == label
        if not len(columns):
            continue  # no shadow has seen the class: nothing is known of its members
        rows = [(number, column) for number in range(len(shadows)) for column in columns]
        if len(rows) > _MOST_ROWS:
            rows = [rows[place] for place in rng.choice(len(rows), _MOST_ROWS, replace=False)]
        numbers, places = np.array(rows).T
        known = shadows.included[numbers, places]
        if known.all() or not known.any():
            continue
        classifier = HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=8, early_stopping=False, random_state=seed
        )
        examples = shadows.probabilities[numbers, places].astype(np.float64)
        classifier.fit(_features(examples, label), known)
        scores[wanted] = classifier.decision_function(_features(table[wanted], label))
    return scores


def _features(table: FloatArray, label: int) -> FloatArray:
    logs = np.log(np.maximum(table, 1e-45))
    rest = -np.sort(-np.delete(logs, label, axis=1), axis=1)
    return np.column_stack([logs[:, label], log_odds(table, np.full(len(table), label)), rest])


def lira_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    shadows: Shadows,
    online: bool = True,
    target: str = "model",
    coins: Coins | None = None,
) -> Finding:
    """Test, for each record, whether the target behaves like shadows with or without it (LiRA).

    Parameters
    ----------
    shadows : Shadows
        Shadow models of these records.
    online : bool
        Use shadows with the record and without it; otherwise only those without.
    model, members, others, target, coins
        As in :func:`threshold_attack`.
    """
    table = _judged(model, members, others, shadows)
    scores = lira_scores(table, shadows, online=online)
    return finding(
        scores[: shadows.members],
        scores[shadows.members :],
        attack=f"LiRA ({'online' if online else 'offline'})",
        target=target,
        coins=coins,
        knowledge=f"confidences, {len(shadows)} shadow models"
        + (" trained on the judged records too" if online else ""),
        source="Carlini et al. 2022",
    )


def lira_scores(probabilities: ArrayLike, shadows: Shadows, *, online: bool = True) -> FloatArray:
    """Return LiRA's score of each record: a log-likelihood ratio, or offline a z-score.

    Log-odds at a record are taken as normal among shadows with it and among shadows without it.
    With fewer than 64 shadows either kind has one variance for all records, as Carlini et al. 2022
    advise. Offline the score is how many standard deviations the target is above the shadows
    without the record, which ranks as their one-sided probability does.

    Parameters
    ----------
    probabilities : array-like of shape (n_judged, n_classes)
        The target's predictions for the first records of the shadows.
    shadows : Shadows
        Shadow models.
    online : bool
        Use shadows with the record, too.
    """
    table = as_probabilities(probabilities)
    judged = len(table)
    labels = shadows.labels[:judged]
    observed = log_odds(table, labels)
    seen = np.stack([log_odds(each[:judged], labels) for each in shadows.probabilities])
    included = shadows.included[:, :judged]
    outside = _normal(seen, ~included, what="without")
    z_out = (observed - outside[0]) / outside[1]
    if not online:
        return np.asarray(z_out)
    inside = _normal(seen, included, what="with")
    z_in = (observed - inside[0]) / inside[1]
    return np.asarray((z_out**2 - z_in**2) / 2 + np.log(outside[1]) - np.log(inside[1]))


def _normal(
    seen: FloatArray, those: NDArray[np.bool_], *, what: str
) -> tuple[FloatArray, FloatArray]:
    """Return each record's mean among some shadows and the standard deviation to use."""
    count = those.sum(axis=0)
    own = len(seen) >= _PER_RECORD_VARIANCE
    if count.min() < 1 + own or not (count - 1).any():
        raise InvalidInput(
            f"a record has too few shadow models {what} it; train more, or use offline LiRA for "
            "shadows of another population"
        )
    mean = np.where(those, seen, 0.0).sum(axis=0) / count
    squares = np.where(those, (seen - mean) ** 2, 0.0).sum(axis=0)
    if own:
        variance = squares / (count - 1)
    else:
        variance = np.full(len(mean), squares.sum() / (count - 1).sum())
    floor = 1e-6 * max(1.0, float(np.abs(mean).max()))  # shadows that agree to the last digit
    return mean, np.maximum(np.sqrt(variance), floor)


def rmia_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    population: Labelled,
    shadows: Shadows,
    online: bool = True,
    gamma: float = 2.0,
    scaling: float = 0.3,
    target: str = "model",
    coins: Coins | None = None,
) -> Finding:
    """Compare each record's likelihood ratio with those of a population (RMIA).

    Strong with few shadow models.

    Parameters
    ----------
    population : pair of arrays
        Further records it was not trained on, with which the shadows were made.
    shadows : Shadows
        Shadow models of these records and the population.
    online : bool
        Use shadows with the record, too.
    gamma : float
        The ratio by which a record must exceed one of the population.
    scaling : float
        Offline, the a of P(x) ≈ ((1 + a) P_out(x) + 1 − a)/2, from 0 to 1.
    model, members, others, target, coins
        As in :func:`threshold_attack`.
    """
    tables = [_judged(model, members, others, shadows), confidences(model, *population)]
    scores = rmia_scores(
        np.concatenate(tables), shadows, online=online, gamma=gamma, scaling=scaling
    )
    return finding(
        scores[: shadows.members],
        scores[shadows.members :],
        attack=f"RMIA ({'online' if online else 'offline'})",
        target=target,
        coins=coins,
        knowledge=f"confidences, {len(shadows)} shadow models, a population",
        source="Zarifzadeh, Liu & Shokri 2024",
    )


def rmia_scores(
    probabilities: ArrayLike,
    shadows: Shadows,
    *,
    online: bool = True,
    gamma: float = 2.0,
    scaling: float = 0.3,
) -> FloatArray:
    """Return the share of the population that each judged record outdoes by ``gamma``.

    Records of equal shares are ordered by less than one step, by their own ratios: a small
    population leaves many at the top, and they decide about low false positive rates.

    The ratio of a record is P(x | target)/P(x), where P(x) is a mean among shadows: online half
    from those with the record and half from those without, offline by ``scaling`` from the latter
    (Zarifzadeh, Liu & Shokri 2024).

    Parameters
    ----------
    probabilities : array-like of shape (n_records, n_classes)
        The target's predictions for all records of the shadows, the population last.
    shadows : Shadows
        Shadow models.
    online, gamma, scaling
        As in :func:`rmia_attack`.
    """
    gamma = check_positive("gamma", gamma)
    if not 0 <= scaling <= 1:
        raise InvalidInput(f"scaling is {scaling!r}; it must lie between 0 and 1")
    table = as_probabilities(probabilities)
    judged = shadows.members + shadows.others
    if len(table) != len(shadows.labels) or len(table) == judged:
        raise InvalidInput(
            "RMIA needs a population that the shadows were made with; give population= to "
            "train_shadows and its predictions here"
        )
    own = true_confidence(table, shadows.labels)
    seen = np.stack([true_confidence(each, shadows.labels) for each in shadows.probabilities])
    outside = _mean(seen, ~shadows.included)
    if online:
        inside = np.where(shadows.included.any(axis=0), _mean(seen, shadows.included), outside)
        usual = (inside + outside) / 2
    else:
        usual = ((1 + scaling) * outside + 1 - scaling) / 2
    ratio = np.log(np.maximum(own, 1e-45)) - np.log(np.maximum(usual, 1e-45))
    ladder = np.sort(ratio[judged:]) + np.log(gamma)
    steps = np.searchsorted(ladder, ratio[:judged], side="right") + expit(ratio[:judged]) / 2
    return np.asarray(steps / len(ladder))


def _mean(seen: FloatArray, those: NDArray[np.bool_]) -> FloatArray:
    return np.asarray(np.where(those, seen, 0.0).sum(axis=0) / np.maximum(1, those.sum(axis=0)))


def _judged(model: Any, members: Labelled, others: Labelled, shadows: Shadows) -> FloatArray:
    """Return the target's predictions for members and others, which the shadows must know."""
    tables = [confidences(model, X, y) for X, y in (members, others)]
    labels = np.concatenate([np.asarray(y) for _, y in (members, others)])
    if [shadows.members, shadows.others] != [len(table) for table in tables] or not np.array_equal(
        labels, shadows.labels[: len(labels)]
    ):
        raise InvalidInput(
            "the shadows were made for other records; give train_shadows the same members and "
            "others"
        )
    return np.concatenate(tables)


# --- labels alone ---------------------------------------------------------------------------------


def robustness_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    perturb: Perturb | float = 0.5,
    count: int = 32,
    target: str = "model",
    coins: Coins | None = None,
    seed: int = 0,
) -> Finding:
    """Count how often the label of a record survives perturbation; labels are all that is seen.

    Parameters
    ----------
    perturb : callable or float
        Augments records: ``perturb(X, rng)``, such as :func:`shift_images`. A number is Gaussian
        noise of so many standard deviations of each feature.
    count : int
        Perturbed copies of each record.
    seed : int
        Seeds perturbations.
    model, members, others, target, coins
        As in :func:`threshold_attack`; ``predict`` will do.
    """
    check_whole("count", count, least=1)
    records, labels = _together(members, others)
    rng = np.random.default_rng(seed)
    if callable(perturb):
        change, how = perturb, "augmented copies"
    else:
        spread = check_positive("perturb", perturb) * records.std(axis=0)
        how = "noisy copies"

        def change(X: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
            return np.asarray(X + spread * rng.standard_normal(X.shape))

    survived = np.mean([_labels(model, change(records, rng)) == labels for _ in range(count)], 0)
    scores = survived + (_labels(model, records) == labels)  # the record itself decides first
    size = len(np.asarray(members[1]))
    return finding(
        scores[:size],
        scores[size:],
        attack=f"label-only, {how}",
        target=target,
        coins=coins,
        knowledge=f"predicted labels of {count} {how} of each record",
        source="Choquette-Choo et al. 2021",
    )


def shift_images(X: NDArray[Any], rng: np.random.Generator, *, most: int = 1) -> NDArray[Any]:
    """Return images (n, height, width, …), each shifted by at most ``most`` pixels, zeros entering.

    >>> image = np.arange(9.0).reshape(1, 3, 3)
    >>> shift_images(image, np.random.default_rng(2)).shape
    (1, 3, 3)
    """
    if X.ndim < 3:
        raise InvalidInput(f"records have shape {X.shape}; images are (n, height, width, …)")
    height, width = X.shape[1:3]
    edges = [(0, 0), (most, most), (most, most)] + [(0, 0)] * (X.ndim - 3)
    padded = np.pad(X, edges)
    shifted = np.empty_like(X)
    places = rng.integers(0, 2 * most + 1, size=(len(X), 2))
    for down in range(2 * most + 1):
        for right in range(2 * most + 1):
            those = (places == (down, right)).all(axis=1)
            shifted[those] = padded[those, down : down + height, right : right + width]
    return shifted


def boundary_attack(
    model: Any,
    members: Labelled,
    others: Labelled,
    *,
    population: ArrayLike,
    neighbours: int = 8,
    steps: int = 12,
    target: str = "model",
    coins: Coins | None = None,
) -> Finding:
    """Measure how far a record is from the decision boundary; labels are all that is seen.

    The distance is the least along straight lines to the nearest records of the population to
    which the model gives another label, found by bisection: an upper bound of the true distance, at
    ``neighbours`` × ``steps`` queries for each record. A misclassified record has distance 0.

    Parameters
    ----------
    population : array-like
        Records of the attacker, at which the lines end; neither members nor others.
    neighbours : int
        Lines for each record.
    steps : int
        Halvings of each line.
    model, members, others, target, coins
        As in :func:`threshold_attack`; ``predict`` will do.
    """
    check_whole("neighbours", neighbours, least=1)
    check_whole("steps", steps, least=1)
    records, labels = _together(members, others)
    ends = np.asarray(population, dtype=np.float64)
    theirs = _labels(model, ends)
    flat, flat_ends = (np.asarray(each, float).reshape(len(each), -1) for each in (records, ends))
    right = _labels(model, records) == labels
    distance = np.where(right, np.inf, 0.0)
    for label in np.unique(labels):
        mine = np.flatnonzero(right & (labels == label))
        foreign = flat_ends[theirs != label]
        if not len(mine) or not len(foreign):
            continue  # no end of a line: the boundary is out of sight
        start = flat[mine]
        squares = (start**2).sum(1)[:, None] + (foreign**2).sum(1) - 2 * start @ foreign.T
        nearest = np.argsort(squares, axis=1, kind="stable")[:, :neighbours]
        for rank in range(nearest.shape[1]):
            step = foreign[nearest[:, rank]] - start
            near, far = np.zeros(len(mine)), np.ones(len(mine))
            for _ in range(steps):
                middle = (near + far) / 2
                tried = (start + middle[:, None] * step).reshape(len(mine), *records.shape[1:])
                same = _labels(model, tried) == label
                near, far = np.where(same, middle, near), np.where(same, far, middle)
            lengths = (near + far) / 2 * np.sqrt((step**2).sum(axis=1))
            distance[mine] = np.minimum(distance[mine], lengths)
    size = len(np.asarray(members[1]))
    return finding(
        distance[:size],
        distance[size:],
        attack="label-only, distance to the boundary",
        target=target,
        coins=coins,
        knowledge=f"predicted labels at {neighbours * steps} points for each record, a population",
        source="Choquette-Choo et al. 2021",
    )


def _together(members: Labelled, others: Labelled) -> tuple[NDArray[Any], NDArray[Any]]:
    records = np.concatenate([np.asarray(X, dtype=np.float64) for X, _ in (members, others)])
    labels = np.concatenate([np.asarray(y) for _, y in (members, others)])
    check_labels(labels, records=len(records))
    return records, labels


def _labels(model: Any, X: NDArray[Any]) -> NDArray[Any]:
    """Return predicted labels, by ``predict`` where there is one."""
    predict = getattr(model, "predict", None)
    answer = np.asarray(predict(X)) if callable(predict) else confidences(model, X).argmax(axis=1)
    if answer.shape != (len(X),):
        raise InvalidInput(
            f"predict returned shape {answer.shape} for {len(X)} records; it must be one label for "
            "each"
        )
    return answer
