"""Each Triton kernel in the interpreter, against float64. Run by tests/gpu/test_interpreted.py in its own process."""

import pytest
import torch
from torch.nn import functional

from model.config import CONTEXT
from model.gpu.triton import products, recurrence
from model.gpu.triton.features import Features
from model.gpu.triton.layers import LookaheadNorm, Norm
from model.gpu.triton.products import IDENTITY, LOG_SOFTMAX, SILU, Product, Scratch
from model.gpu.triton.recurrence import FrameRecurrence, states_buffer
from tests.support.networks.gpu_networks import SHIPPED_FEATURES, SIZES, fp16_network, noise, slabs_of

NAN = float("nan")
SPARE = 512  # poisoned elements after each buffer


def normal(*shape, seed=0, scale=1.0, dtype=torch.float16):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def guarded(values):
    """Return the values at the front of a buffer that is poisoned after them."""
    buffer = torch.full((values.numel() + SPARE,), NAN, dtype=values.dtype)
    buffer[: values.numel()] = values.flatten()
    return buffer[: values.numel()].view(values.shape)


def poisoned(*shape, dtype=torch.float16):
    """Return a buffer of the shape and the memory after it, all NaN."""
    count = torch.Size(shape).numel()
    buffer = torch.full((count + SPARE,), NAN, dtype=dtype)
    return buffer[:count].view(shape), buffer[count:]


def scratch_of(product, columns):
    scratch = Scratch.allocate(*product.scratch_size(columns), torch.device("cpu"))
    scratch.partial.fill_(NAN)
    return scratch


def assert_within_an_ulp(found, wanted):
    """Check fp16 against float64: the nearest value or one next to it."""
    rounded = wanted.to(torch.float16)
    above = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    below = torch.nextafter(rounded, torch.full_like(rounded, -torch.inf))
    off = ~((found >= below) & (found <= above))
    assert not off.any(), (found[off], wanted[off])


@pytest.mark.parametrize("act", [IDENTITY, SILU])
@pytest.mark.parametrize(("m", "k", "columns"), [(80, 96, 1), (200, 400, 5), (64, 1040, 17), (70, 272, 70)])
def test_a_product_is_that_of_float64_rounded_once(m, k, columns, act):
    weight, bias = normal(m, k, seed=1, scale=k**-0.5), normal(m, seed=2)
    x = guarded(normal(columns, k, seed=3))
    y, after = poisoned(columns, m)
    product = Product(weight, bias, act=act)
    scratch = scratch_of(product, columns)
    product.enqueue(x, y, columns, 1, scratch)
    wanted = x.double() @ weight.double().t() + bias.double()
    assert_within_an_ulp(y, functional.silu(wanted) if act == SILU else wanted)
    assert after.isnan().all()
    assert not scratch.counters.any()


@pytest.mark.parametrize(("m", "k", "columns"), [(100, 400, 9), (70, 272, 70)])
def test_a_product_in_one_program_a_tile_has_the_bits_of_one_a_segment(m, k, columns, monkeypatch):
    """Batches with enough tiles do not divide K among programs."""
    weight, bias, x = normal(m, k, seed=1), normal(m, seed=2), guarded(normal(columns, k, seed=3))
    product = Product(weight, bias, act=SILU)
    assert product.segments > 1
    found = []
    for enough in (1000, 1):
        monkeypatch.setattr(products, "ENOUGH_PROGRAMS", enough)
        assert product.wide(columns) == (enough == 1)
        y, after = poisoned(columns, m)
        product.enqueue(x, y, columns, 1, scratch_of(product, columns))
        assert after.isnan().all()
        found.append(y)
    assert torch.equal(*found)


@pytest.mark.parametrize("frames", [1, 2])
def test_a_recurrence_in_one_program_a_tile_has_the_bits_of_one_a_segment(frames, monkeypatch):
    hidden, rows = 80, 17
    weight, bias = normal(3 * hidden, hidden, seed=1, scale=hidden**-0.5), normal(3 * hidden, seed=2)
    gates, x = normal(rows, frames, 3 * hidden, seed=3), normal(rows, frames, hidden, seed=4)
    index = torch.arange(rows, dtype=torch.int32)
    found = []
    for enough in (1000, 1):
        monkeypatch.setattr(recurrence, "ENOUGH_PROGRAMS", enough)
        scratch = Scratch.allocate(*FrameRecurrence.scratch_size(hidden, rows), torch.device("cpu"))
        layer = FrameRecurrence(weight, bias, scratch, states_buffer(rows, hidden, torch.device("cpu")))
        assert layer.wide(rows) == (enough == 1)
        slab, (out, _) = normal(rows + 2, hidden, seed=5), poisoned(rows, frames, hidden)
        layer.enqueue(gates, x, out, slab, index, index, frames)
        found.append((out, slab))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(("rows", "frames"), [(1, 2), (3, 3), (5, 4)])
