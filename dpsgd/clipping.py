"""Clipping rules: bounds on the influence of one example, and the noise that they require.

A rule (a frozen value) is fixed before training; ``rule.start(groups)`` returns the clipper that
applies it during a run. Examples' gradients are clipped as a whole, or layer by layer; "group"
below is either all parameters or one layer.

Guarantees:
    Adding or removing one example changes the sum of group g by at most ``bounds[g]`` in L2 norm.
    With noise of standard deviation s_g on that sum, all groups together are one Gaussian mechanism
    whose noise multiplier z has 1/z² = Σ_g (bounds[g] / s_g)² (scale every group by 1/s_g: the
    noise is then standard, and the sensitivity is the root of that sum). ``noise_stds`` returns
    s_g that meet a given z, so that a lot costs one ``SampledGaussian(sample_rate, z)`` whatever
    the rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from dpsgd.schedules import Schedule, as_schedule
from pate._validate import check_positive
from pate.errors import InvalidInput

_FARTHEST = 1e8  # the largest factor between an adaptive norm and its initial value


@final
@dataclass(frozen=True, slots=True)
class Flat:
    """Clip the whole gradient of each example to one norm.

    Abadi et al. 2016, Algorithm 1: g / max(1, ‖g‖ / C).

    Parameters
    ----------
    max_norm : float or Schedule
        C.

    >>> Flat(1.0).start(groups=3).bounds(step=0)
    (1.0,)
    """

    max_norm: float | Schedule

    joint_noise_multiplier = None

    def start(self, groups: int) -> Clipper:
        return Clipper(norms=(as_schedule(self.max_norm),), per_layer=False)


@final
@dataclass(frozen=True, slots=True)
class PerLayer:
    """Clip the gradient of each layer to a norm of its own (Abadi et al. 2016, Section 4).

    Parameters
    ----------
    max_norms : float, Schedule or tuple of float
        One norm for every layer, or one for each.
    noise_multipliers : tuple of float, optional
        The noise of each layer over its norm. By default all layers share one multiplier, √layers
        times that of the lot.

    >>> PerLayer(4.0, noise_multipliers=(2.0, 2.0)).joint_noise_multiplier
    1.414213562373095
    """

    max_norms: float | Schedule | tuple[float, ...]
    noise_multipliers: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for value in self.noise_multipliers or ():
            check_positive("a noise multiplier of a layer", value)

    @property
    def joint_noise_multiplier(self) -> float | None:
        if self.noise_multipliers is None:
            return None
        return _joint(self.noise_multipliers)

    def start(self, groups: int) -> Clipper:
        if isinstance(self.max_norms, tuple):
            _check_length("max_norms", self.max_norms, groups)
            norms = tuple(as_schedule(value) for value in self.max_norms)
        else:
            norms = (as_schedule(self.max_norms),) * groups
        shares = (1.0,) * groups
        if self.noise_multipliers is not None:
            _check_length("noise_multipliers", self.noise_multipliers, groups)
            shares = self.noise_multipliers
        return Clipper(norms=norms, per_layer=True, shares=shares)


@final
@dataclass(frozen=True, slots=True)
class Automatic:
    """Scale every gradient to about one length: C·g / (‖g‖ + stability).

    Bu, Wang, Zha & Karypis 2023 (AUTO-S): there is no clipping norm to tune.

    Parameters
    ----------
    max_norm : float, default=1.0
        C; it only scales the learning rate.
    stability : float, default=0.01
        Added to the norm; keeps small gradients small.

    >>> Automatic().start(groups=3).bounds(step=0)
    (1.0,)
    """

    max_norm: float = 1.0
    stability: float = 0.01

    joint_noise_multiplier = None

    def __post_init__(self) -> None:
        check_positive("stability", self.stability)

    def start(self, groups: int) -> Clipper:
        return _Normalise(
            norms=(as_schedule(self.max_norm),), per_layer=False, stability=self.stability
        )


@final
@dataclass(frozen=True, slots=True)
class AdaptiveQuantile:
    """Clip to a norm C that follows a quantile of the gradients' norms, estimated with noise.

    Andrew, Thakkar, McMahan & Ramaswamy 2021, Algorithm 1 and Theorem 1: each lot also releases how
    many of its gradients are at most C long, as Σ(bᵢ − ½) plus N(0, count_noise²). One example
    moves that by ½. Gradients and count together cost the lot's noise multiplier z, which leaves
    the gradients (z⁻² − (2·count_noise)⁻²)^(−½).

    Parameters
    ----------
    initial : float, default=1.0
        C of the first step.
    quantile : float, default=0.5
        The share of gradients that are to be at most C long.
    learning_rate : float, default=0.2
        How fast C follows the quantile.
    count_noise : float, optional
        The noise of the count; by default 10, or z if that is larger.

    >>> AdaptiveQuantile(initial=0.5, quantile=0.8).start(groups=3).bounds(step=0)
    (0.5,)
    """

    initial: float = 1.0
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None

    joint_noise_multiplier = None

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_positive("learning_rate", self.learning_rate)
        if self.count_noise is not None:
            check_positive("count_noise", self.count_noise)
        if not 0 < self.quantile < 1:
            raise InvalidInput(f"quantile is {self.quantile}; it must lie strictly between 0 and 1")

    def start(self, groups: int) -> Clipper:
        return _Adapt(rule=self, max_norm=self.initial)


Clipping = Flat | PerLayer | Automatic | AdaptiveQuantile


def choose_clipping(max_grad_norm: float | Schedule | None, clipping: Clipping | None) -> Clipping:
    """Return flat clipping to one norm, or the given rule."""
    if max_grad_norm is not None and clipping is None:
        return Flat(as_schedule(max_grad_norm))
    if max_grad_norm is None and clipping is not None:
        return clipping
    raise InvalidInput("give exactly one of max_grad_norm and clipping")


def choose_multiplier(noise_multiplier: float | Schedule | None, rule: Clipping) -> Schedule:
    """Return the noise multiplier of a lot: the trainer's, or that of a rule which fixes it."""
    joint = rule.joint_noise_multiplier
    if noise_multiplier is None:
        if joint is None:
            raise InvalidInput("give a noise_multiplier, or a clipping rule that brings its own")
        return as_schedule(joint)
    if joint is not None:
        raise InvalidInput(
            "the clipping rule brings noise multipliers of its own; leave out noise_multiplier"
        )
    return as_schedule(noise_multiplier)


