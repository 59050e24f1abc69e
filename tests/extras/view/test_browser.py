"""The page in a browser: each pixel is the raster's, names stay text, and the keyboard is enough."""

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.extras.view.built import BUILT, page_routes
from segmenter.extras.view.opening import Wanted, map_pages
from segmenter.extras.view.pyramid import reduced
from segmenter.extras.view.server import PageServer
from segmenter.grid.geometry import Size, Window
from segmenter.raster import open_raster
from tests.helpers.browser import Driver, chromium, resize
from tests.helpers.served import serving
from tests.helpers.time_limits import wait_until
from tests.helpers.viewed_maps import COLOURS, PLACES, made_map

NAIP = Path(__file__).parents[3] / "../shared/data/robust/naip__nir_tagged_as_alpha.tif"
WIDE, PHONE, HIGH = 1000, 390, 700
HOSTILE = ("<img src=x onerror=alert(1)>", "</script><b>x", "a\"'&amp;", "‮evil")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    if not (BUILT / "app.js").exists():
        pytest.skip("the page is not built: make view")
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextmanager
def opened(
    driver: Driver, folder: Path, width: int = WIDE, hash: str = "", **more: Any
) -> Iterator[PageServer]:
    """Serve the maps of a folder and open their page."""
    labels = more.pop("labels", f"{folder}/labels/{{stem}}.tif")
    pages = map_pages(Wanted((folder / "maps",), folder / "images", labels, **more))
    with serving(PageServer({**page_routes(), **pages.routes})) as server:
        try:
            resize(driver, width, HIGH)
            driver.get("about:blank")
            driver.get(f"{server.address}{hash}")
            wait_until(lambda: driver.execute_script("return !!globalThis.page?.shown"))
            drawn(driver)
            yield server
        finally:
            pages.close()


def drawn(driver: Driver) -> None:
    """Wait until the map has all of its tiles."""
    driver.execute_async_script(
        "const end = arguments[0]; page.map.once('rendercomplete', () => end()); page.map.render()"
    )


def only(driver: Driver, layer: str, column: float, row: float, resolution: float) -> None:
    """Show one layer about a place, without anything upon it."""
    driver.execute_script(
        "const [id, column, row, resolution] = arguments;"
        "for (const layer of page.shown.layers) {"
        "  Object.assign(page.settings.get(layer), { on: layer.id === id, opacity: 1 });"
        "  page.applied(layer); }"
        "document.querySelectorAll('.ol-control, #scale').forEach((e) => (e.style.visibility = 'hidden'));"
        "page.marks.clear(); page.goTo({ column, row, resolution })",
        *(layer, column, row, resolution),
    )
    drawn(driver)


def screen(driver: Driver) -> NDArray[np.uint8]:
    """Return the (H, W, 3) pixels of the map as the browser draws them."""
    width, height = driver.execute_script("return page.map.getSize()")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    data = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})["data"]
    picture = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def expected(source: NDArray[Any], place: tuple[float, float], times: float, shape: tuple[int, ...]) -> Any:
    """Return the colours of a screen, and which of its pixels show the raster, each enlarged `times`."""
    rows, cols = (
        np.floor((np.arange(side) + 0.5 - side / 2) / times + middle).astype(int)
        for side, middle in zip(shape, place, strict=True)
    )
    inside = np.ix_((rows >= 0) & (rows < source.shape[0]), (cols >= 0) & (cols < source.shape[1]))
    shown = np.zeros(shape, np.bool_)
    shown[inside] = True
    found = source[np.ix_(rows.clip(0, source.shape[0] - 1), cols.clip(0, source.shape[1] - 1))]
    return found, shown


def check_exact(
    driver: Driver, layer: str, source_HW3: NDArray[np.uint8], known: NDArray[np.bool_], at: Any
) -> None:
    """Compare what is drawn with an array, at one and at four screen pixels for a pixel."""
    for times in (1, 4):
        only(driver, layer, at[1], at[0], 1 / times)
        seen = screen(driver)
        colours, inside = expected(source_HW3, at, times, seen.shape[:2])
        inside &= expected(known, at, times, seen.shape[:2])[0]
        assert inside.sum() > 10_000
        assert (seen[inside] == colours[inside]).all(), (layer, times, np.argwhere(seen != colours)[:3])


def check_level(
    driver: Driver, layer: str, own: Any, at: Any, colours_of: Callable[[Any], Any], by_mean: bool
) -> None:
    """Compare the level where a pixel of the screen stands for two by two of the raster."""
    values, valid = reduced(own, 2, by_mean=by_mean)
    only(driver, layer, at[1], at[0], 2)
    seen = screen(driver)
    place = (at[0] / 2, at[1] / 2)
    colours, inside = expected(colours_of(values), place, 1, seen.shape[:2])
    inside &= expected(valid, place, 1, seen.shape[:2])[0]
    assert inside.sum() > 10_000
    assert (seen[inside] == colours[inside]).all()


@pytest.mark.parametrize("place", PLACES)
def test_the_browser_draws_the_rasters_pixels(driver: Driver, tmp_path: Path, place: str) -> None:
    own = made_map(tmp_path, size=Size(803, 1107), **PLACES[place])
    palette = np.zeros((256, 3), np.uint8)
    palette[: len(COLOURS)] = COLOURS
    at = (402, 554)
    with opened(driver, tmp_path):
        known = own.ids_HW != 255
        check_exact(driver, "image", own.image_HWC, np.ones_like(known), at)
        check_exact(driver, "map", palette[own.ids_HW], known, at)
        check_exact(driver, "label", palette[own.label_HW], np.ones_like(known), at)
        ids = own.ids_HW[..., None], known
        check_level(driver, "map", ids, at, lambda values: palette[values[..., 0]], by_mean=False)
        image = own.image_HWC, np.ones_like(known)
        check_level(driver, "image", image, at, lambda values: values, by_mean=True)
        assert driver.get_log("browser") == []


def test_an_image_with_infrared_tagged_as_alpha_is_drawn_exactly(driver: Driver, tmp_path: Path) -> None:
    if not NAIP.exists():
        pytest.skip("no real imagery in ../shared/data here")
    with open_raster(NAIP, (1, 2, 3, 4)) as raster:
        pixels, _ = raster.read(Window.of(raster.info.size))
        place = raster.info.georeference(Window.of(raster.info.size))
    made_map(tmp_path, "naip", Size(256, 256), crs=place["crs"], transform=place["transform"])
    shutil.copy(NAIP, tmp_path / "images" / "naip.tif")
    known = np.ones((256, 256), np.bool_)
    with opened(driver, tmp_path):
        check_exact(driver, "image", pixels[..., :3], known, (128, 128))
        driver.execute_script(
            "const own = page.shown.layers[0]; page.settings.get(own).bands = [4, 1, 2]; page.applied(own)"
        )
        check_exact(driver, "image", pixels[..., [3, 0, 1]], known, (128, 128))
