"""docs/config.md: every configuration key with its type, bounds, default and meaning, read from the code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from homophily.config.schema import TABLES, Config, Lora
from homophily.data import shifts, sources
from homophily.data.tables import readers
from homophily.federation.merging import merges
from homophily.federation.similarity import metrics
from homophily.federation.topology import topologies
from homophily.methods import methods
from homophily.models import models
from homophily.plugins.parameters import documented
from homophily.plugins.registry import Registry
from homophily.trackers import trackers
from homophily.training.objectives import objectives
from homophily.training.score_metrics import score_metrics

Schema = Mapping[str, Any]

_INTRO = """\
# Configuration

<!-- Generated from the code by `make reference`; edit the `description` of the key instead. -->

Set any key of this page in a TOML file, on the command line or in Python. All keys have defaults,
except `topology.path`.

```sh
homophily run rounds=5 peers=20 training.lr=0.1 method=panm method.l=6
```

```toml
# file: run.toml
rounds = 5
peers = 20

[training]
lr = 0.1

[method]
name = "panm"
l = 6
```

```sh
homophily run run.toml rounds=6      # the command line overrides the file
```

```python
import homophily

run = homophily.run({"rounds": 5, "peers": 20, "training": {"lr": 0.1}, "method": {"name": "panm", "l": 6}})
print(run.config.method.name, run.config.training.lr, run.config.training.momentum)
```

```text
panm 0.1 0.9
```

- A key of a table is written `table.key` on the command line. The value is a TOML value, or a string without quotes.
- A string stands for a table with that name: `method = "panm"` is `[method]` with `name = "panm"`. This holds for
  `data`, `model`, `method`, `topology`, `headline`, `training.objective` and `tracker`.
