"""Arithmetic of the model table against TensorFlow's own counts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import model_table
from benchmarks.model_table import BASELINE, Row, flops, models
from benchmarks.page import rows_of
from segmenter.devices.setup import processor_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "studies/models.md"


def test_arithmetic_is_what_tensorflow_counts(tensorflow: ModuleType) -> None:
    import keras

    layers = keras.layers
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, 2, padding="same")(image)
    x = layers.DepthwiseConv2D(3, padding="same")(layers.ZeroPadding2D(1)(x))
    x = layers.Cropping2D(1)(layers.Conv2D(8, 3, padding="same", dilation_rate=1)(x))
    x = layers.SeparableConv2D(6, 3, padding="same")(x)
    model = keras.Model(image, layers.Conv2D(4, 1)(layers.Conv2DTranspose(6, 2, 2)(x)))
    spec = tensorflow.TensorSpec((1, 32, 32, 3))
    graph = tensorflow.function(lambda x: model(x, training=False)).get_concrete_function(spec).graph
    count = tensorflow.compat.v1.profiler.ProfileOptionBuilder
    options = count(count.float_operation()).with_empty_output().build()
    options["account_type_regexes"] = [".*Conv2D.*", ".*Depthwise.*"]
    counted = tensorflow.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert flops(model, 32) == counted > 0


def test_the_page_keeps_other_models_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{model_table._MARK}\n<!-- end of table -->\nafter\n")

    def of(parameters: int, *names: str) -> list[str]:
        def row(name: str, *_: object) -> Row:
            step = 4.0 if name == BASELINE else 1.6
            return Row(name, parameters, 4_000_000_000, 8, None, 150, 91, 41, step, step / 8)

        monkeypatch.setattr(model_table, "measured", row)
        monkeypatch.setattr(sys, "argv", ["model_table", "--page", str(page), "--models", *names])
        model_table.main()
        return page.read_text().splitlines()

    of(1_000_000, "dubai")
    lines = of(2_000_000, "demo", "resnet18 fpn")
    assert lines[0] == "before"
    assert lines[-1] == "after"
    rows = [line.split(" | ")[:2] for line in lines[4:-2]]
    demo, dubai, potsdam, pair = ("| demo", "| dubai", "| potsdam", "| resnet18 fpn")
    assert rows == [[demo, "2.0 M"], [dubai, "1.0 M"], [potsdam, "2.0 M"], [pair, "2.0 M"]]
    assert f"| none: smooth | 150 / 91 | 41 | 0.62 | 2.50 | 5.00 | 2.50 | {processor_model()}, 20" in lines[4]


def test_the_page_has_a_row_for_every_model() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rows_of(PAGE, model_table._MARK)
    ]
    assert rows[0] == list(model_table._HEAD)
    assert [row[0] for row in rows[2:]] == list(models())
