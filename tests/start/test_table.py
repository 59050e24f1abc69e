"""The table of layouts: what is seen in a folder, and what comes: right, asked, or refused.

It grows by a row, not by a rule. Rows with a number are situations that practitioners report; the others are
their siblings, made otherwise. Published layouts are in `test_layouts` and `test_several_files`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from datasets import load_dataset
from datasets.check import check_dataset
from datasets.start import classes, folder_facts, kinds, legends, look, pixels, polygons
from datasets.start.choice import Choice, limit_questions, nest_choices, recipe_text
from segmenter.base.errors import SegmenterError
from segmenter.config.reading import recipe_from
from segmenter.raster import raster_info
from tests.helpers import made_folders as made
from tests.helpers import reported_folders as to
from tests.helpers.reported_folders import Folder


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        make: writes the folder that is seen.
        comes: right, asked or refused.
        keys: settings that come, by the last part of their keys; `names`: names of classes by code; in a row
            that is refused, texts that fields of the error hold.
        rule: function that decides it; None: as any folder is read.
        instead: settings by the lines to paste.
        labels: labels that the user named.
    """

    make: Callable[[Folder], None]
    comes: Literal["right", "asked", "refused"]
    keys: Mapping[str, Any]
    rule: Callable[..., Any] | None = None
    instead: Mapping[str, Any] = field(default_factory=dict)
    labels: str | None = None


CVAT = ("JPEGImages/s{}.png", "SegmentationClass/s{}.png", "SegmentationObject/s{}.png")
YOLO = "path: data\nnc: 3\nnames: [roof, road, water]\n"
SHIFTED = {1: "roof", 2: "road", 3: "water"}
PLANET = ("2022010{}_1010_3B_AnalyticMS_SR.tif", "2022010{}_1010_3B_udm2.tif", "2022010{}_1010_label.tif")
UNNAMED = {code: f"class {code}" for code in (1, 2, 3)}

PERMUTED = {3: "forest", 1: "road", 2: "water"}
NAMES = ["Wald, Laub", "Wald, Nadel", *(f"k{code}" for code in range(3, 13))]
CATEGORIES = [{"id": code, "name": name} for code, name in enumerate(NAMES, 1)]
COCO = json.dumps({"licenses": [{"id": 1, "name": "CC BY 4.0"}], "categories": CATEGORIES})

