"""Mistakes in a config, on the command line, in a file or in Python, end in one sentence that names the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import homophily

Ended = tuple[int, str, str]  # exit code, stdout, stderr
Command = Callable[..., Ended]


def assert_one_sentence(ended: Ended, *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that has all parts; no traceback."""
    code, out, err = ended
    assert code == 2, err
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for part in parts:
        assert part in err


def fails(*words: str, says: list[str]) -> Any:
    return pytest.param(words, says, id=" ".join(words))


# Each with what the sentence must name: the key, and what is allowed.
BAD_RUNS = [
    # Keys that do not exist.
    fails("sed=1", says=["unknown key sed", "did you mean seed?", "allowed keys: seed, peers, rounds"]),
    fails("methods=local", says=["unknown key methods", "did you mean method?"]),
    fails("a.b.c=3", says=["unknown key a", "allowed keys: seed, peers"]),
    fails("data.agnles=[0]", says=["unknown key data.agnles", "did you mean angles?", "train, validation, test"]),
    fails("model.hiden=[3]", says=["unknown key model.hiden", "did you mean hidden?", "'mlp' are name, personal"]),
    fails(
        "model.outputs=3",
        says=["unknown key model.outputs", "the keys of model 'mlp' are name, personal", ", hidden"],
    ),
    fails(
        "training.momentun=0",
        says=["unknown key training.momentun", "did you mean momentum?", "[training] has optimizer"],
    ),
    fails("method.kk=3", says=["unknown key method.kk", "did you mean k?", "the keys of method 'kin' are name, k"]),
    fails(
        "model.lora.ranks=3",
        says=["unknown key model.lora.ranks", "did you mean rank?", "[model.lora] has rank, targets, alpha"],
    ),
    fails("topology.nmae='full'", says=["unknown key topology.nmae", "did you mean name?"]),
    fails("topology.rows=3", says=["unknown key topology.rows", "the only key of topology 'full' is name"]),
    fails("method=local", "method.k=3", says=["unknown key method.k", "the only key of method 'local' is name"]),
    fails("data=linear", "data.angles=[0]", says=["unknown key data.angles", "'linear'", "features, noise, samples"]),
    fails("=3", says=["'=3'", "key=value"]),
    fails("training.=3", says=["'training.=3'", "key=value"]),
    fails("rounds=3", "other.toml", says=["'other.toml'", "key=value"]),
    fails("rounds=3", "rounds.x=4", says=["rounds is not a table"]),
    # Values of another type.
    fails("seed=x", says=["seed", '"x"', "must be a whole number"]),
    fails("peers=true", says=["peers = true", "must be a whole number"]),
    fails("rounds=1.5", says=["rounds = 1.5", "must be a whole number"]),
    fails("rounds=[3]", says=["rounds = [3]", "must be a whole number"]),
    fails("seed=1979-05-27", says=["seed", "must be a number, string, list or table", "date"]),
    fails("data.angles=[1979-05-27]", says=["data.angles", "must be a number, string, list or table", "date"]),
    fails("training.lr=fast", says=["training.lr", '"fast"', "must be a number"]),
    fails("training.lr=true", says=["training.lr = true", "must be a number"]),
    fails("training.lr=[0.1]", says=["training.lr = [0.1]", "must be a number"]),
    fails("training=sgd", says=["training", '"sgd"', "must be a table"]),
    fails("data=3", says=["data = 3", "must be a table"]),
    fails("data.name=3", says=["data.name = 3", "must be a string"]),
    fails("data.shift=3", says=["data.shift = 3", "must be a string"]),
    fails("method.name=3", says=["method.name = 3", "must be a string"]),
    fails("topology.name=true", says=["topology.name = true", "must be a string"]),
    fails("merge=3", says=["merge = 3", "must be a string"]),
    fails("data.sizes=8", says=["data.sizes = 8", "must be a list"]),
    fails("data.angles=90", says=["data.angles = 90", "must be a list"]),
    fails("data.angles=['x']", says=["data.angles.0", "must be a number"]),
    fails("data.balanced=1", says=["data.balanced = 1", "must be true or false"]),
    fails("model.hidden=32", says=["model.hidden = 32", "must be a list"]),
    fails("model.hidden=[1.5]", says=["model.hidden.0 = 1.5", "must be a whole number"]),
    fails("model.personal=bn", says=["model.personal", "must be a list"]),
    fails("method.k=1.5", says=["method.k = 1.5", "must be a whole number"]),
    fails("extra_metrics=f1", says=["extra_metrics", "must be a list"]),
    # Values out of range.
    fails("seed=-1", says=["seed = -1", "must be at least 0"]),
    fails("seed=99999999999999999999", says=["seed = 99999999999999999999", "must be less than 9223372036854775808"]),
    fails("peers=0", says=["peers = 0", "must be at least 1"]),
    fails("rounds=0", says=["rounds = 0", "must be at least 1"]),
    fails("evaluate=0", says=["evaluate = 0", "must be at least 1"]),
    fails("checkpoint=0", says=["checkpoint = 0", "must be at least 1"]),
    fails("training.lr=-0.1", says=["training.lr = -0.1", "must be greater than 0"]),
    fails("training.lr=nan", says=["training.lr = NaN", "must be finite"]),
    fails("training.lr=inf", says=["training.lr = Infinity", "must be finite"]),
    fails("training.momentum=1", says=["training.momentum = 1", "must be less than 1"]),
    fails("training.momentum=nan", says=["training.momentum = NaN", "must be"]),
    fails("training.weight_decay=-1", says=["training.weight_decay = -1", "must be at least 0"]),
    fails("training.decay=1.1", says=["training.decay = 1.1", "must be at most 1"]),
    fails("training.batch=0", says=["training.batch = 0", "must be at least 1"]),
    fails("training.epochs=0", says=["training.epochs = 0", "must be at least 1"]),
    fails("training.patience=-1", says=["training.patience = -1", "must be at least 0"]),
    fails("data.train=0", says=["data.train = 0", 'a whole number of at least 1 or "all"']),
    fails("data.train=some", says=["data.train", '"some"', 'a whole number of at least 1 or "all"']),
    fails("data.validation=-1", says=["data.validation = -1", "must be at least 0"]),
    fails("contacts=0", says=["contacts = 0", 'a whole number of at least 1 or "all"']),
    # Values that are not among the choices.
    fails("score=after", says=["score", '"after"', "'after-merge' or 'after-training'"]),
    fails("engine=fast", says=["engine", '"fast"', "'auto', 'stacked', 'vectorised' or 'one-by-one'"]),
    fails("precision=half", says=["precision", '"half"', "'full', 'fast' or 'bf16'"]),
    fails("init=zero", says=["init", '"zero"', "'common' or 'independent'"]),
    fails("training.optimizer=rmsprop", says=["'rmsprop'", "did you mean 'RMSprop'?", "is sgd, adam, adamw, "]),
    fails("training.optimizer=LBFGS", says=["training.optimizer = 'LBFGS'", "several times per step"]),
    fails("training.optimizer=torch.nn:Linear", says=["training.optimizer = 'torch.nn:Linear'", "a subclass"]),
    fails("training.optimizer_options.alpha=0.9", says=["training.optimizer_options", "'sgd' has none", "'RMSprop'"]),
    fails(
        "training.optimizer=RMSprop",
        "training.optimizer_options.alfa=0.9",
        says=["unknown key training.optimizer_options.alfa", "did you mean alpha?", "optimizer 'RMSprop' are alpha"],
    ),
    fails(
        "training.optimizer=RMSprop",
        "training.optimizer_options.alpha=high",
        says=['training.optimizer_options.alpha = "high"', "must be a number"],
    ),
    fails("training.optimizer=RMSprop", "training.weight_decay=1", says=["training.weight_decay", "optimizer_options"]),
    fails(
        "training.optimizer=RMSprop",
        "training.optimizer_options.alpha=-1",
        says=["training.optimizer = 'RMSprop'", "Invalid alpha"],
    ),
    fails("training.optimizer=Muon", says=["training.optimizer = 'Muon'", "2D"]),
    fails("training.nesterov=1", says=["training.nesterov = 1", "must be true or false"]),
    fails("training.nesterov=true", "training.momentum=0", says=["training.nesterov", "training.momentum above 0"]),
    fails("training.nesterov=true", "training.optimizer=adam", says=["training.nesterov", "'sgd'", "'adam'"]),
    fails("training.schedule=step", says=["training.schedule", "'exponential', 'cosine' or 'constant'"]),
    fails("training.warmup=-1", says=["training.warmup = -1", "must be at least 0"]),
    fails("training.lr_by_peer=0.1", says=["training.lr_by_peer = 0.1", "must be a list, one number above 0 per peer"]),
    fails("training.lr_by_peer=[0.1,0]", says=["training.lr_by_peer", "one number above 0 per peer, or a table"]),
    fails("training.lr_by_peer=[0.1]", says=["training.lr_by_peer has 1 values, but there are 8 peers"]),
    fails("training.lr_by_peer.9=0.1", says=["training.lr_by_peer: no peer or cluster is called '9'", "0°, 90°"]),
    fails("training.epochs_by_peer.1=1.5", says=["training.epochs_by_peer", "one whole number of at least 1 per peer"]),
    fails("training.objective=fedprx", says=["unknown objective 'fedprx'", "did you mean 'fedprox'?", "fedrep, loss"]),
    fails("training.objective=3", says=["training.objective = 3", "must be a table"]),
    fails("training.objective.mu=1", says=["unknown key training.objective.mu", "of objective 'loss' is name"]),
    fails(
        "training.objective.mu=-1",
        "training.objective=fedprox",
        says=["training.objective.mu = -1", "must be at least 0"],
    ),
    fails("training.objective=fedrep", says=["training.objective", "model.personal names none that is trained"]),
    fails("training.objective=fedprox", "engine=stacked", says=["engine = 'stacked'", "training.objective"]),
    fails("training.clip=0", says=["training.clip = 0", "must be greater than 0"]),
    fails(
        "training.optimizer=RMSprop",
        "engine=vectorised",
        says=["engine = 'vectorised'", "training.optimizer = 'RMSprop'", "one by one"],
    ),
    fails("data.normalise=none", says=["data.normalise", '"none"', "'standard', 'half' or 'unit'"]),
    fails("method=orcale", says=["unknown method 'orcale'", "did you mean 'oracle'?", "local", "package.module:name"]),
    fails("model=resnet", says=["unknown model 'resnet'", "mlp", "package.module:name"]),
    fails(
        "data=digit",
        says=["unknown data set 'digit'", "did you mean 'digits'?", "mnist", "there is no folder or table"],
    ),
    fails("data=", says=["unknown data set ''", "digits"]),
    fails("model.frozen=[a,b]", says=["model.frozen=[a,b]", "strings in brackets need quotes"]),
    fails("privacy.epsilon=4", "privacy.unit=peer", says=['privacy.unit = "peer"', "must be 'sample' or 'person'"]),
    fails("data.shift=rotate", says=["unknown shift 'rotate'", "did you mean 'rotation'?", "iid"]),
    fails("merge=unform", says=["unknown merge 'unform'", "did you mean 'uniform'?", "package.module:name"]),
    fails("topology=flul", says=["unknown topology 'flul'", "did you mean 'full'?", "package.module:name"]),
    fails("training.loss=hinge", says=["unknown loss 'hinge'", "cross-entropy, mse", "package.module:name"]),
    fails("--device=tpu", says=["device = 'tpu'", "auto, cpu or cuda"]),
    # What cannot be imported, or is something else.
    fails("method=no.such:thing", says=["method 'no.such:thing'", "cannot import 'no.such'"]),
    fails("data=os:nothing", says=["'os:nothing'", "'os' has no 'nothing'"]),
    fails("model=os:sep", says=["model 'os:sep'", "not callable"]),
    fails("model=os:getcwd", says=["model.name = 'os:getcwd'", "nn.Module", "not str"]),
    fails("method=os:getcwd", says=["method.name = 'os:getcwd'", "homophily.Method", "not str"]),
    fails("data=os:getcwd", says=["data.name = 'os:getcwd'", "a Source or a list of PeerData", "not str"]),
    fails("model=torch.nn:Linear", says=["model.in_features is missing"]),
    fails("extra_metrics=['top']", says=["extra_metrics = 'top'", "package.module:name"]),
    fails("extra_metrics=['no.such:thing']", says=["extra metric 'no.such:thing'", "cannot import"]),
    # Values that do not go together.
    fails("method.k=8", says=["method.k = 8", "from 1 to peers - 1, which is 7"]),
    fails("method.k=0", says=["method.k = 0", "must be at least 1"]),
    fails("contacts=8", says=["contacts = 8", "at most peers - 1, which is 7"]),
    fails("data.sizes=[2,2,2,3]", says=["data.sizes", "= 9", "8 peers"]),
    fails("data.sizes=[4,4]", says=["data.sizes has 2 numbers", "4 clusters"]),
    fails("data.sizes=[0,4,2,2]", says=["data.sizes.0 = 0", "must be at least 1"]),
    fails("peers=3", "method.k=1", says=["error: peers = 3: too few for 4 clusters", "at least one peer"]),
    fails("peers=1", says=["error: peers = 1: too few for 4 clusters"]),
    fails("data.angles=[]", says=["data.angles must be one or more different angles"]),
    fails("data.angles=[0,360]", says=["data.angles must be one or more different angles"]),
    fails("data.angles=[0,nan]", says=["data.angles must be one or more different angles"]),
    fails("data.shift=concept", says=["data.shift = 'concept'", "linear", "not digits"]),
    fails("data.shift=natural", says=["data.shift = 'natural'", "needs data with an owner for each sample"]),
    fails("data=linear", "data.shift=rotation", says=["data.shift = 'rotation' needs square images"]),
    fails("data=linear", "data.shift=dirichlet", says=["data.shift = 'dirichlet' needs data with classes"]),
    fails("data.train=151", says=["data.train", "8 peers x (151 train) need 1208 samples", "has 1200"]),
    fails("data.validation=131", says=["20 train + 131 validation", "need 1208 samples", "has 1200"]),
    fails("data.test=598", says=["data.test", "every peer needs 598 samples", "has 597"]),
    fails("training.patience=3", says=["training.patience", "set data.validation to at least 1"]),
    fails("training.patience=3", "data.validation=0", says=["training.patience", "data.validation"]),
    fails("training.loss=mse", says=["training.loss = 'mse'", "needs regression targets"]),
    fails(
        "data=linear",
        "training.loss=cross-entropy",
        says=["training.loss = 'cross-entropy'", "needs classification or tokens targets"],
    ),
    fails("method=oracle", "data.shift=dirichlet", says=["method.name = 'oracle'", "known clusters"]),
    fails("model.personal=['bn*']", says=["model.personal", "'bn*'", "1.weight, 1.bias"]),
    fails("model.personal=['1', '3']", says=["model.personal", "all trained parameters", "nothing is left to merge"]),
    fails("model=cnn", says=["model.name = 'cnn'", "at least 10x10", "[1, 8, 8]"]),
    fails("data=linear", "model=cnn", says=["model.name = 'cnn'", "images", "[10]"]),
    fails("model.hidden=[-3]", says=["model.hidden", "-3", "at least 1"]),
    fails("data=./nothere", says=["data.name = './nothere'", "no such folder"]),
    fails("data=.", says=[".npz", "one for each peer"]),
    fails("nothere.toml", says=["nothere.toml", "No such file"]),
    fails("--resume=nothere", says=["nothere is not a run", "config.toml"]),
    fails("--resume=.", says=["is not a run", "config.toml"]),
]


