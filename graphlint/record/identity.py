"""The kinds of serial number that a record uses; imports nothing of graphlint.

Identity in a trace is a number issued by the recorder, never `id()`: an address is reused as soon as
its object dies (of 1,000 successive autograd nodes 999 reused an earlier address).
"""

from typing import NewType

Serial = NewType("Serial", int)
"""Place of an event in the run; starts at 0, grows by at least one per event, shared by all kinds."""

SiteId = NewType("SiteId", int)
TensorId = NewType("TensorId", int)
"""A tensor object in Python. A view, a detached alias and the original have three ids, one storage."""

StorageId = NewType("StorageId", int)
ModuleId = NewType("ModuleId", int)
OptimizerId = NewType("OptimizerId", int)
NodeId = NewType("NodeId", int)
"""An autograd node, stamped the first time a backward walks it."""

GraphId = NewType("GraphId", int)
