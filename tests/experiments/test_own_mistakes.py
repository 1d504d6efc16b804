"""Mistakes in what users bring: a sentence that says what and where, on the command line and in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]
TINY = ("peers=4", "rounds=1", "data.train=5", "data.test=5", "data.angles=[0,180]")

BROKEN = """
import networkx as nx
import torch
from homophily import Method, Objective, Purpose
from homophily.federation.merging import rowwise, uniform
def raises(*arguments, **keys):
    return [][7]

def ones(group):
    return torch.ones(3)

def nothing(outputs, targets):
    return None

def several(outputs, targets):
    return outputs.mean(0)

def stumbles(x, draws):
    raise ArithmeticError("on all")

class Pulled(Objective):
    def penalty(self, weights, reference):
        return sum((weights[name] - old).square().sum() for name, old in reference.items())

def pointed(peers):
    return nx.DiGraph()

class Stubborn(Method):
    def meet(self, now):
        raise ArithmeticError("never")

def none(peers):
    nx.path_graph(peers)

class Nine(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 9)

    def forward(self, x):
        return super().forward(x.flatten(1))

def double(group):
    return 2.0 * group.mask / group.mask.sum(1, keepdim=True)

def listed(group):
    return uniform(group).tolist()

def imaginary(group):
    return uniform(group) * 1j

@rowwise
def first(rows, mask, is_self):
    return rows[0, 0]

class Absent(Method):
    def meet(self, now):
        now.known

class Everyone(Method):
    def meet(self, now):
        return torch.ones(9, dtype=torch.bool)

class Counting(Method):
    def meet(self, now):
        return now.known.long()

class Forgetful(Method):
    def meet(self, now):
        return now.known

    def choose(self, now, met, similarity):
        now.memory["mean"] = 0.5
        return met

class Mean(Forgetful):
    def choose(self, now, met, similarity):
        now.memory["mean"] = torch.zeros(3)
        return met

class Elsewhere(Forgetful):
    metric = "loss"

    def choose(self, now, met, similarity):
        return similarity

class Alike(Forgetful):
    def choose(self, now, met, similarity):
        return met

    def neighbours(self, now, partners):
        return partners[0]

class Wordy(Alike):
    def neighbours(self, now, partners):
        return partners

    def notes(self, view, memory):
        return "hello"

class Nowhere(Method):
    pass

class Shy(Alike):
    uses_fingerprints = True

    def on_fingerprints(self, view, prints, ids, limited):
        pass

class Hungry(Method):
    def meet(self, now):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB. GPU 0 has 4 GiB free. Process 1 has")