- `package.module:name` names a class or function of your own ([extending.md](extending.md)).
- A key with a wrong name, type or value ends the run before it starts, with exit code 2 and a message that names it.
- `config.toml` in a [run folder](run-folder.md) holds the config of a run with every default filled in.
- `homophily compare` also reads `methods` and `seeds`, two lists ([methods.md](methods.md#all-methods-and-their-keys)),
  and `sweep`, a table with lists of values: `sweep.method.k = [1, 2, 4]`
  ([reading-results.md](reading-results.md#add-methods-seeds-and-swept-values)).
- A real peer also reads a table `[peer]` ([deploy.md](deploy.md)).

A key whose default is "left out" is not set; its meaning says what happens then. If the
column *bounds* is empty, the meaning gives the bounds, if there are any.
"""


@dataclass(frozen=True)
class _Plugins:
    """The keys of everything in one registry, which stand in the config's table of the thing that is named."""

    registry: Registry[Any]
    text: str  # of the page
    passed: tuple[str, ...] | None = None  # parameters that the program passes; None: as the registry says

    @property
    def plural(self) -> str:
        kind = self.registry.kind
        return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"

    def keys(self) -> dict[str, dict[str, Schema]]:
        """The keys of each registered item."""
        passed = self.registry.passed if self.passed is None else self.passed
        return {name: {**documented(self.registry.get(name), passed)} for name in self.registry}


_PLUGINS = {
    "data": [
        _Plugins(sources, "`[data]` also takes the keys of the data set `data.name` ([data.md](data.md#data-sets))."),
        _Plugins(
            readers,
            "If `data.name` is a `.csv` or `.parquet` file, `[data]` also takes these keys\n"
            "([your-data.md](your-data.md#tables)).",
        ),
        _Plugins(shifts, "`[data]` also takes the keys of the shift `data.shift` ([data.md](data.md#shifts))."),
    ],
    "model": [_Plugins(models, "`[model]` also takes the keys of the network `model.name` ([models.md](models.md)).")],
    "training": [
        _Plugins(
            objectives,
            "`training.objective` is a table with the `name` of the local objective and its keys, or the name alone\n"
            "([training.md](training.md#local-objectives)).",
        )
    ],
    "method": [
        _Plugins(
            methods,
            "`[method]` also takes the keys of the method `method.name` ([methods.md](methods.md)).\n"
            "`k` and `l` may not exceed the number of other peers; a default that does is lowered.",
        ),
        _Plugins(
            metrics,
            "A similarity metric takes its values from the keys of `[method]` that the method itself declares\n"
            "(bundled: `alpha`, `on`; see [methods.md](methods.md#similarity-metrics)).",
            passed=("pairs",),
        ),
        _Plugins(
            merges,
            "An aggregation rule (`merge`) takes no keys from the config ([methods.md](methods.md#merges)).",
            passed=("group", "rows", "mask", "is_self"),
        ),
    ],
    "topology": [
        _Plugins(
            topologies,
            "`[topology]` also takes the keys of the graph `topology.name` ([methods.md](methods.md#topologies)).",
        )
    ],
    "headline": [
        _Plugins(
            score_metrics,
            "`[headline]` also takes the keys of a function of your own: its parameters after the outputs and the "
            "targets\n([tasks.md](tasks.md#the-headline-metric)).",
        )
    ],
}

_TRACKERS = _Plugins(
    trackers,
    "A table of `tracker` has the `name` of the tracker and its keys ([trackers.md](trackers.md)):\n"
    '`tracker = { name = "mlflow", uri = "http://127.0.0.1:5000" }`.',
)
_INNER = {"model": {"lora": Lora}}  # tables inside a table
_TYPES = {"integer": "integer", "number": "float", "string": "string", "boolean": "boolean", "object": "table"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def page() -> str:
    """The whole page."""
    parts = [_INTRO, "## Top level\n", _table_of(Config)]
    for name, table in TABLES.items():
        parts += [f"## [{name}]\n", f"{table.__doc__}\n", _table_of(table)]
        for inner, keys in _INNER.get(name, {}).items():
            parts += [f"### [{name}.{inner}]\n", f"{keys.__doc__}\n", _table_of(keys)]
        for plugins in _PLUGINS.get(name, []):
            parts += [f"### Keys of {_article(plugins.registry.kind)}\n", f"{plugins.text}\n", *_tables_of(plugins)]
    parts += ["## Keys of a tracker\n", f"{_TRACKERS.text}\n", *_tables_of(_TRACKERS)]
    return "\n".join(parts)


def keys_without_meaning() -> list[str]:
    """The keys of the config and of every registered item that have no description."""
    tables: dict[str, dict[str, Schema]] = {"config": _properties(Config)}
    tables |= {f"[{name}]": _properties(table) for name, table in TABLES.items()}
    tables |= {f"[{name}.{key}]": _properties(one) for name, inner in _INNER.items() for key, one in inner.items()}
    for plugins in chain(*_PLUGINS.values(), [_TRACKERS]):
        tables |= {f"{plugins.registry.kind} {name}": keys for name, keys in plugins.keys().items()}
    return [
        f"{table}: {key}" for table, keys in tables.items() for key, one in keys.items() if "description" not in one
    ]


def _properties(table: Any) -> dict[str, Schema]:
    """The keys of a table, without the tables inside it."""
    return {key: schema for key, schema in table.model_json_schema()["properties"].items() if "$ref" not in schema}


def _table_of(table: Any) -> str:
    rows = [[f"`{key}`", *_cells(schema)] for key, schema in _properties(table).items()]
    return _markdown(["key", "type", "bounds", "default", "meaning"], rows)


def _tables_of(plugins: _Plugins) -> list[str]:
    """A row for each key, shared by the items that agree in everything about it, and a line on items without keys."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for name, keys in plugins.keys().items():
        for key, schema in keys.items():
            owners.setdefault((f"`{key}`", *_cells(schema)), []).append(f"`{name}`")
    rows = [[key, ", ".join(names), *cells] for (key, *cells), names in sorted(owners.items())]
    heads = ["key", plugins.registry.kind, "type", "bounds", "default", "meaning"]
    found = [_markdown(heads, rows)] if rows else []
    plain = [f"`{name}`" for name, keys in plugins.keys().items() if not keys]
    return [*found, f"These {plugins.plural} have no keys: {', '.join(plain)}.\n"] if plain else found


def _cells(schema: Schema) -> list[str]:
    """Type, bounds, default and meaning of one key."""
    value = schema.get("default")
    default = "required" if "default" not in schema else "left out" if value is None else f"`{json.dumps(value)}`"
    return [_type(schema), _bounds(schema), default, schema.get("description", "")]


def _type(schema: Schema, plural: str = "") -> str:
    """The type in words. plural: the ending of a noun."""
    if "anyOf" in schema:
        return " or ".join(_type(one, plural) for one in schema["anyOf"] if one.get("type") != "null")
    if "$ref" in schema:
        return "table"
    if "enum" in schema or "const" in schema:
        return ", ".join(f'`"{word}"`' for word in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        number = f"{schema['minItems']} " if "prefixItems" in schema else ""
        return f"list{plural} of {number}{_type(schema.get('items') or schema['prefixItems'][0], 's')}"
    return _TYPES[schema["type"]] + plural


def _bounds(schema: Schema) -> str:
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    own = [f"{sign} {_number(schema[name])}" for name, sign in _BOUNDS.items() if name in schema]
    return ", ".join([*own, *(found for one in inner if (found := _bounds(one)))])


def _number(value: float) -> str:
    if value == 1 << 63:
        return "2^63"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
