"""Choice of layouts: which nodes work in their other form, as a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from converter.ir import Graph, Node, Value
from converter.passes.autodiff.minimum_cut import minimum_cut
from converter.passes.layout.candidates import Candidates, demanded
from converter.passes.layout.memory import Memory, natural
from converter.passes.layout.moves import Moved
from converter.passes.layout.views import Views

#: What a node in the layout that is not wanted costs, in elements moved: of equal costs pictures stay as convolutions
#: make them, and all else as it was written.
_OF_EQUALS = 1 / 4096


@dataclass(frozen=True)
class _Demand:
    """How a reader needs a root to lie, as it is and in its other form; None for a layout that the root cannot have.

    The reader of an output is nobody.
    """

    node: Node | None
    as_it_is: Memory | None
    otherwise: Memory | None


def choices(graph: Graph, views: Views, found: Candidates) -> Iterator[set[Node]]:
    """Generate sets of nodes that work in their other form, so that the fewest elements are moved.

    There are two where a pair of nodes would have to move data in the same form and not in different ones, which no
    cut can express: in one set the nodes after keep their form, in the other those in front.
    """
    for of_front in (False, True):
        forms, contrary = dict(found.nodes), set[Node]()
        while True:
            wanted = {root: _demands(views, root, forms) for root in views.reads.keys() | views.given.keys()}
            pairs = list(_contrary(views, found, forms, wanted))
            if not pairs:
                break
            contrary |= {front if of_front and front is not None else after for front, after in pairs}
            forms = {node: form for node, form in found.nodes.items() if node not in contrary}
        yield _minimum_cut(graph, views, found, forms, wanted)
        if not contrary:
            return


def _contrary(
    views: Views, found: Candidates, forms: Mapping[Node, Moved], wanted: Mapping[Value, list[_Demand]]
) -> Iterator[tuple[Node | None, Node]]:
    for root, demands in wanted.items():
        other, as_made = _other(views, root, forms, found), natural(root.type.size)
        for one in demands if other not in (None, as_made) else ():
            if (
                one.node is not None
                and one.as_it_is != one.otherwise
                and (one.otherwise == as_made or one.as_it_is == other)
            ):
                yield views.made_by.get(root), one.node


def _other(views: Views, root: Value, forms: Mapping[Node, Moved], found: Candidates) -> Memory | None:
    """Return how a root would lie otherwise; None where it would not."""
    node = views.made_by.get(root)
    return found.parameters.get(root) if node is None else forms[node].result if node in forms else None


def _demands(views: Views, root: Value, forms: Mapping[Node, Moved]) -> list[_Demand]:
    made = []
    for node, place, value in views.reads.get(root, ()):
        as_it_is = views.of[value].memory
        form = forms.get(node)
        otherwise = as_it_is if form is None else demanded(views, value, form.operands[place])
        made.append(_Demand(node, as_it_is, otherwise))
    given = (views.of[value].memory for value in views.given.get(root, ()))
    return [*made, *(_Demand(None, memory, memory) for memory in given)]


class _Pipes:
    """A network whose vertices are nodes in one of two forms, and what it costs that two of them differ."""

    def __init__(self) -> None:
        self.weights: dict[Hashable, int] = {}
        self.edges: list[tuple[Hashable, Hashable]] = []
        self.kept: set[Hashable] = set()
        self.transposed: set[Hashable] = set()

    def costs(self, weight: int, key: Hashable, kept: Iterable[Hashable], transposed: Iterable[Hashable]) -> None:
        """Add what is paid if any of `kept` is as it is and any of `transposed` is not; None among them: always."""
        pipe = ("pipe", key)
        self.weights[pipe] = weight
        for before in kept:
            if before is None:
                self.kept.add(pipe)
            else:
                self.edges.append((before, pipe))
        for after in transposed:
            if after is None:
                self.transposed.add(pipe)
            else:
                self.edges.append((pipe, after))


def _minimum_cut(
    graph: Graph,
    views: Views,
    found: Candidates,
    forms: Mapping[Node, Moved],
    wanted: Mapping[Value, list[_Demand]],
) -> set[Node]:
    pipes = _Pipes()
    for node in forms:
        key = ("form", node)
        pipes.costs(1, key, *(([node], [None]) if node in found.spatial else ([None], [node])))
    for root, demands in wanted.items():
        if root in graph.constants or (root in graph.parameters and len(demands) == 1):
            continue  # folded at compile time, or stored as it is read
        _price(pipes, views, root, demands, forms, found)
    endless = sum(pipes.weights.values()) + 1
    free = {v for edge in pipes.edges for v in edge if v not in pipes.weights}
    cut = minimum_cut(pipes.weights | dict.fromkeys(free, endless), pipes.edges, pipes.kept, pipes.transposed)
    return set(forms) - _reached(pipes, cut)


def _price(
    pipes: _Pipes,
    views: Views,
    root: Value,
    demands: list[_Demand],
    forms: Mapping[Node, Moved],
    found: Candidates,
) -> None:
    """Add what is to be paid for a root that lies otherwise than its readers need it: once for each layout."""
    as_made, size = natural(root.type.size), round(root.type.size / _OF_EQUALS)
    other = _other(views, root, forms, found)
    maker: Hashable = views.made_by.get(root, root)
    layouts = {m for d in demands for m in (d.as_it_is, d.otherwise)}
    for number, layout in enumerate(sorted(layouts, key=repr)):
        always = [None] if any(d.as_it_is == d.otherwise == layout for d in demands) else []
        as_it_is = [d.node for d in demands if d.as_it_is == layout != d.otherwise]
        otherwise = [d.node for d in demands if d.otherwise == layout != d.as_it_is]
        if layout == as_made:
            if other is not None and other != as_made:
                pipes.costs(size, (root, number), [*always, *as_it_is], [maker])
        elif layout == other:
            pipes.costs(size, (root, number), [maker], [*always, *otherwise])
        elif not always:
            pipes.costs(size, (root, number, "as it is"), as_it_is, [None])
            pipes.costs(size, (root, number, "otherwise"), [None], otherwise)


def _reached(pipes: _Pipes, cut: set[Hashable]) -> set[Hashable]:
    """Return what is connected with the sources where the pipes of the cut are closed."""
    onward: dict[Hashable, list[Hashable]] = {}
    for a, b in pipes.edges:
        onward.setdefault(a, []).append(b)
    waiting, reached = [pipe for pipe in pipes.kept if pipe not in cut], set[Hashable]()
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += [v for v in onward.get(here, ()) if v not in cut]
    return reached
