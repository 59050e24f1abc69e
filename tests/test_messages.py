"""Errors and slips end in one line and an exit code; foreign names are escaped; ours keep their traceback."""

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio

from datasets.check import check_dataset
from datasets.commands.predict import parse
from segmenter.base.errors import (
    ConfigError,
    LabelError,
    OutputError,
    RasterError,
    error_parts,
    extended_error,
    failing,
    run_script,
)
from segmenter.base.terminal import (
    enduring_output,
    escape_text,
    listening,
    no_bar,
    pad_text,
    say,
    terminal_width,
    unsafe,
    warn,
)
from segmenter.base.threads import Prefetch
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from tests.helpers import messages
from tests.helpers.refusals import refused

Make = Callable[..., Path]


def test_many_inputs_that_fail_alike_are_one_line(
    call: Callable[..., int], make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make_geotiff(f"in/{i}.tif", np.ones((9, 11, 4), np.uint16)) for i in range(5)]
    assert call("in") == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert lines[0].startswith(f"error: in/{paths[0].name} and 4 more: expected 3 bands")


@pytest.mark.parametrize("bands", ["1,2,x", "0", ""])
def test_bands_are_numbers(bands: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(["run", "in", "--output", "out", "--bands", bands])
    assert f"got {bands!r}" in capsys.readouterr().err
    assert parse(["run", "in", "--output", "out", "--bands", "3,2"])[0].request.bands == (3, 2)


def test_elsewhere_than_on_linux_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert run_script(lambda: pytest.fail("it was started")) == 2
    assert capsys.readouterr().err.startswith("error: this program runs on Linux")


def _raise(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("tiles.size: expected 16 px, got 3"), 2, "error: tiles.size: expected 16 px, got 3\n"),
        (OutputError("a.npz: cannot write it"), 1, "error: a.npz: cannot write it\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyboardInterrupt(signal.SIGTERM), 143, "interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(lambda: _raise(error)) == code
    assert capsys.readouterr().err == said


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_script(lambda: _raise(ZeroDivisionError()))


def test_the_texts_of_all_errors_are_listed() -> None:
    """A changed text is seen in `tests/messages.txt`: `python -m tests.helpers.messages` writes it anew."""
    assert messages.LIST.read_text(encoding="utf-8").splitlines() == messages.messages()


def test_what_was_expected_and_came_are_fields() -> None:
    assert messages.without_fields() == []


def test_a_text_is_a_line_that_names_a_place() -> None:
    """A setting, an option, or what the program fills in; two are of all that a call is about."""
    texts = [line.partition(": ")[2] for line in messages.messages()]
    assert len(texts) > 600
    assert sum(not any(mark in text for mark in (": ", "--", "{")) for text in texts) == 2
    pleas = [text for text in texts if "please" in text.lower()]
    assert [*pleas, *(text for text in texts if text.endswith((".", "!")) or "\n" in text)] == []


def test_the_fields_of_an_error_are_its_text() -> None:
    error = RasterError(Path("a\n.tif"), expected="3 bands", got=4, remedy="say --bands")
    assert str(error) == "a\\n.tif: expected 3 bands, got 4; say --bands"
    assert str(RasterError("a.tif", "is damaged")) == "a.tif: is damaged"
    assert RasterError("is damaged").where is None
    copied = pickle.loads(pickle.dumps(error))  # as workers send it
    assert type(copied) is RasterError
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
    assert (copied.where, copied.expected, copied.got) == ("a\n.tif", "3 bands", "4")
    assert vars(RasterError(**json.loads(json.dumps(error_parts(error))))) == vars(error)  # as machines do
    there = extended_error(error, where="worker 1", remedy="or --part")
    assert str(there) == f"worker 1: {error}; or --part"
    assert vars(there) == {**vars(error), "where": "worker 1: a\n.tif", "remedy": "say --bands; or --part"}
    lone = extended_error(RasterError("is damaged"), remedy="make it anew", kind=ConfigError)
    assert (type(lone), error_parts(lone)) == (ConfigError, {"fault": "is damaged", "remedy": "make it anew"})


ROOT = Path(__file__).resolve().parents[1]
EVIL = ["\x1b]0;pwn\x07", "a\nerror: b", "\x9b31m", "a\r", "\ud800", "tree\u202eeert", "\u2028", "\x7f"]
EVIL += ["a\u200eb", "a\u200fb", "a\u061cb"]
GOOD = ["forêt", "水体", "水 體", "خانه‌ها", "क्‍ष", "a b & <c>", "e\u0301tang", "🌳"]


def classes(*names: str) -> ClassMap:
    return ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate(names)))


@pytest.mark.parametrize("name", EVIL)
def test_a_class_is_not_called_by_what_a_terminal_obeys(name: str) -> None:
    with refused(LabelError, where="class map") as raised:
        classes("a", name)
    assert str(raised.value).isprintable()
    data = classes("a", "b").to_dict()
    data["classes"][1]["name"] = name
    with pytest.raises(LabelError, match=r"dataset\.classes"):  # as of a stranger's run.json
        ClassMap.from_dict(data)


@pytest.mark.parametrize("name", GOOD)
def test_names_of_all_languages_are_allowed_and_shown(name: str) -> None:
    assert unsafe(name) is None
    assert escape_text(name) == name
    assert classes(name).names == [name]


