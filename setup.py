"""What pyproject.toml cannot say: with OOMLINT_COMPILED=1, hot modules are built by mypyc."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "building"))

from compiling import Build, extensions, is_wanted

# Commands that only describe the package run before mypyc is there.
BUILDS = {"bdist_wheel", "build_ext", "editable_wheel"}

if is_wanted() and BUILDS.intersection(sys.argv):
    setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
else:
    setup()
