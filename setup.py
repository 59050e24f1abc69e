"""Packages of the wheel: pyproject.toml cannot say that they are found, and some renamed; all else is there.

The loaders' folder `datasets` has the name of a well-known package: installed, it is `segmenter_datasets`.
"""

from setuptools import find_packages, setup

LOADERS = "segmenter_datasets"
RECIPES = f"{LOADERS}.recipes"

rooms = find_packages(include=["segmenter", "segmenter.*"])
loaders = find_packages(include=["datasets", "datasets.*"])
setup(
    packages=[*rooms, *(name.replace("datasets", LOADERS, 1) for name in loaders), RECIPES],
    package_dir={LOADERS: "datasets", RECIPES: "configs"},
)
