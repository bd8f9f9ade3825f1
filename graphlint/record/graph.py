"""The snapshot of an autograd graph that one backward was given.

May import `record.identity` and `record.tables` only.
"""

import msgspec

from graphlint.record.identity import GraphId, ModuleId, NodeId, Serial, SiteId, StorageId, TensorId
from graphlint.record.tables import Row


class Node(msgspec.Struct, frozen=True, array_like=True):
    """One autograd node, in the order of the walk (breadth first from the roots, roots first).

    Attributes:
        id: the node's identity; the same node in two snapshots has one id.
        name: torch's own, such as `AddmmBackward0`.
        site: the source line whose call into torch built the node; None when it was built unseen
            (before the capture, at the watch level, in a compiled region, in another thread).
        op: the event (operation, transfer) that built the node, where one was recorded; for a node of a
            gradient's own graph, the backward with `create_graph` that built it.
        module: the innermost module call in which it was built, where one was recorded.
        call: serial of that module call.
        shape, dtype, device: of the node's first output; empty where torch doesn't say.
        leaf: for `AccumulateGrad`, the tensor whose `.grad` it fills.
        saves: names of the tensors that the node saved (`self`, `weight`, `result`). A node that saves
            nothing can be entered twice without an error. Python numbers that it kept are not listed.
        saved: the storage of each of them, in the same order; -1 where it could not be told (a saved-tensor
            hook packed it, as activation checkpointing does, or an earlier backward had freed it).
        custom: name of the user's `autograd.Function`, where it is one.
    """

    id: NodeId
    name: str
    site: SiteId | None = None
    op: Serial | None = None
    module: ModuleId | None = None
    call: Serial | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str = ""
    leaf: TensorId | None = None
    saves: tuple[str, ...] = ()
    saved: tuple[StorageId, ...] = ()
    custom: str | None = None


class Graph(Row, frozen=True, kw_only=True, tag="graph"):
    """A graph as it stood when a backward was called on it.

    `edges` are pairs of indexes into `nodes` (0-based), from a node to the node that receives its gradient.
    `roots` are the indexes of the nodes the backward starts at. `truncated` is the number of nodes that
    were left out because the graph was larger than the limit (0: whole).
    """

    id: GraphId
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    roots: tuple[int, ...]
    truncated: int = 0
