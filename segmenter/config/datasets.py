"""Section `dataset` of the recipe: kind and location of the files, and the split of scenes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainSerializer,
    PrivateAttr,
    Tag,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import shorten
from segmenter.base.files import compose_accents, is_vector
from segmenter.config.sections import Section, about, kinds_of, setting
from segmenter.config.splits import BlocksConfig as BlocksConfig
from segmenter.config.splits import FolderSplit as FolderSplit
from segmenter.config.splits import SplitByNames as SplitByNames
from segmenter.config.splits import one_group
from segmenter.grid.deals import Deals

CacheCodec = Literal["none", "lz4"]


Cache = Annotated[
    str | None,
    about(
        "",
        "folder for the tile index and decoded scenes, which take some GB; default: .tile-index in the "
        "dataset's root",
    ),
]
CacheLimit = Annotated[
    float | None,
    about(
        "GiB",
        "largest size of all decoded scenes in the cache; beyond it, those unused for longest are deleted; "
        "default: as much as the disk has room for",
    ),
    Field(gt=0, le=2**20),
]
CacheCompression = Annotated[
    CacheCodec,
    about(
        "",
        "compression of decoded scenes in the cache; lz4 shrinks class maps to a few percent of their "
        "size, aerial images hardly at all",
    ),
]
Files = Annotated[
    str | None,
    about(
        "",
        "text file that lists the files below a remote root, one relative path in each line; needed where "
        "the server cannot list them (https)",
    ),
]
"""Settings that all kinds of datasets have; and `Scale`."""


class Located(Section):
    """Section of a dataset in a folder or at an address.

    Attributes:
        maps_hold_codes: True if maps of its images are PNGs of class codes, as its contest requires.
    """

    title: ClassVar[str]
    maps_hold_codes: ClassVar[bool] = False

    label_nodata: Literal["ask", "ignore", "class"] = setting(
        "ask",
        "",
        "treatment of label pixels that hold the label file's nodata value, if a class has the same value: "
        "ignore them, take them as that class, or (ask) stop with an error",
    )
    _deals: Deals = PrivateAttr(default=())

    @property
    def deals(self) -> Deals:
        """Deals that are written beside the recipe, or in a run's record of its scenes."""
        return self._deals

    def with_deals(self, deals: Deals) -> Self:
        """Return the section with other deals."""
        copy = self.model_copy()
        copy._deals = deals
        return copy

    @model_validator(mode="after")
    def _list_is_used(self) -> Located:
        root, files = getattr(self, "root", ""), getattr(self, "files", None)
        if files is not None and not is_address(root):
            raise PydanticCustomError(
                "dataset.files",
                "is for a root that is an address (https://, s3://); the folder {root} needs none",
                {"root": root},
            )
        return self

    @field_serializer("root", check_fields=False)
    def _without_secrets(self, root: str) -> str:
        """Return the root without signature and password, as it is written to runs and other files."""
        return mask_secrets(root) if is_address(root) else root


class PathGsd(Section):
    """Ground sampling distance, taken from each image's path."""

    pattern: str = setting(
        ...,
        "",
        "regular expression that is searched in the image's relative path; its one group is the size of a "
        "pixel",
    )
    unit: Literal["m", "cm"] = setting("m", "", "unit of the pixel size that the pattern finds")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        return one_group(value)


def _form_of_gsd(value: object) -> str:
    if isinstance(value, (dict, PathGsd)):
        return "PathGsd"
    try:
        float(str(value))
    except ValueError:
        return "georeference"
    return "number"


def _georeference(value: object) -> object:
    if value != "georeference":
        raise PydanticCustomError(
            "scale",
            "expected georeference, a number of metres, or a pattern and its unit in {braces}, got {value}",
            {"braces": "{pattern: '(…)', unit: m or cm}", "value": repr(value)[:100]},
        )
    return value


Metres = Annotated[float, Field(gt=0, le=100_000)]
Scale = Annotated[
    Annotated[Literal["georeference"], BeforeValidator(_georeference), Tag("georeference")]
    | Annotated[Metres, Tag("number")]
    | Annotated[PathGsd, Tag("PathGsd")],
    Discriminator(_form_of_gsd),
    about(
        "metres",
        "size of a pixel on the ground: georeference (read from each file), one number for all scenes, or "
        "{pattern, unit} to read it from the images' paths",
    ),
]
"""Ground sampling distance of scenes, in three forms; tagged, so that a mistake gives one message."""


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Patterns = Annotated[
    tuple[str, ...],
    BeforeValidator(_several),
    PlainSerializer(lambda value: value[0] if len(value) == 1 else list(value)),
    Field(min_length=1),
]
"""One pattern, or a list of them."""
Band = Annotated[int, Field(ge=1)]


