"""Private records by a keyed digest, so that a second ledger of the same ones is noticed.

The budget of a data set is kept by its ledger, which is found by the data set's name and the data
root. Under another name, or in another root, the same records would have a second ledger and a
second budget. So the digests of private records are kept in the user's data folder, beside a key
of the user, each with the ledger that it was charged to; nothing of it is ever published.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pate._files import exclusive_lock, user_data_folder
from pate.accounting.ledger.data_ledger import secret_key
from pate.accounting.ledger.data_set import sibling_ledger
from pate.errors import InvalidInput, LedgerError, SpendNeeded

_KEY, _RECORDS = "records.key", "records.jsonl"


def records_key(*, draw: bool = True) -> bytes | None:
    """Return the key of digests, drawn once for a user; None where there is none, or can be none.

    Guarantees:
        Nobody without the key can tell from a digest whether they guessed the records.
    """
    folder = user_data_folder()
    if not draw and not (folder / _KEY).exists():
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return secret_key(folder / _KEY)
    except (OSError, LedgerError):
        return None


def known_ledgers(digests: Collection[str]) -> list[Path]:
    """Return the ledgers, of those that still exist, that records with such a digest have."""
    found = [Path(ledger) for digest, ledger in _entries() if digest in digests]
    return [each for each in dict.fromkeys(found) if each.exists()]


def other_ledgers(ledger: Path) -> list[Path]:
    """Return other ledgers of the same records, one for each data set that has them."""
    own, entries = (ledger.resolve(), sibling_ledger(ledger).resolve()), list(_entries())
    digests = {digest for digest, place in entries if Path(place) in own}
    found: list[Path] = []
    for each in known_ledgers(digests):
        if each not in own and sibling_ledger(each) not in found:
            found.append(each)
    return found


def require_one_ledger(
    ledger: Path,
    digests: Collection[str],
    *,
    spend: bool | None,
    report: Callable[[str], None],
    remember: bool = True,
) -> None:
    """Refuse to make a second ledger for the same records without consent; report the first one.

    To be called before a charge to ``ledger``, which is known for these records from then on. The
    data set's other ledger, of its other method, is no second one: it shares the budget.
    With ``spend`` None the command has no such option, and cannot be given consent.
    """
    own = [each.resolve() for each in (ledger, sibling_ledger(ledger))]
    others = [each for each in known_ledgers(digests) if each not in own]
    if others:
        text = f"the same records have a ledger at {others[0]}: charges there and here add up"
        if not spend and not any(each.exists() for each in own):
            if spend is None:
                raise InvalidInput(
                    f"{text}; charge to that one: set data_root and data.name in the recipe to its"
                )
            raise SpendNeeded(
                f"{text}; charge to that one, by its --data-root and its data.name, or add --spend "
                f"to make a second one at {own[0]}"
            )
        report(text)
    if remember and digests:
        with contextlib.suppress(OSError):
            _remember(own[0], digests)


def _remember(ledger: Path, digests: Collection[str]) -> None:
    file = user_data_folder() / _RECORDS
    with exclusive_lock(file):
        new = {(digest, str(ledger)) for digest in digests} - set(_entries())
        with file.open("a", encoding="utf-8") as stream:
            for digest, path in sorted(new):
                stream.write(json.dumps({"digest": digest, "ledger": path}) + "\n")


def _entries() -> Iterator[tuple[str, str]]:
    """Yield digests and the ledgers of the records that they stand for; a torn line is left out."""
    try:
        lines = (user_data_folder() / _RECORDS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            yield str(entry["digest"]), str(entry["ledger"])
