"""Deals of groups: classes in each part where there are groups enough, shares near to those wished."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from datasets.start.split import Wish, deal

Table = NDArray[np.int64]


@st.composite
def tables(draw: st.DrawFn, least: int = 2, most: int = 40) -> Table:
    """Pixels of classes in groups, many of them 0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups, classes = draw(st.integers(least, most)), draw(st.integers(1, 9))
    there = rng.random((groups, classes)) < rng.uniform(0.1, 1, classes)
    counts: Table = (there * rng.lognormal(8, 2, (groups, classes))).astype(np.int64) + 1
    counts[~there] = 0
    counts[:, 0] += 1
    return counts


def parts_of(counts: Table, parts: Table, number: int) -> Table:
    return np.stack([counts[parts == p].sum(axis=0) for p in range(number)])


def lacking(counts: Table, parts: Table, wish: Wish) -> int:
    """Pairs of a part and a class that it lacks, of classes with as many groups as parts."""
    enough = (counts > 0).sum(axis=0) >= wish.parts
    return int((parts_of(counts, parts, wish.parts)[:, enough] == 0).sum())


@given(tables(most=8), st.sampled_from((0.0, 0.2)))
def test_of_few_groups_no_deal_has_more_classes_in_its_parts(counts: Table, test: float) -> None:
    wish = Wish.of(0.2, test if len(counts) > 2 else 0.0)
    found = deal(counts, wish)
    assert set(found.tolist()) == set(range(wish.parts))
    groups = (counts > 0).sum(axis=0)
    every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts))))
    tables = np.array([parts_of(counts, parts, wish.parts) for parts in every], float)
    own = wish.cost(parts_of(counts, found, wish.parts)[None].astype(float), groups)[0]
    assert own == pytest.approx(wish.cost(tables, groups).min())


@given(tables(least=10), st.sampled_from((0.0, 0.1)), st.integers(0, 3))
def test_classes_with_many_groups_are_in_each_part(counts: Table, test: float, seed: int) -> None:
    wish = Wish.of(0.2, test)
    found = deal(counts, wish, seed)
    assert (found == deal(counts, wish, seed)).all()
    assert set(found.tolist()) == set(range(wish.parts))
    many = (counts > 0).sum(axis=0) >= 2 * counts.shape[1] + wish.parts
    assert (parts_of(counts, found, wish.parts)[:, many] > 0).all()


@given(st.integers(30, 120), st.integers(0, 99))
def test_shares_are_near_to_those_wished(groups: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(500, 1500, (groups, 4))
    parts = parts_of(counts, deal(counts, Wish.of(0.2, 0.1)), 3)
    share = parts.sum(axis=1) / parts.sum()
    assert np.abs(share - (0.7, 0.2, 0.1)).max() < 0.02
    assert np.abs(parts / parts.sum(axis=0) - np.array([[0.7], [0.2], [0.1]])).max() < 0.05


def test_a_rare_class_of_two_groups_trains_and_validates() -> None:
    counts = np.full((60, 3), 1000)
    counts[:, 2] = 0
    counts[[7, 41], 2] = 5
    found = deal(counts, Wish.of(0.2, 0.1))
    assert set(found[[7, 41]].tolist()) == {0, 1}