TABLE: dict[str, Row] = {
    # kinds of labels
    "1 CVAT: classes and objects as colours, a list of three": Row(
        to.instances(*CVAT, legend=("labelmap.txt", to.LABELMAP)),
        "right",
        {"labels": "SegmentationClass/{name}.png", "names": [*to.CLASSES.values()]},
        kinds.fit_lists,
    ),
    "2 labelme: codes of classes and of objects, a list of three": Row(
        to.instances(*CVAT, form="codes", legend=("class_names.txt", "_background_\ntree\nroof\n")),
        "right",
        {"labels": "SegmentationClass/{name}.png", "names": {**to.CLASSES, 0: "_background_"}},
        kinds.fit_lists,
    ),
    "classes and objects, no list": Row(
        to.instances("im/{}.png", "a/{}.png", "b/{}.png"),
        "right",
        {"labels": "a/{name}.png"},
        pixels.object_purity,
    ),
    "classes and objects that are counted on from image to image": Row(
        to.instances("im/{}.tif", "z/{}.tif", "a/{}.tif", form="codes", first=2),
        "right",
        {"labels": "z/{name}.tif"},
        pixels.object_purity,
    ),
    "3 masks of areas and of their borders": Row(
        to.boundary("polygon_masks/{}.png", "boundary_masks/{}.png"),
        "right",
        {"labels": "polygon_masks/{name}.png"},
        pixels.edge_share,
    ),
    "wide contours, by names that tell nothing": Row(
        to.boundary("y/{}.png", "x/{}.png", 5, 1), "right", {"labels": "y/{name}.png"}, pixels.edge_share
    ),
    "corners beside the areas": Row(to.vertices, "right", {"labels": "a/{name}.tif"}, pixels.edge_share),
    "objects alone": Row(to.numbered_objects(8), "refused", {"got": "objects"}, pixels.count_objects),
    "many objects, named as labels": Row(
        to.numbered_objects(32),
        "refused",
        {"where": "labels", "got": "objects"},
        pixels.count_objects,
        labels="labels",
    ),
    "flags in bits as labels": Row(to.bits, "refused", {"where": "labels"}, pixels.are_bits),
    "flags in bits beside labels": Row(to.bits_beside, "right", {"labels": "z/{name}.tif"}, pixels.are_bits),
    "41 predictions beside the truth": Row(
        to.two_labels("labels", "predictions"), "right", {"labels": "labels/{name}.tif"}
    ),
    "the truth beside predictions": Row(
        to.two_labels("ground_truth", "predictions"), "right", {"labels": "ground_truth/{name}.tif"}
    ),
    "what a model put out beside a reference": Row(
        to.two_labels("reference", "model_output"), "right", {"labels": "reference/{name}.tif"}
    ),
    "labels of two years": Row(
        to.two_labels("labels_2018", "labels_2023"),
        "asked",
        {"labels": "labels_2018/{name}.tif"},
        instead={"labels": "labels_2023/{name}.tif"},
    ),
    "labels of two people": Row(
        to.two_labels("anna", "bob"),
        "asked",
        {"labels": "anna/{name}.tif"},
        instead={"labels": "bob/{name}.tif"},
    ),
    # kinds of images
    "4 PlanetScope: usable data masks": Row(
        to.quality(*PLANET), "right", {"images": "{name}_3B_AnalyticMS_SR.tif"}, pixels.has_flags
    ),
    "5 the same, labels in a folder": Row(
        to.quality(PLANET[0], PLANET[1], "labels/2022010{}_1010.tif"),
        "right",
        {"images": "{name}_3B_AnalyticMS_SR.tif"},
        pixels.has_flags,
    ),
    "flags by a name that tells nothing": Row(
        to.quality("b/{}.tif", "a/{}.tif", "c/{}.tif", 4),
        "right",
        {"images": "b/{name}.tif"},
        pixels.has_flags,
    ),
    "more bands of flags than of light": Row(
        to.quality("s{}_x.tif", "s{}_rgb.tif", "s{}_mask.tif", 12),
        "right",
        {"images": "{name}_x.tif"},
        pixels.has_flags,
    ),
    "6 previews of 8 bits without georeference": Row(
        to.preview("chip_00{}.tif", "chip_00{}_rgb.png", "chip_00{}_mask.tif"),
        "right",
        {"images": "{name}.tif"},
        pixels.is_copy,
    ),
    "7 SAR in decibels and its quicklook": Row(
        to.preview("p{}.tif", "p{}_quicklook.png", "p{}_label.tif", "decibels", 2),
        "right",
        {"images": "{name}.tif"},
        pixels.is_copy,
    ),
    "a preview with georeference": Row(
        to.preview("img/{}.tif", "rgb/{}.tif", "label/{}.tif", "placed"),
        "right",
        {"images": "img/{name}.tif"},
        pixels.is_copy,
    ),
    "a preview of half the size": Row(
        to.preview("x/{}.tif", "image/{}.png", "mask/{}.tif", "half"),
        "right",
        {"images": "x/{name}.tif"},
        pixels.is_copy,
    ),
    "30 optical and SAR": Row(to.optical_and_sar, "right", {"images": "ROIs_s2/ROIs_s2_{name}.tif"}),
    # lists of classes
    "8 three names for 1, 2, 3": Row(
        to.listed("classes.txt", "roof\nroad\nwater\n", shift=1),
        "right",
        {"names": SHIFTED},
        legends.codes_of_names,
    ),
    "9 labelme's list with __ignore__": Row(
        to.listed("labels.txt", "__ignore__\n_background_\ntree\nroof\n"),
        "right",
        {"names": {**to.CLASSES, 0: "_background_"}},
        legends.codes_of_names,
    ),
    "10 YOLO's list, the last class does not occur": Row(
        to.listed("data.yaml", YOLO),
        "asked",
        {"names": {0: "roof", 1: "road", 2: "water"}},
        legends.codes_of_names,
        {"names": {0: "background", 1: "roof", 2: "road"}},
    ),
    "three names for 0, 1, 2, the first one no background": Row(
        to.listed("classes.txt", "roof\nroad\nwater\n"),
        "right",
        {"names": {0: "roof", 1: "road", 2: "water"}},
        legends.codes_of_names,
    ),
    "three names for 0 … 3: 0 is none of them": Row(
        to.listed("obj.names", "roof\nroad\nwater\n", 4),
        "right",
        {"names": {0: "background", **SHIFTED}},
        legends.codes_of_names,
    ),
    "three names for 1 and 2": Row(
        to.listed("classes.txt", "roof\nroad\nwater\n", 2, 1),
        "asked",
        {"names": {1: "roof", 2: "road"}},
        legends.codes_of_names,
        {"names": {1: "road", 2: "water"}},
    ),
    "a list numbered from 0, labels from 1": Row(
        to.listed("classes.csv", "id,name\n0,roof\n1,road\n2,water\n", shift=1),
        "asked",
        {"names": SHIFTED},
        legends.codes_of_names,
        {"names": {1: "road", 2: "water", 3: "class 3"}},
    ),
    "a list numbered from 1, labels from 0": Row(
        to.listed("classes.csv", "id,name\n1,roof\n2,road\n3,water\n"),
        "asked",
        {"names": {0: "background", 1: "roof", 2: "road"}},
        legends.codes_of_names,
        {"names": {0: "roof", 1: "road", 2: "water"}},
    ),
    "a list that begins with what is none of the others": Row(
        to.listed("classes.txt", "background\ntree\nroof\n"),
        "right",
        {"names": to.CLASSES},
        legends.codes_of_names,
    ),
    "11 metadata of Landsat": Row(to.metadata, "right", {"names": UNNAMED}, legends.is_of_classes),
    "12 a table of sites": Row(
        to.listed("sites.csv", "id,site,country\n1,Berlin,Germany\n2,Paris,France\n3,Rome,Italy\n", shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    "a table without titles, in a file of any name": Row(
        to.listed("table.csv", "1,Berlin\n2,Paris\n3,Rome\n", shift=1),
        "asked",
        {"names": {1: "Berlin", 2: "Paris", 3: "Rome"}},
        legends.is_of_classes,
        {"names": UNNAMED},
    ),
    "a table of more numbers than the labels have": Row(
        to.listed("data.csv", "".join(f"{k},parcel {k}\n" for k in range(1, 40)), shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    "dates by number": Row(
        to.listed("info.csv", "scene;date\n1;June\n2;July\n3;May\n", shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    "codes among measures by their title": Row(
        to.listed(
            "classes.csv",
            "code;name;percent;polygons\n3;forest;40;120\n1;road;10;80\n2;water;50;60\n",
            shift=1,
        ),
        "right",
        {"names": PERMUTED},
    ),
    "codes among measures behind the names": Row(
        to.listed(
            "classes.csv", "name,code,count,share\nforest,3,40,120\nroad,1,10,80\nwater,2,50,60\n", shift=1
        ),
        "right",
        {"names": PERMUTED},
    ),
    "codes before a name and measures, no titles": Row(
        to.listed("classes.csv", "3;forest;40;120\n1;road;10;80\n2;water;50;60\n", shift=1),
        "right",
        {"names": PERMUTED},
    ),
    "codes beside the index of pandas": Row(
        to.listed("classes.csv", ",name,code\n0,forest,3\n1,road,1\n2,water,2\n", shift=1),
        "right",
        {"names": PERMUTED},
    ),
    "codes beside a saved index, by tabs": Row(
        to.listed(
            "classes.tsv", "Unnamed: 0\tname\tlabel\n1\tforest\t3.0\n2\troad\t1.0\n3\twater\t2.0\n", shift=1
        ),
        "right",
        {"names": PERMUTED},
    ),
    "codes beside the row numbers of R": Row(
        to.listed("classes.csv", '"name","code"\n"1","forest",3\n"2","road",1\n"3","water",2\n', shift=1),
        "right",
        {"names": PERMUTED},
    ),
    "codes behind colours in columns": Row(
        to.listed(
            "classes.csv",
            "class,red,green,blue,value\nforest,1,2,3,3\nroad,2,5,6,1\nwater,3,8,9,2\n",
            shift=1,
        ),
        "right",
        {"names": PERMUTED},
    ),
    "codes of which one does not occur, beside numbers of rows that all do": Row(
        to.listed("classes.csv", ",name,code\n0,roof,1\n1,road,2\n2,water,3\n"),
        "asked",
        {"names": {0: "background", 1: "roof", 2: "road"}},
        instead={"names": {0: "roof", 1: "road", 2: "water"}},
    ),
    "two columns of numbers that may be codes": Row(
        to.listed("classes.csv", "id,name,code\n1,forest,3\n2,road,1\n3,water,2\n", shift=1),
        "asked",
        {"names": PERMUTED},
        instead={"names": {1: "forest", 2: "road", 3: "water"}},
    ),
    "three numbers without titles, the first ones the codes": Row(
        to.listed("classes.csv", "forest,3,40,120\nroad,1,10,80\nwater,2,50,60\n", shift=1),
        "asked",
        {"names": PERMUTED},
        instead={"names": {1: "forest", 2: "road", 3: "water"}},
    ),
    "COCO's categories, not its licences": Row(
        to.listed("coco.json", COCO, shift=1),
        "right",
        {"names": {1: "Wald, Laub", 2: "Wald, Nadel", 3: "k3"}},
    ),
    "a title above names alone": Row(
        to.listed("classes.csv", "class\nroof\nroad\nwater\n"),
        "right",
        {"names": {0: "roof", 1: "road", 2: "water"}},
        legends.codes_of_names,
    ),
    "commas within names, by semicolons": Row(
        to.listed("classes.csv", "1;Wald, Laub\n2;Wald, Nadel\n3;Wasser\n", shift=1),
        "right",
        {"names": {1: "Wald, Laub", 2: "Wald, Nadel", 3: "Wasser"}},
    ),
    "commas within names, by tabs": Row(
        to.listed("classes.txt", "1\tWald, Laub\n2\tWald, Nadel\n3\tWasser\n", shift=1),
        "right",
        {"names": {1: "Wald, Laub", 2: "Wald, Nadel", 3: "Wasser"}},
    ),
    "commas within names, by spaces": Row(
        to.listed("classes.txt", "1 Wald, Laub\n2 Wald, Nadel\n3 Wasser\n", shift=1),
        "right",
        {"names": {1: "Wald, Laub", 2: "Wald, Nadel", 3: "Wasser"}},
    ),
    # zeros, fill and nodata
    "13 heights of 0 on the ground": Row(
        to.heights, "right", {"codes": [0, 1, 2], "ignore": None}, classes.is_zero_a_class
    ),
    "14 water whose red is 0": Row(
        to.dark((0,)), "right", {"codes": [0, 1, 2], "ignore": None}, classes.is_zero_a_class
    ),
    "an index of one band that is 0 on a class": Row(
        to.dark((0,), "float32", 1), "asked", {"codes": [0, 1, 2]}, classes.is_zero_a_class, {"codes": [1, 2]}
    ),
    "all bands 0 on a third of the pixels": Row(
        to.dark((0, 1, 2)),
        "asked",
        {"codes": [1, 2], "ignore": [0]},
        classes.is_zero_a_class,
        {"codes": [0, 1, 2]},
    ),
    "15 -9999 in floats": Row(to.filled(-9999, "float32", 1 / 255), "right", {"fill": "-9999"}),
    "16 65535 in 16 bits": Row(to.filled(65535, "uint16", 20), "right", {"fill": "65535"}),
    "-32768 in signed numbers": Row(to.filled(-32768, "int16", 10), "right", {"fill": "-32768"}),
    "0 above decibels": Row(to.filled(0, "float32", 1 / 12, -25), "right", {"fill": "0"}),
    "white borders of 8 bits": Row(to.filled(255, "uint8"), "right", {"fill": None}),
    "17 a national map, nodata 0 outside": Row(
        to.national,
        "asked",
        {"codes": [11, 21, 31], "label_nodata": "ignore"},
        look.is_tag_a_class,
        {"codes": [0, 11, 21, 31], "label_nodata": "class"},
    ),
    "18 three classes burnt on 12 %": Row(
        to.burnt(0.12), "asked", {"codes": [1, 2, 3], "label_nodata": "ignore"}, look.is_tag_a_class
    ),
    "three classes burnt on 80 %": Row(
        to.burnt(0.8),
        "asked",
        {"codes": [0, 1, 2, 3], "label_nodata": "class"},
        look.is_tag_a_class,
        {"codes": [1, 2, 3], "label_nodata": "ignore"},
    ),
    "codes in one band, and in three that are equal": Row(
        to.bands_of_labels(lambda label: np.stack([label] * 3, 2)),
        "right",
        {"codes": [0, 1, 2], "class_names": ["class 0", "class 1", "class 2"]},
    ),
    "codes in one band, and with alpha": Row(
        to.bands_of_labels(lambda label: np.stack([label, np.full_like(label, 255)], 2)),
        "right",
        {"codes": [0, 1, 2]},
    ),
    "no data by 255 and by 0, which is a class elsewhere": Row(
        to.two_tags,
        "asked",
        {"codes": [0, 1, 2], "label_nodata": "ignore", "ignore": None},
        instead={"codes": [0, 1, 2], "label_nodata": "class", "ignore": [255]},
    ),
    "one raster of labels, of other values where no image is": Row(
        to.mosaic(7), "right", {"codes": [1, 2, 3], "scenes": 6, "ignore": None}
    ),
    "labels with frames of another value, and a pair without a place": Row(
        to.one_without_place,
        "right",
        {"codes": [0, 1, 2], "labels_by": "georeference", "leave_out": ["s5"]},
    ),
    "one raster of labels, and an image that is nowhere": Row(
        to.one_nowhere, "right", {"codes": [1, 2, 3], "leave_out": ["s5"], "scenes": 7}
    ),
    "one raster of labels, which misses an image": Row(
        to.mosaic(0, cut=130), "right", {"codes": [1, 2, 3], "unlabelled": "skip", "leave_out": None}
    ),
    "32 NaN in images and labels": Row(to.floats, "right", {"codes": [0, 1, 2]}),
    # polygons, to.sheets, to.dates
    "21 a layer of classes and its boundary": Row(
        to.several_layers(False),
        "right",
        {"layer": "landuse", "class_names": ["town", "water", "wood"]},
        polygons.classes_told,
    ),
    "two layers that tell classes": Row(to.several_layers(True), "asked", {}, polygons.classes_told, {}),
    "layers of which none tells classes": Row(
        to.layers("roads", "houses", "water"), "refused", {"remedy": "-src_layer_field_name class"}
    ),
    "classes of a third of the polygons, and another word of all": Row(
        to.layers("a", landuse=["wood", "water", None, None, None, None] * 4, owner=["x", "y"] * 12),
        "asked",
        {"class_names": ["x", "y"]},
        instead={"class_names": ["water", "wood"]},
    ),
    "classes of two thirds, and another word of all": Row(
        to.layers("a", landuse=["wood", "water", None] * 8, owner=["x", "y"] * 12),
        "right",
        {"class_names": ["water", "wood"]},
    ),
    "25 an area of interest beside labels": Row(
        to.area_of_interest(3), "right", {"labels": "training.shp"}, polygons.classes_told
    ),
    "the same of one image": Row(
        to.area_of_interest(1), "right", {"labels": "training.shp"}, polygons.classes_told
    ),
    "25 a shapefile of each class": Row(to.file_of_each_class, "refused", {"remedy": "ogrmerge"}),
    "22 three dates in names, one label a place": Row(
        to.dates("images/tile_{:02}_{}.tif", lambda i, k: 2019 + k),
        "asked",
        {"images": "images/{name}_{date}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
        {"scenes": 6},
    ),
    "dates in folders": Row(
        to.dates("{1}/tile_{0:02}.tif", lambda i, k: 2019 + k),
        "asked",
        {"images": "{date}/{name}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
        {"scenes": 6},
    ),
    "each image of another date": Row(
        to.dates("s2/tile_{:02}_{}.tif", lambda i, k: 20200101 + 137 * i + 11 * k),
        "right",
        {"images": "s2/{name}_{date}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
    ),
    "23 two sheets for all images": Row(
        to.sheets(lambda x: f"sheet{x % 7}", 4),
        "refused",
        {"remedy": "rio merge"},
        folder_facts.refuse_sheets,
    ),
    "24 labels of twice the size, of which some have names of images": Row(
        to.sheets(lambda x: f"t{x}"), "refused", {"remedy": "rio merge"}, folder_facts.refuse_sheets
    ),
    "26 numbers without zeros": Row(to.without_zeros, "refused", {"remedy": "img_001.png"}),
    "two numbers without zeros": Row(to.two_numbers_without_zeros, "refused", {"fault": "zeros"}),
    "27 COCO": Row(to.coco, "refused", {"fault": "_annotations.coco.json"}),
    "labelme's polygons": Row(to.labelme, "refused", {"fault": "img0.json"}),
    # labels that do not fit
    "labels with fewer rows, all placed": Row(
        to.misfits(5), "right", {"labels_by": "georeference", "scenes": 10, "leave_out": None}
    ),
    "one of ten, not placed": Row(
        to.misfits(1, placed=False), "right", {"labels_by": None, "scenes": 9, "leave_out": ["s0"]}
    ),
    "three of ten, not placed": Row(to.misfits(3, placed=False), "refused", {"got": "3 of 10"}),
    "a label cut short": Row(to.damaged("labels"), "right", {"leave_out": ["s4"], "scenes": 9}),
    "an image cut short": Row(to.damaged("images"), "right", {"leave_out": ["s4"], "scenes": 9}),
    "a label on other ground": Row(to.elsewhere, "right", {"scenes": 9}),
    "35 labels with the south up": Row(to.south_up, "right", {"scenes": 6, "labels_by": "georeference"}),
    # right before
    "28 Roboflow": Row(
        to.roboflow, "right", {"names": {0: "background", 1: "roof", 2: "road"}, "scenes": 12}
    ),
    "20 chips of ArcGIS with world files and a list": Row(
        to.arcgis, "right", {"names": {0: "background", 1: "tree", 2: "roof"}, "scenes": 8, "labels_by": None}
    ),
    "33 overviews of labels that were averaged": Row(
        to.averaged_overviews, "right", {"codes": [1, 2, 9], "ignore": None}
    ),
    "34 a web map at two latitudes": Row(to.two_latitudes, "right", {"scenes": 8, "metres": [0.299, 0.597]}),
    "36 labels shifted by less than a pixel": Row(to.shifted, "right", {"scenes": 6, "leave_out": None}),
    "37 test without masks": Row(
        to.without_test_masks, "right", {"images": "train/images/{name}.png", "scenes": 8}
    ),
    "39 polygons of each image, one lacks": Row(
        to.geojson, "right", {"labels": "geojson/{name}.geojson", "scenes": 5}
    ),
    "38 files of operating systems": Row(to.junk, "right", {"scenes": 8, "leave_out": None}),
    "40 points": Row(to.points, "refused", {}, polygons.classes_told),
}


def settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what rows name of a section `dataset`."""
    recipe = recipe_from({"name": "made", "dataset": data}, "made")
    dataset = load_dataset(recipe)
    named, split = data["classes"], data.get("split", {})
    coded = all("code" in each for each in named)
    flat = {**data.get("vector", {}), **data}
    return {
        **{
            key: flat.get(key)
            for key in (*("images", "labels", "layer", "ignore", "label_nodata", "labels_by", "unlabelled"),)
        },
        "names": {each["code"]: each["name"] for each in named}
        if coded
        else [each["name"] for each in named],
        "class_names": [each["name"] for each in named],
        "codes": [each.get("code") for each in named],
        "leave_out": split.get("leave_out"),
        "scenes": len(dataset.scenes),
        "groups": len({scene.group for scene in dataset.scenes}),
        "metres": sorted({round(raster_info(s.image).metres_per_pixel or 0, 3) for s in dataset.scenes}),
    }


@pytest.mark.parametrize("name", TABLE)
def test_a_row_comes_out_right_asked_or_refused(name: str, tmp_path: Path) -> None:
    row = TABLE[name]
    row.make(Folder(tmp_path))
    if row.comes == "refused":
        with pytest.raises(SegmenterError) as caught:
            look.look(tmp_path, tmp_path / row.labels if row.labels else None)
        for key, text in row.keys.items():
            assert text in str(getattr(caught.value, key)), str(caught.value)
        return
    choices = look.look(tmp_path)
    open_ones = [choice for choice in choices if choice.question]
    assert len(open_ones) == (row.comes == "asked"), open_ones
    data = nest_choices(choices)["dataset"]
    seen = settings(data)
    fill = {**row.keys}.pop("fill", ...)
    assert seen == seen | {key: value for key, value in row.keys.items() if key != "fill"}
    if fill is not ...:
        report = check_dataset(made.planned(tmp_path)[2], progress=False)
        told = [finding.text for finding in report.findings if finding.kind == "fill value"]
        assert len(told) == (0 if fill is None else len(report.dataset.scenes))
        assert all(f" {fill} " in text for text in told)
    for choice in open_ones:
        assert choice.lines()
        other = settings({**data, **{key.partition(".")[2]: value for key, value in choice.instead.items()}})
        assert other == other | dict(row.instead)
        assert other != seen


def test_at_most_14_rules_read_a_folder_each_with_a_sentence_and_rows_that_need_it() -> None:
    rules = Counter(row.rule for row in TABLE.values() if row.rule is not None)
    assert len(rules) <= 14
    assert min(rules.values()) >= 2
    assert all(rule.__doc__ for rule in rules)


def test_of_three_questions_two_are_asked() -> None:
    three = [Choice(f"dataset.{key}", 0, "", question=key, instead={f"dataset.{key}": 1}) for key in "abc"]
    few = limit_questions(three)
    assert [choice.question for choice in few] == ["a", "b", ""]
    assert few[2].other
    text = recipe_text(few, "start")
    assert [line.partition("#")[2].strip() for line in text.splitlines() if line.endswith(": 1")] == [
        "a: 1",
        "b: 1",
    ]
