"""docs/architecture.svg: the rooms of the package and the imports between them, in layers from the top down."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import networkx as nx

from docs.generate.imports import FOUNDATION, ROOMS, rooms_below

_WIDTH, _ROW, _BOX, _HEIGHT = 760, 84, 184, 44  # of the drawing, a layer and a box, in pixels
_SWEEPS = 8
_STYLE = """\
<style>
  text { font: 600 22px system-ui, "DejaVu Sans", sans-serif; fill: #1c2733; text-anchor: middle; }
  .note { font-weight: 400; font-size: 19px; fill: #44515e; }
  .room { fill: #e3edf7; stroke: #4a6d8c; stroke-width: 1.5; }
  .base { fill: #f1efe7; stroke: #8a8468; stroke-width: 1.5; }
  path.import { fill: none; stroke: #7d8a97; stroke-width: 2; marker-end: url(#head); }
</style>
<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
  <path d="M 0 1 L 10 5 L 0 9 z" fill="#7d8a97"/></marker></defs>"""

Node = tuple[str, int]  # a room, or an arrow that passes a layer ("from>to"), and its layer


def drawing() -> str:
    """The SVG. An arrow that follows from others is left out: a room may import every room below it."""
    graph = nx.DiGraph([(room, below) for room, found in rooms_below().items() for below in sorted(found)])
    arrows = sorted(nx.transitive_reduction(graph).edges)
    layer = {room: depth for depth, rooms in enumerate(nx.topological_generations(graph)) for room in rooms}
    paths = {(a, b): [(a, layer[a]), *_passed(a, b, layer), (b, layer[b])] for a, b in arrows}
    place = _places({(room, layer[room]) for room in ROOMS}, list(paths.values()))
    depth = max(layer.values()) + 1
    lines = [_arrow([place[node] for node in path]) for path in paths.values()]
    for room in ROOMS:
        x, y = place[room, layer[room]]
        corner = f'x="{x - _BOX / 2:g}" y="{y - _HEIGHT / 2:g}"'
        lines.append(f'<rect class="room" {corner} width="{_BOX}" height="{_HEIGHT}" rx="8"/>')
        lines.append(f'<text x="{x:g}" y="{y + 7:g}">{room}</text>')
    top, height = depth * _ROW + 4, depth * _ROW + 92
    names = " · ".join(sorted(name.removeprefix("homophily.") for name in FOUNDATION))
    lines += [
        f'<rect class="base" x="30" y="{top}" width="{_WIDTH - 60}" height="72" rx="8"/>',
        f'<text x="{_WIDTH / 2:g}" y="{top + 30}">{names}</text>',
        f'<text class="note" x="{_WIDTH / 2:g}" y="{top + 58}">every room may import these modules</text>',
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
    )
    title = "<title>The rooms of homophily: each imports only rooms below it</title>"
    return "\n".join([head, title, _STYLE, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def _passed(start: str, end: str, layer: dict[str, int]) -> list[Node]:
    """The places of an arrow in the layers between its ends."""
    return [(f"{start}>{end}", depth) for depth in range(layer[start] + 1, layer[end])]


def _places(rooms: set[Node], paths: list[list[Node]]) -> dict[Node, tuple[float, float]]:
    """Centres: each layer is ordered by the mean position of the nodes that it is connected with."""
    joined: dict[Node, set[Node]] = defaultdict(set)
    for path in paths:
        for above, below in pairwise(path):
            joined[above].add(below)
            joined[below].add(above)
    layers: dict[int, list[Node]] = defaultdict(list)
    for node in sorted(rooms | set(joined)):
        layers[node[1]].append(node)
    x = {node: _spread(nodes)[node] for nodes in layers.values() for node in nodes}
    for _ in range(_SWEEPS):
        for depth in sorted(layers):
            layers[depth].sort(key=lambda node: (sum(x[other] for other in joined[node]) / len(joined[node]), node))
            x |= _spread(layers[depth])
    return {node: (x[node], node[1] * _ROW + _ROW / 2) for node in x}


def _spread(nodes: list[Node]) -> dict[Node, float]:
    """The nodes of one layer side by side."""
    return {node: _WIDTH * (slot + 0.5) / len(nodes) for slot, node in enumerate(nodes)}


def _arrow(points: list[tuple[float, float]]) -> str:
    """A curve from the lower edge of the first box to the upper edge of the last."""
    (x, y), *inner, (end_x, end_y) = points
    stops = [(x, y + _HEIGHT / 2), *inner, (end_x, end_y - _HEIGHT / 2 - 2)]
    curve = f"M {stops[0][0]:g} {stops[0][1]:g}"
    for (a, b), (c, d) in pairwise(stops):
        middle = (b + d) / 2
        curve += f" C {a:g} {middle:g} {c:g} {middle:g} {c:g} {d:g}"
    return f'<path class="import" d="{curve}"/>'