def test_what_is_printed_is_escaped_but_for_lines_and_bars() -> None:
    assert escape_text("a\x1b[31mb\n\tc") == "a\\x1b[31mb\n\tc"
    assert escape_text("\r 5%|█ | 1/20") == "\r 5%|█ | 1/20"
    assert escape_text("\x1b[A\x1b[A") == "\x1b[A\x1b[A"  # tqdm goes back to an upper bar
    assert escape_text("a\rb\x1b[A\ud800") == "a\\rb\\x1b[A\\ud800"


def test_the_score_table_is_aligned_for_wide_names() -> None:
    matrix = ConfusionMatrix(classes("水体", "forest", "e\u0301tang"))
    matrix.add(np.array([0, 1, 2], np.uint8), np.array([0, 1, 2], np.uint8))
    protocol = Protocol(tuple(matrix.classes.names), "full", "test", "none", scenes=("x",))
    lines = matrix.scores(protocol).table().splitlines()[:4]
    assert len({terminal_width(line) for line in lines}) == 1
    assert [terminal_width(text) for text in ("", "ab", "水体", "e\u0301", "水a")] == [0, 2, 4, 1, 3]
    assert pad_text("水", 4) + "|" == "水  |"


def test_check_escapes_the_names_of_files(tmp_path: Path, make_geotiff: Make) -> None:
    image = make_geotiff("a.tif", np.ones((20, 30, 3), np.uint8))
    label = make_geotiff("l.tif", np.full((20, 30), 9, np.uint8))
    scene = Scene("x\x1b[31m\ny", image, label, "g", "train")
    known = ClassMap(classes("水体", "forest").classes, ignored=(9,))
    dataset = Dataset("d", tmp_path, (scene,), known, unused=((Path("u\x1b\n.tif"), "so"),))
    text = check_dataset(dataset, progress=False).text()
    assert "without a labelled pixel: 1 scene: x\\x1b[31m\\ny" in text
    assert "left out, so: 1 file: u\\x1b\\n.tif" in text
    assert escape_text(text) == text
    table = [line for line in text.splitlines() if line.startswith(("class", "水体", "forest"))]
    assert len({terminal_width(line) for line in table if not line.endswith(("scene", "class: 2"))}) == 1


def test_a_class_name_is_no_markup_in_a_geotiff(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int]
) -> None:
    """GDAL keeps metadata as XML; a name must not become another class's."""
    evil = '</Item><Item name="CLASS_1">x & "q" <b>'
    names = [evil, "水体", *"cdefg"]
    source = make_geotiff("in/a.tif", np.ones((60, 50, 3), np.uint8))
    assert call(source, "--cog", "--probabilities", "uint8", classes=classes(*names)) == 0
    for name in ("a.tif", "a.probabilities.tif"):
        with rasterio.open(tmp_path / "maps" / name) as made:
            tags = made.tags()
            assert [tags[f"CLASS_{i}"] for i in range(7)] == names
            assert sum(key.startswith("CLASS_") for key in tags) == 7
            if name != "a.tif":
                assert list(made.descriptions) == names


def test_names_that_the_terminal_cannot_show_end_nothing() -> None:
    code = (
        "from segmenter.base.terminal import enduring_output\n"
        "with enduring_output():\n    print('–水\\udcff\\x1b')\n    print('done')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.stdout == b"\\u2013\\u6c34\\udcff\\x1b\ndone\n"
    assert (done.returncode, done.stderr) == (0, b"")


def test_who_listens_hears_what_would_be_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """In this thread and in those of `Prefetch`, and nobody else; bars are off unless they are wanted."""
    say("before")
    with listening() as outer:
        say("a line")
        assert list(Prefetch(map(warn, ["of a thread"]), 1, "test")) == [None]
        with listening(bars=True) as inner:
            say("aside", aside=True)
            assert no_bar() is False
        assert no_bar() is no_bar(False) is True
    warn("after")
    assert (outer.lines, outer.warnings) == (["a line"], ["warning: of a thread"])
    assert (inner.lines, inner.warnings) == ([], ["aside"])
    assert capfd.readouterr() == ("before\n", "warning: after\n")
    assert no_bar() is None
    with listening(bars=True):
        assert no_bar(True) is True, "a bar that would only flicker"


@pytest.mark.parametrize(
    "number", [None, errno.ENOSPC, errno.EDQUOT, errno.EEXIST, errno.ENOTDIR, errno.EACCES]
)
def test_a_full_disk_is_asked_about_where_it_may_be_full(number: int | None) -> None:
    with pytest.raises(OutputError) as raised, failing(OutputError, "a", "cannot write it", "is it full?"):
        raise OSError("a library's text") if number is None else OSError(number, os.strerror(number))
    assert (raised.value.remedy is not None) == (number in (None, errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize(
    ("settings", "terminal", "coloured"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({}, False, False)],
)
def test_on_a_terminal_error_is_red_and_warning_yellow_at_the_start_of_a_line(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], terminal: bool, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    with enduring_output():
        print("error: an error: \x1b[31m\nwarning: one", file=sys.stderr)
    red, yellow, end = ("\x1b[31m", "\x1b[33m", "\x1b[0m") if coloured else ("", "", "")
    said = f"{red}error{end}: an error: \\x1b[31m\n{yellow}warning{end}: one\n"
    assert stream.getvalue() == said
