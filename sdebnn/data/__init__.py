"""Data sets: one file for each kind."""

from sdebnn.data import toy

__all__ = ["toy"]
