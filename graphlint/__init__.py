"""graphlint audits PyTorch training loops; importing it imports no torch."""

from graphlint.version import __version__

__all__ = ["__version__"]
