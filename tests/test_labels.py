"""The law of class maps: an unknown value is an error, never class 0."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from segmenter.base.errors import LabelError
from segmenter.grid.labels import (
    IGNORE,
    UNKNOWN,
    ClassMap,
    LandCoverClass,
    rasterised_classes,
)
from tests.helpers.refusals import refused

NAIC = ClassMap(tuple(LandCoverClass(f"class {i}", (i, i, i), 100 * i) for i in range(1, 9)), ignored=(0,))
BLACK = (0, 0, 0)


def _codes(*codes: int, **options: object) -> ClassMap:
    classes = tuple(LandCoverClass(f"c{code}", (code % 256, 0, 0), code) for code in codes)
    return ClassMap(classes, **options)


@given(arrays.arrays(np.uint8, (11, 13), elements=st.integers(0, 5)))
def test_decode_is_the_inverse_of_the_palette(ids: np.ndarray) -> None:
    colours = [(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)]
    classes = tuple(LandCoverClass(str(i), c, i) for i, c in enumerate(colours))
    classes = ClassMap(classes, "colours", (BLACK,))
    raw = classes.palette()[ids]
    assert np.array_equal(classes.decode(raw), ids)
    # A fourth band (alpha) changes nothing; black is ignored.
    raw[3, 4] = 0
    with_alpha = np.dstack([raw, np.full(ids.shape, 7, np.uint8)])
    assert classes.decode(with_alpha)[3, 4] == IGNORE


@given(st.sets(st.integers(0, 65534), min_size=1, max_size=254), st.randoms(use_true_random=False))
def test_any_table_of_codes_decodes_as_a_look_up_by_hand(codes: set[int], random) -> None:
    order = random.sample(sorted(codes), len(codes))
    classes = _codes(*order)
    raw = np.array([random.choice(order) for _ in range(20)], np.uint16).reshape(4, 5)
    assert classes.decode(raw).tolist() == [[order.index(value) for value in row] for row in raw.tolist()]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_codes_of_every_integer_type_are_read(dtype: str) -> None:
    raw = np.array([[1, 2, 0], [2, 1, 1]], dtype)
    assert _codes(2, 1, ignored=(0,)).decode(raw).tolist() == [[1, 0, 255], [0, 1, 1]]


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (np.array([[100, 300, 900, 999]], np.uint16), {"fault": "know: 900 (1 px), 999 (1"}),
        (np.array([[100, 7, 7, 7]], np.uint8), {"fault": "know: 7 (3 px)"}),
        (np.array([[100, -1, -1]], np.int16), {"fault": "know: -1 (2 px)"}),
        (np.array([[100, 100.5]], np.float32), {"fault": "know: 100.5 (1 px)"}),
        (np.array([[100, 65535]], np.uint16), {"fault": "know: 65535 (1 px)"}),
        (np.array([[100, 65636]], np.int32), {"fault": "know: 65636 (1 px)"}),  # would wrap to code 100
        (np.array([[2**40 + 100]], np.int64), {"fault": "know: 1099511627876 (1 px)"}),
    ],
)
def test_an_unknown_code_is_named_with_its_pixels(raw: np.ndarray, fields: dict[str, object]) -> None:
    with refused(LabelError, **fields):
        NAIC.decode(raw, "x.png")


@pytest.mark.parametrize(
    ("encoding", "raw", "got"),
    [
        ("codes", np.zeros((2, 2, 3), np.uint8), "3 of uint8"),
        ("colours", np.zeros((2, 2), np.uint8), "1"),
        ("colours", np.zeros((2, 2, 3), np.uint16), "3 of uint16"),
    ],
)
def test_the_wrong_kind_of_label_file_is_refused(
    encoding: str, raw: np.ndarray, got: str, make_classes: Callable[..., ClassMap]
) -> None:
    with refused(LabelError, where="label", got=got):
        make_classes(3, encoding).decode(raw)


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (lambda: ClassMap(()), {"fault": "1 to 254 classes"}),
        (lambda: _codes(*range(255)), {"fault": "254 classes, got 255"}),
        (lambda: _codes(1, 2, 1), {"got": "twice: c1"}),
        (lambda: _codes(1, 2, ignored=(2,)), {"got": "twice: 2"}),
        (lambda: _codes(1, 65535), {"fault": "lie in 0 … 65534"}),
        (lambda: _codes(1, -2), {"fault": "lie in 0 … 65534"}),
        (lambda: _codes(1, 2, ignored=(BLACK,)), {"fault": "as codes", "got": BLACK}),
        (lambda: _codes(1, 2, encoding="colours", ignored=(3,)), {"fault": "as colours", "got": 3}),
        (lambda: _codes(1, 70000, encoding="colours"), {"fault": "lie in 0 … 65534"}),
        (lambda: _codes(1, 257, encoding="colours"), {"got": "twice: #010000"}),
        (
            lambda: ClassMap((LandCoverClass("a", (0, 0, 256), 1),), "colours"),
            {"where": "class map", "got": "(0, 0, 256)"},
        ),
        (
            lambda: ClassMap(tuple(LandCoverClass(n, (0, 0, ord(n)), 1) for n in "ab"), "colours"),
            {"got": "twice: 1"},
        ),
    ],
)
def test_impossible_class_maps_are_refused(build: Callable[[], ClassMap], fields: dict[str, object]) -> None:
    with refused(LabelError, **fields):
        build()


def test_further_codes_of_a_class_mean_it_and_survive_a_run() -> None:
    road = LandCoverClass("road", (1, 2, 3), 237, also=(119, 238, 255))
    classes = ClassMap((LandCoverClass("rest", (9, 9, 9), 0, also=(1, 118)), road), ignored=(7,))
    raw = np.array([[0, 1, 118, 119, 237, 255, 7, 5]])
    for each in (classes, ClassMap.from_dict(classes.to_dict())):
        assert each.decode_known(raw).tolist() == [[0, 0, 0, 1, 1, 1, IGNORE, UNKNOWN]]
        assert each.codes().tolist() == [0, 237]
    rasterised = rasterised_classes(classes)
    assert rasterised.decode_known(raw).tolist()[0][1] == UNKNOWN
    assert rasterised.ignored[0] not in {0, 1, 118, *(road.code, *road.also)}, "no value that means a class"
    with pytest.raises(LabelError, match="twice: 7"):
        ClassMap((road, LandCoverClass("sea", (4, 4, 4), 3, also=(7,))), ignored=(7,))
