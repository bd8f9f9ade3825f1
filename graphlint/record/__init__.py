"""The record of a run: the waist of graphlint, between what is captured and what is judged.

Imports `msgspec` and the standard library only: a saved trace is read in a process without torch.
"""
