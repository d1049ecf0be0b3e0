"""The nets for images: what they compute, which parts are random, and what each part costs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

from sdebnn import (
    OU,
    SDEBNN,
    Categorical,
    Deterministic,
    Ensemble,
    FixedGrid,
    Normal,
    Point,
    evaluate,
    our_net,
    paper_net,
    predict,
    prior_of,
)
from sdebnn.baselines import ResNet, TemperatureScaled
from sdebnn.convolutions import Pixels
from sdebnn.data import DataSet, Part
from sdebnn.models import blocks
from sdebnn.nn import MeanField, ODEBlock, SDEBlock, TimeConv, TimeMLP
from sdebnn.presets import About, preset
from sdebnn.processes import Independent
from sdebnn.train import grouped_muon, stacks

KEY = jax.random.key(0)
IMAGES = jax.random.randint(KEY, (3, 8, 8, 1), 0, 256, jnp.int32)
GRID = FixedGrid(2, unroll=1)


def small_paper(**how):
    return paper_net((8, 8, 1), 4, width=4, solver=GRID, key=KEY, **how)


def test_the_paper_s_mnist_block_has_the_paper_s_convolutions():
    net = paper_net((28, 28, 1), 10, key=KEY)
    (block,) = blocks(net)
    layers = block.field.layers
    assert [layer.move for layer in layers] == ["same", "down", "up", "same"]
    # 1 channel, 2 zeros and t; then 32 and t three times: nine taps each, and the biases
    assert block.weights.size == 9 * (4 * 32 + 33 * 32 + 33 * 32 + 33 * 3) + 32 + 32 + 32 + 3
    assert isinstance(block.initial, Point)
    assert block.prior.sigma == 0.1
    assert block.solver.steps == 20


def test_the_paper_s_cifar_net_has_six_blocks_at_three_scales_with_squeezes_between():
    net = eqx.filter_eval_shape(paper_net, (32, 32, 3), 10, blocks=(2, 2, 2), width=64, key=KEY)
    assert [block.field.layers[0].move for block in blocks(net)] == ["same"] * 6
    assert [block.weights.shapes[-1] for block in blocks(net)] == [(5,), (5,), (20,), (20,), (80,), (80,)]


def test_a_net_of_two_scales_is_its_layers_one_after_the_other():
    net = small_paper(blocks=(1, 1))
    outputs, kl = net(IMAGES, key=KEY)
    x = (np.asarray(IMAGES) / 255 - 0.5) / 0.25
    h = np.concatenate([x, np.zeros((3, 8, 8, 2))], axis=-1)
    first, second = blocks(net)
    h, _ = first(jnp.asarray(h, jnp.float32), key=jax.random.fold_in(KEY, 1))
    # a squeeze: pixel (i, j) holds the four of (2i, 2j) on, channels innermost
    h = np.stack([h[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=3).reshape(3, 4, 4, 12)
    h, _ = second(jnp.asarray(h), key=jax.random.fold_in(KEY, 3))
    head = net.layers[-1].module
    expected = np.asarray(h).reshape(3, -1) @ np.asarray(head.weight).T / np.sqrt(4 * 4 * 12) + np.asarray(head.bias)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    assert kl == 0


def test_any_block_may_be_deterministic_and_then_ignores_the_key():
    both = small_paper(blocks=(2,), deterministic=(0, 1))
    assert [type(layer) for layer in both.layers[1:3]] == [ODEBlock, ODEBlock]
    one, two = (both(IMAGES, key=jax.random.key(i))[0] for i in (1, 2))
    assert np.array_equal(one, two)
    mixed = small_paper(blocks=(2,), deterministic=(1,))
    assert [type(layer) for layer in mixed.layers[1:3]] == [SDEBlock, ODEBlock]
    one, two = (mixed(IMAGES, key=jax.random.key(i))[0] for i in (1, 2))
    assert not np.allclose(one, two)


def test_a_deterministic_block_is_the_limit_of_a_random_one_without_noise_or_decay():
    field = TimeConv(2, (3,), ("same", "same"), key=KEY)
    block = ODEBlock(field, solver=FixedGrid(4))
    still = eqx.tree_at(
        lambda b: (b.prior.sigma, b.prior.rate),
        small_block(field, FixedGrid(4)),
        (1e-12, 0.0),
    )
    h = jax.random.normal(KEY, (2, 6, 5, 2))
    np.testing.assert_allclose(block(h, key=KEY)[0], still(h, key=KEY)[0], rtol=1e-5, atol=1e-6)


def small_block(field, solver):
    from sdebnn import bayesianize

    return bayesianize(field, prior=OU(), drift=(1,), solver=solver, key=KEY)


@pytest.mark.slow
def test_examples_carried_a_few_at_a_time_give_what_all_together_give():
    field = TimeConv(2, (3,), ("same", "same"), key=KEY)
    h = jax.random.normal(KEY, (6, 4, 4, 2))

    def bound(grid):
        block = small_block(field, grid)
        return jax.value_and_grad(lambda w: eqx.tree_at(lambda b: b.initial.value, block, w).solve(
            h, key=KEY, with_roughness=True).outputs.sum())(block.initial.value)  # fmt: skip

    whole, few = (bound(FixedGrid(3, at_once=n)) for n in (None, 2))
    np.testing.assert_allclose(whole[0], few[0], rtol=1e-5)
    np.testing.assert_allclose(whole[1], few[1], rtol=1e-4, atol=1e-5)
    rough = [
        small_block(field, FixedGrid(3, at_once=n)).solve(h, key=KEY, with_roughness=True).roughness
        for n in (None, 2, 4)
    ]
    np.testing.assert_allclose(rough[1:], rough[0], rtol=1e-4)  # 4 does not divide 6: then all go together


def test_a_mean_field_head_is_random_and_charged_for():
    net = small_paper(mean_field_head=True)
    head = net.layers[-1]
    assert isinstance(head, MeanField)
    _, kl = net(IMAGES, key=KEY)
    assert kl == pytest.approx(float(head.law.kl()), rel=1e-5)
    assert kl > 0


def test_our_net_infers_the_convolutions_asked_for_and_leaves_the_rest_points():
    for inferred, kinds in (((), None), ((1,), [Point, Point, Normal, Normal]), ((0, 1), [Normal] * 4)):
        net = our_net(
            (8, 8, 1), 4, channels=(8,), blocks=1, infer_w0_of=inferred, solver=GRID, compute="float32", key=KEY
        )
        (block,) = blocks(net)
        if kinds is None:
            assert isinstance(block.initial, Point)
            continue
        assert isinstance(block.initial, Independent)
        assert [type(part) for part in block.initial.parts] == kinds
        w0 = block.initial.sample(key=KEY)
        assert w0.shape == (block.weights.size,)
        assert prior_of(net)(IMAGES, key=KEY)[1] == pytest.approx(0.0, abs=1e-3)


def test_our_fields_start_at_rest_and_scale_as_they_say():
    (block,) = blocks(our_net((8, 8, 3), 4, channels=(8,), blocks=1, gain=5.0, compute="float32", key=KEY))
    np.testing.assert_allclose(block.weights.scales, [np.sqrt(2) / np.sqrt(72), 0.1, 5 / np.sqrt(72), 0.1], rtol=1e-6)
    w0 = np.asarray(block.initial.value)
    first = 9 * 8 * 8
    assert w0[:first].std() == pytest.approx(1.0, abs=0.1)
    assert np.all(w0[first:] == 0)


def test_bfloat16_rounds_the_layers_but_not_the_state_the_weights_or_the_kl():
    nets = [our_net((8, 8, 1), 4, channels=(8,), solver=GRID, compute=c, key=KEY) for c in ("float32", "bfloat16")]
    exact, rounded = (net(IMAGES, key=KEY) for net in nets)
    assert rounded[0].dtype == rounded[1].dtype == jnp.float32
    assert 0 < np.abs(exact[0] - rounded[0]).max() < 0.05 * np.abs(exact[0]).max()
    for leaf in jax.tree.leaves(eqx.filter(nets[1], eqx.is_inexact_array)):
        assert leaf.dtype == jnp.float32


def test_independent_laws_add_up_and_empirical_bayes_has_the_least_kl():
    mean = jax.random.normal(KEY, (50,))
    free = Normal(mean, 0.3, prior_std=None)
    scales = np.exp(np.linspace(-1.5, 1.5, 301))
    charges = [float(Normal(mean, 0.3, prior_std=float(s)).kl()) for s in scales]
    assert float(free.kl()) == pytest.approx(min(charges), rel=1e-3)
    assert float(free.kl()) <= min(charges) * (1 + 1e-6)
    both = Independent((free, Point(jnp.ones(3)), Normal(mean[:7], 0.2)))
    assert float(both.kl()) == pytest.approx(float(free.kl()) + float(Normal(mean[:7], 0.2).kl()), rel=1e-5)
    # E_q[log q/p] is the KL: 4 standard errors over 4000 draws
    keys = jax.random.split(KEY, 4000)
    ratios = np.asarray(jax.vmap(lambda k: both.log_ratio(both.sample(key=k)))(keys), dtype=float)
    assert abs(ratios.mean() - float(both.kl())) < 4 * ratios.std() / np.sqrt(4000)


def data_of(shape, classes):
    x = np.zeros((20, *shape), np.uint8)
    x[:10] = 200
    y = np.arange(20, dtype=np.int32) % classes
    return DataSet("own", Part(x, y), Part(x, y), tuple(map(str, range(classes))))


@pytest.mark.parametrize("make", [
    lambda: preset("paper", About.of(data_of((32, 32, 3), 10))).net(KEY),
    lambda: preset("ours", About.of(data_of((32, 32, 3), 10)), infer_w0=True).net(KEY),
    lambda: SDEBNN.paper_mlp(5, 1, key=KEY),
    lambda: ResNet(3, 10, key=KEY),
], ids=["paper", "ours", "mlp", "resnet"])  # fmt: skip
def test_a_net_is_made_by_few_programs(make):
    """Each takes a fiftieth of a second to compile, or a tenth; nets of the first two kinds took 111 and 85 of them."""
    jax.clear_caches()
    programs = []

    def compiled(event: str, seconds: float, *, fun_name: str = "", **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(compiled)
    try:
        make()
    finally:
        jax.monitoring.unregister_event_duration_listener(compiled)
    assert programs, "JAX no longer says what it compiles"
    programs = [name for name in programs if "stage" not in name]  # it copies from the host, on a processor
    assert len(programs) <= 14, programs


def test_every_preset_infers_w0_if_and_only_if_told():
    for name, shape in (("ours", (8, 8, 1)), ("paper", (8, 8, 3)), ("ours", (28, 28, 1)), ("paper", (28, 28, 1))):
        for inferred in (False, True):
            row = preset(name, About.of(data_of(shape, 3)), infer_w0=inferred)
            net = eqx.filter_eval_shape(row.net, KEY)
            laws = jax.tree.leaves([b.initial for b in blocks(net)], is_leaf=lambda x: isinstance(x, Point | Normal))
            assert any(isinstance(law, Normal) for law in laws) == inferred
    with pytest.raises(ValueError, match="is for images"):
        preset(
            "paper",
            About.of(DataSet("t", Part(np.zeros((4, 2)), np.zeros((4, 1))), Part(np.zeros((4, 2)), None), None)),
        )


def test_our_optimiser_moves_each_kind_of_array_at_its_own_rate():
    model = {"field": TimeMLP(1, (2,), key=KEY), "kernel": jnp.zeros(3)}
    parameters = eqx.filter((model, Point(jnp.zeros(4)), Normal(jnp.zeros(4))), eqx.is_inexact_array)
    optimizer = grouped_muon(1e-2, 2000)
    state = optimizer.init(parameters)
    gradient = jax.tree.map(jnp.ones_like, parameters)
    for _ in range(300):  # past the warm-up
        updates, state = optimizer.update(gradient, state, parameters)
    rates = {name: -float(np.ravel(leaf)[0]) for name, leaf in named(updates)}
    assert rates["value"] == pytest.approx(rates["mean"], rel=1e-5)
    assert rates["bias"] == pytest.approx(0.1 * rates["value"], rel=1e-5)
    assert rates["log_std"] == pytest.approx(0.5 * rates["value"], rel=1e-5)
    assert 0.9e-2 < rates["value"] <= 1e-2


def by_optax(rate, steps):
    """The same optimiser, array by array, of Optax's own parts."""

    def by_name(rule, tree):
        def one(path, leaf):
            names = [getattr(part, "name", "") for part in path]
            return rule("drift" if "drift" in names else names[-1], leaf)

        return jax.tree_util.tree_map_with_path(one, tree)

    shares = {"drift": 0.1, "scale": 0.1, "shift": 0.1, "bias": 0.1, "log_std": 0.5}
    return optax.chain(
        optax.scale_by_adam(b1=0.9, b2=0.99),
        optax.clip_by_block_rms(1.0),
        optax.add_decayed_weights(0.05, mask=lambda tree: by_name(lambda name, _: name in ("kernel", "value"), tree)),
        optax.stateless(lambda tree, _: by_name(lambda name, leaf: shares.get(name, 1.0) * leaf, tree)),
        optax.scale_by_learning_rate(optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps)),
    )