@dataclass(kw_only=True)
class Clipper:
    """The state of a rule during a run, here of norms that are fixed or follow a schedule.

    It learns only noised values, so it is public.
    """

    norms: tuple[Schedule, ...]
    per_layer: bool
    shares: tuple[float, ...] = (1.0,)  # of the noise multipliers of the groups, relative

    def bounds(self, step: int) -> tuple[float, ...]:
        """Return the most that one example adds to each group, in L2 norm."""
        found = tuple(norm(step) for norm in self.norms)
        for each in found:
            check_positive("a clipping norm", each)  # a user's own schedule may return anything
        return found

    def factors(self, norms: Tensor, step: int) -> Tensor:
        """Return the factor of each example's gradient: (groups, examples), as the norms."""
        limit = norms.new_tensor(self.bounds(step)).unsqueeze(1)
        return (limit / norms).clamp_(max=1.0)

    def noise_stds(self, step: int, noise_multiplier: float) -> tuple[float, ...]:
        """Return the noise of each group's sum such that the lot costs ``noise_multiplier``."""
        joint = _joint(self.shares)
        return tuple(
            noise_multiplier / joint * share * bound
            for share, bound in zip(self.shares, self.bounds(step), strict=True)
        )

    def end_lot(self, step: int, *, lot_size: float, normal: Callable[[], float]) -> None:
        """Learn from the lot, if the rule does; ``normal`` draws from N(0, 1)."""

    def state(self) -> dict[str, float]:
        """Return what was learned so far."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Restore what :meth:`state` returned, and forget an unfinished lot."""


@dataclass(kw_only=True)
class _Normalise(Clipper):
    """Scaling of every gradient to a length just below the bound."""

    stability: float

    def factors(self, norms: Tensor, step: int) -> Tensor:
        return self.bounds(step)[0] / (norms + self.stability)


@dataclass(kw_only=True)
class _Adapt(Clipper):
    """Clipping to a norm that follows a quantile."""

    norms: tuple[Schedule, ...] = ()
    per_layer: bool = False
    rule: AdaptiveQuantile
    max_norm: float
    _excess: Tensor | float = field(default=0.0, init=False)  # Σ(bᵢ − ½) of the lot so far
    _count_noise: float = field(default=math.inf, init=False)

    def bounds(self, step: int) -> tuple[float, ...]:
        return (self.max_norm,)

    def factors(self, norms: Tensor, step: int) -> Tensor:
        # An example without a finite gradient is left out: it does not move the count.
        self._excess = self._excess + ((norms <= self.max_norm).to(norms.dtype) - 0.5).sum()
        return super().factors(norms, step)

    def noise_stds(self, step: int, noise_multiplier: float) -> tuple[float, ...]:
        given = self.rule.count_noise
        self._count_noise = max(10.0, noise_multiplier) if given is None else given
        left = noise_multiplier**-2 - (2 * self._count_noise) ** -2
        if left <= 0:
            raise InvalidInput(
                f"count_noise is {self._count_noise:g} and the noise multiplier "
                f"{noise_multiplier:g}; count_noise must be more than half of it"
            )
        return (left**-0.5 * self.max_norm,)

    def end_lot(self, step: int, *, lot_size: float, normal: Callable[[], float]) -> None:
        noised = float(self._excess) + self._count_noise * normal()
        share = noised / lot_size + 0.5
        change = self.rule.learning_rate * (share - self.rule.quantile)
        wanted = self.max_norm * math.exp(-max(-1.0, min(1.0, change)))
        self.max_norm = min(
            max(wanted, self.rule.initial / _FARTHEST), self.rule.initial * _FARTHEST
        )
        self._excess = 0.0

    def state(self) -> dict[str, float]:
        return {"max_norm": self.max_norm}

    def restore(self, state: dict[str, float]) -> None:
        self.max_norm = state["max_norm"]
        self._excess = 0.0


def _joint(noise_multipliers: tuple[float, ...]) -> float:
    """Return the noise multiplier of Gaussian releases together: 1/z² adds up."""
    return 1 / math.sqrt(math.fsum(value**-2 for value in noise_multipliers))


def _check_length(name: str, values: tuple[float, ...], groups: int) -> None:
    if len(values) != groups:
        raise InvalidInput(
            f"{name} has {len(values)} numbers, and the model has {groups} layers to train; "
            "give one for each layer, or one number for all"
        )
