"""All benchmarks as a table; the arithmetic of models against TensorFlow's own counts."""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as command
from benchmarks import suite
from benchmarks.model_table import flops

PRINTS = """
import json, sys
name, value = sys.argv[1], int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0
if name == "broken":
    print("a line of a library's")
    sys.exit("error: the disk is full | really")
print(json.dumps({"benchmark": name, "seconds": 3.0 * value, "baseline_seconds": value, "ratio": 3.0}))
"""
LONG = suite.Entry("long", ("ratio",))
SHORT = suite.Entry("short", ("ratio",), quick=("--tiles", "20"), rounds=2)
BROKEN = suite.Entry("broken", ("ratio",), quick=(), rounds=3)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand-ins for benchmarks, and what they were called with."""
    calls: list[list[str]] = []

    def stand_in(name: str, arguments: Sequence[str]) -> list[str]:
        calls.append([name, *arguments])
        return [sys.executable, "-c", PRINTS, name, *arguments]

    monkeypatch.setattr(suite, "command", stand_in)
    monkeypatch.setattr(suite, "ENTRIES", (LONG, SHORT, BROKEN))
    return calls


def test_short_ones_are_repeated_by_turns_and_a_failed_one_is_a_row(
    called: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--output", str(tmp_path)]) == 1
    assert called == [["long"], ["short"], ["broken"], ["short"]]
    page = (tmp_path / command.PAGE).read_text()
    assert "| broken |  | **failed** | exit code 1: error: the disk is full \\| really |" in page
    assert "| short |  | ratio | 3 | 3 … 3 | 2 |" in page
    assert "| long |  | ratio | 3 |  | 1 |" in page
    assert all(name in page for name in suite.LEFT_OUT)
    content = json.loads((tmp_path / command.JSON).read_text())
    assert [call["name"] for call in content["calls"]] == [words[0] for words in called]
    assert all(call["processor"] > 0 for call in content["calls"])
    assert "**failed**" in capsys.readouterr().out


def test_every_benchmark_is_in_the_suite_or_named_or_a_part_of_another() -> None:
    folder = Path(suite.__file__).parent
    modules = {p.stem for p in folder.glob("*.py")} - {"__init__", "__main__"}
    runs = {name for name in modules if "__main__" in (folder / f"{name}.py").read_text(encoding="utf-8")}
    listed = {entry.name for entry in suite.ENTRIES} | set(suite.LEFT_OUT)
    parts = {name for name in runs if any(name.startswith(f"{whole}_") for whole in listed)}
    assert runs - listed - parts == set()
    assert listed - modules == set()


@pytest.mark.parametrize("quick", [True, False])
def test_arguments_are_such_as_the_benchmarks_take(quick: bool) -> None:
    """By their own text: none is started."""
    for entry in suite.ENTRIES:
        source = Path(str(importlib.util.find_spec(f"benchmarks.{entry.name}").origin)).read_text()  # type: ignore[union-attr]
        options = {word for word in entry.arguments(quick=quick) or () if word.startswith("--")}
        assert [word for word in sorted(options) if f'"{word}"' not in source] == [], entry.name


def test_arithmetic_is_what_tensorflow_counts(tensorflow: ModuleType) -> None:
    import keras

    layers = keras.layers
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, 2, padding="same")(image)
    x = layers.DepthwiseConv2D(3)(layers.ZeroPadding2D(1)(x))
    x = layers.Conv2D(8, 3, padding="same")(x)
    model = keras.Model(image, layers.Conv2D(4, 1)(layers.Conv2DTranspose(6, 2, 2, padding="same")(x)))
    spec = tensorflow.TensorSpec((1, 32, 32, 3))
    graph = tensorflow.function(lambda x: model(x, training=False)).get_concrete_function(spec).graph
    count = tensorflow.compat.v1.profiler.ProfileOptionBuilder
    options = count(count.float_operation()).with_empty_output().build()
    options["account_type_regexes"] = [".*Conv2D.*", ".*Depthwise.*"]
    counted = tensorflow.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert flops(model, 32) == counted > 0
