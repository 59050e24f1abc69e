"""Packages of the wheel; all else is in pyproject.toml, which cannot say that a folder is installed under another name.

The loaders' folder `datasets` has the name of a well-known package: installed, it is `segmenter_datasets`.
"""

from setuptools import find_packages, setup

LOADERS = "segmenter_datasets"

found = find_packages(include=["segmenter", "segmenter.*", "datasets", "datasets.*"])
setup(
    packages=[
        *(name.replace("datasets", LOADERS, 1) if name.startswith("datasets") else name for name in found)
    ]
    + [f"{LOADERS}.recipes"],
    package_dir={LOADERS: "datasets", f"{LOADERS}.recipes": "configs"},
)