@pytest.mark.parametrize(("words", "says"), BAD_RUNS)
def test_a_mistake_ends_in_one_sentence(words: tuple[str, ...], says: list[str], command: Command) -> None:
    first = [w for w in words if w.endswith(".toml") and w == words[0]]
    resumed = any(w.startswith("--resume") for w in words)
    small = [] if resumed else ["peers=8", "rounds=1"]
    assert_one_sentence(command("run", *first, *small, *[w for w in words if w not in first]), *says)


BAD_COMPARISONS = [
    fails("methods=local,rnadom", says=["unknown method 'rnadom'", "did you mean 'random'?", "oracle"]),
    fails("methods=", says=["methods = ''", "names separated by commas", '"all"']),
    fails("methods=3", says=["methods = 3", "names separated by commas"]),
    fails("methods=local,local", says=["methods = local,local", "once"]),
    fails("methods=local", "method.k=3", says=["unknown key method.k", "there are no keys for the compared methods"]),
    fails(
        "methods=local,random",
        "method.kk=3",
        says=["unknown key method.kk", "did you mean k?", "methods are k"],
    ),
    fails(
        "methods=random",
        "method.random.kk=3",
        says=["unknown key method.kk", "method 'random' are name, k"],
    ),
    fails("methods=random", "method.rnadom.k=3", says=["unknown key method.rnadom", "did you mean random?"]),
    fails("methods=local", "method=3", says=["method = 3", "must be a table"]),
    fails(
        "method=random",
        says=["method.name = 'random': a comparison takes methods=... (did you mean methods=random?)"],
    ),
    fails("method.name=random", "method.k=2", says=["method.name = 'random'", "(did you mean methods=random?)"]),
    fails(
        "methods=local",
        "method=random",
        says=["method.name = 'random': a comparison takes methods=... only: leave method.name out"],
    ),
    fails(
        "methods=all",
        "method.name=random",
        says=["method.name = 'random': a comparison takes methods=... only: leave method.name out"],
    ),
    fails("seeds=x", says=["seeds = 'x'", "different whole numbers separated by commas"]),
    fails("seeds=1,1", says=["seeds = '1,1'", "different whole numbers"]),
    fails("seeds=1.5", says=["seeds = 1.5", "different whole numbers"]),
    fails("seeds=true", says=["seeds = True", "different whole numbers"]),
    fails("seeds=-1", says=["seeds = -1", "different whole numbers"]),
    fails("methods=local", "peers=x", says=["peers", '"x"', "must be a whole number"]),
]


