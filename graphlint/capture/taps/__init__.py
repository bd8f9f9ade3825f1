"""One interception each, armed on an exit stack; the only place where torch is patched.

A tap's wrapper calls the original exactly once, passes its result and its exceptions through unchanged,
and runs its own code under the guard.
"""
