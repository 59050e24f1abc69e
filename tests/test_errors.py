"""Users' errors end in one line and an exit code; ours keep their traceback."""

from __future__ import annotations

import signal

import pytest

from segmenter.base import errors
from segmenter.base.errors import ConfigError, OutputError, SegmenterError, run_script


def _raise(error: BaseException) -> int:
    raise error


def test_every_error_is_a_child_of_the_root() -> None:
    children = [
        value for value in vars(errors).values() if getattr(value, "__module__", "") == errors.__name__
    ]
    children = [value for value in children if isinstance(value, type)]
    assert len(children) >= 9
    assert all(issubclass(child, SegmenterError) for child in children)
    assert all(child.__doc__ for child in children)


def test_a_users_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(lambda: _raise(ConfigError("tiles.size: expected 16 px, got 3"))) == 2
    assert capsys.readouterr().err == "error: tiles.size: expected 16 px, got 3\n"


def test_ctrl_c_is_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(lambda: _raise(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_another_signal_is_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(lambda: _raise(KeyboardInterrupt(signal.SIGTERM))) == 143
    assert capsys.readouterr().err == "interrupted\n"


def test_a_full_disk_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(lambda: _raise(OutputError("a.npz: cannot write it: No space left on device"))) == 1
    assert capsys.readouterr().err == "error: a.npz: cannot write it: No space left on device\n"


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_script(lambda: _raise(ZeroDivisionError()))


def test_a_scripts_own_exit_code_is_kept() -> None:
    assert run_script(lambda: 1) == 1
