"""The part of the build that pyproject.toml cannot say: which extensions this platform gets."""

import os
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fastbk.native.build_native import BuildNative, extensions

# `./dev setup` installs the package first and builds the extensions by itself, one file at a time.
skipped = bool(os.environ.get("FASTBK_SKIP_NATIVE"))

setup(ext_modules=[] if skipped else extensions(), cmdclass={"build_ext": BuildNative})
