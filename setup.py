"""The packages of the wheel: the library below `pipeline/`, and `stages/` as `rollbook.stages`."""

from setuptools import find_packages, setup

setup(packages=[*find_packages("pipeline"), "rollbook.stages"])
