"""graphlint audits PyTorch training loops; importing it imports no torch."""

from typing import TYPE_CHECKING

from graphlint.version import __version__

if TYPE_CHECKING:
    from graphlint.integrations.audit import audit, step
    from graphlint.integrations.expectation import expect

__all__ = ["__version__", "audit", "expect", "step"]


def __getattr__(name: str) -> object:
    """Returns a public name, its module imported when it is first asked for."""
    if name in {"audit", "step"}:
        from graphlint.integrations import audit as module

        return getattr(module, name)
    if name == "expect":
        from graphlint.integrations.expectation import expect

        return expect
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return __all__
