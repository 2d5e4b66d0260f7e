"""torchvision's downloader in a process of its own: ``python -m pate.datasets.torch_download``."""

from __future__ import annotations

import socket
import sys

from pate.vision import torchvision

_SILENCE = 10.0  # seconds; torchvision sets no timeout itself
_KINDS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "cifar10": "CIFAR10", "svhn": "SVHN"}


def main(name: str, folder: str) -> int:
    """Downloads a set into ``folder``; 1 and one line where that fails."""
    socket.setdefaulttimeout(_SILENCE)
    kind = getattr(torchvision().datasets, _KINDS[name])
    parts: list[dict[str, object]] = (
        [{"split": "train"}, {"split": "test"}] if name == "svhn" else [{"train": True}]
    )
    try:
        for part in parts:
            kind(folder, download=True, **part)
    except Exception as error:  # no network, no disk, a changed file: the caller tries elsewhere
        print(f"nothing downloaded ({type(error).__name__})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
