"""Rules on the model as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dpsgd.validation.rules import Finding


def whole_model(model: nn.Module) -> Iterator[Finding]:
    """What is wrong with all of the model together.

    >>> [finding.what for finding in whole_model(nn.Flatten())]
    ['has no trainable parameter']
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield Finding("has no trainable parameter", "leave requires_grad on for some of them")
    devices = {str(tensor.device) for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        yield Finding(f"is spread over {', '.join(sorted(devices))}", "move it to one device")
    elif devices == {"meta"}:
        yield Finding("is on the meta device, without values", "build it on a real device")
