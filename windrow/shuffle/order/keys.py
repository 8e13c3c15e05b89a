"""Keys: 32 bytes from everything that an order may depend on.

A key is a cryptographic hash of its inputs, never a sum or a running counter: with
``seed + epoch`` two runs share orders (seed 0, epoch 1 would be seed 1, epoch 0), and
keys that differ in a few low bits would lean on the permutation to hide it.
"""

from __future__ import annotations

import hashlib
import json
import operator

__all__ = ["KEY_BYTES", "ORDER_VERSION", "derive_key"]

ORDER_VERSION = 1
"""The version of the whole order algorithm: keys, permutation, windows and deal.

It is hashed into every key, so that two versions never give related orders.
"""

KEY_BYTES = 32


def derive_key(seed: int, purpose: str, epoch: int, window: int) -> bytes:
    """Derive the key of one order: SHA-256 over an unambiguous encoding.

    Parameters
    ----------
    seed
        Any integer, of any size and sign.
    purpose
        What the key orders (``"rows"``, ``"blocks"``): two purposes never share a key.
    epoch, window
        Where in the run the order is used; 0 where one of them does not apply.

    Returns
    -------
    bytes
        32 bytes, the same in every process, platform and library version.

    Examples
    --------
    >>> derive_key(7, "rows", 0, 0).hex()[:16]
    'ca8bf71203406d12'
    """
    numbers = (ORDER_VERSION, seed, epoch, window)
    # Hexadecimal, because Python refuses decimal text of integers beyond 4,300 digits;
    # JSON, because no two lists of strings have the same text.
    fields = ["windrow order", purpose, *(format(int(operator.index(n)), "x") for n in numbers)]
    text = json.dumps(fields, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).digest()
