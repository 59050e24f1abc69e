"""`segmenter view`: the address is printed, Ctrl-C ends it, and what is missing is one line."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from datasets.commands.view import main
from segmenter.base.errors import SegmenterError
from segmenter.extras.view import built
from segmenter.extras.view.built import BUILT
from tests.helpers.refusals import refused
from tests.helpers.viewed_maps import UTM, made_map

COMMAND = "import sys; from datasets.commands import main; sys.exit(main(['view', *sys.argv[1:]]))"


@pytest.mark.slow
def test_the_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    if not (BUILT / "app.js").exists():
        pytest.skip("the page is not built: make view")
    made_map(tmp_path, **UTM)
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "maps"), "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], **pipes) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"look: (http://localhost:(\d+)/[\w-]{24}/)\n", line)
        assert address is not None, line
        with urllib.request.urlopen(f"{address[1]}state") as answer:
            assert b'"name": "a"' in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 0
    assert f"ssh -L {address[2]}:localhost:{address[2]}" in errors
    assert "Traceback" not in errors


def test_without_the_page_the_one_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_map(tmp_path, **UTM)
    monkeypatch.setattr(built, "BUILT", tmp_path / "built")
    with refused(SegmenterError, where=str(tmp_path / "built"), remedy="make view"):
        main([str(tmp_path / "maps")])


def test_an_export_replaces_no_file(tmp_path: Path) -> None:
    if not (BUILT / "app.js").exists():
        pytest.skip("the page is not built: make view")
    made_map(tmp_path, **UTM)
    file = tmp_path / "page.html"
    words = [str(tmp_path / "maps"), "--images", str(tmp_path / "images"), "--export", str(file)]
    assert main(words) == 0
    assert file.stat().st_size < 20_000_000
    with refused(SegmenterError, where=str(file), remedy="--overwrite"):
        main(words)
    assert main([*words, "--overwrite"]) == 0


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    with refused(SegmenterError, where=own.image.name):
        main([str(own.image)])
    with refused(SegmenterError, where="nowhere"):
        main([str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with refused(SegmenterError, where="empty"):
        main([str(tmp_path / "empty")])
    with refused(SegmenterError, where="elsewhere"):
        main([str(own.map), "--images", str(tmp_path / "elsewhere")])
