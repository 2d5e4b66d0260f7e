"""DP-SGD in a training loop of one's own, with the names of Opacus.

:meth:`PrivacyEngine.make_private` takes a module, an optimiser and a ``DataLoader``, and returns
them for the usual loop. The loader draws Poisson lots, and ``loss.backward()`` leaves in ``grad``
of every trained parameter the noised sum of the clipped gradients over the expected lot size:
exactly the steps of :class:`dpsgd.Trainer`, by the same code.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from dpsgd.clipping import choose_clipping, choose_multiplier
from dpsgd.data import as_records, first_inputs, optional_count
from dpsgd.gradients import COMPARED, ClippedGradients
from dpsgd.loops import REDUCTIONS, Run
from dpsgd.losses import mixed_outputs
from dpsgd.noise import choose_noise
from dpsgd.plan import Spending, noise_for
from dpsgd.sampling import Lots, choose_lots, largest_batch, rate_of
from dpsgd.schedules import Schedule
from dpsgd.step import PrivateStep, float_type, require_fitting
from dpsgd.validation import validate
from pate._validate import check_choice, check_whole
from pate.accounting import Guarantee
from pate.errors import InvalidInput, PateError
from pate.randomness import Randomness

__all__ = ["PrivacyEngine"]

Private = tuple[nn.Module, Optimizer, "LotLoader"]

_ACCOUNTANTS = {"rdp": "moments", "prv": "pld"}  # by the names of Opacus
_ANY = object()
# Arguments of Opacus: the value that can be honoured, and the remedy for any other.
_OF_OPACUS: dict[str, tuple[Any, str]] = {
    "poisson_sampling": (
        True,
        "ε is for Poisson sampling; leave it out (dpsgd.Trainer has shuffled lots for comparisons)",
    ),
    "clipping": ("flat", "use dpsgd.Trainer(clipping=…), which has other rules"),
    "batch_first": (True, "keep the examples in the first dimension"),
    "grad_sample_mode": ("hooks", "leave it out: one pass computes all clipped gradients"),
    "noise_generator": (None, "noise comes from a secure generator; leave it out"),
    "normalize_clipping": (False, "use dpsgd.Trainer(clipping=dpsgd.Automatic())"),
    "rand_on_empty": (False, "an empty lot is a step of pure noise; leave it out"),
    "wrap_model": (_ANY, ""),  # the module is never wrapped
    "criterion": (_ANY, ""),  # the loop applies it
}


@final
class PrivacyEngine:
    """Make a module, an optimiser and a data loader private, for a loop of one's own.

    Parameters
    ----------
    accountant : {"moments", "pld", "abadi"}, default="moments"
        The accountant, as in :class:`dpsgd.Trainer`; "rdp" and "prv", Opacus' names of the first
        two, are understood.
    secure_mode : bool, default=True
        Accepted for compatibility: noise and lots always come from secure generators.
    insecure_seed : int, optional
        Seed everything, for tests. The run is not private.

    Attributes
    ----------
    steps : int
        The number of lots drawn, each of which counts as a step.

    Guarantees:
        * Lots, clipping, noise and cost are those of :class:`dpsgd.Trainer` (Abadi et al. 2016,
          Algorithm 1). A lot counts when the loader returns it, whatever the loop does with it.
        * What ``loss.backward()`` leaves in ``grad`` is noised. No other gradient reaches a trained
          parameter: a backward pass around the engine raises.
        * Not covered is what the loop does with private examples itself: a loss printed, a stop
          decided by it, an example's loss or input that depends on other examples. What can be
          seen of the last (a mean over a varying number of values) is refused.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> data = TensorDataset(torch.randn(200, 4), torch.zeros(200, dtype=torch.long))
    >>> engine = PrivacyEngine()
    >>> model, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=20),
    ...     noise_multiplier=1.1, max_grad_norm=1.0)
    >>> for epoch in range(2):
    ...     for inputs, labels in loader:
    ...         optimizer.zero_grad()
    ...         nn.functional.cross_entropy(model(inputs), labels).backward()
    ...         optimizer.step()
    >>> round(engine.get_epsilon(1e-3), 2), engine.guarantee(delta=1e-3).neighbours.value
    (2.23, 'zero-out')
    """

    def __init__(
        self,
        *,
        accountant: str = "moments",
        secure_mode: bool = True,
        insecure_seed: int | None = None,
    ) -> None:
        self._accountant = _ACCOUNTANTS.get(accountant, accountant)
        check_choice("accountant", self._accountant, ["moments", "pld", "abadi"])
        self._seed = insecure_seed
        self._run: Run | None = None

    @property
    def steps(self) -> int:
        return 0 if self._run is None else self._run.steps

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float | Schedule,
        max_grad_norm: float | Schedule,
        loss_reduction: str = "mean",
        records: int | None = None,
        example_inputs: Tensor | None = None,
        **more: Any,
    ) -> Private:
        """Return the module, the optimiser and a loader of lots.

        Module and optimiser are those given, changed in place. Call the module once in each lot,
        and ``backward()`` once on the loss. In evaluation mode it computes no gradients.

        Parameters
        ----------
        module : torch.nn.Module
            The model to train.
        optimizer : torch.optim.Optimizer
            An optimiser of its parameters.
        data_loader : torch.utils.data.DataLoader
            A loader of the private examples. Its ``batch_size`` is the *expected* lot size; its
            order and ``drop_last`` are replaced by Poisson sampling. An empty lot comes as one
            example of zeros, whose gradient is dropped.
        noise_multiplier : float or Schedule
            The standard deviation of the noise over the clipping norm.
        max_grad_norm : float or Schedule
            The norm to which the gradient of each example is clipped.
        loss_reduction : {"mean", "sum"}, default="mean"
            How the loop's loss adds up the examples of a lot. Clipping is of each example's own
            loss, whichever it is.
        records : int, optional
            An agreed, public number of examples, as in :class:`dpsgd.Trainer`.
        example_inputs : torch.Tensor, optional
            Inputs to try the model on, as in :func:`dpsgd.problems`; made-up ones will do. Needed
            where examples are not pairs (input, target).
        **more
            Other arguments of Opacus, if they ask for what is done anyway; others are refused.

        Returns
        -------
        tuple
            The module, the optimiser, and the loader; an epoch has ⌈records / lot size⌉ lots.
        """
        if self._run is not None:
            raise InvalidInput(
                "this engine has a model already; make another engine, and add up the ε if both "
                "train on the same examples"
            )
        _refuse_others(more)
        if isinstance(max_grad_norm, (list, tuple)):
            raise InvalidInput(
                "max_grad_norm is a list; give one number, or use "
                "dpsgd.Trainer(clipping=dpsgd.PerLayer(…))"
            )
        check_choice("loss_reduction", loss_reduction, REDUCTIONS)
        lot_size, dataset = _lot_size(data_loader), _dataset(data_loader)
        records = optional_count("records", records)
        if getattr(module, "_dpsgd_private", None) == id(module):
            raise InvalidInput("the module is private already; make a new one")
        inputs = example_inputs
        if inputs is None:
            inputs = _first_inputs(data_loader, size=largest_batch(lot_size, None), module=module)
        validate(module, example_inputs=inputs)
        require_fitting(module, optimizer)
        gradients = ClippedGradients(module, mixed_outputs)
        device = next(module.parameters()).device
        gradients.check(inputs[:COMPARED].to(device), torch.zeros(COMPARED, device=device))
        rule = choose_clipping(max_grad_norm, None)
        randomness = Randomness.open(insecure_seed=self._seed)
        lots = choose_lots(
            "poisson",
            records=len(dataset),
            public_records=records,
            lot_size=lot_size,
            generator=randomness.generator,
        )
        step = PrivateStep(
            model=module,
            optimizer=optimizer,
            gradients=gradients,
            clipper=rule.start(len(gradients.groups)),
            records=as_records(dataset, dtype=float_type(module)),
            lots=lots,
            noise=choose_noise("secure", seed=self._seed, device=device),
            randomness=randomness,
            lot_size=lot_size,
            learning_rate=None,
            batch_size=None,
            device=device,
        )
        step.rehearse()
        spending = Spending(
            sample_rate=lots.sample_rate,
            noise_multiplier=choose_multiplier(noise_multiplier, rule),
            delta=1e-6,  # every question brings its own
            accountant=self._accountant,
            caveats=() if step.noise.caveat is None else (step.noise.caveat,),
            public_rate=records is not None,
        )
        step.clipper.noise_stds(0, spending.multiplier(0))
        per_epoch = math.ceil((records or len(dataset)) / lot_size)
        made = LotLoader(data_loader, lots=lots, length=per_epoch)
        self._run = Run(step, spending, reduction=loss_reduction, seed=self._seed)
        made._run = self._run
        return module, optimizer, made

    def make_private_with_epsilon(
        self,
        *,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        records: int | None = None,
        **settings: Any,
    ) -> Private:
        """Do the same with the smallest noise that stays within a target ε for all epochs.

        A lot beyond the target is never returned: the loader raises
        :class:`~pate.errors.BudgetExceeded`.

        Parameters
        ----------
        data_loader, records
            As in :meth:`make_private`.
        target_epsilon, target_delta : float
            ε and δ of all epochs together.
        epochs : int
            The number of passes over the loader.
        **settings
            The other arguments of :meth:`make_private`: ``module``, ``optimizer``,
            ``max_grad_norm`` …

        Returns
        -------
        tuple
            The module, the optimiser, and the loader.
        """
        lot_size = _lot_size(data_loader)
        count = optional_count("records", records) or len(_dataset(data_loader))
        steps = check_whole("epochs", epochs, least=1) * math.ceil(count / lot_size)
        noise_multiplier = noise_for(
            target_epsilon=target_epsilon,
            delta=target_delta,
            sample_rate=rate_of(count, lot_size),
            steps=steps,
            accountant=self._accountant,
        )
        made = self.make_private(
            data_loader=data_loader, noise_multiplier=noise_multiplier, records=records, **settings
        )
        assert self._run is not None
        self._run.target = Guarantee(epsilon=target_epsilon, delta=target_delta)
        self._run.planned = steps
        return made

    def get_epsilon(self, delta: float) -> float:
        """Return ε of the lots drawn so far, at this δ.

        Parameters
        ----------
        delta : float
            δ; well below one over the number of examples.
        """
        return self.guarantee(delta=delta).epsilon

    def guarantee(self, *, delta: float | None = None) -> Guarantee:
        """Return (ε, δ) of the lots drawn so far; publishable if their number was fixed before.

        If results decided when to stop, quote the target ε instead, which covers every end.

        Parameters
        ----------
        delta : float, optional
            δ; by default ``target_delta``.
        """
        run = self._run
        if run is None:
            raise InvalidInput("nothing is private yet; call make_private first")
        if delta is None and run.target is None:
            raise InvalidInput("give delta; only make_private_with_epsilon has fixed one")
        return run.cost(run.steps, delta=delta)


@final
class LotLoader:
    """An iterable of lots in place of a ``DataLoader``; an epoch has a fixed number of them."""

    _run: Run

    def __init__(self, loader: DataLoader[Any], *, lots: Lots, length: int) -> None:
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size  # expected
        self._sizes: deque[int] = deque()
        self._length = length
        collate: Callable[[Any], Any] = loader.collate_fn
        blank = _zeros(collate([_dataset(loader)[0]]))
        self._batches: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=_LotSampler(lots, self._sizes, length),
            collate_fn=_Collate(collate, blank),
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._run.require_unchanged()
        self._sizes.clear()
        for batch in self._batches:
            self._run.begin_lot(self._sizes.popleft())
            yield batch
        self._run.end_lot()


@final
@dataclass(slots=True)
class _LotSampler:
    lots: Lots
    sizes: deque[int]  # of the lots drawn and not yet returned
    length: int

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.length):
            lot = self.lots.lot().tolist()
            self.sizes.append(len(lot))
            yield lot


@final
@dataclass(frozen=True, slots=True)
class _Collate:
    collate: Callable[[Any], Any]
    blank: Any

    def __call__(self, examples: list[Any]) -> Any:
        return self.collate(examples) if examples else self.blank


def _refuse_others(more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if name in ("groups", "per_user", "users"):  # whose values are private
            raise InvalidInput(
                f"{name} cannot be honoured: a loop of one's own protects single records; use "
                "dpsgd.Trainer(groups=…), which clips the gradients of a user together"
            )
        if name not in _OF_OPACUS:
            raise InvalidInput(f"make_private has no argument {name!r}; leave it out")
        honoured, remedy = _OF_OPACUS[name]
        if honoured is not _ANY and value != honoured:
            raise InvalidInput(f"{name}={value!r} cannot be honoured: {remedy}")


def _dataset(loader: DataLoader[Any]) -> Any:
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidInput(
            "the data set has no index; lots are drawn by index: use a map-style one"
        )
    return loader.dataset


def _lot_size(loader: DataLoader[Any]) -> int:
    """Return the batch size of a loader that draws every example alike."""
    if not isinstance(loader, DataLoader):
        raise InvalidInput(f"data_loader is a {type(loader).__name__}; give a torch DataLoader")
    _dataset(loader)
    plain = type(loader.batch_sampler) is BatchSampler and (
        type(loader.sampler) is SequentialSampler
        or (type(loader.sampler) is RandomSampler and not loader.sampler.replacement)
    )
    if loader.batch_size is None or not plain:
        raise InvalidInput(
            "the data_loader has a sampler of its own; lots are drawn by Poisson sampling: give "
            "batch_size and no sampler"
        )
    return loader.batch_size


def _first_inputs(loader: DataLoader[Any], *, size: int, module: nn.Module) -> Tensor:
    found = None
    if loader.collate_fn is default_collate:
        with contextlib.suppress(PateError, TypeError, ValueError, AttributeError, RuntimeError):
            found = first_inputs(as_records(loader.dataset, dtype=float_type(module)), size=size)
    if found is None:
        raise InvalidInput(
            "the examples are not different pairs (input, target) that are stacked to tensors; "
            "give example_inputs=, three or more inputs of the module (made-up ones will do)"
        )
    return found


def _zeros(batch: Any) -> Any:
    """Return a batch of the same structure without anything of its example."""
    if isinstance(batch, Tensor):
        return torch.zeros_like(batch)
    if isinstance(batch, Mapping):
        return {key: _zeros(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_zeros, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(_zeros, batch))
    if batch is None or isinstance(batch, (bool, int, float, str, bytes)):
        return None if batch is None else type(batch)()
    raise InvalidInput(
        f"a batch holds a {type(batch).__name__}; let collate_fn return tensors, in tuples, lists "
        "or dictionaries"
    )
