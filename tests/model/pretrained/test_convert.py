"""`python -m segmenter.model.pretrained.convert`: names that no file takes are refused in a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from segmenter.base.errors import run_script
from segmenter.model.pretrained.convert import main
from tests.helpers.made_weights import stored, zip_file


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("__metadata__", "__metadata__"),  # .safetensors keeps other things under this name
        ("", ""),
        ("a\nerror: b", r"a\\nerror: b"),
        ("\x1b[2Jconv.weight", r"\\x1b[2Jconv.weight"),
        ("\x9b1mconv", r"\\x9b1mconv"),
        ("\u202econv", r"\\u202econv"),
    ],
)
def test_a_tensor_whose_name_no_file_or_terminal_takes_is_refused_in_one_line(
    name: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {"conv.weight": np.ones(3, np.float32), name: np.ones(2, np.float32)}
    source, out = zip_file(tmp_path / "w.pth", stored(tensors)), tmp_path / "w.safetensors"
    assert run_script(lambda: main([str(source), str(out)])) == 2
    said = capsys.readouterr()
    assert said.err == f"error: {source}: a tensor is called '{shown}', which no network has\n"
    assert said.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("module.a", "of module.a it leaves nothing"),
        ("module.", "of module.__metadata__ it leaves __metadata__"),
    ],
)
def test_a_prefix_that_leaves_a_tensor_no_name_is_refused(
    prefix: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {name: np.ones(2, np.float32) for name in ("module.a", "module.ab", "module.__metadata__")}
    source, out = zip_file(tmp_path / "w.pth", stored(tensors)), tmp_path / "w.safetensors"
    assert run_script(lambda: main([str(source), str(out), "--prefix", prefix])) == 2
    line = f"error: --prefix {prefix}: expected the beginning of names, as in module.encoder., but {said}\n"
    assert capsys.readouterr().err == line
    assert not out.exists()


def test_what_stands_in_the_place_of_the_file_to_write_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a link that leads nowhere."""
    source = zip_file(tmp_path / "w.pth", stored({"a": np.ones(3, np.float32)}))
    out = tmp_path / "w.safetensors"
    out.symlink_to(tmp_path / "gone")
    assert run_script(lambda: main([str(source), str(out)])) == 2
    assert capsys.readouterr().err == f"error: {out}: is there already; name another file\n"
    assert out.is_symlink()
    assert not (tmp_path / "gone").exists()
