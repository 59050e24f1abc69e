"""The page in a browser: each pixel is the raster's, names stay text, and the keyboard is enough."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.extras.view.built import BUILT, page_routes
from segmenter.extras.view.export import export_pages
from segmenter.extras.view.opening import Wanted, map_pages
from segmenter.extras.view.pyramid import reduce_squares
from segmenter.extras.view.server import PageServer
from segmenter.grid.geometry import Size, Window
from segmenter.raster import RasterSpec, open_raster, write_raster
from tests.helpers.browser import Driver, chromium, resize
from tests.helpers.served import serving
from tests.helpers.time_limits import wait_until
from tests.helpers.viewed_maps import COLOURS, NAMES, PLACES, UTM, made_map

pytestmark = pytest.mark.browser

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
            driver.get_log("browser")  # what an earlier page left there
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
    values, valid = reduce_squares(own, 2, by_mean=by_mean)
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


# ------------------------------------------------------------------------------------------ the page itself


def key(driver: Driver, name: str) -> None:
    for kind in ("keydown", "keyup"):
        driver.execute_script(
            "(document.activeElement ?? document.body).dispatchEvent("
            "new KeyboardEvent(arguments[0], { key: arguments[1], bubbles: true, cancelable: true }))",
            *(kind, name),
        )


def text(driver: Driver, selector: str) -> str:
    return driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)


def eventually(check: Callable[[], Any]) -> None:
    """Wait for what the page does after a request of its own."""
    wait_until(check)
    assert check()


def test_names_of_files_and_classes_are_text(driver: Driver, tmp_path: Path) -> None:
    ids = np.arange(120, dtype=np.uint8).reshape(10, 12) % len(HOSTILE)
    tags = {f"CLASS_{i}": each for i, each in enumerate(HOSTILE)} | {"SOURCE": HOSTILE[0]}
    folder = tmp_path / "<b>folder"
    for name in (HOSTILE[0], "b\"'&amp;"):
        write_raster(folder / "maps" / f"{name}.tif", ids, RasterSpec(nodata=255, tags=tags))
    (folder / "images").mkdir()
    with opened(driver, folder):
        key(driver, "Enter")
        eventually(lambda: "row, column" in text(driver, "#pixel"))
        assert driver.execute_script("return document.querySelectorAll('b, img, #panel script').length") == 0
        for name in HOSTILE:
            assert name.replace("‮", "") in text(driver, "#legend").replace("‮", "")
        assert HOSTILE[0] in text(driver, "#notes")
        assert driver.get_log("browser") == []


def test_the_keyboard_alone_walks_reads_and_switches(driver: Driver, tmp_path: Path) -> None:
    made_map(tmp_path, **UTM)
    with opened(driver, tmp_path) as server:
        eventually(lambda: driver.execute_script("return page.places.items.length"))
        key(driver, "n")
        listed = json.loads(driver.execute_script("return JSON.stringify(page.places.items)"))
        assert text(driver, "[aria-current]").startswith(listed[0]["title"])
        assert driver.execute_script("return page.settings.of.errors.on")
        key(driver, "N")
        key(driver, "p")
        column, row = driver.execute_script("return page.map.getView().getCenter()")
        first = listed[0]
        middle = first["column"] + first["width"] / 2, -(first["row"] + first["height"] / 2)
        assert (column, row) == pytest.approx(middle)
        key(driver, "Enter")
        eventually(lambda: "latitude" in text(driver, "#pixel"))
        assert any(name in text(driver, "#pixel") for name in NAMES)
        key(driver, "2")
        assert not driver.execute_script("return page.layers.get('map').getVisible()")
        key(driver, "0")
        assert driver.execute_script("return page.window") == [0, 0, 301, 417]
        box = driver.find_element("css selector", "#layer-map input[type=checkbox]")
        box.send_keys(" ")  # a switch that has the focus is switched by Space
        assert driver.execute_script("return page.layers.get('map').getVisible()")
        stops = driver.execute_script(
            "return [...document.querySelectorAll('#panel input, #panel button, #panel select')]"
            ".every((e) => e.tabIndex === 0 && (e.labels?.length || e.ariaLabel || e.innerText || e.title))"
        )
        assert stops
        assert server.last is not None


def test_while_space_is_held_the_image_is_alone(driver: Driver, tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    with opened(driver, tmp_path):
        driver.execute_script("page.goTo({ column: 208, row: 150, resolution: 1 })")
        drawn(driver)
        driver.execute_script(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: ' ', bubbles: true }))"
        )
        drawn(driver)
        seen = screen(driver)
        colours, inside = expected(own.image_HWC, (150, 208), 1, seen.shape[:2])
        inside[:80, :60] = inside[-60:] = False  # the buttons and the scale lie there
        assert (seen[inside] == colours[inside]).all()
        driver.execute_script(
            "document.body.dispatchEvent(new KeyboardEvent('keyup', { key: ' ', bubbles: true }))"
        )
        drawn(driver)
        assert (screen(driver)[inside] != colours[inside]).any()


def test_classes_are_switched_off_and_counted(driver: Driver, tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    with opened(driver, tmp_path):
        eventually(lambda: "ha" in text(driver, "#legend"))
        count = np.bincount(own.ids_HW.ravel(), minlength=256)[: len(NAMES)]
        assert f"{100 * count[2] / count.sum():.0f} %" in text(driver, "#legend")
        driver.execute_script("page.legend.boxes[2].click()")
        only(driver, "map", 208, 150, 1)
        seen = screen(driver)
        ids, inside = expected(own.ids_HW, (150, 208), 1, seen.shape[:2])
        for id, colour in enumerate(COLOURS):
            drawn_so = (seen[inside & (ids == id)] == colour).all(axis=1)
            assert drawn_so.all() != (id == 2), NAMES[id]
        assert not (seen[inside & (ids == 2)] == COLOURS[2]).all(axis=1).any()


def test_the_address_holds_place_and_layers(driver: Driver, tmp_path: Path) -> None:
    made_map(tmp_path, "a", **UTM)
    made_map(tmp_path, "b c", seed=1, **UTM)
    with opened(driver, tmp_path) as server:
        driver.execute_script(
            "page.show(page.state.maps[1]); page.goTo({ column: 100.5, row: 60, resolution: 0.5 });"
            "page.toggle(page.shown.layers.find((each) => each.id === 'probabilities'));"
            "page.settings.of.probabilities.bands = [3]; page.settings.of.map.opacity = 0.25;"
            "page.legend.boxes[1].click();"
        )
        drawn(driver)
        hash = driver.execute_script("return location.hash")
        driver.get("about:blank")
        driver.get(f"{server.address}{hash}")
        wait_until(lambda: driver.execute_script("return !!globalThis.page?.shown"))
        drawn(driver)
        assert driver.execute_script("return page.shown.name") == "b c"
        assert driver.execute_script("return page.map.getView().getCenter()") == [100.5, -60]
        assert driver.execute_script("return page.map.getView().getResolution()") == 0.5
        assert driver.execute_script("return page.settings.of.probabilities") == {
            "on": True,
            "opacity": 1,
            "bands": [3],
        }
        assert driver.execute_script("return page.settings.of.map.opacity") == 0.25
        assert driver.execute_script("return page.legend.boxes.map((box) => box.checked)") == [
            True,
            False,
            True,
            True,
        ]


def test_a_map_that_is_removed_is_a_grey_tile_and_a_line(driver: Driver, tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    with opened(driver, tmp_path, hash="#layers=image:1"):  # what was seen before, the browser remembers
        own.map.unlink()
        only(driver, "map", 128, 128, 0.25)
        eventually(lambda: "has been removed" in text(driver, "#notes"))
        assert (screen(driver)[300:400, 300:400] == 128).all()


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_lies_beyond_the_screen(driver: Driver, tmp_path: Path, width: int, scheme: str) -> None:
    made_map(tmp_path, "a map with a name that is much too long for any screen of a phone_" * 2, **UTM)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    with opened(driver, tmp_path, width):
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        panel = (
            "const panel = document.getElementById('panel'); return panel.scrollWidth <= panel.clientWidth"
        )
        assert driver.execute_script(panel)
        map_width, map_height = driver.execute_script("return page.map.getSize()")
        assert map_width >= min(width, 600)
        assert map_height >= HIGH // 2
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_an_exported_page_works_without_a_program(driver: Driver, tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    wanted = Wanted((tmp_path / "maps",), tmp_path / "images", f"{tmp_path}/labels/{{stem}}.tif")
    with closing(map_pages(wanted, now=True)) as pages:
        content, _ = export_pages(pages)
    file = tmp_path / "page.html"
    file.write_bytes(content)
    resize(driver, WIDE, HIGH)
    driver.get("about:blank")
    driver.get_log("browser")  # what an earlier page left there
    driver.get(file.as_uri())
    wait_until(lambda: driver.execute_script("return !!globalThis.page?.shown"))
    drawn(driver)
    palette = np.zeros((256, 3), np.uint8)
    palette[: len(COLOURS)] = COLOURS
    check_exact(driver, "map", palette[own.ids_HW], own.ids_HW != 255, (150, 208))
    key(driver, "n")
    assert "wrong" in text(driver, "[aria-current]")
    driver.execute_script("page.pixel.read(200, 100)")
    eventually(lambda: NAMES[own.ids_HW[100, 200]] in text(driver, "#pixel"))
    assert driver.get_log("browser") == []
