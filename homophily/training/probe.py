"""Finds out, by running a network on a few samples, whether it couples samples, draws random numbers, vectorises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn
from torch.func import functional_call

from homophily.data.task_kinds import MULTI_LABEL, REGRESSION, TaskKind
from homophily.errors import UserError
from homophily.models.copying import constants, hooked_parameter, shallow
from homophily.training.batching import over_peers
from homophily.training.losses import Loss

_SAMPLES = 4
ASKED_WITH = 2 * _SAMPLES
_FLOAT_CLASSES = " (y has floats, as for regression; if they are classes, use integers)"
_DIFFERENT = (
    "its gradients under torch.vmap differ from a plain run",
    "it changes its buffers in a way that torch.vmap does not see",
)


@dataclass(frozen=True)
class ModuleTraits:
    """The properties of a network that decide how it can be trained."""

    coupled: bool  # the samples of a batch influence one another (BatchNorm)
    draws: bool  # it draws random numbers itself
    obstacle: str | None  # why it cannot be vectorised; None: it can
    unused: frozenset[str]  # parameters that never get a gradient
    changing: frozenset[str]  # buffers that a training step changes
    saved_bytes: int  # memory that autograd saves per sample


def probe(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, classes: int = 0, kind: TaskKind | None = None
) -> ModuleTraits:
    """Return the traits of a network, found by running it on a few samples x [n, ...], y [n, ...].

    If there are too few samples, they are repeated, with 0.1 added to float inputs per repetition, because coupling
    cannot be detected with equal samples. classes: the number of outputs that the loss needs; 0: any. kind: of the
    targets, which asks for outputs of a certain shape; None: outputs may have any shape.
    """
    number = torch.arange(ASKED_WITH, device=x.device)
    which, repetition = number % len(x), number // len(x)
    x, y = x[which], y[which]
    if x.is_floating_point():
        x = x + 0.1 * repetition.view(-1, *(1 for _ in x.shape[1:])).to(x.dtype)
    _refuse_changes_of_frozen(module, x[:_SAMPLES])
    first = _outputs(module, x[:_SAMPLES], seed=1)
    if not isinstance(first, Tensor) or first.shape[:1] != (_SAMPLES,):
        raise UserError("model: the network must return one tensor with one row per sample")
    if first.is_complex() or any(parameter.is_complex() for parameter in module.parameters()):
        raise UserError("model: the network's parameters and outputs must be real numbers, not complex numbers")
    if first.dim() > 1 and first.shape[1] < classes:
        raise UserError(f"model: the network has {first.shape[1]} outputs, but the data has {classes} classes")
    if kind is not None:
        _check_scorable(first, y[:_SAMPLES], kind)
    evaluated = _outputs(module, x[:_SAMPLES], seed=1, training=False)
    if not isinstance(evaluated, Tensor) or evaluated.shape != first.shape:
        raise UserError(f"model: in evaluation mode the network must return shape {list(first.shape)}, as in training")
    _refuse_hidden_state(module, x, first, evaluated)
    again = _outputs(module, x[:_SAMPLES], seed=2)
    half = _SAMPLES // 2
    others = torch.cat([x[:half], x[_SAMPLES : _SAMPLES + half]])
    draws = not _same(first, again)
    coupled = draws or not (
        _same(first[:half], _outputs(module, others, seed=1)[:half])
        and _same(first[:half], _outputs(module, x[:half], seed=1))
    )
    if not draws and _couples_in_evaluation(module, x):
        raise UserError(
            "model: in evaluation mode the output for a sample depends on the other samples of its batch "
            "(BatchNorm without running statistics?), so peers cannot be scored"
        )
    _check_one_sample(module, x, first.shape[1:])
    grads, buffers, saved = _gradients(module, loss, x[:_SAMPLES], y[:_SAMPLES])
    hooked = hooked_parameter(module)
    if draws or hooked:
        obstacle: str | None = (
            "it draws random numbers itself" if draws else f"parameter {hooked!r} has a gradient hook"
        )
    else:
        obstacle = _obstacle(module, loss, x, y, grads, buffers)
    if obstacle in _DIFFERENT:
        obstacle = _obstacle_in_double(module, loss, x, y, obstacle)
    # A network that cannot be vectorised may use other parameters for other samples: none is known to be unused.
    unused = frozenset(name for name, grad in grads.items() if grad is None) if obstacle is None else frozenset()
    before = dict(module.named_buffers())
    changing = frozenset(name for name, after in buffers.items() if not _equal(before[name], after))
    return ModuleTraits(coupled, draws, obstacle, unused, changing, saved // _SAMPLES)


def _check_scorable(outputs: Tensor, y: Tensor, kind: TaskKind) -> None:
    """Raise a UserError unless the outputs have the shape by which a kind of task is scored."""
    shapes = f"outputs {list(outputs.shape)} and targets {list(y.shape)}"
    if kind is REGRESSION and outputs.numel() != y.numel():
        hint = _FLOAT_CLASSES if bool((y == y.round()).all()) else ""
        raise UserError(f"model: the mean squared error needs one output per target, not {shapes}{hint}")
    if kind is MULTI_LABEL and outputs.shape != y.shape:
        raise UserError(f"model: a multi-label task needs one output per label, not {shapes}")
    if kind.has_classes and (outputs.dim() != y.dim() + 1 or outputs.shape[2:] != y.shape[1:]):
        wanted = ", ".join(map(str, [len(y), "classes", *y.shape[1:]]))
        hint = ""
        if outputs.shape == y.shape and y.dim() == 2:
            hint = "; if y has a 0 or 1 for each label, set data.task = 'multi-label'"
        elif outputs.dim() == y.dim() + 1 and outputs.shape[:-1] == y.shape:
            hint = "; transpose(1, 2) of its outputs puts classes before positions"
        raise UserError(f"model: accuracy needs outputs [{wanted}], not {shapes}{hint}")


def _refuse_changes_of_frozen(module: nn.Module, x: Tensor) -> None:
    """Raise a UserError if a forward pass changes frozen parameters: all peers share them."""
    copied = shallow(module)
    frozen = {name: p for name, p in copied.named_parameters() if not p.requires_grad and not p.is_inference()}
    before = {name: p._version for name, p in frozen.items()}
    _run(copied.train(), module, x, seed=1)
    for name, parameter in frozen.items():
        if parameter._version != before[name]:
            raise UserError(
                f"model: the network changes the frozen parameter {name!r} in its forward pass, but all peers share "
                "frozen parameters; use register_buffer, so that every peer has its own"
            )


def _refuse_hidden_state(module: nn.Module, x: Tensor, trained: Tensor, evaluated: Tensor) -> None:
    """Raise a UserError if the network stores state of earlier calls in an attribute: peers would share that state.

    trained, evaluated: the outputs for x[:_SAMPLES] in each mode of a network that was never called before.
    """
    used, fresh = shallow(module), shallow(module)
    own = {name: p.detach() for name, p in fresh.named_parameters() if p.requires_grad}
    other = {name: 0.5 * p + 0.1 if p.is_floating_point() else p for name, p in own.items()}

    def called(parameters: dict[str, Tensor], x: Tensor, training: bool) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in fresh.named_buffers()}
        used.train(training)
        return _seeded(lambda: functional_call(used, parameters | buffers, (x,)), x.device, seed=1)

    try:
        with torch.no_grad():
            for training in (True, False):
                called(other, x[_SAMPLES:], training)
            again = called(own, x[:_SAMPLES], False), called(own, x[:_SAMPLES], True)
    except Exception:  # functional_call cannot run this module, so the check is skipped
        return
    if all(map(_same, (evaluated, trained), again)):
        return
    before = dict(constants(fresh))
    changed = [path for path, t in constants(used) if path not in before or not torch.equal(t, before[path])]
    named = f" ({', '.join(changed)})" if changed else ""
    raise UserError(
        f"model: its outputs depend on earlier batches, stored in an attribute{named} that is neither a parameter "
        "nor a buffer; use register_buffer, so that every peer has its own"
    )


def _failure(module: nn.Module, x: Tensor, error: Exception) -> str:
    """Return why the network fails on samples x; if they are integers, check whether floats would work."""
    if not x.is_floating_point() and _takes_floats(module, x):
        return (
            f"the network fails on integer inputs of shape {list(x.shape)}, which count as tokens (indices for an "
            'embedding); if they are features, pass them as floats: PeerData(x.astype("float32"), y)'
        )
    return f"the network fails on a batch of shape {list(x.shape)} ({x.dtype}): {error}"


def _takes_floats(module: nn.Module, x: Tensor) -> bool:
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    try:
        shallow(module).train()(x.to(dtype))
    except Exception:  # a user's module may raise any exception
        return False
    return True


def _seeded(call: Callable[[], Tensor], device: torch.device, seed: int) -> Tensor:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return call()


def _outputs(module: nn.Module, x: Tensor, seed: int, training: bool = True) -> Tensor:
    return _run(shallow(module).train(training), module, x, seed)


def _run(copied: nn.Module, module: nn.Module, x: Tensor, seed: int) -> Tensor:
    """Return the outputs of a copy of the network; raise a UserError if it fails."""
    try:
        with torch.no_grad():
            return _seeded(lambda: copied(x), x.device, seed)
    except Exception as error:  # a user's module may raise anything; the message shows its input
        mode = "" if copied.training else "in evaluation mode "
        raise UserError(f"model: {mode}{_failure(module, x, error)}") from error


def _same(a: Tensor, b: Tensor) -> bool:
    largest = float(a.detach().abs().max()) if a.numel() else 0.0
    scale = largest if isfinite(largest) else 0.0
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True))


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit for bit, with NaN equal to NaN."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def trains_on_one_sample(module: nn.Module, x: Tensor) -> bool:
    """Whether the network takes a batch of one sample in training, which BatchNorm may not. x: [1, ...]."""
    try:
        _outputs(module, x, seed=1)
    except UserError:
        return False
    return True


def _check_one_sample(module: nn.Module, x: Tensor, shape: torch.Size) -> None:
    """Raise a UserError if the network fails on one sample or drops its batch axis (by squeeze(), for example)."""
    copied = shallow(module).eval()
    try:
        with torch.no_grad():
            found = copied(x[:1])
    except Exception as error:
        raise UserError(f"model: in evaluation mode the network fails on one sample: {error}") from error
    if found.shape != (1, *shape):
        raise UserError(f"model: for one sample the network must return shape {[1, *shape]}, not {list(found.shape)}")


def _couples_in_evaluation(module: nn.Module, x: Tensor) -> bool:
    half = _SAMPLES // 2
    copied = shallow(module).eval()
    with torch.no_grad():
        return not _same(copied(x[:_SAMPLES])[:half], copied(x[:half]))


def _gradients(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor
) -> tuple[dict[str, Tensor | None], dict[str, Tensor], int]:
    """Return each parameter's gradient of the mean loss, the buffers afterwards, and the bytes that autograd saved."""
    copied = shallow(module).train()
    parameters_at = {p.untyped_storage().data_ptr() for p in copied.parameters()}
    held: dict[int, int] = {}  # bytes by storage, without parameters and views of them

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters_at:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            losses = _seeded(lambda: loss(copied(x), y), x.device, seed=1)
    except Exception as error:  # a user's loss may raise anything; the message shows its input
        shapes = f"outputs {list(_outputs(module, x, seed=1).shape)} and targets {list(y.shape)}"
        floats = y.is_floating_point() and bool((y == y.round()).all())
        hint = _FLOAT_CLASSES if floats else ""
        raise UserError(f"training.loss: fails on {shapes}: {error}{hint}") from error
    if not isinstance(losses, Tensor):
        raise UserError(f"training.loss: must return a tensor with one loss per sample, not {type(losses).__name__}")
    if losses.shape != (len(x),):
        raise UserError(
            f"training.loss: must return one loss per sample, shape [{len(x)}] for {len(x)} samples, "
            f"not {list(losses.shape)}"
        )
    if losses.is_complex():
        raise UserError(f"training.loss: must return real numbers, not {losses.dtype}")
    parameters = {name: p for name, p in copied.named_parameters() if p.requires_grad}
    if not losses.requires_grad:
        raise UserError("model: no parameter of the network receives a gradient from the loss")
    grads = torch.autograd.grad(losses.mean(), list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, grads, strict=True)), dict(copied.named_buffers()), sum(held.values())


