"""Numbers and relations as people read them: an ε is never shown smaller than it is.

One rule for every ε that is shown (summary, page, card, ledger, calculator, plots): three
significant digits, rounded up, so that one cost is one value wherever it stands. Files for machines
hold it in full.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_DIGITS = 3  # of an ε
_STRONG, _MODERATE = 1.0, 8.0  # the limits of common practice
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NARROW = "\u202f"  # a narrow space that does not break

# By the values of pate.accounting.Neighbours, which is a layer above.
_NEIGHBOURS = {
    "add-remove": "one record added or removed",
    "replace-one": "one record replaced by another",
    "zero-out": "one record's contribution removed (zero-out; the number of records is public)",
    "user-add-remove": "all records of one user added or removed",
    "user-zero-out": "all contributions of one user removed (zero-out; the number of users is "
    "public)",
    "lone-record": "one record's contribution removed (zero-out) where its user has no other; "
    "costs for one record and for one user are added up",
    "as-stated": "data sets as the sensitivity was stated",
}
_USERS = {"add-remove": "all records of one user added or removed"}
PROTECTED_USERS = "all records of one user added or removed, or replaced under the same id"
_EARLIER_USERS = "all records of one user added, removed or replaced"  # claimed more than it meant
# By the values of pate.accounting.Accountant; log-moments are described where they are used.
COMPOSITION_RULES = {
    "gaussian": "the plan's Gaussian noise composes exactly (Dong, Roth & Su 2022, Corollary 3.3; "
    "Balle & Wang 2018, Theorem 8)",
    "bounded-range": "the plan's exponential mechanisms, all fixed in advance, compose optimally "
    "(Dong, Durfee & Rogers 2020, Theorem 3)",
    "adaptive-bounded-range": "the plan's exponential mechanisms compose optimally for queries "
    "that follow answers (Dong, Durfee & Rogers 2020)",
    "pure": "the ε of all parts of the plan add up (Dwork et al. 2006)",
    "pld": "the plan's privacy loss distributions compose, rounded up (Koskela et al. 2020; "
    "Doroshenko et al. 2022)",
}
# The same for DP-SGD, by the accountant of a recipe or of a guarantee.
TRAINING_RULES = {
    "moments": "log-moments of all steps add up to this ε",
    "abadi": "log-moments of all steps, as in Abadi et al. 2016, add up to this ε",
    "gaussian": "this ε is exact for the Gaussian noise (Balle & Wang 2018)",
    "pld": "the privacy loss distributions of all steps come to this ε",
}
SAME_AT_PUBLIC_RATE = (
    "the same ε holds for one record added or removed where the sample rate does not depend on the "
    "number of records"
)


def round_up(value: float, *, digits: int = _DIGITS, places: int | None = None) -> Decimal:
    """Round a finite cost up to so many significant digits, or so many decimal places.

    One part in 10¹² is taken off first: that much is below the precision of the computed value.

    >>> round_up(14.37841), round_up(3.2501, places=2), round_up(3.0000000000000004, places=0)
    (Decimal('14.4'), Decimal('3.26'), Decimal('3'))
    """
    exact = Decimal(value) * (1 - Decimal("1e-12"))
    if places is not None:
        return exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING)
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(exact)


def format_epsilon(epsilon: float, digits: int = _DIGITS) -> str:
    """Format an ε for running text: rounded up, without trailing zeros.

    ``digits`` is for texts of earlier formats alone.

    >>> [format_epsilon(each) for each in (3.1811, 14.37841, 12.000000000000002, 0.00123411)]
    ['3.19', '14.4', '12', '0.00124']
    >>> format_epsilon(12345.6), format_epsilon(1.00001e-5), format_epsilon(math.inf)
    ('12400', '1.01e-05', '∞')
    """
    if not math.isfinite(epsilon):
        return "∞"
    return _plain(round_up(epsilon, digits=digits), digits)


def _plain(rounded: Decimal, digits: int) -> str:
    return f"{float(rounded):.{digits}g}" if rounded < 10**digits else f"{rounded:f}"


def format_remaining(epsilon: float) -> str:
    """Format what is left of a budget: rounded down, and never below zero.

    >>> format_remaining(1.99999), format_remaining(0.30000000000000004), format_remaining(-0.5)
    ('1.99', '0.3', '0')
    """
    if not math.isfinite(epsilon):
        return "∞"
    exact = Decimal(max(0.0, epsilon)) * (1 + Decimal("1e-12"))
    return _plain(Context(prec=_DIGITS, rounding=ROUND_FLOOR).create_decimal(exact), _DIGITS)


def format_epsilon_fixed(
    epsilon: float, *, places: int | None = None, digits: int = _DIGITS
) -> str:
    """Format an ε for a column: rounded up, with trailing zeros.

    It has as many significant digits as :func:`format_epsilon`, or ``places`` decimal places.

    >>> [format_epsilon_fixed(each) for each in (14.37841, 0.123412, 25.0, 12345.6, math.inf, 0.0)]
    ['14.4', '0.124', '25.0', '12400', '∞', '0']
    >>> format_epsilon_fixed(3.2501, places=1), format_epsilon_fixed(12.000000000000002)
    ('3.3', '12.0')
    """
    if not math.isfinite(epsilon):
        return "∞"
    up = round_up(epsilon, digits=digits, places=places)
    if places is not None:
        return f"{up:f}"
    return f"{up.quantize(Decimal(1).scaleb(up.adjusted() - digits + 1)):f}" if up else "0"


def format_factor(exponent: float) -> str:
    """Format e to a power, rounded up.

    >>> [format_factor(each) for each in (0.1, 2.0, math.log(20.041), 14.38, 400.0)]
    ['1.11', '7.39', '20.05', '1.8 million', '5.3\\u202f·\\u202f10¹⁷³']
    >>> format_factor(800.0)
    'more than 10³⁰⁰'
    """
    if exponent > 690:
        return "more than 10³⁰⁰"
    value = math.exp(exponent)
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if size <= value < 1000 * size:
            return f"{math.ceil(value / size * 10 * (1 - 1e-12)) / 10:g} {word}"
    if value >= 1e12:
        power = math.floor(math.log10(value))
        lead = math.ceil(value / 10.0**power * 10 * (1 - 1e-12)) / 10
        return f"{lead:g}\u202f·\u202f10{str(power).translate(_SUPERSCRIPT)}"
    if value >= 100:
        return f"{math.ceil(value):,}".replace(",", _NARROW)
    return f"{math.ceil(value * 100 * (1 - 1e-12)) / 100:.2f}"


def format_number(value: float) -> str:
    """Format a setting as it was written.

    >>> format_number(8.0), format_number(0.25), format_number(1e-05), format_number(12000)
    ('8', '0.25', '10⁻⁵', '12\\u202f000')
    """
    if 0 < value < 1e-3:
        power = math.floor(math.log10(value) + 1e-9)
        lead = value / 10.0**power
        exponent = f"10{str(power).translate(_SUPERSCRIPT)}"
        return exponent if abs(lead - 1) < 1e-9 else f"{lead:.6g}\u202f·\u202f{exponent}"
    if float(value).is_integer():
        return f"{int(value):,}".replace(",", _NARROW)
    return f"{value:.6g}"


def format_percent(share: float, digits: int = 1) -> str:
    """Format a share in per cent, never rounded to all or nothing.

    >>> format_percent(0.7666), format_percent(1.0), format_percent(0.9999999)
    ('76.7\\u202f%', '100\\u202f%', '>\\u202f99.9\\u202f%')
    """
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}{_NARROW}%"
    text = f"{100 * share:.{digits}f}"
    if float(text) == 100:
        return f">{_NARROW}{100 - 10.0**-digits:.{digits}f}{_NARROW}%"
    if float(text) == 0:
        return f"<{_NARROW}{10.0**-digits:.{digits}f}{_NARROW}%"
    return f"{text}{_NARROW}%"


def strength(epsilon: float) -> tuple[str, str]:
    """Return one word for the strength of an ε, and a sentence that explains it.

    >>> [strength(each)[0] for each in (0.5, 1.0, 8.0, 8.01)]
    ['strong', 'strong', 'moderate', 'weak']
    """
    if epsilon <= _STRONG:
        return "strong", (
            "By common practice an ε of up to 1 counts as strong: what is published would look "
            "nearly the same without any one record."
        )
    if epsilon <= _MODERATE:
        return "moderate", (
            "By common practice an ε above 1 and up to 8 counts as moderate: it bounds what can be"
            " learnt of one record, and real attacks do worse than the bound; the smaller the "
            "better."
        )
    return "weak", (
        "By common practice an ε above 8 counts as weak: the bound holds, but on paper it rules "
        "out little. More teachers, more noise or fewer queries make it stronger."
    )


def describe_neighbours(neighbours: str, unit: str = "record", *, users: bool = False) -> str:
    """Return how two neighbouring data sets differ, as a phrase after "for".

    ``unit`` is the owner's noun for whoever is protected; "record" renames no user. With ``users``
    they differ in all records of one user, under a relation that is known for that. A relation that
    is about a record *and* its user has no noun of the owner's.

    >>> describe_neighbours("add-remove"), describe_neighbours("add-remove", "patient")
    ('one record added or removed', 'one patient added or removed')
    >>> describe_neighbours("user-add-remove"), describe_neighbours("user-add-remove", "patient")
    ('all records of one user added or removed', 'all records of one patient added or removed')
    """
    described = _NEIGHBOURS.get(neighbours, neighbours)
    return in_units(_USERS.get(neighbours, described) if users else described, unit)


def restate_protected(phrase: str) -> str:
    """Return a stored phrase as it is stated now: earlier versions left out "under the same id".

    >>> restate_protected("all records of one user added, removed or replaced")
    'all records of one user added or removed, or replaced under the same id'
    """
    return PROTECTED_USERS if phrase == _EARLIER_USERS else phrase


def in_units(phrase: str, unit: str) -> str:
    """Return a phrase on one record, or on all records of one user, with the owner's noun for it.

    A phrase on both stays as it is: one noun cannot stand for either.

    >>> in_units("one record added or removed, or replaced under the same id", "patient")
    'one patient added or removed, or replaced under the same id'
    >>> in_units(PROTECTED_USERS, "patient")
    'all records of one patient added or removed, or replaced under the same id'
    >>> in_units("all contributions of one user removed (the number of users is public)", "person")
    'all contributions of one person removed (the number of people is public)'
    >>> in_units("all records of one user added or removed", "record")
    'all records of one user added or removed'
    """
    named = set(re.findall(r"\bone (record|user)\b", phrase))
    if unit == "record" or len(named) > 1:
        return phrase
    phrase = re.sub(r"\bnumber of (record|user)s\b", f"number of {plural(unit)}", phrase)
    return re.sub(r"\bone (record|user)\b", f"one {unit}", phrase)


def in_nouns(text: str, *, record: str = "record", user: str = "user") -> str:
    """Return sentences with the owner's nouns for one record, and for one user.

    Each phrase keeps its meaning: what is about one record is never renamed to a user's noun.

    >>> in_nouns("for one user added or removed, and not for one record", user="patient")
    'for one patient added or removed, and not for one record'
    >>> in_nouns("(zero-out; the number of users is public)", user="person")
    '(zero-out; the number of people is public)'
    """
    for noun, word in (("record", record), ("user", user)):
        text = re.sub(rf"\bnumber of {noun}s\b", f"number of {plural(word)}", text)
        text = re.sub(rf"\b(one|its) {noun}\b", rf"\1 {word}", text)
    return text


def plural(unit: str) -> str:
    """Return the plural of a noun for whoever is protected.

    >>> plural("record"), plural("person"), plural("company"), plural("survey"), plural("address")
    ('records', 'people', 'companies', 'surveys', 'addresses')
    """
    if unit == "person":
        return "people"
    if re.search(r"[^aeiou]y$", unit):
        return f"{unit[:-1]}ies"
    return f"{unit}{'es' if re.search(r'(s|x|z|ch|sh)$', unit) else 's'}"


def format_delta(delta: float) -> str:
    """Format a δ: rounded up, and a power of ten as people write it.

    >>> format_delta(1e-5), format_delta(0.0001), format_delta(2.00001e-10)
    ('1e-5', '0.0001', '2.001e-10')
    """
    return re.sub(r"e-0*", "e-", format_epsilon(delta, digits=4))


def format_cost(epsilon: float, delta: float) -> str:
    """Format an ε with its δ.

    >>> format_cost(3.1811, 1e-5)
    'ε = 3.19 at δ = 1e-5'
    """
    return f"ε = {format_epsilon(epsilon)} at δ = {format_delta(delta)}"


def compare_neighbours(pate: str, dpsgd: str, *, users: bool = False) -> str:
    """Return a sentence on comparing an ε of PATE with one of DP-SGD, given both relations.

    With ``users`` PATE protects all records of one user.

    >>> compare_neighbours("add-remove", "add-remove")
    'Both ε are for one record added or removed and can be compared directly.'
    """
    if users:
        pate = f"user-{pate.removeprefix('user-')}"
    if pate == dpsgd:
        return f"Both ε are for {describe_neighbours(pate)} and can be compared directly."
    each = f"PATE's ε is for {describe_neighbours(pate)}, DP-SGD's for {describe_neighbours(dpsgd)}"
    for prefix, unit in (("", "record"), ("user-", "user")):
        if (pate, dpsgd) == (f"{prefix}add-remove", f"{prefix}zero-out"):
            return (
                f"{each}, since its sampling rate follows from that number. A guarantee for one "
                f"{unit} added or removed also holds where one {unit}'s contribution is removed, "
                f"so the two ε can be compared; PATE's hides the number of {unit}s too, DP-SGD's "
                "does not."
            )
    if users and not dpsgd.startswith("user-"):
        return (
            f"{each}: PATE protects more at the same ε, and a sum of both covers single records "
            "only."
        )
    if dpsgd.startswith("user-"):
        return f"{each}, all records of one user: these are different guarantees."
    return (
        f"{each}: these are different guarantees. Restated for one record replaced, DP-SGD's ε is "
        "up to twice as large, and its δ 1 + e^ε times."
    )


def printable(text: str) -> str:
    """Replace what could move a terminal's cursor or change its colours.

    >>> printable("labels" + chr(27) + "[31m")
    'labels�[31m'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