def test_a_convolution_reads_windows_of_joined_frames_and_writes_after_the_lead(rows, frames):
    channels, out = 24, 48
    joined = guarded(normal(rows, CONTEXT + 2 * frames, channels, seed=1))
    weight, bias = normal(out, 6 * channels, seed=2, scale=0.1), normal(out, seed=3)
    y, after = poisoned(rows, CONTEXT + frames, out)
    product = Product(weight, bias, act=SILU, channels=channels, lead=CONTEXT)
    product.enqueue(joined, y, rows * frames, frames, scratch_of(product, rows * frames))
    windows = joined.double().unfold(1, 6, 2).transpose(2, 3).reshape(rows, frames, -1)
    assert_within_an_ulp(y[:, CONTEXT:], functional.silu(windows @ weight.double().t() + bias.double()))
    assert y[:, :CONTEXT].isnan().all()
    assert after.isnan().all()


@pytest.mark.parametrize("vocabulary", [2, 29, 33])
def test_log_probabilities_are_within_a_millionth_of_float64(vocabulary):
    rows, frames, k = 7, 3, 272
    weight, bias = normal(vocabulary, k, seed=1, scale=0.2), normal(vocabulary, seed=2)
    x = normal(rows * frames, k, seed=3)
    out = torch.full((rows, frames + 2, vocabulary), NAN)  # rows with room for more frames
    product = Product(weight, bias, act=LOG_SOFTMAX)
    product.enqueue(x, out, rows * frames, frames, scratch_of(product, rows * frames), out.stride(0))
    wanted = torch.log_softmax(x.double() @ weight.double().t() + bias.double(), dim=1).view(rows, frames, -1)
    assert (out[:, :frames] - wanted).abs().max() < 1e-6 * max(1.0, wanted.abs().max())
    assert out[:, frames:].isnan().all()


@pytest.mark.parametrize(("letters", "outputs"), [(29, 71), (1, 2), (32, 128)])
def test_log_probabilities_of_two_groups_are_normalized_separately(letters, outputs):
    columns, k = 9, 272
    weight, bias = normal(outputs, k, seed=1, scale=0.2), normal(outputs, seed=2)
    bias[letters:] += 30  # a sum over both groups would leave the letters nothing
    x = normal(columns, k, seed=3)
    out = torch.full((columns, 1, outputs), NAN)
    product = Product(weight, bias, act=LOG_SOFTMAX, first=letters)
    product.enqueue(x, out, columns, 1, scratch_of(product, columns), out.stride(0))
    logits = x.double() @ weight.double().t() + bias.double()
    wanted = torch.cat([torch.log_softmax(part, dim=1) for part in (logits[:, :letters], logits[:, letters:])], dim=1)
    assert (out[:, 0] - wanted).abs().max() < 1e-6 * max(1.0, logits.abs().max())


def test_a_vocabulary_too_wide_for_one_tile_is_rejected():
    with pytest.raises(ValueError, match="129"):
        Product(normal(129, 32), normal(129), act=LOG_SOFTMAX)


def gru(gates, weight, bias, x, state):
    """The contract in float64, states rounded every frame: outputs (B, T, H), last state."""
    hidden = state.shape[1]
    outputs = []
    for t in range(gates.shape[1]):
        g, p = gates[:, t].double(), state.double() @ weight.double().t() + bias.double()
        reset, update = torch.sigmoid(g + p)[:, : 2 * hidden].chunk(2, dim=1)
        candidate = torch.tanh(g[:, 2 * hidden :] + reset * p[:, 2 * hidden :])
        state = (candidate + update * (state.double() - candidate)).half()
        outputs.append((x[:, t].double() + state.double()).half())
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize(("hidden", "rows", "frames"), [(32, 1, 1), (48, 3, 2), (80, 17, 3)])
def test_a_recurrence_is_that_of_float64_in_its_own_rows_alone(hidden, rows, frames):
    weight, bias = normal(3 * hidden, hidden, seed=1, scale=hidden**-0.5), normal(3 * hidden, seed=2, scale=0.5)
    gates, x = normal(rows, frames, 3 * hidden, seed=3), normal(rows, frames, hidden, seed=4)
    capacity = 2 * rows
    slab = normal(capacity + 2, hidden, seed=5, scale=0.5)
    before = slab.clone()
    read = torch.randperm(capacity, generator=torch.Generator().manual_seed(6))[:rows].int()
    write = read.clone()
    write[0] = next(r for r in range(capacity) if r not in read.tolist())
    scratch = Scratch.allocate(*FrameRecurrence.scratch_size(hidden, rows), torch.device("cpu"))
    scratch.partial.fill_(NAN)
    states = states_buffer(rows, hidden, torch.device("cpu")).fill_(NAN)
    out, after = poisoned(rows, frames, hidden)
    layer = FrameRecurrence(weight, bias, scratch, states)
    layer.enqueue(gates, x, out, slab, read, write, frames)
    wanted, last = gru(gates, weight, bias, x, before[read.long()])
    assert (out.double() - wanted.double()).abs().max() < 4e-3  # a state may be rounded the other way and carried on
    assert (slab[write.long()].double() - last.double()).abs().max() < 2e-3
    others = [r for r in range(capacity + 2) if r not in write.tolist()]
    assert torch.equal(slab[others], before[others])
    assert after.isnan().all()
    assert not scratch.counters.any()


