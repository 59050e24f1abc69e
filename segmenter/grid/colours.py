"""Default colours of classes: the natural hue of land cover by name, told apart by all kinds of sight."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import Colour
from segmenter.grid.sight import APART, lab_of, least_differences, sight_lab, srgb_of

_LEAST = APART + 0.1
"""Distance at which colours are chosen, before they are rounded."""
_NATURAL = {
    "3b82d0": "water waterbody wasser gewasser eau agua river fluss riviere rio lake lac lago sea "
    "meer mer mar ocean pond teich etang reservoir stream 水 河 湖 海",
    "35c4d7": "pool schwimmbad piscine piscina",
    "1c7a3e": "forest wood woodland wald foret bois bosque tree baum arbre arbol mangrove 林 树",
    "9fd063": "grass grassland meadow lawn pasture wiese weide rasen grunland gras prairie pelouse "
    "herbe prado pasto pradera hierba 草",
    "62b04a": "vegetation vegetacion green grun park garden garten jardin 绿",
    "8d9a35": "shrub shrubland scrub bush heath strauch gebusch buisson arbuste matorral arbusto 灌",
    "e3c04a": "crop cropland farmland farm field agricultur arable wheat acker feld landwirtschaft "
    "culture champ cultivo campo 耕 农 田",
    "c2d84a": "rice paddy reis riz arroz 稻",
    "9a4fa5": "vineyard orchard plantation weinberg obst vigne verger vinedo huerto 园",
    "707070": "road street path parking pavement asphalt runway strasse weg route rue chemin "
    "carretera calle camino 路 道",
    "4c3a55": "rail railway bahn gleis voie ferrocarril 铁",
    "d24a3c": "building house roof gebaude haus dach batiment maison toit edificio casa techo 建筑 房",
    "b5707f": "impervious built urban settlement artificial city residential industrial versiegelt "
    "siedlung stadt urbain ville urbano ciudad 城",
    "ad7d4b": "bare soil barren earth land ground boden brache nu sol suelo desnudo 裸 土",
    "ead9a0": "sand beach dune desert strand plage playa arena 沙",
    "968a80": "rock quarry mine gravel fels roche roca cantera 岩",
    "eef3f7": "snow ice glacier schnee eis gletscher neige glace nieve hielo 雪 冰",
    "3fa796": "wetland marsh swamp bog moor sumpf feuchtgebiet marais humide humedal 湿",
    "f28c28": "car vehicle auto fahrzeug voiture vehicule coche vehiculo 车",
    "2a3f9d": "solar photovoltaic solaire 光伏",
    "d9d9d9": "background clutter other hintergrund sonstiges fond autre fondo otro 背景 其他",
    "fdfdfd": "cloud wolke nuage nube 云",
    "26262e": "shadow schatten ombre sombra 阴影",
    "5c2c1e": "burnt burned fire brandflache brule quemado 火",
    "e9a6c4": "greenhouse gewachshaus serre invernadero 温室",
}
"""Hues of land cover, and names in English, German, French, Spanish and Chinese (not checked by a reader).