@pytest.mark.parametrize(("words", "says"), BAD_COMPARISONS)
def test_a_mistake_in_a_comparison_ends_in_one_sentence(
    words: tuple[str, ...], says: list[str], command: Command
) -> None:
    assert_one_sentence(command("compare", "peers=8", "rounds=1", *words), *says)
    assert not Path("runs").exists()


BAD_FILES = [
    pytest.param("rounds =\n", [], ["bad.toml is not a TOML file", "line 1"], id="not TOML"),
    pytest.param("data = 3\n", ["data.train=5"], ["data = 3", "must be a table"], id="no table"),
    pytest.param("[training]\nlr = -1\n", ["training.lr=0.1"], ["training.lr = -1", "greater than 0"], id="overridden"),
    pytest.param("rouns = 3\n", [], ["unknown key rouns", "did you mean rounds?"], id="unknown key"),
]


@pytest.mark.parametrize("action", ["run", "compare"])
@pytest.mark.parametrize(("text", "words", "says"), BAD_FILES)
def test_a_mistake_in_the_file_is_reported_even_if_it_is_overridden(
    action: str, text: str, words: list[str], says: list[str], command: Command
) -> None:
    Path("bad.toml").write_text(text)
    assert_one_sentence(command(action, "bad.toml", "peers=8", *words), *says)


