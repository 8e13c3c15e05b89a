"""Golden orders: a guarantee, not a snapshot.

A job keeps the order version with which it started: resuming after an upgrade of windrow, NumPy or Python,
or on another platform, continues the same order. So these numbers never change.

If a test here fails, the change is wrong. A better order needs a new ``ORDER_VERSION`` beside this one, with
its own golden numbers.
"""

from __future__ import annotations

import hashlib

import pytest

from windrow.shuffle.order.keys import ORDER_VERSION, derive_key
from windrow.shuffle.order.permutation import Permutation, block_order

Inputs = tuple[int, str, int, int]

KEYS: dict[Inputs, str] = {
    (0, "rows", 0, 0): "f33b405d82edb0a31278161cc267ed42eb28878db92244f0dd7a627928f0e3e7",
    (7, "rows", 3, 2): "2ee51f232936f2d99bc2f40fbdeff53c2ab679aebdea43dd387dfc83e77635f3",
    (-1, "rows", 0, 0): "0b681cf2cab69f889ba4a24e91382ef3d8bf9f2f2fb556a90f646ec3d9e70cc7",
    (2**70, "rows", 1, 0): "637e4c0ec92d7c2ed8162c639d949889a69a1bce8dc63e658a56436cdddfd364",
    (7, "blocks", 3, 0): "7de826b1c0153dcc06813c7c6213a1594c97373614e6f74db9e65b238750ef8e",
}

FIRST_POSITIONS: dict[tuple[Inputs, int], list[int]] = {
    ((0, "rows", 0, 0), 5): [1, 2, 3, 4, 0],
    ((0, "rows", 0, 0), 1000): [169, 342, 773, 855, 34, 492],
    ((0, "rows", 0, 0), 65536): [10102, 21702, 50165, 55954, 1988, 30667],
    ((0, "rows", 0, 0), 65537): [18743, 29039, 8313, 16879, 35299, 23177],
    ((0, "rows", 0, 0), 131072): [18743, 29039, 111380, 16879, 129111, 108899],
    ((0, "rows", 0, 0), 1000003): [887640, 908686, 779180, 920403, 662309, 1977],
    ((0, "rows", 0, 0), 2**32): [4155664728, 3697920700, 662116310, 2178040324, 219736631, 23773213],
    ((0, "rows", 0, 0), 2**32 + 1): [4257533589, 4079395463, 1066893612, 1186894294, 559422947, 896946785],
    ((0, "rows", 0, 0), 2**40 + 1): [
        578628488354,
        804218642627,
        523749863580,
        1083473987473,
        339049496738,
        193603947997,
    ],
    ((7, "rows", 3, 2), 5): [3, 2, 1, 4, 0],
    ((7, "rows", 3, 2), 1000): [815, 457, 374, 923, 305, 115],
    ((7, "rows", 3, 2), 65536): [53216, 28957, 24014, 60101, 19481, 6832],
    ((7, "rows", 3, 2), 65537): [5369, 37521, 10723, 63406, 25542, 51167],
    ((7, "rows", 3, 2), 131072): [5369, 110259, 78349, 63406, 74660, 51167],
    ((7, "rows", 3, 2), 1000003): [999818, 759027, 712032, 265161, 581026, 506960],
    ((7, "rows", 3, 2), 2**32): [3265216619, 1951265890, 580861820, 1035483748, 2719420774, 3421226582],
    ((7, "rows", 3, 2), 2**32 + 1): [438027519, 2195296272, 2846372420, 797198154, 2146125007, 1460618249],
    ((7, "rows", 3, 2), 2**40 + 1): [
        886737509944,
        320976940872,
        899601906221,
        1058789385478,
        180587402080,
        432281353298,
    ],
    ((-1, "rows", 0, 0), 5): [1, 2, 3, 4, 0],
    ((-1, "rows", 0, 0), 1000): [23, 260, 371, 542, 4, 857],
    ((-1, "rows", 0, 0), 65536): [1188, 16175, 23332, 34496, 358, 56850],
    ((-1, "rows", 0, 0), 65537): [56607, 34469, 15315, 21140, 26369, 12796],
    ((-1, "rows", 0, 0), 131072): [56607, 121236, 15315, 73233, 86363, 12796],
    ((-1, "rows", 0, 0), 1000003): [826230, 729064, 941732, 131166, 917724, 727194],
    ((-1, "rows", 0, 0), 2**32): [581769868, 220484495, 3891550929, 60250328, 2093238931, 3415282382],
    ((-1, "rows", 0, 0), 2**32 + 1): [1033345911, 2998716566, 3952050747, 1437204908, 4178310212, 1988105564],
    ((-1, "rows", 0, 0), 2**40 + 1): [
        1030657617731,
        174654520440,
        726588199239,
        100288183157,
        670693241398,
        885337823654,
    ],
    ((2**70, "rows", 1, 0), 5): [3, 2, 4, 1, 0],
    ((2**70, "rows", 1, 0), 1000): [890, 615, 918, 479, 138, 308],
    ((2**70, "rows", 1, 0), 65536): [59271, 42335, 61170, 33273, 10101, 20905],
    ((2**70, "rows", 1, 0), 65537): [12003, 65466, 49381, 58733, 31437, 64689],
    ((2**70, "rows", 1, 0), 131072): [12003, 65466, 82611, 85612, 118043, 109127],
    ((2**70, "rows", 1, 0), 1000003): [656179, 844486, 359111, 508075, 101057, 820523],
    ((2**70, "rows", 1, 0), 2**32): [1639059984, 209414585, 559941311, 3364232839, 769364940, 1953444013],
    ((2**70, "rows", 1, 0), 2**32 + 1): [3675677413, 186585202, 121884878, 1177979533, 2283747551, 489598448],
    ((2**70, "rows", 1, 0), 2**40 + 1): [
        871811683785,
        358767370695,
        51314055670,
        54409936547,
        905592484900,
        1027282916963,
    ],
}