@pytest.mark.parametrize("config", [SHIPPED_FEATURES, SIZES["odd"]], ids=lambda config: config.name)
def test_features_are_those_of_float64_and_follow_the_carried_frames(config):
    network = fp16_network(config)
    f, rows, frames, capacity = network.features, 3, 8, 6
    slabs = slabs_of(network, capacity, seed=1)
    pcm, read = noise(rows, config.step_samples), torch.tensor([4, 0, 2], dtype=torch.int32)
    input0, after = poisoned(rows, CONTEXT + frames, config.mel_bins)
    input1, _ = poisoned(rows, CONTEXT + frames // 2, config.conv_channels)
    features = Features(f, config.conv_channels, rows * frames)
    features.power.fill_(NAN)
    scratch = Scratch.allocate(*features.scratch_size(rows * frames), torch.device("cpu"))
    scratch.partial.fill_(NAN)
    features.enqueue(pcm, slabs, read, input0, input1, rows, frames, scratch)
    joined = torch.cat([slabs["pcm"][read.long()], pcm], dim=1).double() / 32768
    spectrum = torch.fft.rfft(joined.unfold(1, f.length, f.hop) * f.window.double(), f.fft_size)
    energy = spectrum.abs().square() @ f.filters.double()
    wanted = (torch.log(energy + 1e-6) - f.mean.double()) * f.scale.double()
    assert (input0[:, CONTEXT:].double() - wanted).abs().max() < 4e-3  # half an ulp of fp16 below 8
    assert torch.equal(input0[:, :CONTEXT], slabs["conv0"][read.long()])
    assert torch.equal(input1[:, :CONTEXT], slabs["conv1"][read.long()])
    assert input1[:, CONTEXT:].isnan().all()
    assert after.isnan().all()


@pytest.mark.parametrize("hidden", [32, 80])
def test_a_normalization_is_that_of_float64_rounded_once(hidden):
    layer = torch.nn.LayerNorm(hidden).requires_grad_(requires_grad=False)
    layer.weight.copy_(1 + 0.2 * normal(hidden, seed=1).float())
    layer.bias.copy_(normal(hidden, seed=2).float())
    layer = layer.half()
    x = guarded(normal(5, hidden, seed=3, scale=4.0) + 3)
    y, after = poisoned(5, hidden)
    Norm(layer).enqueue(x, y, 5)
    assert_within_an_ulp(y, layer.double()(x.double()))
    assert after.isnan().all()


@pytest.mark.parametrize("frames", [1, 3, 7])
def test_the_lookahead_mixes_waiting_and_new_frames_and_keeps_the_last_ones(frames):
    config = SIZES["odd"]
    network = fp16_network(config)
    rows, hidden, ahead, capacity = 2, config.hidden, config.lookahead, 4
    slab = slabs_of(network, capacity, seed=1)["lookahead"]
    before = slab.clone()
    x = guarded(normal(rows, frames, hidden, seed=2))
    read, write = torch.tensor([3, 0], dtype=torch.int32), torch.tensor([3, 1], dtype=torch.int32)
    y, after = poisoned(rows, frames, hidden)
    layer = LookaheadNorm(network.lookahead, Norm(network.norm))
    layer.enqueue(x, slab, read, y, rows, frames)
    layer.enqueue_shift(x, slab, read, write, rows, frames)
    joined = torch.cat([before[read.long()], x], dim=1)
    weight = network.lookahead.weight.double()
    mixed = sum(joined[:, a : a + frames].double() * weight[a] for a in range(ahead + 1))
    assert_within_an_ulp(y, network.norm.double()(mixed))
    assert torch.equal(slab[write.long()], joined[:, frames:])
    assert torch.equal(slab[[0, 2, 4, 5]], before[[0, 2, 4, 5]])
    assert after.isnan().all()
