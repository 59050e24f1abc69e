"""Ways out: a recipe that cannot be read leads to what was meant."""

from pathlib import Path

import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import MAX_BYTES, load_recipe
from tests.helpers.refusals import refused


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("good", "start"),
        ("mine.html", "mine.yaml"),
        ("mine.txt", "mine.yaml"),
        ("mime.yaml", "mine.yaml"),
        ("other", "recipes"),
    ],
)
def test_a_recipe_that_cannot_be_read_leads_to_what_was_meant(
    tmp_path: Path, given: str, remedy: str
) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "mine.html").write_bytes(bytes(MAX_BYTES + 1))
    with refused(ConfigError, remedy=remedy):
        load_recipe(tmp_path / given)
