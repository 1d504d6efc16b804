"""From a config to what is trained: data, network, task and engine, for all simulated peers or for one real peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from homophily.config.schema import Config, Training
from homophily.data import FederatedData, PreparedData, prepared_data
from homophily.data.normalise import LEAST_DEVIATION
from homophily.data.sources import sources
from homophily.data.task_kinds import MULTI_LABEL, TASK_KINDS
from homophily.data.transforms import BatchTransform, transforms
from homophily.data.types import Roster, Split
from homophily.errors import UserError
from homophily.federation.layout import Layout
from homophily.federation.rows import Federation
from homophily.fingerprints.compute import fingerprints
from homophily.fingerprints.embedding import Targets
from homophily.fingerprints.fingerprint import Fingerprints, format_of
from homophily.fingerprints.private import Draw, PrivateFingerprints, private_fingerprints
from homophily.methods import Method
from homophily.methods.server import ServerMethod
from homophily.models.builder import Network
from homophily.models.calling import call_with_batches
from homophily.models.copying import on_device
from homophily.models.keyed_dropout import with_keyed_dropout
from homophily.models.lora import check_used
from homophily.plugins.parameters import checked, must_take
from homophily.plugins.registry import GIVEN
from homophily.simulation.evaluation import Scorer
from homophily.simulation.exchange import Exchange
from homophily.simulation.merge_guard import MergeGuard
from homophily.simulation.privacy import NoiseSource, PrivacyAccount, with_privacy
from homophily.simulation.rounds import Experiment
from homophily.simulation.run_metrics import RunMetrics, metrics_of_run
from homophily.simulation.shards import ONE_PROCESS, Shards
from homophily.simulation.user_objects import UserObjects
from homophily.training.engines import engine_limits, engine_of, read_chain
from homophily.training.features import CachedFeatures, cached_features
from homophily.training.losses import Loss, losses
from homophily.training.objectives import Objective, objectives
from homophily.training.per_peer import PeerNames, values_by_peer
from homophily.training.probe import ASKED_WITH, ModuleTraits, probe, trains_on_one_sample
from homophily.training.resources import ExecutionPlan, free_memory, plan_execution, threads
from homophily.training.stacked.chain import Chain
from homophily.training.task import Engine, Settings, Task
from homophily.training.token_range import check_tokens
from homophily.training.tuning import with_fastest_step
from homophily.training.vectorised import StepKind

# Keys of [training] that are read here.
_NOT_SETTINGS = {"loss", "patience", "stop_on", "objective", "lr_by_peer", "epochs_by_peer"}


@dataclass
class SetupCache:
    """Data and networks that earlier runs of the same caller have prepared, by the settings that they follow from."""

    # As prepared, and on the device.
    data: dict[str, tuple[PreparedData, FederatedData]] = field(default_factory=dict)
    networks: dict[str, tuple[ModuleTraits, Layout, Chain | str]] = field(default_factory=dict)
    steps: dict[str, StepKind] = field(default_factory=dict)  # measured on the device

    def forget(self) -> None:
        """Drop all data but the last, which the next run may use again."""
        for name in list(self.data)[:-1]:
            del self.data[name]


@dataclass(frozen=True)
class TrainingSetup:
    """Network, task and engine, made ready."""

    network: Network
    task: Task
    engine: Engine
    plan: ExecutionPlan
    metrics: RunMetrics
    objective_keys: dict[str, Any]
    account: PrivacyAccount | None  # of [privacy]

    def experiment(
        self,
        config: Config,
        start: Federation,
        exchange: Exchange,
        roster: Roster | None = None,
        shards: Shards = ONE_PROCESS,
        digest: str | None = None,
    ) -> Experiment:
        """roster: all peers; None: they are those of the task. digest: of data that may change."""
        return Experiment(
            self.task,
            self.engine,
            self._scorer(),
            start,
            exchange,
            config.rounds,
            config.score == "after-training",
            config.evaluate,
            config.training.patience,
            config.training.stop_on,
            roster or self.task.data.roster,
            digest,
            self.account,
            shards,
        )

    def merge_guard(self, config: Config, shards: Shards = ONE_PROCESS) -> MergeGuard | None:
        """The guard that the config asks for."""
        if config.merge_guard is None:
            return None
        if self.task.data.validation is None:
            raise UserError("merge_guard needs validation samples: set data.validation to at least 1")
        return MergeGuard(config.merge_guard, self._scorer(), shards)

    def _scorer(self) -> Scorer:
        plan, metrics = self.plan, self.metrics
        return Scorer(
            self.engine.task, self.engine, plan.score_peers, plan.score_samples, metrics.extra, metrics.headline
        )


def training_setup(
    config: Config,
    given: UserObjects,
    made: FederatedData,
    shares: FederatedData,
    ids: Tensor,
    plan: ExecutionPlan | None,
    cache: SetupCache,
    method: Method | ServerMethod,
    source: NoiseSource,
    shards: Shards = ONE_PROCESS,
    roster: Roster | None = None,
) -> TrainingSetup:
    """Network, task and engine for the peers ``ids``.

    made: the data as prepared; shares: that of these peers, on their device; source: of the noise of private
    training; roster: all peers, None: they are those of ``made``.
    """
    if config.training.patience and made.validation is None:
        raise UserError("training.patience needs validation samples: set data.validation to at least 1")
    network = Network(config, given.model, made.inputs, made.outputs)
    loss, metrics = _loss(config.training, given, made), metrics_of_run(config, given, made)
    module = with_keyed_dropout(network.common(config.seed)).eval()
    call_with_batches(module, made.fields, made.train.x[:1])
    check_tokens(module, made)
    traits, layout, chain = _read(module, config, loss, made, metrics.headline.shaped, cache)
    objective, objective_keys = _objective(config.training)
    settings = Settings(**config.training.model_dump(exclude=_NOT_SETTINGS), rounds=config.rounds)
    task = Task(
        on_device(module, ids.device), layout, loss, shares, torch.full_like(ids, config.seed), ids,
        settings, traits.coupled, traits.draws, config.precision,
        *_by_peer(config.training, roster or made.roster, shards, ids.device),
        objective, _transform(config, given, made),
    )  # fmt: skip
    _check_batches(task, made)
    task.check_objective()
    task, account = with_privacy(config, method, task, given.data is not None, source, shards)
    if config.precision == "bf16" and layout.dtype != torch.float32:
        raise UserError(f"precision = 'bf16' needs a network with float32 parameters, not {layout.dtype}")
    planned = _Planning(config, task, traits, chain, metrics.headline.shaped, cache)
    if plan is None:
        plan = ExecutionPlan(**shards.agreed(lambda: asdict(planned.plan())))
    return TrainingSetup(network, task, planned.engine(plan), plan, metrics, objective_keys, account)


@dataclass
class _Planning:
    """How a task is computed: with cached features or not, and by which engine."""

    config: Config
    task: Task
    traits: ModuleTraits
    chain: Chain | str
    shaped: bool
    cache: SetupCache

    def __post_init__(self) -> None:
        self._trained: Task | None = None

    def plan(self) -> ExecutionPlan:
        """The plan for this machine."""
        task, cached = self._read(None)
        plan = plan_execution(
            self.config.engine, task.settings.batch, task.data, task.layout, self.traits, self.chain, task.ids.device,
            engine_limits(task), task.private,
        )  # fmt: skip
        plan = _measured(plan, task, self.config, self.cache)
        if cached is None:
            return plan
        size = f"{cached.bytes / 2**20:,.1f} MiB"
        return replace(plan, features=cached.bytes, why=f"{plan.why}; features of frozen layers are kept: {size}")

    def engine(self, plan: ExecutionPlan) -> Engine:
        """The engine of a plan, which may have been made before, or by another process."""
        task = self._trained or self._read(plan)[0]
        return engine_of(task, plan, self.chain)

    def _read(self, plan: ExecutionPlan | None) -> tuple[Task, CachedFeatures | None]:
        """The task that is trained: the whole network, or its head on cached features."""
        cached = _cached(self.task, self.config, plan)
        self._trained = self.task
        if cached is not None:
            self._trained = cached.task
            self.traits, self.chain = _read_head(cached.task, self.shaped)
        return self._trained, cached


def _cached(task: Task, config: Config, plan: ExecutionPlan | None) -> CachedFeatures | None:
    """The task with cached features, if they are wanted and possible; a resumed run does as its plan says."""
    if not config.model.cache_features or (plan is not None and not plan.features):
        return None
    with threads(1):  # bits must not depend on the number of threads
        return cached_features(task, free_memory(task.ids.device) // 4)


def _read_head(task: Task, shaped: bool) -> tuple[ModuleTraits, Chain | str]:
    """The traits of a head that is trained on features, and its chain of layers (or why it is not a chain)."""
    traits = _traits(task.module, task.loss, task.data, shaped)
    return traits, read_chain(task.module, task.layout, task.loss, task.data)


def _objective(training: Training) -> tuple[Objective, dict[str, Any]]:
    """The local objective, and all its keys."""
    name = training.objective.name
    make = objectives.get(name)
    keys = checked("training.objective", f"objective {name!r}", make, training.objective.keys)
    found = make(**keys)
    if not isinstance(found, Objective):
        wanted = "must be a homophily.Objective"
        raise UserError(f"training.objective = {name!r}: {wanted}, not {type(found).__name__}")
    return found, keys


def _by_peer(
    training: Training, roster: Roster, shards: Shards, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """The learning rates and the epochs of the peers of this process; None: they are the same for all."""
    if training.lr_by_peer is None and training.epochs_by_peer is None:
        return None, None
    values, mine = values_by_peer(training, PeerNames.of(roster)), shards.mine(roster.peers)
    lr = torch.tensor(values["lr"][mine], dtype=torch.float64, device=device) if "lr" in values else None
    return lr, torch.tensor(values["epochs"][mine]) if "epochs" in values else None


def _measured(plan: ExecutionPlan, task: Task, config: Config, cache: SetupCache) -> ExecutionPlan:
    """The plan with the fastest kind of step, which is measured once for all runs that do the same work."""
    work = config.model_dump_json(include={"model", "training", "precision", "compile", "rounds"})
    name = f"{work} {task.data.peers} {task.data.inputs} {plan.engine} {plan.chunk}"
    if name not in cache.steps:
        cache.steps[name] = with_fastest_step(plan, task, config.compile, config.rounds).step
    return replace(plan, step=cache.steps[name])


def data_of(
    config: Config, given: UserObjects, device: torch.device, cache: SetupCache, shards: Shards = ONE_PROCESS
) -> tuple[PreparedData, FederatedData]:
    """The data as prepared, and that of the peers of this process on the device."""
    section = config.data
    name = f"{section.model_dump_json()} {config.peers} {config.seed} {device}"
    if name not in cache.data:
        settings = {key: getattr(section, key) for key in type(section).model_fields if key != "name"}
        with threads(1):  # bits must not depend on the number of threads: a resumed run needs exactly the same data
            keys = section.name, section.keys, settings, config.peers, config.seed
            data = prepared_data(*keys, given.data, shards.mine)
        cache.data[name] = data, data.part(shards.mine(data.roster.peers)).to(device)
    return cache.data[name]


def digest_of(config: Config, data: FederatedData) -> str | None:
    """A hash of all peers' samples; None for a registered data set, which does not change."""
    return None if config.data.name in sources else data.digest


