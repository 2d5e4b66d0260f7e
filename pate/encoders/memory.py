"""What steps of one's own remember, in short: it must be the same after they saw records.

Guarantees:
    A step that keeps something of a record it transforms would carry it to the next one: to another
    shard, to another private record, or into what is published. Its state, as it saves itself, is
    compared before and after. What a step hides from its own ``save`` is not seen.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pate.encoders.spec import EncoderSpec, StepSpec
from pate.encoders.step import Step
from pate.errors import InvalidInput


def is_own(spec: StepSpec) -> bool:
    """Whether a step runs code of the user's: ``"module:attr"``, or a network.

    >>> [is_own(StepSpec(name=name)) for name in ("scattering", "numpy:tanh")]
    [False, True]
    """
    return spec.name == "torch" or ":" in spec.name


def has_own(spec: EncoderSpec) -> bool:
    return any(map(is_own, spec.steps))


def memories(steps: Sequence[Step], specs: Sequence[StepSpec]) -> list[str | None]:
    """For each step of one's own what it remembers; None for others, which remember nothing."""
    return [
        _memory(step) if is_own(spec) else None for step, spec in zip(steps, specs, strict=True)
    ]


def require_same(
    before: Sequence[str | None], steps: Sequence[Step], specs: Sequence[StepSpec]
) -> None:
    """Refuses a step that changed when it transformed records."""
    for old, new, spec in zip(before, memories(steps, specs), specs, strict=True):
        if old != new:
            raise InvalidInput(
                f"step {spec.name} changes when it transforms records, and would carry one record "
                "to others; let fit(X) alone set attributes, and save() write the same bytes again"
            )


def _memory(step: Step) -> str:
    from pate.encoders.backbone import Backbone

    digest = hashlib.sha256()
    if isinstance(step, Backbone):
        for name, tensor in [*step.module.named_parameters(), *step.module.named_buffers()]:
            values = tensor.detach().double().numpy()
            digest.update(f"{name} {tensor.dtype} {values.shape}".encode() + values.tobytes())
        digest.update(str(step.module.training).encode())
        return digest.hexdigest()
    with tempfile.TemporaryDirectory(prefix="pate-step-") as folder:
        step.save(Path(folder))
        for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
            digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()
