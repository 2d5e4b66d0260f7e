"""Where a student works: on the first device of the engine, as its teachers did."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pate.devices import parse_device, use_device
from pate.pipeline.stage import Context


def first_device(context: Context) -> AbstractContextManager[None]:
    """Inside, the current device is the first of the engine's plan.

    There is one student, so one device is enough; like the engine, it is no part of a fingerprint.
    """
    return use_device(parse_device(next(iter(context.options.engine.devices), "cpu")))
