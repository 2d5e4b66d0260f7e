"""Exposure of secrets in a generative model: canaries of known randomness, ranked by the model.

A secret is drawn from |R| candidates, put into the training data, and later all candidates are
ranked by their loss. Exposure is log2 |R| − log2 rank (Carlini et al. 2019): 0 bits where the
model prefers all other candidates, log2 |R| where it prefers the secret, which can then be
extracted.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate._validate import check_delta, check_whole
from pate.accounting.composition import group
from pate.audits.findings import FIRM, Finding, FloatArray
from pate.audits.roc import most_tpr
from pate.audits.statistics import clopper_pearson
from pate.errors import InvalidInput


def secret_ranks(losses: ArrayLike, secrets: ArrayLike) -> NDArray[np.int64]:
    """Return the rank of each secret among its candidates, 1 for the lowest loss.

    Candidates of the same loss as the secret count as better, so that at most k candidates have
    rank k or less, whatever the model.

    Parameters
    ----------
    losses : array-like of shape (n_secrets, n_candidates)
        The model's loss (log-perplexity) of every candidate for each secret.
    secrets : array-like of shape (n_secrets,)
        The places of the true ones.

    >>> secret_ranks([[0.3, 0.1, 0.2], [0.1, 0.1, 0.2]], [2, 0])
    array([2, 2])
    """
    table, places = np.asarray(losses, dtype=np.float64), np.asarray(secrets)
    if table.ndim != 2 or table.shape[1] < 2 or np.isnan(table).any():
        raise InvalidInput(
            f"losses have shape {table.shape}; give a number for each secret and candidate"
        )
    fits = places.shape == (len(table),) and places.dtype.kind in "iu"
    if not fits or not 0 <= places.min() <= places.max() < table.shape[1]:
        raise InvalidInput("secrets are not places of candidates; give one for each row of losses")
    own = table[np.arange(len(table)), places]
    return np.asarray((table <= own[:, None]).sum(axis=1), dtype=np.int64)


def exposure_bits(ranks: ArrayLike, *, candidates: int) -> FloatArray:
    """Return log2 of candidates over rank; Carlini et al. 2019, Definition 1.

    Parameters
    ----------
    ranks : array-like of int
        Ranks, from 1.
    candidates : int
        The number of candidates.

    >>> exposure_bits([1, 512, 1024], candidates=1024)
    array([10.,  1.,  0.])
    """
    return np.asarray(math.log2(candidates) - np.log2(np.asarray(ranks, dtype=np.float64)))


def most_exposed(
    bits: ArrayLike, *, epsilon: float, delta: float, candidates: int, copies: int = 1
) -> FloatArray:
    """Return the largest probability, under (ε, δ), that a secret's exposure reaches ``bits``.

    Parameters
    ----------
    bits : array-like
        Exposures.
    epsilon, delta : float
        The guarantee for one record added or removed.
    candidates : int
        The number of candidates.
    copies : int
        In how many records the secret is.

    Guarantees:
        Let c be uniform over R and independent of all else. For a fixed c, data with its record
        and data without it are neighbours, so Pr_in[rank ≤ k] ≤ f(Pr_out[rank ≤ k]) with the f of
        Kairouz, Oh & Viswanath 2015 (:func:`pate.audits.roc.most_tpr`). Without the record the
        model does not depend on c, and at most k candidates have rank k or less: the mean over c
        of Pr_out[rank ≤ k] is at most k/|R|. f is concave and increasing, so the mean over c of
        Pr_in[rank ≤ k] is at most f(k/|R|) (Jensen). Several copies are a group (Vadhan 2017,
        Lemma 2.2). Exposure ≥ b is rank ≤ ⌊|R|/2^b⌋.

    >>> most_exposed([10.0], epsilon=1.0, delta=0.0, candidates=1024).round(6)
    array([0.002655])
    """
    epsilon, delta = group(epsilon, delta, size=check_whole("copies", copies, least=1))
    check_whole("candidates", candidates, least=2)
    # Rounded up by a hair: log2 of a rank, taken back, may fall short of it.
    ranks = np.floor(candidates * 2.0 ** -np.asarray(bits, dtype=np.float64) * (1 + 1e-9))
    if delta >= 1:
        return np.ones_like(ranks)
    return most_tpr(np.clip(ranks / candidates, 0, 1), epsilon=epsilon, delta=delta)


def most_mean_exposure(*, epsilon: float, delta: float, candidates: int, copies: int = 1) -> float:
    """Return the largest expected exposure, in bits, that (ε, δ) allows.

    Parameters
    ----------
    epsilon, delta, candidates, copies
        As in :func:`most_exposed`.

    Guarantees:
        E[log2 |R|/rank] = Σ_k Pr[rank ≤ k] log2((k + 1)/k) over 1 ≤ k < |R|, each probability
        bounded as in :func:`most_exposed`. For small δ that is at most about (ε + 1)/ln 2 bits;
        with ε = 0 it is 1/ln 2 ≈ 1.44, the mean of a uniform rank.

    >>> [round(most_mean_exposure(epsilon=e, delta=1e-6, candidates=10**4), 2) for e in (0, 1, 50)]
    [1.44, 2.64, 13.29]
    """
    epsilon, delta = group(epsilon, delta, size=check_whole("copies", copies, least=1))
    ranks = np.arange(1, check_whole("candidates", candidates, least=2))
    if delta >= 1:
        return math.log2(candidates)
    chances = most_tpr(ranks / candidates, epsilon=epsilon, delta=delta)
    return float(chances @ np.log2((ranks + 1) / ranks))


def exposure_attack(
    losses: ArrayLike,
    secrets: ArrayLike,
    *,
    target: str = "model",
    delta: float = 0.0,
    confidence: float = 0.95,
    independent: bool = False,
    within: int | None = None,
) -> Finding:
    """Return the finding from the losses of all candidates for one or more secrets.

    Parameters
    ----------
    losses : array-like of shape (n_secrets, n_candidates)
        The model's loss of every candidate for each secret.
    secrets : array-like of shape (n_secrets,)
        The places of the true ones, drawn uniformly. Each secret is in one record.
    target : str
        The name of the target in the finding.
    delta : float
        δ of the bound on ε.
    confidence : float
        The probability with which it holds.
    independent : bool
        Each secret is from a training of its own. Only then does the finding bound ε.
    within : int, optional
        The rank that counts as a hit, fixed before; by default a hundredth of the candidates.

    Guarantees:
        ε ≥ log((p_low − δ) |R|/k), where p_low is the lower bound of Clopper & Pearson 1934 on
        the probability of rank ≤ k, which (ε, δ) limits to e^ε k/|R| + δ (:func:`most_exposed`).

    >>> rng = np.random.default_rng(0)
    >>> losses = rng.normal(size=(50, 1000)); losses[:, 7] -= 9  # all secrets are memorised
    >>> found = exposure_attack(losses, [7] * 50, independent=True)
    >>> found.values["extracted"], round(found.epsilon, 2), found.epsilon == found.largest_possible
    (50.0, 4.55, True)
    """
    ranks = secret_ranks(losses, secrets)
    candidates = np.asarray(losses).shape[1]
    bits = exposure_bits(ranks, candidates=candidates)
    place = max(1, candidates // 100) if within is None else within
    check_whole("within", place, least=1, most=candidates)
    bounds: list[float | None] = [None, None, None]
    if independent:
        check_delta(delta, allow_zero=True)
        hits = int((ranks <= place).sum())
        tried = ((hits, confidence), (len(ranks), confidence), (hits, max(confidence, FIRM)))
        for number, (found, sure) in enumerate(tried):
            low, _ = clopper_pearson(found, len(ranks), error=1 - sure)
            excess = (float(low) - delta) * candidates / place
            bounds[number] = math.log(excess) if excess > 1 else 0.0
    return Finding(
        attack="exposure of secrets",
        target=target,
        knowledge=f"the loss of all {candidates} candidates for each secret",
        source="Carlini et al. 2019",
        epsilon=bounds[0],
        delta=delta if independent else 0.0,
        confidence=confidence if independent else None,
        largest_possible=bounds[1],
        firm_epsilon=bounds[2],
        values={
            "mean exposure in bits": float(bits.mean()),
            "largest exposure in bits": float(bits.max()),
            "most possible in bits": math.log2(candidates),
            "extracted": float((ranks == 1).sum()),
            "secrets": float(len(ranks)),
            "candidates": float(candidates),
        },
    )