class Squeezed(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return super().forward(x.flatten(1)).squeeze()

def lettered(peers):
    return nx.relabel_nodes(nx.path_graph(peers), {1: "b"})

def fewer(peers):
    return nx.path_graph(3)

def numbers(pairs):
    return pairs.loss("own").tolist()

def both(pairs):
    return pairs.loss("both")

def steep(pairs, power):
    return -pairs.loss("own") ** power

def lonely():
    return 0.0

def nowhere(pairs):
    return pairs.loss("own") * torch.nan

def greedy(group, share):
    return uniform(group)

def unmarked(rows, mask, is_self):
    return rows[:, 0]

@rowwise
def narrow(rows):
    return rows[:, 0]

def contrary(group):
    return torch.where(group.is_self, 1.75, -0.25)

class Fixed(Alike):
    neighbours = Method.neighbours
    in_rounds = 5

class Lost(Fixed):
    def in_rounds(self, rounds):
        pass

class Eager(Wordy):
    metric = "loss"
    compares = True

class Vague(Wordy):
    metric = "loss"

    def compares(self, now):
        return "no"

class Far(Wordy):
    hops = "2"

class Near(Wordy):
    hops = 0

class Sharing(Wordy):
    shares = "similarity"

class Flat(Wordy):
    shares = ("mean",)

    def choose(self, now, met, similarity):
        now.memory["mean"] = met.double().mean(1)
        return met

class Numbered(Wordy):
    def choose(self, now, met, similarity):
        now.memory[3] = met
        return met

class Deaf(Wordy):
    def choose(self, now, met):
        return met

class Costly(Wordy):
    def nominal(self, rounds):
        return "much"

class Negative(Wordy):
    def neighbours(self, now, partners):
        return -partners.double()

class Unsure(Wordy):
    def neighbours(self, now, partners):
        return partners * torch.nan

class Growing(Wordy):
    def choose(self, now, met, similarity):
        now.memory["past"] = torch.zeros(len(met), now.round)
        return met

class Selfish(Wordy):
    def meet(self, now):
        return torch.ones_like(now.known)

class Boundless(Wordy):
    def meet(self, now):
        return now.pick(now.known, 1, Purpose.MEET)

    def choose(self, now, met, similarity):
        return now.known
"""


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("merge=broken{n}:raises", "broken{n}.py:7: raises fails: IndexError: list index out of range"),
        (
            "topology=broken{n}:none",
            "topology.name = 'broken{n}:none': must return a networkx graph, not None",
        ),
        ("model=broken{n}:Nine", "model: the network has 9 outputs, but the data has 10 classes"),
        ("merge=broken{n}:double", "merge: a peer's weights must add up to 1, or be all 0, not 2 in sum"),
        ("merge=broken{n}:ones", "merge: must return a weight for each model of the group, [4, 4], not [3]"),
        (
            "merge=broken{n}:listed",
            "merge: must return a weight for each model of the group, a tensor [4, 4], not list",
        ),
        ("merge=broken{n}:first", "merge: must return one model per peer, [4, 2410], not [2410]"),
        ("method=broken{n}:Absent", "method: meet must return a set of peers, a tensor [4, 4], not NoneType"),
        ("method=broken{n}:Everyone", "method: meet must return a set of peers, [4, 4], not [9]"),
        ("method=broken{n}:Counting", "method: meet must return a set of peers, of torch.bool, not torch.int64"),
        (
            "method=broken{n}:Forgetful",
            "memory['mean'] must have a row for each peer that decides, a tensor [4]",
        ),
        ("method=broken{n}:Mean", "memory['mean'] must have a row for each peer that decides, [4], not [3]"),
        ("method=broken{n}:Elsewhere", "method: choose must return a set of peers, of torch.bool, not torch.float64"),
        ("method=broken{n}:Alike", "method: neighbours must return a set of peers, or weights, [4, 4], not [4]"),
        ("method=broken{n}:Wordy", "method: notes must return a list of sentences, not 'hello'"),
        ("method=broken{n}:Nowhere", "method: Nowhere has no meet, which says whom to ask for a model"),
        ("method=broken{n}:Shy", "method: what is remembered must be tables by name, not NoneType"),
        ("merge=broken{n}:imaginary", "merge: must return a weight for each model of the group, of real numbers, not"),
        (
            "method=broken{n}:Hungry",
            "Tried to allocate 7 GiB. GPU 0 has 4 GiB free. A run that has started can be continued",
        ),
        ("model=broken{n}:Squeezed", "model: for one sample the network must return shape [1, 10], not [10]"),
        ("method=dac method.metric=broken{n}:numbers", "metric: must return a number for each pair, a tensor ["),
        ("method=dac method.metric=broken{n}:both", "metric: pairs.loss takes 'own' or 'peer', not 'both'"),
        ("topology=broken{n}:lettered", "topology: the graph's nodes must be the numbers 0 to 3, but one is 'b'"),
        ("topology=broken{n}:fewer", "topology: the graph has 3 peers, but the federation has 4"),
        ("topology=broken{n}:raises", "broken{n}.py:7: raises fails: IndexError"),
        ("topology=broken{n}:pointed", "topology: must be an undirected networkx.Graph, not DiGraph"),
        ("data.shift=broken{n}:raises", "broken{n}.py:7: raises fails: IndexError"),
        ("data=broken{n}:raises", "broken{n}.py:7: raises fails: IndexError"),
        ("method=broken{n}:Stubborn", "broken{n}.py:30: meet fails: ArithmeticError: never"),
        ('extra_metrics=["broken{n}:nothing"]', "extra_metrics: nothing gives None, not a number, for outputs [5, 10]"),
        ('extra_metrics=["math:sin"]', "extra_metrics: sin fails for outputs [5, 10] and targets [5]: TypeError: "),
        (
            "headline=broken{n}:raises headline.better=higher",
            "headline: raises fails for outputs [5, 10] and targets [5]: IndexError: list index out of range",
        ),
        (
            "headline=broken{n}:several headline.better=higher",
            "headline: several gives a tensor [10], not a number, for outputs [5, 10] and targets [5]",
        ),
        (
            "data.transform=broken{n}:stumbles",
            "data.transform: 'stumbles' fails on inputs torch.float32 [8, 1, 8, 8]: ArithmeticError: on all",
        ),
        (
            "training.objective=broken{n}:Pulled",
            "training.objective: the penalty of Pulled reads the reference weights, but its uses_reference is False",
        ),
        (
            "training.objective=broken{n}:Pulled training.optimizer=RMSprop",
            "training.objective: the penalty of Pulled reads the reference weights, but its uses_reference is False",
        ),
        ("method=collections:OrderedDict", "has no signature to inspect"),
        (
            "method=dac method.metric=broken{n}:steep",
            "metric = 'broken{n}:steep' needs power, which method Dac does not have",
        ),
        ("method=dac method.metric=broken{n}:lonely", "metric = 'broken{n}:lonely' must take (pairs), not ()"),
        (
            "method=dac method.metric=broken{n}:nowhere",
            "metric = 'broken{n}:nowhere' must return numbers, and gives NaN",
        ),
        ("merge=broken{n}:greedy", "merge = 'broken{n}:greedy' must take (group), not (group, share)"),
        ("merge=broken{n}:unmarked", "merge = 'broken{n}:unmarked' must take (group), not (rows, mask, is_self)"),
        ("merge=broken{n}:narrow", "merge = 'broken{n}:narrow' must take (rows, mask, is_self), not (rows)"),
        ("merge=broken{n}:contrary", "merge: a peer's weights must be at least 0, not -0.25"),
        ("method=broken{n}:Fixed", "method: Fixed.in_rounds must be a function of (rounds), not 5"),
        ("method=broken{n}:Lost", "method: Lost.in_rounds must return a Method, not NoneType"),
        ("method=broken{n}:Eager", "method: Eager.compares must be a function of (now), not True"),
        ("method=broken{n}:Vague", "method: compares must return True or False, not str"),
        ("method=broken{n}:Far", 'method: Far.hops = "2": must be a whole number'),
        ("method=broken{n}:Near", "method: Near.hops = 0: must be at least 1"),
        ("method=broken{n}:Sharing", 'method: Sharing.shares = "similarity": must be a list'),
        (
            "method=broken{n}:Flat",
            "memory['mean'], which peers share, must have a number for everyone in the contacts, [4, 4]",
        ),
        ("method=broken{n}:Numbered", "method: memory[3] must have a string as its name, not int"),
        (
            "method=broken{n}:Growing training.lr=1e-30 training.patience=1 data.validation=2 rounds=3",
            "method: memory['past'] must keep its shape from round to round, [4, 1], not [4, 2]",
        ),
        ("method=broken{n}:Deaf", "method: Deaf.choose must take (now, met, similarity), not (now, met)"),
        ("method=broken{n}:Costly", "method: nominal must return a number of models, or None, not str"),
        ("method=broken{n}:Negative", "peers, or weights that are finite and at least 0, not -1"),
        (
            "method=broken{n}:Selfish",
            "method: Selfish.meet chose peers that are not among its contacts (peer 0 chose itself)",
        ),
        ("method=broken{n}:Boundless", "method: Boundless.choose chose peers that it did not meet (peer 0 chose peer "),
        ("method=broken{n}:Unsure", "peers, or weights that are finite and at least 0, not nan"),
    ],
)
def test_an_error_in_user_code_is_reported_with_its_place(
    command: Command, here: Path, request: pytest.FixtureRequest, word: str, sentence: str
) -> None:
    number = abs(hash(request.node.name))  # modules are imported once
    (here / f"broken{number}.py").write_text(BROKEN)
    code, out, err = command("run", *TINY, *word.format(n=number).split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence.format(n=number) in err
