from graphlint.record.events import Backward, Visit
from graphlint.record.graph import Graph, Node

FREED = True


def graph(
    *edges: tuple[int, int], leaves: dict[int, int] | None = None, roots: tuple[int, ...] = (0,)
) -> Graph:
    size = max(max(edge) for edge in edges) + 1
    nodes = tuple(
        Node(index if index not in (leaves or {}) else -1, "AddBackward0", leaf=(leaves or {}).get(index))
        for index in range(size)
    )
    return Graph(id=0, nodes=nodes, edges=edges, roots=roots)


def backward(**facts: object) -> Backward:
    return Backward(serial=1, call="Tensor.backward", roots=(), graph=0, end=2, **facts)


def test_freed_nodes_form_regions_with_the_nodes_where_they_are_entered(build):
    visits = tuple(Visit(index, 0, FREED, index) for index in (2, 3, 5))
    facts = build(graph((0, 1), (1, 2), (2, 3), (0, 4), (4, 5), leaves={}), backward(visits=visits))
    regions = facts.graphs.of(facts.graphs.backwards[0]).regions()
    assert [(region.nodes, region.frontier) for region in regions] == [((2, 3), (2,)), ((5,), (5,))]


def test_a_freed_root_is_an_entrance(build):
    visits = tuple(Visit(index, 0, FREED, index) for index in (0, 1))
    facts = build(graph((0, 1)), backward(visits=visits))
    assert facts.graphs.of(facts.graphs.backwards[0]).regions()[0].frontier == (0,)


def test_only_executed_nodes_count(build):
    visits = (Visit(1, 0, FREED, 1), Visit(2, 0, FREED, 2))
    facts = build(graph((0, 1), (0, 2), (2, 3), leaves={3: 9}), backward(visits=visits, executed=(0, 1)))
    found = facts.graphs.of(facts.graphs.backwards[0])
    assert set(found.freed) == {1}
    assert found.leaves == {}


def test_what_was_kept_is_visited_but_not_freed(build):
    facts = build(graph((0, 1)), backward(visits=(Visit(1, 0, not FREED, 1),)))
    found = facts.graphs.of(facts.graphs.backwards[0])
    assert set(found.visits) == {1}
    assert found.freed == {}


def test_leaves_below_a_node(build):
    facts = build(graph((0, 1), (0, 2), (1, 3), (2, 4), leaves={3: 30, 4: 40}), backward())
    found = facts.graphs.of(facts.graphs.backwards[0])
    assert found.leaves_below([1]) == {30}
    assert found.leaves_below([0]) == {30, 40}
    assert found.upstream([4]) == {4, 2, 0}


def test_the_line_in_the_loop_is_shown_rather_than_the_one_inside_forward(build, site):
    inside = site(0, ("Net.forward", 9), ("train", 30), ("<module>", 50))
    facts = build(inside, site(1, ("train", 40), ("<module>", 50)), site(2, ("other", 3)))
    assert facts.graphs.common_frame(0, 1).line == 30
    assert facts.graphs.common_frame(0, 2).line == 9
    assert facts.graphs.common_frame(None, 1) is None


def test_two_chains_part_at_the_outermost_line_that_differs(build, site):
    first = site(0, ("add", 15), ("train", 37), ("<module>", 50))
    facts = build(first, site(1, ("add", 15), ("train", 38), ("<module>", 50)))
    assert [frame.line for frame in facts.graphs.parting(0, 1)] == [37, 38]
    assert facts.graphs.parting(0, 0) is None


def test_a_backward_without_a_stored_graph_has_none(build):
    facts = build(backward())
    assert facts.graphs.of(facts.graphs.backwards[0]) is None


def test_nodes_beyond_the_end_of_a_snapshot_are_left_out(build):
    visits = (Visit(1, 0, FREED, 1), Visit(900, 0, FREED, 900))
    facts = build(graph((0, 1)), backward(visits=visits, executed=(0, 1, 900)))
    found = facts.graphs.of(facts.graphs.backwards[0])
    assert found.executed == {0, 1}
    assert set(found.freed) == {1}
