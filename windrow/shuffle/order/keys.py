"""Derives the 32-byte keys of block and row orders from seed, purpose, epoch and window.

A key is a cryptographic hash of its inputs, never a sum or a counter. With ``seed + epoch``, different seeds
would share orders (seed 0, epoch 1 equals seed 1, epoch 0), and keys that differ in a few low bits would rely
on the permutation to hide that.
"""

from __future__ import annotations

import hashlib
import json
import operator

# of data whose large row groups are cut, so that states from when they were blocks are not continued
CUT_ORDER_VERSION = 2
ORDER_VERSION = 1
"""The version of the whole order algorithm: keys, permutation, windows and shard assignment.

It is hashed into every key, so that different versions never give related orders.
"""

KEY_BYTES = 32


def order_version(*, cuts_row_groups: bool) -> int:
    """The version of the order of data whose large row groups are cut, or of other data."""
    return CUT_ORDER_VERSION if cuts_row_groups else ORDER_VERSION


def derive_key(seed: int, purpose: str, epoch: int, window: int) -> bytes:
    """Derive the 32-byte key of one order: SHA-256 over an unambiguous encoding, equal on every platform and version.

    ``seed`` is any integer. ``purpose`` says what the key orders (``"rows"``, ``"blocks"``); different
    purposes never share a key. ``epoch`` and ``window`` are 0 where they do not apply.

    >>> derive_key(7, "rows", 0, 0).hex()[:16]
    'ca8bf71203406d12'
    """
    numbers = (ORDER_VERSION, seed, epoch, window)
    # hexadecimal, because Python does not format integers of more than 4,300 decimal digits;
    # JSON, because different lists of strings always have different texts
    fields = ["windrow order", purpose, *(format(int(operator.index(n)), "x") for n in numbers)]
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).digest()