class PotsdamConfig(Located):
    """ISPRS Potsdam, as published."""

    title: ClassVar[str] = "ISPRS Potsdam"

    kind: Literal["potsdam"] = setting(..., "", "layout of the dataset: ISPRS Potsdam, as published")
    root: str = setting(
        ...,
        "",
        "folder or address (s3://, https://, …) that holds the images and labels; its subfolders are "
        "searched too",
    )
    images: Literal["RGB", "IRRG", "RGBIR"] = setting(
        "RGB", "", "image set to train on: three colours, infrared with red and green, or all four bands"
    )
    labels: Literal["full", "eroded"] = setting(
        "eroded",
        "",
        "label set: full, or eroded (the noBoundary set, which ignores a border of 3 px around each object)",
    )
    classes: Literal[6, 5] = setting(
        6, "", "number of classes: 6, or 5 with clutter ignored, as in many published scores"
    )
    split: Literal["standard"] | SplitByNames = setting(
        "standard",
        "",
        "scenes of each part: standard (the usual 24 to train, 14 to test, none to validate), or lists of "
        "names",
    )
    ignore: tuple[str, ...] = setting(
        (), "", "further colours in label files, as '#rrggbb', whose pixels are ignored"
    )
    leave_out: tuple[str, ...] = setting(
        (), "", "names of scenes that are not used; they are counted and printed"
    )
    metres_per_pixel: Scale = "georeference"
    files: Files = None
    cache: Cache = None
    cache_limit: CacheLimit = None
    cache_compression: CacheCompression = "none"


class Naic2020Config(Located):
    """NAIC2020: 256×256 tiles with their codes."""

    title: ClassVar[str] = "NAIC2020"
    maps_hold_codes: ClassVar[bool] = True

    kind: Literal["naic2020"] = setting(..., "", "layout of the dataset: tiles of the contest NAIC2020")
    root: str = setting(
        ...,
        "",
        "folder or address (s3://, https://, …) that holds the .tif images and .png labels; its subfolders "
        "are searched too",
    )
    round: Literal[1, 2] = setting(
        1, "", "round of the contest: 1 has 8 classes (codes 100 … 800), 2 has 15 (codes 1 … 17)"
    )
    ignore: tuple[int, ...] = setting((), "", "further codes in label files whose pixels are ignored")
    leave_out: tuple[str, ...] = setting(
        (), "", "tiles that are not used, by stem or glob pattern; they are counted and printed"
    )
    metres_per_pixel: Scale = "georeference"
    files: Files = None
    cache: Cache = None
    cache_limit: CacheLimit = None
    cache_compression: CacheCompression = "none"
    validation_share: float = setting(
        0.1,
        "share of the tiles",
        "share of the tiles held out for validation, chosen by a hash of the stem, so that hardly any tile "
        "changes sides when files are added",
        gt=0,
        lt=1,
    )


def _as_text(value: object) -> object:
    """Return a whole number or `true` as text: YAML reads `3` as a number where the text may be meant."""
    return str(value) if isinstance(value, int) else value


Codes = Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^\d{1,5}(-\d{1,5})?$")]
"""A code, or a range of codes with both ends."""


