"""Pipelines: consume, transform, produce, exactly once. README.md says how."""

from __future__ import annotations
