"""The version of fastbk, for modules that `fastbk` itself imports. Imports nothing."""

VERSION = "0.4.0"