def test_a_mistake_in_the_file_is_reported_even_if_another_method_would_drop_it(command: Command) -> None:
    Path("bad.toml").write_text("[method]\nkk = 9\n")
    assert_one_sentence(command("run", "bad.toml", "method=local"), "unknown key method.kk", "'kin' are name, k")
    assert_one_sentence(command("compare", "bad.toml", "methods=random"), "unknown key method.kk", "did you mean k?")


@pytest.mark.parametrize("text", ['method = "random"\n', '[method]\nname = "random"\nk = 2\n'])
def test_the_method_of_a_file_is_not_compared_with_all_others(text: str, command: Command) -> None:
    Path("run.toml").write_text(text)
    assert_one_sentence(command("compare", "run.toml", "peers=4"), "(did you mean methods=random?)")
    Path("both.toml").write_text(f'methods = "local"\n{text}')
    assert_one_sentence(
        command("compare", "both.toml", "peers=4"), "a comparison takes methods=... only: leave method.name out"
    )


def test_a_file_that_is_made_for_a_run_may_be_compared(here: Path) -> None:
    Path("run.toml").write_text('peers = 4\nrounds = 1\ndata.train = 5\n[method]\nname = "panm"\nk = 2\n')
    found = homophily.compare("run.toml", methods=["local", "random"])
    assert list(found.runs) == ["local", "random"]
    assert found.runs["random"][0].config.method.keys["k"] == 2


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("values", [{"method": "random"}, {"method": {"name": "random"}}])
def test_a_method_among_the_keys_of_a_comparison_is_refused_in_python(values: dict[str, Any]) -> None:
    with pytest.raises(homophily.UserError, match=r"\(did you mean methods=random\?\)"):
        homophily.compare(values)
    for arguments in ((values,), (None, values)):
        with pytest.raises(homophily.UserError, match=r"takes methods=\.\.\. only: leave method\.name out"):
            homophily.compare(*arguments, methods=["local"])


