"""GPU kernels (Triton) for a chain's stages; every peer has its own weights.

One kernel computes a whole stage forwards: patches are never stored, and bias, ReLU and 2x2 max-pooling are applied
while the sums are still in registers. In the backward pass, the kernel that computes a gradient also takes the
optimiser's step, so gradients are not stored either, unless a gradient is computed in several parts. A linear layer is
a convolution of a single pixel.

Values are [P, B, H, W, C], already padded with zeros for the stage that reads them; their gradients are without
padding. Weights are [N, K] at an offset in rows of ``width`` values, K in the order kernel row, kernel column, channel.
With pooling, output pixels are numbered window by window, four per window.
"""

from __future__ import annotations

import triton
import triton.language as tl

SGD, MOMENTUM, NESTEROV, ADAM, ADAMW = range(5)
_SGD, _NESTEROV, _ADAM, _ADAMW = (tl.constexpr(number) for number in (SGD, NESTEROV, ADAM, ADAMW))


@triton.jit
def take(
    x, y, samples, share, step, x_out, y_out, share_out, pairs,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the step's batch: sample ``samples[step, pair]``, [C, H, W], into x_out[pair], with its target and share."""
    pair = tl.program_id(0).to(tl.int64)
    now = tl.load(step) * pairs + pair
    sample = tl.load(samples + now)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < H * W * C
    c = at % C
    pixel = at // C
    value = tl.load(x + sample * (H * W * C) + c * (H * W) + pixel, mask=mask)
    inside = ((pixel // W + PH) * (W + 2 * PW) + pixel % W + PW) * C + c
    tl.store(x_out + pair * ((H + 2 * PH) * (W + 2 * PW) * C) + inside, value, mask=mask)
    if tl.program_id(1) == 0:
        tl.store(y_out + pair, tl.load(y + sample))
        tl.store(share_out + pair, tl.load(share + now))


@triton.jit
def cross_entropy(out, y, share, g, count, N: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Compute g, the gradient of the mean cross-entropy with respect to the outputs [count, N]."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, WIDE)
    mask = (row < count)[:, None] & (n < N)[None, :]
    at = row[:, None].to(tl.int64) * N + n[None, :]
    value = tl.load(out + at, mask=mask, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 1)[:, None])
    value = value / tl.sum(value, 1)[:, None]
    target = tl.load(y + row, mask=row < count, other=0)
    weight = tl.load(share + row, mask=row < count, other=0.0)
    value = tl.where(n[None, :] == target[:, None], value - 1.0, value) * weight[:, None]
    tl.store(g + at, value, mask=mask)


@triton.jit
def _add_product(total, a, b, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _corner(m, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
            POOL: tl.constexpr):  # fmt: skip
    """Return the offset in a peer's input at which the patch of output pixel m begins."""
    if POOL:
        QH: tl.constexpr = OH // 2
        QW: tl.constexpr = OW // 2
        q = m // 4
        r = q % (QH * QW)
        sample = q // (QH * QW)
        y = 2 * (r // QW) + m % 4 // 2
        x = 2 * (r % QW) + m % 2
    else:
        r = m % (OH * OW)
        sample = m // (OH * OW)
        y = r // OW
        x = r % OW
    return ((sample * H + y) * W + x) * C


@triton.jit
def _tap(k, W: tl.constexpr, C: tl.constexpr, KW: tl.constexpr):
    """Return the offset of kernel element k from the corner of a patch."""
    pixel = k // C
    return (pixel // KW * W + pixel % KW) * C + k % C


@triton.jit
def forward(
    x, rows, out, largest, data, model, B, width, weight_at, bias_at,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, KEEP: tl.constexpr,
    DATA: tl.constexpr, MODEL: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute out = max_pool(relu(patches @ weights + bias)), stored with PH and PW pixels of padding around it.

    With DATA, out[p] is computed from x[data[p]]; with MODEL, by the model rows[model[p]].
    """
    OH: tl.constexpr = H - KH + 1
    OW: tl.constexpr = W - KW + 1
    K: tl.constexpr = KH * KW * C
    QH: tl.constexpr = OH // 2 if POOL else OH
    QW: tl.constexpr = OW // 2 if POOL else OW
    EACH: tl.constexpr = 4 if POOL else 1
    pixels = B * (QH * QW * EACH)
    wide: tl.constexpr = (N + BN - 1) // BN
    tiles = tl.cdiv(pixels, BM) * wide
    p = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    m = (tile // wide) * BM + tl.arange(0, BM)
    n = (tile % wide) * BN + tl.arange(0, BN)
    mask = m < pixels
    source = tl.load(data + p) if DATA else p
    row = tl.load(model + p) if MODEL else p
    x += source * B * (H * W * C)
    corner = _corner(m, H, W, C, OH, OW, POOL)
    weight = rows + row * width + weight_at
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        seen = tl.load(
            x + corner[:, None] + _tap(k, W, C, KW)[None, :], mask=mask[:, None] & (k < K)[None, :], other=0.0
        )
        part = tl.load(weight + n[None, :] * K + k[:, None], mask=(n < N)[None, :] & (k < K)[:, None], other=0.0)
        total = _add_product(total, seen, part, PRECISION)
    total += tl.load(rows + row * width + bias_at + n, mask=n < N, other=0.0)[None, :]
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    q = (tile // wide) * (BM // EACH) + tl.arange(0, BM // EACH)
    stored = (q < B * (QH * QW))[:, None] & (n < N)[None, :]
    if POOL:
        total, where = tl.max(tl.reshape(total, (BM // 4, 4, BN)), 1, return_indices=True)
        if KEEP:
            tl.store(largest + (p * B * (QH * QW) + q)[:, None] * N + n[None, :], where.to(tl.int8), mask=stored)
    r = q % (QH * QW)
    pixel = ((q // (QH * QW)) * (QH + 2 * PH) + r // QW + PH) * (QW + 2 * PW) + r % QW + PW
    out += p * B * ((QH + 2 * PH) * (QW + 2 * PW) * N)
    tl.store(out + pixel[:, None] * N + n[None, :], total, mask=stored)


@triton.jit
def back(
    g, largest, rows, x, gx, width, weight_at,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, AFTER_RELU: tl.constexpr, POOL: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute gx, the gradient of the stage's input without its padding of PH and PW, before the previous ReLU."""
    OH: tl.constexpr = H - KH + 1
    OW: tl.constexpr = W - KW + 1
    QH: tl.constexpr = OH // 2 if POOL else OH
    QW: tl.constexpr = OW // 2 if POOL else OW
    EACH: tl.constexpr = 2 if POOL else 1
    IH: tl.constexpr = H - 2 * PH
    IW: tl.constexpr = W - 2 * PW
    pixels: tl.constexpr = B * IH * IW
    wide: tl.constexpr = (C + BN - 1) // BN
    tiles: tl.constexpr = ((pixels + BM - 1) // BM) * wide
    turns: tl.constexpr = (N + BK - 1) // BK
    p = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    m = (tile // wide) * BM + tl.arange(0, BM)
    c = (tile % wide) * BN + tl.arange(0, BN)
    mask = m < pixels
    g += p * (B * QH * QW * N)
    if POOL:
        largest += p * (B * QH * QW * N)
    weight = rows + p * width + weight_at
    sample = m // (IH * IW)
    y = m % (IH * IW) // IW + PH
    z = m % IW + PW
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for turn in range(0, KH * KW * turns):
        tap = turn // turns
        n = (turn % turns) * BK + tl.arange(0, BK)
        oy = y - tap // KW
        ox = z - tap % KW
        ok = mask & (oy >= 0) & (ox >= 0) & (oy < EACH * QH) & (ox < EACH * QW)
        at = ((sample * QH + oy // EACH) * QW + ox // EACH) * N
        value = tl.load(g + at[:, None] + n[None, :], mask=ok[:, None] & (n < N)[None, :], other=0.0)
        if POOL:
            chosen = tl.load(largest + at[:, None] + n[None, :], mask=ok[:, None] & (n < N)[None, :], other=0)
            value = tl.where(chosen == (oy % 2 * 2 + ox % 2)[:, None], value, 0.0)
        part = tl.load(
            weight + n[:, None] * (KH * KW * C) + tap * C + c[None, :],
            mask=(n < N)[:, None] & (c < C)[None, :],
            other=0.0,
        )
        total = _add_product(total, value, part, PRECISION)
    stored = mask[:, None] & (c < C)[None, :]
    if AFTER_RELU:
        inside = ((p * B + sample) * H + y) * W + z
        total = tl.where(tl.load(x + inside[:, None] * C + c[None, :], mask=stored, other=0.0) > 0, total, 0.0)
    tl.store(gx + (p * pixels + m)[:, None] * C + c[None, :], total, mask=stored)


@triton.jit
def _move(rows, first, second, at, mask, gradient, rate, decay, momentum, OPTIMISER: tl.constexpr):
    """Take the optimiser's step for the values ``at`` in all rows."""
    value = tl.load(rows + at, mask=mask, other=0.0)
    if OPTIMISER == _ADAMW:
        value -= tl.load(rate) * decay * value
    else:
        gradient += decay * value
    if OPTIMISER >= _ADAM:
        mean = tl.load(first + at, mask=mask, other=0.0)
        square = tl.load(second + at, mask=mask, other=0.0)
        mean += (gradient - mean) * 0.1
        square = square * 0.999 + gradient * gradient * 0.001
        tl.store(first + at, mean, mask=mask)
        tl.store(second + at, square, mask=mask)
        value -= tl.load(rate + 1) * mean / (tl.sqrt(square) / tl.load(rate + 2) + 1e-8)
    else:
        if OPTIMISER != _SGD:
            velocity = gradient + momentum * tl.load(first + at, mask=mask, other=0.0)
            tl.store(first + at, velocity, mask=mask)
            gradient = gradient + momentum * velocity if OPTIMISER == _NESTEROV else velocity
        value -= tl.load(rate) * gradient
    tl.store(rows + at, value, mask=mask)


@triton.jit
def learn(
    g, largest, x, rows, first, second, parts, step, rate_at, live, rates, peers, decay, momentum, width, weight_at,
    bias_at, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, N: tl.constexpr, KH: tl.constexpr,
    KW: tl.constexpr, POOL: tl.constexpr, SPLITS: tl.constexpr, OPTIMISER: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of weights and bias, and take the optimiser's step for the peers that take part.

    With SPLITS above 1, each program sums over a part of the pixels and stores the sum in parts[split, p, N * K + N].
    """
    OH: tl.constexpr = H - KH + 1
    OW: tl.constexpr = W - KW + 1
    K: tl.constexpr = KH * KW * C
    long: tl.constexpr = (K + BK - 1) // BK
    tiles: tl.constexpr = ((N + BN - 1) // BN) * long
    outputs: tl.constexpr = B * ((OH // 2) * (OW // 2) if POOL else OH * OW)
    span: tl.constexpr = ((outputs + SPLITS - 1) // SPLITS + BM - 1) // BM * BM
    split = tl.program_id(0) % SPLITS
    p = (tl.program_id(0) // (tiles * SPLITS)).to(tl.int64)
    tile = tl.program_id(0) // SPLITS % tiles
    n = (tile // long) * BN + tl.arange(0, BN)
    k = (tile % long) * BK + tl.arange(0, BK)
    tap = _tap(k, W, C, KW)
    g += p * (outputs * N)
    if POOL:
        largest += p * (outputs * N)
    x += p * (B * H * W * C)
    total = tl.zeros((BN, BK), dtype=tl.float32)
    bias = tl.zeros((BN,), dtype=tl.float32)
    for start in range(0, span, BM):
        m = split * span + start + tl.arange(0, BM)
        mask = m < outputs
        ok = mask[:, None] & (n < N)[None, :]
        value = tl.load(g + m[:, None] * N + n[None, :], mask=ok, other=0.0)
        bias += tl.sum(value, 0)
        seeing = mask[:, None] & (k < K)[None, :]
        if POOL:
            chosen = tl.load(largest + m[:, None] * N + n[None, :], mask=ok, other=0)
            for j in tl.static_range(4):
                corner = _corner(4 * m + j, H, W, C, OH, OW, POOL)
                seen = tl.load(x + corner[:, None] + tap[None, :], mask=seeing, other=0.0)
                total = _add_product(total, tl.trans(tl.where(chosen == j, value, 0.0)), seen, PRECISION)
        else:
            corner = _corner(m, H, W, C, OH, OW, POOL)
            seen = tl.load(x + corner[:, None] + tap[None, :], mask=seeing, other=0.0)
            total = _add_product(total, tl.trans(value), seen, PRECISION)
    inside = (n < N)[:, None] & (k < K)[None, :]
    lead = (n < N) & (tile % long == 0)
    if SPLITS > 1:
        parts += (split * peers + p) * (N * K + N)
        tl.store(parts + n[:, None] * K + k[None, :], total, mask=inside)
        tl.store(parts + N * K + n, bias, mask=lead)
    else:
        now = tl.load(step) * peers + p
        alive = tl.load(live + now) != 0
        rate = rates + tl.load(rate_at + now) * 3
        at = p * width + weight_at + n[:, None] * K + k[None, :]
        _move(rows, first, second, at, inside & alive, total, rate, decay, momentum, OPTIMISER)
        at = p * width + bias_at + n
        _move(rows, first, second, at, lead & alive, bias, rate, decay, momentum, OPTIMISER)


@triton.jit
def gather_parts(
    rows, first, second, parts, step, rate_at, live, rates, peers, decay, momentum, width, weight_at,
    NUMBERS: tl.constexpr, SPLITS: tl.constexpr, OPTIMISER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the parts of a stage's gradient (weights, then bias) that ``learn`` stored, and take the optimiser's step."""
    blocks: tl.constexpr = (NUMBERS + BLOCK - 1) // BLOCK
    p = (tl.program_id(0) // blocks).to(tl.int64)
    i = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + (split * peers + p) * NUMBERS + i, mask=i < NUMBERS, other=0.0)
    now = tl.load(step) * peers + p
    alive = tl.load(live + now) != 0
    rate = rates + tl.load(rate_at + now) * 3
    at = p * width + weight_at + i
    _move(rows, first, second, at, (i < NUMBERS) & alive, total, rate, decay, momentum, OPTIMISER)
