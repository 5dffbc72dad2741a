"""setuptools, which would leave build/ and an .egg-info in the tree: they go to a directory that is removed."""

import os
import tempfile

import setuptools.build_meta as _setuptools


def _aside(build):
    def built(*args, **options):
        with tempfile.TemporaryDirectory() as directory:
            config = os.path.join(directory, "distutils.cfg")
            with open(config, "w", encoding="utf-8") as file:
                file.write(f"[build]\nbuild_base = {directory}\n[egg_info]\negg_base = {directory}\n")
            os.environ["DIST_EXTRA_CONFIG"] = config
            return build(*args, **options)

    return built


get_requires_for_build_wheel = _aside(_setuptools.get_requires_for_build_wheel)
get_requires_for_build_sdist = _aside(_setuptools.get_requires_for_build_sdist)
build_wheel = _aside(_setuptools.build_wheel)
build_sdist = _aside(_setuptools.build_sdist)