def start_of(network: Network, config: Config, layout: Layout, ids: Sequence[int], device: torch.device) -> Federation:
    """The models of the peers ``ids`` before the first round: one common initialisation, or one per peer."""
    peers = len(ids)
    if config.init == "common":
        row, kept = layout.read(network.common(config.seed))
        tables = {name: buffer.expand(peers, *buffer.shape) for name, buffer in kept.items()}
        rows = row.expand(peers, -1)
    else:
        drawn = [layout.read(network.fresh(config.seed, id)) for id in ids]
        rows = torch.stack([row for row, _ in drawn])
        tables = {name: torch.stack([kept[name] for _, kept in drawn]) for name in layout.kept}
    return Federation(layout, rows.to(device).clone(), {name: t.to(device).clone() for name, t in tables.items()})


def task_fingerprints(task: Task, seed: int, peers: int) -> Fingerprints:
    """The fingerprint of each peer of a task, which may be one of a federation of ``peers``."""
    train, targets = _described(task)
    return fingerprints(train, targets, task.ids, seed, format_of(peers))


def task_private_fingerprints(
    task: Task, seed: int, multiplier: float, draws: Callable[[int], tuple[Draw, Draw]]
) -> PrivateFingerprints:
    """The private fingerprint of each peer of a task. multiplier: noise over sensitivity; draws: where noise comes
    from."""
    train, targets = _described(task)
    return private_fingerprints(train, targets, task.ids, seed, multiplier, draws)


