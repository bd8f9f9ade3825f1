"""Every exception that graphlint raises on purpose, in one tree; imports nothing.

    GraphlintError                 base: one line for the user
    ├── UsageError                 the call is wrong: option, file, nesting; exit code 2
    ├── TraceError                 a saved trace can't be read: truncated, foreign, wrong version
    ├── RuleLoadError              a rule file doesn't load; fatal, never skipped
    ├── CheckpointError            a checkpoint of the reference trainer can't be read, or is another run's
    ├── NonFiniteLossError         the reference trainer stopped: a loss or a weight is NaN or infinite
    ├── FindingsError              on_finding="raise" and something was found
    └── NothingCheckedError        on_finding="raise" and finding nothing proves nothing

A fault of graphlint's own inside a tap never appears here: it is recorded as a fact of the run.
"""


class GraphlintError(Exception):
    """Base of every error that graphlint raises on purpose; its text is one line."""


class UsageError(GraphlintError):
    """The caller asked for something that can't be done; the text says what would be right."""


class TraceError(GraphlintError):
    """A saved trace can't be read; the text holds the path, the line number and the reason."""


class RuleLoadError(GraphlintError):
    """A rule file can't be loaded; the text names the file and the reason."""


class CheckpointError(GraphlintError):
    """A checkpoint of the reference trainer can't be read or doesn't fit; the text holds the path and why."""


class NonFiniteLossError(GraphlintError):
    """The reference trainer met a NaN or an infinity; the text says where, and what was saved."""


class FindingsError(GraphlintError):
    """Raised by `graphlint.audit(on_finding="raise")`; the text is the report, which is not printed then."""


class NothingCheckedError(GraphlintError):
    """Raised by `graphlint.audit(on_finding="raise")` where nothing was found because nothing was checked.

    No training step was recorded, no rule could judge, or a fault of graphlint's own kept one from it: a test
    that passed on that would prove nothing.
    """