Words lose accents; a word of four letters or more is also found at the start or the end of a longer one.
"""
_WORDS = {word: colour for colour, words in _NATURAL.items() for word in words.split()}
_LIGHTER = (0, -8, 8, -16, 16, -24, 24, -34, 34)
_PALER, _TURNED = (1.0, 0.7, 1.3, 0.45), (0, -14, 14, -28, 28)
"""Lightness added, chroma times, hue turned in degrees: what a natural colour is bent by."""
_COST = (1.0, 25.0, 0.8)
"""Costs of a step of lightness, of a whole chroma and of a degree of hue: hue is kept, lightness bent."""
_TRIES = 1000


def default_colours(names: Sequence[str], given: Sequence[Colour | None] = ()) -> list[Colour]:
    """Return a colour for each class: those that are given, natural ones by name, and others far from them.

    Up to 12 default colours differ by CIEDE2000 10 for normal sight, protanopia, deuteranopia and tritanopia
    if none is given; beyond, as far as may be.
    """
    found: dict[int, Colour] = {i: colour for i, colour in enumerate(given) if colour is not None}
    natural = {
        i: colour for i, name in enumerate(names) if i not in found and (colour := natural_colour(name))
    }
    found |= _bent(natural, list(found.values()))
    missing = [i for i in range(len(names)) if i not in found]
    if missing:
        found |= zip(missing, _farthest(list(found.values()), len(missing)), strict=True)
    return [found[i] for i in range(len(names))]


def far_from(colours: Sequence[Colour]) -> Colour:
    """Return the colour farthest from some, for the sight that sees the least of it: a frame for pictures."""
    return next(_farthest(colours, 1))


def natural_colour(name: str) -> Colour | None:
    """Return the usual colour of a land cover by the name of its class; None for unknown names."""
    plain = unicodedata.normalize("NFKD", name.casefold().replace("ß", "ss"))
    words = re.findall(r"[^\W\d_]+", "".join(c for c in plain if not unicodedata.combining(c)))
    hits = [known for word in words for known in _WORDS if _is_said(known, word)]
    if not hits:
        return None
    return _of_hex(_WORDS[max(hits, key=len)])


def _is_said(known: str, word: str) -> bool:
    if not known.isascii():
        return known in word
    return known == word or (len(known) > 3 and (word.startswith(known) or word.endswith(known)))


def _of_hex(text: str) -> Colour:
    r, g, b = bytes.fromhex(text)
    return r, g, b


def _bent(natural: dict[int, Colour], taken: Sequence[Colour]) -> dict[int, Colour]:
    """Return natural colours, each bent as little as keeps it apart from the others and those taken.

    A search in depth, the least bent first, which ends after so many steps with the most that it found.
    """
    if not natural:
        return {}
    variants = [_variants(colour) for colour in natural.values()]
    all_M3, ends = np.concatenate(variants), np.cumsum([len(each) for each in variants])
    seen_SM3, known = sight_lab(all_M3), dict[int, NDArray[np.bool_]]()
    free_M = np.ones(len(all_M3), np.bool_)
    if taken:
        free_M &= (least_differences(seen_SM3, sight_lab(taken)) >= _LEAST).all(axis=1)

    def fits(at: int) -> NDArray[np.bool_]:
        if at not in known:
            known[at] = least_differences(seen_SM3[:, [at]], seen_SM3)[0] >= _LEAST
        return known[at]

    best: list[int] = []
    for tried, chosen in enumerate(_search_variants([], free_M, fits, ends)):
        best = max(best, chosen, key=len)
        if len(best) == len(ends) or tried > _TRIES:
            break
    return {i: tuple(all_M3[at].tolist()) for i, at in zip(natural, best, strict=False)}


def _search_variants(
    chosen: list[int],
    free_M: NDArray[np.bool_],
    fits: Callable[[int], NDArray[np.bool_]],
    ends: NDArray[np.int64],
) -> Iterator[list[int]]:
    """Yield lists of variants that are apart, one more class at a time, the least bent first."""
    yield chosen
    if len(chosen) == len(ends):
        return
    start = int(ends[len(chosen) - 1]) if chosen else 0
    for at in np.flatnonzero(free_M[start : ends[len(chosen)]]) + start:
        yield from _search_variants([*chosen, int(at)], free_M & fits(int(at)), fits, ends)


@cache
def _variants(colour: Colour) -> NDArray[np.int64]:
    """Return (N, 3) colours about a natural one that a screen can show, the least bent first."""
    L, a, b = lab_of([colour])[0]
    chroma, hue = float(np.hypot(a, b)), float(np.degrees(np.arctan2(b, a)))
    bends = sorted(
        product(_LIGHTER, _PALER, _TURNED),
        key=lambda bend: abs(bend[0]) * _COST[0] + abs(bend[1] - 1) * _COST[1] + abs(bend[2]) * _COST[2],
    )
    lab = np.array(
        [
            (L + lighter, *(chroma * paler * f(np.radians(hue + turned)) for f in (np.cos, np.sin)))
            for lighter, paler, turned in bends
        ]
    )
    return _displayable(lab)


def _displayable(lab_N3: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the colours among CIELAB ones that a screen can show, each once, in their order."""
    srgb = np.round(srgb_of(lab_N3)).astype(np.int64)
    inside = ((srgb >= 0) & (srgb <= 255)).all(axis=1)
    return np.array(list(dict.fromkeys(map(tuple, srgb[inside].tolist()))), np.int64).reshape(-1, 3)


@cache
def _others() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return colours in even steps of CIELAB, for classes without a natural one, and as they are seen."""
    steps = (range(25, 95, 7), range(-80, 81, 16), range(-80, 81, 16))
    colours_N3 = _displayable(np.array(list(product(*steps)), np.float64))
    return colours_N3, sight_lab(colours_N3)


def _farthest(taken: Sequence[Colour], count: int) -> Iterator[Colour]:
    """Yield colours, each the farthest from those before it for the sight that sees the least of it."""
    colours_N3, seen_SN3 = _others()
    taken = taken or [_of_hex("3b82d0")]
    apart_N = least_differences(seen_SN3, sight_lab(taken)).min(axis=1)
    for _ in range(count):
        at = int(np.argmax(apart_N))
        apart_N = np.minimum(apart_N, least_differences(seen_SN3, seen_SN3[:, [at]])[:, 0])
        r, g, b = colours_N3[at].tolist()
        yield r, g, b
