"""graphlint audits PyTorch training loops; importing it imports no torch."""

from typing import TYPE_CHECKING

from graphlint.version import __version__

if TYPE_CHECKING:
    from graphlint.integrations.audit import audit, step

__all__ = ["__version__", "audit", "step"]


def __getattr__(name: str) -> object:
    """Returns `audit` or `step`, imported when first asked for."""
    if name in {"audit", "step"}:
        from graphlint.integrations import audit as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