def _obstacle(
    module: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    grads: dict[str, Tensor | None],
    buffers_after: dict[str, Tensor],
) -> str | None:
    """Return why torch.vmap cannot run two copies of the network at once; None if it can, with the same result."""
    copied = shallow(module).train()
    trained = {name: p.detach() for name, p in copied.named_parameters() if p.requires_grad}
    twice = {name: torch.stack([p, p]) for name, p in trained.items()}
    buffers = {name: torch.stack([b, b]) for name, b in copied.named_buffers()}
    used = [name for name, grad in grads.items() if grad is not None]
    for name in used:
        twice[name].requires_grad_()

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(copied, (parameters, buffers), (x,)), y).mean()

    try:
        pair_x, pair_y = x.view(2, _SAMPLES, *x.shape[1:]), y.view(2, _SAMPLES, *y.shape[1:])
        losses = over_peers(one, twice, buffers, pair_x, pair_y)
        found = torch.autograd.grad(losses.sum(), [twice[name] for name in used])
    except Exception as error:  # whatever fails under vmap, the one-by-one engine can still train it
        return f"torch.vmap cannot run it: {str(error).splitlines()[0]}"
    plain = torch.cat([grads[name].flatten() for name in used])  # type: ignore[union-attr]
    if not _same(plain, torch.cat([grad[0].flatten() for grad in found])):
        return _DIFFERENT[0]
    if not all(_same(after.double(), buffers[name][0].double()) for name, after in buffers_after.items()):
        return _DIFFERENT[1]
    return None


def _obstacle_in_double(module: nn.Module, loss: Loss, x: Tensor, y: Tensor, found: str) -> str | None:
    """``_obstacle`` in double precision: in single precision, rounding alone can make the two results differ."""
    exact = shallow(module).double()
    x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
    try:
        grads, buffers, _ = _gradients(exact, loss, x[:_SAMPLES], y[:_SAMPLES])
    except Exception:  # the network works in single precision only
        return found
    return _obstacle(exact, loss, x, y, grads, buffers)
