"""What the user's variables keep alive of autograd graphs, and the parameters that modules are given.

May import `record.base`, `record.identity` and `record.tables` only.
"""

import msgspec

from graphlint.record.base import Event
from graphlint.record.identity import SiteId, TensorId
from graphlint.record.tables import Frame


class ParameterPlaced(Event, frozen=True, kw_only=True, tag="parameter-placed"):
    """A module was given a parameter, as its constructor does or an assignment to its attribute `name`.

    `owner` numbers the modules that were given any, from 0; it has nothing to do with their ids in the table.
    """

    tensor: TensorId
    owner: int
    name: str


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """A variable, an attribute or a collection of the user's that keeps graphs of earlier steps alive.

    Attributes:
        name: how it is spelled (`running_loss`, `self.outputs`), in the frame that can reach it.
        frame: that frame; its line is the one that it had reached.
        collection: whether it is a list, a tuple, a dict, a set or a deque that holds the tensors.
        limit: `maxlen` of a deque.
        tensors: how many tensors with a graph it holds.
        made_in: in how many steps these were made.
        steps: how many steps their graphs reach into, the one that has just ended included.
        carried: whether a graph in it goes on from what it held when it was last looked at.
        nodes, freed: how many nodes the graphs have, and how many of them a backward had freed.
        bytes: the memory of the tensors, and of what nodes that were not freed have saved.
        scalar: whether each of the tensors has one element.
        parts: how the tensors are spelled within an item of the collection (`['loss']`), some of them.
        sites: where the tensors were made, some of them.
        whole: whether the graphs were walked to their ends.
    """

    name: str
    frame: Frame
    collection: bool
    limit: int | None
    tensors: int
    made_in: int
    steps: int
    carried: bool
    nodes: int
    freed: int
    bytes: int
    scalar: bool
    parts: tuple[str, ...]
    sites: tuple[SiteId, ...]
    whole: bool


class LiveGraphs(Event, frozen=True, kw_only=True, tag="live-graphs"):
    """What kept graphs of earlier steps alive as a step ended; looked at in some steps only.

    `ended` counts the training steps that had ended. What holds nothing older than the step that has just
    ended is left out.
    """

    ended: int
    holdings: tuple[Holding, ...] = ()