def _described(task: Task) -> tuple[Split, Targets]:
    """The training samples and the type of the targets, as fingerprints embed them."""
    data = task.data
    mean, std = data.target_scale or (None, None)
    if data.kind is MULTI_LABEL:  # labels 0 and 1 become -1 and 1
        mean = std = torch.full((data.outputs,), 0.5)
    targets = Targets(data.classes, mean, None if std is None else std.clamp(min=LEAST_DEVIATION))
    train = data.train
    if data.missing is not None:  # replaced by each peer's own means, which would tell any two peers apart
        train = replace(train, x=train.x.masked_fill(data.missing, 0.0))
    if data.fields is not None:
        train = replace(train, x=data.fields.described(train.x))
    return train, targets


def _read(
    module: nn.Module, config: Config, loss: Loss, shares: FederatedData, shaped: bool, cache: SetupCache
) -> tuple[ModuleTraits, Layout, Chain | str]:
    """The network's traits, the layout of its parameters, and its chain of layers (or why it is not a chain).

    They do not depend on its weights, which differ from seed to seed. shaped: outputs must have the shape that the kind
    of task asks for.
    """
    shapes = f"{shares.inputs} {shares.outputs} {shares.kind.name} {shares.fields} {shaped}"
    name = f"{config.model.model_dump_json()} {config.training.loss} {shapes}"
    if name not in cache.networks:
        traits = _traits(module, loss, shares, shaped)
        check_used(traits.unused)
        lora = config.model.lora
        products = lora is not None and lora.merge == "product"
        layout = Layout.of(module, config.model.personal, traits.unused, traits.changing, products)
        cache.networks[name] = traits, layout, read_chain(module, layout, loss, shares)
    return cache.networks[name]