@pytest.mark.parametrize("size", [stacks.MIN_SIZE_STORED_ALONE, 64])
def test_our_optimiser_is_that_of_optax_array_by_array(monkeypatch, size):
    """Small arrays and large ones; gradients that grow, so that some moves are bounded."""
    monkeypatch.setattr(stacks, "MIN_SIZE_STORED_ALONE", size)
    net = our_net((8, 8, 1), 3, channels=(4,), drift=(1, 4, 1), infer_w0_of=(1,), compute="float32", key=KEY)
    start = eqx.filter(net, eqx.is_inexact_array)
    ends = []
    for optimizer in (grouped_muon(1e-2, 20, orthogonal=False), by_optax(1e-2, 20)):
        now, state = start, optimizer.init(start)
        update = jax.jit(optimizer.update)
        for step in range(4):
            gradient = jax.tree.map(lambda leaf, step=step: 10.0**step * jnp.sin(3 * leaf + step), now)
            updates, state = update(gradient, state, now)
            now = optax.apply_updates(now, updates)
        ends.append(now)
    for ours, theirs in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def named(tree):
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield str(getattr(path[-1], "name", getattr(path[-1], "key", ""))), leaf


# Images on another scale than those of the training


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits as bytes, and a net that begins as all nets for images do."""
    x = (load_digits().images[:300, :, :, None] * (255 / 16)).astype(np.uint8)
    looks = {"mean": (float(x.mean()) / 255,), "std": (float(x.std()) / 255,)}
    nets = small_paper(**looks), our_net((8, 8, 1), 4, channels=(4,), drift=(1,), key=KEY, **looks)
    assert all(isinstance(net.layers[0].module, Pixels) for net in nets)
    head = Deterministic(eqx.nn.Linear(8 * 8 * 3, 4, key=KEY))
    return x, SDEBNN((nets[0].layers[0], Deterministic(jnp.ravel), head))


@pytest.mark.parametrize("scale", [1 / 255, 16 / 255, 257.0], ids=["0 to 1", "0 to 16", "16 bits"])
def test_images_on_another_scale_are_remarked_on_once(scale, digits):
    x, net = digits
    with pytest.warns(UserWarning, match=r"channel 0 .* spread .*0 to 255") as caught:
        predict(net, x[:30] * np.float32(scale), draws=2, batch_size=10, key=KEY)
    assert len(caught) == 1
    labels = np.zeros(3, int)
    for wrapped in (Ensemble([net, net]), TemperatureScaled(net)):
        with pytest.warns(UserWarning, match="0 to 255") as caught:
            evaluate(wrapped, Categorical(), x[:3] * np.float32(scale), labels, draws=1, key=KEY)
        assert len(caught) == 1


def test_images_of_the_same_kind_are_not_remarked_on(digits):
    """Few of them, one class alone, blank, dim, faint or turned round; warnings are errors here."""
    x, net = digits
    ones = x[load_digits().target[:300] == 1]
    faint = 0.15 * (x[:20] - x[:20].mean()) + x[:20].mean()  # as faint as CIFAR-10-C's faintest
    sets = (x[:20], x[:1], ones[:20], np.zeros_like(x[:3]), x[:20] // 4, faint, 255 - x[:20])
    for images in sets:
        predict(net, np.asarray(images), draws=1, batch_size=20, key=KEY)


def test_colours_are_judged_channel_by_channel():
    """Three channels of different means, all 0 to 1: the spread of all pixels together would hide it."""
    pixels = Pixels((8, 8, 3), (0.2, 0.5, 0.8), (0.2, 0.25, 0.2), 0)
    x = np.random.default_rng(0).uniform(size=(5, 8, 8, 3))
    net = SDEBNN((Deterministic(pixels),))
    predict(net, 255 * x, draws=1, key=KEY)
    with pytest.warns(UserWarning, match="0 to 255"):
        predict(net, x, draws=1, key=KEY)
