"""Decide whether a value is random: words use few pairs of letters, a random value does not.

No word list is needed: 300 of the 676 pairs of letters make up 95 % of the pairs inside the names
of Python's standard library and of large packages, but only 44 % of the pairs of random letters.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise

_FOLLOWERS = (
    "a:bcdfgiklmnprstuvwxy b:aeijlorsuy c:acdehiklmoprstuy d:abcdefilmorstu e:abcdefgilmnopqrstvwxy"
    " f:acdefilorstu g:aehilnorsu h:aeiort i:abcdefglmnoprstvxz j:e k:aeis l:acdeilopstuy"
    " m:abdeilmopstu n:acdefgiklnopstuv o:abcdfgiklmnoprstuvwx p:acdehiloprstuy q:u"
    " r:acdefgiklmnoprstuvy s:acdefhiklmnopqrstuwy t:acdefhilmoprstuy u:abcdefgilmnprst v:aeio"
    " w:aeinors x:ceipt y:elmnpst z:e"
)
"""A letter, and the letters that often follow it within a word."""
_USUAL = frozenset(entry[0] + after for entry in _FOLLOWERS.split() for after in entry[2:])
MIN_ODD, MIN_ODD_SHARE, MIN_ODD_SHARE_OF_PARTS = 3, 0.3, 0.45
MIN_CHARS = 8
_CASE_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_ROWS = ("abcdef", "uvwxyz", "qwerty", "asdfgh", "012345", "123456")


def entropy_bits(text: str) -> float:
    """Shannon entropy of a text's letters, in bits per letter.

    >>> entropy_bits("aaaa"), entropy_bits("abcd")
    (0.0, 2.0)
    """
    counts = Counter(text)
    return sum(n / len(text) * math.log2(len(text) / n) for n in counts.values())


def is_random(value: str) -> bool:
    """Whether a value of 8 characters or more has so many odd pairs that no person made it up.

    A pair is odd if hardly any word has it. A lower-case letter before a capital begins a word of a
    camelCase name and does not count; but a value whose words would have two letters on average is
    no name either. Names with _ or - hold abbreviations ("wkv", "cxcywh") and need a larger share.

    >>> is_random("vKqTzRbWnXpLdGhM"), is_random("getUserTokenById"), is_random("in_proj_qkv_bias")
    (True, False, False)
    """
    if (
        len(value) < MIN_CHARS
        or any(row in value.lower() for row in _ROWS)
        or len(set(value)) < min(len(value), 16) // 2
    ):
        return False
    has_parts = "_" in value or "-" in value
    if not has_parts and 2 * len(_CASE_PART.findall(value)) >= len(value):
        return True
    odd = pairs = 0
    for left, right in pairwise(value):
        if (
            not (left.isalnum() and right.isalnum())
            or (left.isdigit() and right.isdigit())
            or (left.islower() and right.isupper())
        ):
            continue
        pairs += 1
        odd += left.isdigit() != right.isdigit() or (left + right).lower() not in _USUAL
    return odd >= max(MIN_ODD, (MIN_ODD_SHARE_OF_PARTS if has_parts else MIN_ODD_SHARE) * pairs)