def _traits(module: nn.Module, loss: Loss, shares: FederatedData, shaped: bool) -> ModuleTraits:
    """The network's traits, probed with a few samples of the first peers."""
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    some = shares.train.x[:ASKED_WITH], shares.train.y[:ASKED_WITH]
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in some)
    classes = shares.classes if loss is losses.get("cross-entropy") else None
    return probe(module, loss, x, y, classes or 0, shares.kind if shaped else None)


def _loss(training: Training, given: UserObjects, shares: FederatedData) -> Loss:
    if given.loss is not None:
        return given.loss
    if training.loss == "auto":
        return losses.get(shares.kind.loss)
    if training.loss == GIVEN:
        raise UserError("training.loss: this run's loss was given in Python; hand it over again as loss=...")
    loss = losses.get(training.loss)
    kinds = [kind.name for kind in TASK_KINDS.values() if kind.loss == training.loss]
    if kinds and shares.kind.name not in kinds:
        needed = f"training.loss = {training.loss!r} needs {' or '.join(kinds)} targets"
        raise UserError(f"{needed}, and this data has {shares.kind.name} targets")
    return loss


def _transform(config: Config, given: UserObjects, shares: FederatedData) -> BatchTransform | None:
    """The transform of training inputs, tried on the first samples; None: there is none."""
    asked = config.data.transform or []
    names = [asked] if isinstance(asked, str) else asked
    if not given.transforms and GIVEN in names:
        raise UserError("data.transform: this run's transform was given in Python; hand it over again as transform=...")
    functions = given.transforms or [transforms.get(name) for name in names]
    if not functions:
        return None
    for function in functions:
        must_take(function, ["x", "draws"], f"data.transform = {getattr(function, '__name__', function)!r}")
    if shares.fields is not None:
        raise UserError("data.transform: inputs with named fields cannot be transformed; leave it out")
    made = BatchTransform(functions)
    x = shares.train.x[:ASKED_WITH]
    made(x, torch.arange(len(x)))
    return made


def _check_batches(task: Task, made: FederatedData) -> None:
    if not task.coupled or (task.draws and trains_on_one_sample(task.module, task.cast(task.data.train.x[:1]))):
        return  # whether a network that draws random numbers couples samples cannot be seen
    if task.settings.batch < 2:
        raise UserError("training.batch = 1: this network couples the samples of a batch (BatchNorm); it needs 2")
    short = (made.train.count < 2).nonzero()[:, 0].tolist()
    if short:
        raise UserError(
            f"peer {short[0]} has one training sample, and this network couples the samples of a batch (BatchNorm): "
            "it needs at least two"
        )
