"""How a run is ended after `--steps`; imports nothing."""


class StopRun(BaseException):
    """Raised inside the script once enough steps are recorded, so that its `finally` blocks run.

    A `BaseException`, as `KeyboardInterrupt` is, so that `except Exception` doesn't take it for a fault.
    """