def test_a_binary_file_and_a_folder_are_refused(command: Command) -> None:
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")
    Path("folder.toml").mkdir()
    assert_one_sentence(command("run", "bytes.toml"), "bytes.toml is not a TOML file")
    assert_one_sentence(command("run", "folder.toml"), "folder.toml", "directory")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 8 peers and 2 rounds."""
    return homophily.run({"peers": 8, "rounds": 2}, out=tmp_path_factory.mktemp("runs") / "finished").path


def test_mistakes_about_a_run_folder_end_in_one_sentence(command: Command, finished: Path) -> None:
    again = ["run", "--resume", str(finished)]
    assert_one_sentence(command(*again, "rounds=1"), "rounds = 1", "has played 2 rounds")
    assert_one_sentence(command(*again, "rounds=x"), "rounds", "must be a whole number")
    assert_one_sentence(command(*again, "seed=2"), "seed", "rounds, evaluate and checkpoint only")
    assert_one_sentence(command(*again, "training.lr=2"), "training", "rounds, evaluate and checkpoint only")
    assert_one_sentence(command(*again, "--device", "cpu"), "--device", "leave")
    assert_one_sentence(command(*again, "--out", "other"), "--out", "leave")
    assert_one_sentence(command("run", "--out", str(finished)), f"{finished} is not empty", "--resume")
    assert_one_sentence(command("export", str(finished), "m.safetensors", "--peer", "8"), "peer 8", "0 to 7")
    assert_one_sentence(command("export", str(finished), "m.safetensors", "--peer", "-1"), "peer -1", "0 to 7")
    assert_one_sentence(command("export", "nothere", "m.safetensors", "--peer", "1"), "nothere is not a run")
    assert_one_sentence(command("export", str(finished), "no/m.safetensors", "--peer", "1"), "no/m.safetensors")
    assert_one_sentence(command("list", "peers"), "'peers'", "methods, metrics, merges, topologies, data")
    assert not Path("m.safetensors").exists()


def test_python_callers_get_the_same_sentence_as_an_error() -> None:
    with pytest.raises(homophily.UserError, match=r"unknown key training\.lrr \(did you mean lr\?\)"):
        homophily.run({"training": {"lrr": 0.1}})
    with pytest.raises(homophily.UserError, match=r"peers: must be a number.*not set"):
        homophily.run({"peers": {1}})


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("training.lr=1e39", "training.lr = 1e+39: must be at most"),
        ("training.weight_decay=1e300", "training.weight_decay = 1e+300: must be at most"),
        ("training.patience=99999999999999999999", "training.patience = 99999999999999999999: must be at most"),
        ("peers=1000000000000", "peers = 1000000000000: must be at most"),
        ("data=nosuch", "unknown data set 'nosuch'; there are cifar-10"),
    ],
)
def test_numbers_out_of_range_and_unknown_names_are_refused(command: Command, word: str, sentence: str) -> None:
    code, out, err = command("run", word)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"error: {sentence}" in err
