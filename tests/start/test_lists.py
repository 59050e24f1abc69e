"""Lists of a folder tell its split, whatever their form; what gives none is a finding."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from datasets.start.choice import Choice, nest_choices
from datasets.start.look import look
from segmenter.config.splits import FolderSplit
from tests.helpers import made_folders as made
from tests.helpers.made_folders import by_key, two_folders

Rng = np.random.Generator


def test_lists_of_scenes_are_the_split(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng)
    (tmp_path / "train.txt").write_text("s0\ns3\ns4\n")
    (tmp_path / "val.txt").write_text("im/s2.tif gt/s2.png\n")
    (tmp_path / "test.txt").write_text("s1.tif\n\n")
    dataset = made.planned(tmp_path)[2]
    assert {scene.name: scene.split for scene in dataset.scenes} == {
        **dict.fromkeys(("s0", "s3", "s4"), "train"),
        "s2": "validation",
        "s1": "test",
    }


@pytest.mark.parametrize(
    "line", ["x {}", "im/x {}.png 7", "sar/y{}.tif, gt/x {}.png", "x 1,x {}", "x {} val"]
)
def test_lines_of_lists_name_images_or_labels_with_spaces_or_several(
    tmp_path: Path, rng: Rng, line: str
) -> None:
    for i in range(1, 9):
        made.save(tmp_path / f"im/x {i}.png", made.image(rng))
        made.save(tmp_path / f"gt/x {i}.png", made.label([0, 1, 2], shift=i))
    (tmp_path / "val.txt").write_text("\n".join(line.format(i, i) for i in (1, 3)))
    assert {scene.name for scene in made.planned(tmp_path)[2].of("validation")} == {"x 1", "x 3"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metadata.csv", "id,split,image\n0,train,s0/image.tif\n1,Valid,s1/image.tif\n2,train,s2/image.tif"),
        ("tiles.csv", '"tile";"set"\n"s0";"train"\n"s1";"val"\n"s2";"train"'),
        ("splits.json", '{"train": ["s0/image.tif", "s2/image.tif"], "val": ["s1/image.tif"]}'),
        ("split.csv", "s1/image.tif,val\ns0/image.tif,train\ns2/image.tif,train"),
        ("tiles.csv", "tile,split\ns0,train\ns1,val\ns2,train\n# end"),
        ("tiles.csv", "tile,split\ns0,\ns1,val\ns2,train\n"),
        ("subset.txt", "s1 val\ns0 train\ns2 train\n"),
        ("val_split.txt", "val s1\ntrain s0\ntrain s2\n"),
        ("split.json", '{"s0": "train", "s1": "val", "s2": "train"}'),
        (
            "meta.json",
            '{"images": [{"file": "s1/image.tif", "split": "val"}, {"file": "s2", "split": "train"}]}',
        ),
        ("meta.json", '{"s0": {"use": "train", "n": 1}, "s1": {"use": "val", "n": 2}}'),
        ("instances_val.json", '{"info": {"n": 1}, "images": [{"id": 1, "file_name": "s1/image.tif"}]}'),
        ("tiles.geojson", '{"features": [{"properties": {"id": 1, "tile": "s1", "set": "val"}}]}'),
        ("dataset.yaml", "splits:\n  train: [s0, s2]\n  val: [s1]\n"),
        ("split.csv", "tile,train,val\ns0,1,0\ns1,0,1\ns2,1,0\n"),
        ("tiles.csv", "image,is_valid\nS0/IMAGE.TIF,False\nS1/IMAGE.TIF,True\nS2/IMAGE.TIF,False\n"),
        ("tiles.csv", "tile,is_test,split\ns0,0,train\ns1,0,val\ns2,0,train\n"),
        ("VAL.TXT", "S1\\Image.TIF\n"),
        ("tiles.csv", "Tile,Split\nS0,TRAIN\nS1,VAL\nS2,TRAIN\n"),
        ("val.json", '["s1/label.tif"]'),
        ("val.csv", "image,label\n/home/me/d/s1/image.tif,/home/me/d/s1/label.tif"),
        ("val.txt", "D:\\d\\s1\\image.tif"),
    ],
)
def test_lists_have_columns_keys_and_paths_of_another_machine(
    tmp_path: Path, rng: Rng, file: str, text: str
) -> None:
    for i in range(3):
        made.save(tmp_path / f"s{i}/image.tif", made.image(rng))
        made.save(tmp_path / f"s{i}/label.tif", made.label([0, 1, 2], shift=i))
    (tmp_path / file).write_text(text)
    choices, _, dataset = made.planned(tmp_path)
    assert {scene.name for scene in dataset.of("validation")} == {"s1"}
    assert file in by_key(choices)["dataset.split.validation"].reason


@pytest.mark.parametrize(
    ("titles", "flags", "held"),
    [
        ("is_test", "0000 0000 11", {"test": {"s8", "s9"}}),
        ("is_val,is_test", "0000 0010 01", {"validation": {"s6"}, "test": {"s9"}}),
        ("is_valid", "1111 1111 10", {}),  # a mark of quality
    ],
)
def test_flags_below_titles_are_a_split(
    titles: str, flags: str, held: dict[str, set[str]], tmp_path: Path, rng: Rng
) -> None:
    two_folders(tmp_path, rng, 10)
    count, lines = titles.count(",") + 1, [f"image,{titles}"]
    for i, flag in enumerate(flags.replace(" ", "")):
        cells = ["0"] * count
        cells[0 if i < 8 else -1] = flag
        lines.append(f"S{i}.png,{','.join(cells)}")
    (tmp_path / "tiles.csv").write_text("\n".join(lines))
    choices = by_key(made.planned(tmp_path)[0])
    for split in ("validation", "test"):
        chosen = choices.get(f"dataset.split.{split}")
        assert (set() if chosen is None else {*chosen.value}) == held.get(split, set())


def test_a_list_in_utf_16_is_the_split(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng)
    for encoding, mark in itertools.product(("utf-16-le", "utf-16-be"), ("\ufeff", "")):
        (tmp_path / "val.txt").write_bytes(f"{mark}s1\r\ns2\r\n".encode(encoding))
        assert {scene.name for scene in made.planned(tmp_path)[2].of("validation")} == {"s1", "s2"}


def test_scenes_that_the_only_list_does_not_train_validate_and_are_asked_about(
    tmp_path: Path, rng: Rng
) -> None:
    two_folders(tmp_path, rng, 8)
    (tmp_path / "train.txt").write_text("".join(f"s{i}\n" for i in range(5)))
    choices, _, dataset = made.planned(tmp_path)
    assert {scene.name for scene in dataset.of("validation")} == {"s5", "s6", "s7"}
    asked = by_key(choices)["dataset.split.validation"]
    assert "5 of 8 scenes" in asked.question
    data = nest_choices(Choice(key, value, "") for key, value in asked.instead.items())["dataset"]["split"]
    split = FolderSplit.model_validate(data)
    assert (split.validation, split.by_hash) == ((), True)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("train.txt", "s0\ns1\ns2\ns3\ns4\n"),
        ("test.txt", "s0\ns1\ns2\ns3\ns4\n"),
        ("train_log.txt", "loss of s0: 0.3\ns0 s1\n"),
        ("README.txt", "We hold out s0.tif and s3.tif (test), all others are for training.\n"),
        ("split.json", '{"test_ids": "s0 s1", "s2": "test"'),
    ],
)
def test_a_list_that_gives_no_split_is_a_finding(tmp_path: Path, rng: Rng, file: str, text: str) -> None:
    two_folders(tmp_path, rng)
    (tmp_path / file).write_text(text)
    choices = look(tmp_path)
    root = by_key(choices)["dataset.root"]
    assert file in root.left
    assert root.left in root.reason
    assert not any("split" in key for key in by_key(choices))


def test_a_list_of_a_split_that_names_a_scene_twice_holds_it_out_and_says_so(
    tmp_path: Path, rng: Rng
) -> None:
    for i in range(1, 6):
        made.save(tmp_path / f"images/{i:03}_image.png", made.image(rng))
        made.save(tmp_path / f"annotations/{i:03}_annotation.png", made.label([0, 1, 2], shift=i))
        made.save(tmp_path / f"masks/{i:03}_mask.png", made.label([0, 1], shift=i))
    (tmp_path / "train_test_split.yaml").write_text("train: [1, 2, 4]\ntest: [3, 4, 5]\n")
    choices, _, dataset = made.planned(tmp_path)
    assert {scene.name for scene in dataset.of("test")} == {"003", "004", "005"}
    assert "004 of them in train, too" in by_key(choices)["dataset.split.test"].reason
    assert by_key(choices)["dataset.labels"].value == "annotations/{name}_annotation.png"
    assert "masks" in by_key(choices)["dataset.labels"].other


def test_files_that_are_no_lists_change_nothing(tmp_path: Path, rng: Rng) -> None:
    """Noise, broken JSON, texts of other encodings, and a cell that is longer than what csv reads."""
    for i in range(4):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng))
        made.save(tmp_path / f"gt/s{i}.tif", made.label([0, 1, 2], shift=i))
    chosen = nest_choices(made.planned(tmp_path)[0])["dataset"]
    files = {
        "train.txt": rng.bytes(3000),
        "val.csv": b"\xff\xfe" + rng.bytes(501),
        "split.json": b"[" * 100_000,
        "splits.yaml": b"a: &a [*a]\n",
        "classes.csv": b"\x00c\x00o",
        "test.txt": b"s1\0s2\r\n\0s3",
        "classes.json": b'{"categories": [{"id": 1e400, "name": ["x"]}], "classes": 3}',
        "tiles.geojson": b'{"features": null}',
        "names.tsv": b"name\tcode\n" + b"x" * 200_000 + b"\t1\n",
        "codes.csv": "name,code\nb,\uff11\nc,\u00b2\n".encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert nest_choices(made.planned(tmp_path)[0])["dataset"] == chosen


@pytest.mark.parametrize(("files", "held"), [(("trainval", "test"), {"s4"}), (("trainval",), {"s4"})])
def test_training_and_validation_in_one_list_train_together(
    tmp_path: Path, rng: Rng, files: tuple[str, ...], held: set[str]
) -> None:
    for i in range(5):
        made.save(tmp_path / f"s{i}/image.tif", made.image(rng))
        made.save(tmp_path / f"s{i}/label.tif", made.label([0, 1, 2], shift=i))
    for file, names in zip(files, (("s0", "s1", "s2", "s3"), ("s4",)), strict=False):
        (tmp_path / f"{file}.txt").write_text("\n".join(names))
    dataset = made.planned(tmp_path)[2]
    assert {scene.name for scene in dataset.scenes if scene.split != "train"} == held