class FolderClass(Section):
    """One class of a folder dataset."""

    name: str = setting(..., "", "name of the class in maps and scores")
    code: int | None = setting(
        None,
        "",
        "value of the class in label files; needed where label files, or the polygons' attribute, hold codes",
        ge=0,
        lt=65535,
    )
    colour: str | None = setting(
        None, "", "colour of the class on maps and in label files that hold colours, as '#rrggbb'"
    )
    also: Annotated[tuple[Codes, ...], BeforeValidator(_several)] = setting(
        (),
        "",
        "further codes, or ranges such as 1-118, that mean this class in label files: greys of a mask with "
        "soft edges, for example",
    )

    @property
    def further(self) -> tuple[int, ...]:
        """Codes of `also`, each once."""
        return tuple(dict.fromkeys(code for each in self.also for code in _range(each)))

    @field_validator("also")
    @classmethod
    def _upwards(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if empty := [each for each in value if not _range(each)]:
            raise PydanticCustomError(
                "also", "expected a range from a low to a high code, got {range}", {"range": empty[0]}
            )
        return value


def _range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


IGNORE_WORD = "ignore"
"""In place of a class: pixels that count nowhere."""


Text = Annotated[str, BeforeValidator(_as_text)]


class VectorLabels(Section):
    """Rule that turns polygons into labels."""

    attribute: str | None = setting(
        "class",
        "",
        "attribute that holds a polygon's class: as its name, its code, or a key of values; null: all "
        "polygons are of one class",
    )
    values: dict[Text, Text] = setting(
        {},
        "",
        "class, or ignore, that each value of the attribute stands for; a polygon whose attribute is empty "
        "(null) is ignored",
    )
    order: tuple[Text, ...] = setting(
        (),
        "",
        "classes from top to bottom, where their polygons overlap; classes that are not listed lie below "
        "and may not overlap",
    )
    outside: Text = setting(IGNORE_WORD, "", "class of the pixels in no polygon, or ignore")
    all_touched: bool = setting(
        False,
        "",
        "true: a pixel belongs to every polygon that touches it; false: to the polygon over its centre",
    )
    layer: str | None = setting(
        None, "", "layer of the vector file that is read; default: its only layer with polygons"
    )
    crs: str | None = setting(
        None, "", "coordinate system of vector files that name none, such as EPSG:25832"
    )

    def check(self, classes: list[str]) -> None:
        """Refuse classes that the dataset does not have, and one that cannot be told from ignored pixels.

        Raises:
            PydanticCustomError: a class is unknown; the message names the setting.
        """
        if IGNORE_WORD in classes:
            raise PydanticCustomError(
                "dataset.classes", "ignore means pixels that count nowhere; give the class another name"
            )
        named = [("values", name) for name in self.values.values()]
        named += [("order", name) for name in self.order] + [("outside", self.outside)]
        for key, name in named:
            if name not in (*classes, IGNORE_WORD):
                raise PydanticCustomError(
                    f"dataset.vector.{key}",
                    "expected classes of dataset.classes, or ignore, got {name}; there are {known}",
                    {"name": name, "known": ", ".join(classes)},
                )
        if self.attribute is None and len(inside := [name for name in classes if name != self.outside]) != 1:
            raise PydanticCustomError(
                "dataset.vector.attribute",
                "null is for one class of dataset.classes beside that of vector.outside, got {inside}",
                {"inside": ", ".join(inside) or "none"},
            )
        twice = [name for i, name in enumerate(self.order) if name in self.order[:i]]
        if twice:
            raise PydanticCustomError(
                "dataset.vector.order", "expected each class once, got {name} twice", {"name": twice[0]}
            )


_COMPARED = ("images", "grid", "labels", "classes", "split", "vector")


def _compose_texts(value: Any) -> Any:
    """Return a part of a recipe with each text composed."""
    if isinstance(value, dict):
        fields = ("attribute", "layer")
        return {
            _compose_texts(key): each if key in fields else _compose_texts(each)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_compose_texts(each) for each in value]
    return compose_accents(value) if isinstance(value, str) else value


class FolderConfig(Located):
    """Any folder of image and label files that can be paired by a pattern."""

    title: ClassVar[str] = "its owner's own data"

    kind: Literal["folder"] = setting(
        ..., "", "layout of the dataset: any folder, described by the keys below"
    )
    root: str = setting(
        ...,
        "",
        "folder or address (s3://, gs://, az://, https://) in which the patterns of images and labels are "
        "searched",
    )
    images: Patterns = setting(
        ...,
        "",
        "pattern of the image files: * stands for any name, ** for any folders, {name} for the part that "
        "an image and its label share; a list of patterns, in the order of the bands, where a scene's "
        "bands lie in several files",
    )
    grid: str | None = setting(
        None,
        "",
        "pattern, one of several in images, whose pixels the other files are resampled to; default: the "
        "pattern with the smallest pixels",
    )
    drivers: tuple[str, ...] = setting(
        (),
        "",
        "further GDAL drivers that may open files, such as JP2OpenJPEG, or VRT (which can read any other "
        "file)",
    )
    labels: str = setting(
        ...,
        "",
        "pattern of the label files, with the same {names}, so that each image has one; rasters, or "
        "polygons (.gpkg, .geojson, .shp, .fgb, .parquet); or the name of one file for all images; {class} "
        "stands for the class in encoding: masks",
    )
    labels_by: Literal["pixels", "georeference"] = setting(
        "pixels",
        "",
        "placement of label rasters on images: pixel on pixel, or by georeference from any grid and CRS; "
        "one label file for all images is always placed by georeference",
    )
    vector: VectorLabels = setting(VectorLabels(), "", "rule that turns polygons into labels")
    encoding: Literal["codes", "colours", "masks"] = setting(
        "codes",
        "",
        "content of the label files: class codes (also palette indices), colours, or masks of one class "
        "each, as files with {class} in dataset.labels, or as bands of one file: docs/data.md",
    )
    classes: tuple[FolderClass, ...] = setting(
        ..., "", "classes of the dataset; their order gives the ids 0, 1, 2, …", min_length=1
    )
    ignore: tuple[int | str, ...] = setting(
        (), "", "further codes, or colours as '#rrggbb', in label files whose pixels are ignored"
    )
    bands: tuple[Band, ...] | None = setting(
        None,
        "",
        "bands that the model sees, counted from 1, in this order; a band named here counts as data; "
        "default: all but alpha",
    )
    unlabelled: Literal["error", "skip"] = setting(
        "error",
        "",
        "treatment of images without a label and labels without an image: an error, or (skip) left out, "
        "counted and printed",
    )
    label_kind: Literal["full", "eroded"] = setting(
        "full",
        "",
        "kind of the labels, recorded in the protocol of scores: full, or eroded where borders between "
        "classes are ignored",
    )
    split: FolderSplit = setting(
        FolderSplit(), "", "division of the scenes into training, validation and test"
    )
    metres_per_pixel: Scale = "georeference"
    files: Files = None
    cache: Cache = None
    cache_limit: CacheLimit = None
    cache_compression: CacheCompression = "none"

    @property
    def masks(self) -> dict[str, int]:
        """Code of each class that has mask files of its own, by its name in `{class}`; else empty."""
        by_name = self.encoding == "masks" and "{class}" in self.labels
        return {each.name: each.code for each in self.classes if each.code} if by_name else {}

    @property
    def uncoded(self) -> tuple[str, ...]:
        """Names of the classes without a code: theirs is made up, and means nothing in labels."""
        return tuple(each.name for each in self.classes if each.code is None)

    @model_validator(mode="before")
    @classmethod
    def _names_composed(cls, data: Any) -> Any:
        """Compose names that are compared with those of files; places are taken as they are."""
        if not isinstance(data, dict):
            return data
        return {key: _compose_texts(value) if key in _COMPARED else value for key, value in data.items()}

    @field_validator("classes", mode="before")
    @classmethod
    def _list_of_classes(cls, value: object) -> object:
        """Refuse anything but a list of classes, with one message that shows the correct form."""
        if not isinstance(value, (list, tuple)) or not all(isinstance(c, (dict, FolderClass)) for c in value):
            raise PydanticCustomError(
                "classes",
                "expected a list of classes, each as {form}, got {value}",
                {"form": "{name: forest, code: 1}", "value": shorten(repr(value), 80)},
            )
        return value

    @field_validator("bands")
    @classmethod
    def _some_band(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value == ():
            raise PydanticCustomError(
                "bands", "expected at least one band, counted from 1, got []; without this line all are used"
            )
        return value

    @model_validator(mode="after")
    def _grid_is_one_of_them(self) -> FolderConfig:
        if self.grid is not None and (len(self.images) < 2 or self.grid not in self.images):
            raise PydanticCustomError(
                "dataset.grid",
                "expected one of several patterns of dataset.images, got {grid}; there are {known}",
                {"grid": self.grid, "known": ", ".join(self.images)},
            )
        return self

    @model_validator(mode="after")
    def _classes_fit(self) -> FolderConfig:
        if is_vector(self.labels):
            return self._polygons_fit()
        if self.vector != VectorLabels():
            raise PydanticCustomError(
                "dataset.vector",
                "is for labels that are polygons, got rasters as dataset.labels: {labels}",
                {"labels": str(self.labels)},
            )
        coded = self.encoding != "colours"
        missing = [c.name for c in self.classes if (c.code if coded else c.colour) is None]
        if missing:
            need = "a code" if coded else "a colour"
            raise PydanticCustomError(
                "classes",
                "expected every class to have {need}, missing for {names}",
                {"need": need, "names": ", ".join(missing)},
            )
        if self.encoding != "codes" and (named := [c.name for c in self.classes if c.also]):
            raise PydanticCustomError(
                "classes",
                "also is for codes, got {encoding} and also of {name}",
                {"encoding": self.encoding, "name": named[0]},
            )
        return self

    def _polygons_fit(self) -> FolderConfig:
        """Check that polygons can be assigned to classes, by class names or by codes."""
        if self.encoding != "codes":
            raise PydanticCustomError(
                "dataset.encoding",
                "{encoding} is for label rasters; dataset.labels is of polygons",
                {"encoding": self.encoding},
            )
        self.vector.check([each.name for each in self.classes])
        return self


DatasetConfig = Annotated[PotsdamConfig | Naic2020Config | FolderConfig, Field(discriminator="kind")]

DATASET_KINDS = kinds_of(DatasetConfig)