# For the key (7, "rows", 3, 2).
LAST_POSITIONS = {
    65537: [44951, 26708, 775, 28406],
    1048577: [363588, 195299, 566022, 683144],
    2**32: [1977327837, 4062460716, 481857693, 2350436013],
    2**33 + 1: [8166946108, 1281073143, 5792911782, 3028672404],
    2**40: [8874027744, 277997405850, 551548392954, 982531192333],
    2**62: [483755483898590763, 4084290521418347546, 3255416657782238775, 571320589720085189],
}

# First half of the SHA-256 over all positions as little-endian int64, for the same key.
DIGESTS = {
    1000: "dd4d4976e5dba366885eb387bf2e4a32",
    65536: "389a9aa4760749ea4046b1938df0221b",
    65537: "54696065f11e23b7fb055a98daab8e2b",
    98304: "9f445e5e61af7b79692c3ba0013df6b3",
    131071: "0e8d570a62ec833f6e4696da97637f5f",
    1000003: "c33f065d726d178e5e522b7f0c140a99",
}


def test_order_version() -> None:
    assert ORDER_VERSION == 1


@pytest.mark.parametrize("inputs", KEYS)
def test_keys(inputs: Inputs) -> None:
    assert derive_key(*inputs).hex() == KEYS[inputs]


@pytest.mark.parametrize(("inputs", "size"), FIRST_POSITIONS)
def test_first_positions(inputs: Inputs, size: int) -> None:
    expected = FIRST_POSITIONS[inputs, size]
    assert Permutation(derive_key(*inputs), size).positions(0, len(expected)).tolist() == expected


@pytest.mark.parametrize("size", LAST_POSITIONS)
def test_last_positions(size: int) -> None:
    positions = Permutation(derive_key(7, "rows", 3, 2), size).positions(size - 4, size)
    assert positions.tolist() == LAST_POSITIONS[size]


@pytest.mark.parametrize("size", DIGESTS)
def test_all_positions(size: int) -> None:
    positions = Permutation(derive_key(7, "rows", 3, 2), size).positions(0, size)
    digest = hashlib.sha256(positions.astype("<i8").tobytes()).hexdigest()
    assert digest[:32] == DIGESTS[size]


def test_block_order() -> None:
    key = derive_key(7, "blocks", 3, 0)
    assert block_order(key, 12).tolist() == [2, 1, 0, 10, 8, 5, 9, 3, 7, 6, 11, 4]
    assert block_order(key, 100_000)[:6].tolist() == [30961, 8547, 98948, 4177, 76696, 5858]
