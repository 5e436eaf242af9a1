"""The reader of hidden states: it changes nothing, and survives whatever happens in a pass."""

import threading
from contextlib import nullcontext

import pytest
import torch

from metastable.encoder.families import anatomy
from metastable.encoder.hooks import Lens, Passage, Reader, Unreadable, lenses
from tests.encoder import models

TEXT_CASES = [case for case in models.CASES if not case.startswith("vit")]


class Keeping:
    """A watch that keeps x̂ by depth, and hands it over when it is closed."""

    def __init__(self, done, passage=None, at_visit=None):
        self.done, self.passage, self.at_visit, self.units = done, passage, at_visit, {}

    def visit(self, depth):
        assert depth.passage is self.passage
        self.units[depth.index] = depth.unit.clone()
        if self.at_visit is not None:
            self.at_visit(depth)

    def close(self):
        self.done.append(self.units)


def reader(model, done, depths=None, at_visit=None, failed=None, special=()):
    """A reader of all depths, or of some, whose watches put their units into `done`."""
    own = anatomy(model)
    wanted = range(len(own.layers) + 1) if depths is None else depths
    return Reader(model, own, special, wanted, lambda passage: Keeping(done, passage, at_visit), failed)


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs")
    kinds = (*kinds, "_forward_pre_hooks_with_kwargs")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def other_inputs(model, seed=3, texts=2, n=7):
    ids = torch.randint(5, models.VOCABULARY, (texts, n), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("case", TEXT_CASES)
def test_units_are_those_of_the_audit(case):
    """Every family: shared layers, pre-norm, no norm before the first layer.

    Where x̂ is affine in x, its length is |z|/√d, below 1 by the normalisation's eps; the audit divides that out.
    """
    model = models.tiny(case)
    given, mask = models.inputs(model)
    own, expected, done = anatomy(model), {}, []
    with torch.no_grad(), reader(model, done, at_visit=lambda depth: expected.update({depth.index: depth.tokens})):
        model(**given)
    assert list(done[0]) == list(expected) == list(range(len(own.layers) + 1))
    for (depth, tokens), lens in zip(expected.items(), lenses(own), strict=True):
        length = torch.where(mask, tokens.length / tokens.z.shape[-1] ** 0.5 if lens.left is None else 1.0, 0.0)
        assert (length[mask] - 1).abs().max() < 1e-3
        torch.testing.assert_close(done[0][depth], tokens.unit * length.unsqueeze(-1), rtol=0, atol=2e-6)


@pytest.mark.parametrize("depths", [(0,), (1, 3), (2,), (3,), ()])
def test_any_set_of_depths_of_a_shared_layer(depths):
    model = models.tiny("albert")
    given, _ = models.inputs(model)
    whole, some = [], []
    with torch.no_grad():
        with reader(model, whole):
            model(**given)
        with reader(model, some, depths):
            model(**given)
    assert list(some[0]) == list(depths)
    for depth in depths:
        assert torch.equal(some[0][depth], whole[0][depth])


def projecting(model, found, depths=None, failed=None):
    """A reader that keeps every depth in `found`, and wants queries and keys of all layers."""
    own = anatomy(model)

    class Projected:
        def visit(self, depth):
            found.append(depth)

        def close(self):
            pass

    wanted = range(len(own.layers) + 1) if depths is None else depths
    layers = range(len(own.layers))
    return Reader(model, own, (), wanted, lambda passage: Projected(), failed, projected=layers)


@pytest.mark.parametrize("case", TEXT_CASES)
def test_queries_and_keys_are_those_of_the_layer(case):
    """Every family: shared layers, one map for all three, maps that are also applied to positions."""
    model = models.tiny(case)
    given, mask = models.inputs(model)
    own, found = anatomy(model), []
    with torch.no_grad(), projecting(model, found):
        model(**given)
    assert [depth.index for depth in found] == list(range(len(own.layers) + 1))
    assert found[-1].projected is None
    for depth, layer in zip(found, own.layers, strict=False):
        for part, projection in zip(depth.projected, (layer.query, layer.key), strict=True):
            by_head = part.unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            expected = projection(torch.where(mask.unsqueeze(-1), depth.x, 0.0))
            there = mask[:, None, :, None]
            torch.testing.assert_close(by_head * there, expected * there, rtol=1e-5, atol=1e-5)
    assert hooks_of(model) == 0


def test_a_layer_that_computes_no_queries_in_float32_is_visited_all_the_same():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    found, problems = [], []
    with torch.no_grad(), projecting(model, found, failed=problems.append):
        with torch.autocast("cpu", torch.bfloat16):
            model(**given)
        assert [depth.index for depth in found] == [0, 1, 2, 3]
        assert all(depth.projected is None for depth in found)
        found.clear()
        # As if a fused kernel took the place of the module.
        key = model.encoder.layer[1].attention.self.key
        key.__class__ = type("Fused", (type(key),), {"__call__": lambda self, x: self.forward(x)})
        model(**given)
    assert [depth.index for depth in found] == [0, 1, 2, 3]
    assert [depth.projected is None for depth in found] == [False, True, False, True]
    assert problems == []


def test_some_depths_of_a_shared_layer_with_their_queries():
    model = models.tiny("albert")
    given, _ = models.inputs(model)
    whole, some = [], []
    with torch.no_grad():
        with projecting(model, whole):
            model(**given)
        with projecting(model, some, (0, 2)):
            model(**given)
    assert [depth.index for depth in some] == [0, 2]
    for depth in some:
        for own, other in zip(depth.projected, whole[depth.index].projected, strict=True):
            assert torch.equal(own, other)


def test_erased_features_are_left_out_and_the_rest_has_length_one():
    model = models.tiny("bert")
    norm = model.encoder.layer[1].output.LayerNorm
    with torch.no_grad():
        norm.weight[[3, 17]] = 1e-33
        norm.bias[3] = 0.7
    given, _ = models.inputs(model)
    expected, done = {}, []
    with torch.no_grad(), reader(model, done, at_visit=lambda depth: expected.update({depth.index: depth.tokens.unit})):
        model(**given)
    assert (done[0][2][..., [3, 17]] == 0).all()
    torch.testing.assert_close(done[0][2], expected[2], rtol=0, atol=1e-5)
    # Without the division lengths would differ from token to token.
    raw = lenses(anatomy(model))[2].left
    assert raw is not None
    assert [lens.left is None for lens in lenses(anatomy(model))] == [True, True, False, True]


def test_a_lens_is_affine_in_its_view_so_means_may_be_taken_first():
    for lens in lenses(anatomy(models.tiny("albert"))):
        x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(lens.of_view(lens.view(x).mean(dim=0)), lens(x).mean(dim=0), rtol=1e-5, atol=1e-6)
    whole = Lens.of(None, 4)
    assert torch.equal(whole(torch.tensor([3.0, 0, 0, 4])), torch.tensor([0.6, 0, 0, 0.8]))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, nullcontext])
@pytest.mark.parametrize("case", ["bert", "albert", "deberta-v2", "modernbert", "mpnet"])
def test_outputs_stay_bit_by_bit(case, mode):
    model = models.tiny(case)
    given, _ = models.inputs(model)
    done = []
    with mode():
        before = model(**given).last_hidden_state
        with reader(model, done):
            during = model(**given).last_hidden_state
        after = model(**given).last_hidden_state
    assert len(done) == 1
    assert torch.equal(before, during)
    assert torch.equal(before, after)


def test_gradients_stay_bit_by_bit_and_none_reach_the_watch():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    found, asked = [], []
    for hooked in (False, True):
        model.zero_grad()
        with reader(model, [], at_visit=lambda d: asked.append(d.unit.requires_grad)) if hooked else nullcontext():
            loss = model(**given).last_hidden_state.square().sum()
        loss.backward()
        found.append([w.grad.clone() for w in model.parameters() if w.grad is not None])
    assert asked == [False] * 4
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_autocast_is_off_inside_and_untouched_outside():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    types = []

    def look(depth):
        types.append((depth.x.dtype, (depth.x[0] @ depth.x[0].T).dtype))

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = model(**given).last_hidden_state
        with reader(model, [], at_visit=look):
            during = model(**given).last_hidden_state
            assert torch.is_autocast_enabled("cpu")
    assert types == [(torch.float32, torch.float32)] * 4
    assert torch.equal(before, during)


def test_half_precision_models_are_read_in_float32():
    model = models.tiny("bert").bfloat16()
    given, mask = models.inputs(model)
    done = []
    with torch.no_grad(), reader(model, done):
        model(**given)
    for unit in done[0].values():
        assert unit.dtype == torch.float32
        lengths = torch.linalg.vector_norm(unit[mask], dim=-1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=0.05)


def test_all_hooks_are_removed_even_after_an_error():
    model = models.tiny("albert")
    model.register_forward_hook(lambda *_: None)
    given, _ = models.inputs(model)
    before = hooks_of(model)
    with reader(model, []):
        assert hooks_of(model) > before
    assert hooks_of(model) == before
    with pytest.raises(KeyError), reader(model, []):
        raise KeyError
    assert hooks_of(model) == before
    model(**given)


def test_threads_do_not_mix_their_passes():
    model = models.tiny("bert")
    batches = [other_inputs(model, seed, texts=1 + seed % 3, n=4 + seed) for seed in range(6)]
    alone, problems, by_shape = [], [], {}
    with torch.no_grad(), reader(model, alone):
        for given in batches:
            model(**given)
    barrier = threading.Barrier(6)

    def work(given):
        barrier.wait()
        with torch.no_grad():
            for _ in range(10):
                model(**given)

    def gather(passage):
        return Keeping(by_shape.setdefault(tuple(passage.ids.shape), []), passage)

    with Reader(model, anatomy(model), (), range(4), gather, problems.append):
        threads = [threading.Thread(target=work, args=(given,)) for given in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    for given, expected in zip(batches, alone, strict=True):
        found = by_shape[tuple(given["input_ids"].shape)]
        assert len(found) == 10
        for units in found:
            for depth, unit in units.items():
                torch.testing.assert_close(unit, expected[depth], rtol=0, atol=1e-6)


@pytest.mark.parametrize("inner_fails", [False, True])
def test_a_pass_within_a_pass(inner_fails):
    """Whatever becomes of the inner pass, the outer one is read to its end."""
    model = models.tiny("albert")
    outer, inner = models.inputs(model)[0], other_inputs(model)
    alone, done, problems = [], [], []
    with torch.no_grad(), reader(model, alone):
        model(**outer)
        model(**inner)

    class Failing(Keeping):
        def close(self):
            raise ValueError("inner")

    def start(passage):
        small = passage.ids.shape == inner["input_ids"].shape
        if small and inner_fails:
            return Failing(done, passage)
        return Keeping(done, passage, at_visit=lambda depth: depth.index == 1 and not small and model(**inner))

    with torch.no_grad(), Reader(model, anatomy(model), (), range(4), start, problems.append):
        model(**outer)
    assert [str(problem) for problem in problems] == ["inner"] * inner_fails
    expected = alone[:1] if inner_fails else [alone[1], alone[0]]
    assert len(done) == len(expected)
    for found, units in zip(done, expected, strict=True):
        assert all(torch.equal(found[depth], units[depth]) for depth in units)


@pytest.mark.parametrize("where", ["layer", "pooler"])
def test_a_model_that_raises_leaves_the_reader_usable(where):
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    done, problems = [], []
    with torch.no_grad(), reader(model, done, depths=(0, 1), failed=problems.append):
        # Depths 0 and 1 have been seen when either of these raises: a pass without a result still does not count.
        broken = model.encoder.layer[2] if where == "layer" else model.pooler
        handle = broken.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(ValueError("broken")))
        with pytest.raises(ValueError, match="broken"):
            model(**given)
        handle.remove()
        assert done == []
        model(**given)
        # Outside any pass, modules are called unwatched.
        model.embeddings(given["input_ids"])
    assert len(done) == 1
    assert not problems


def test_a_pass_broken_off_by_ctrl_c_is_forgotten_with_the_next_one():
    """torch runs no hook after KeyboardInterrupt, so the pass is never ended."""
    model = models.tiny("bert")
    done = []
    with reader(model, done) as read:
        for _ in range(3):
            handle = anatomy(model).final.register_forward_pre_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(**other_inputs(model))
            handle.remove()
        assert len(read._stack()) == 1
        model(**other_inputs(model))
        assert read._stack() == []
    assert len(done) == 1


def interrupt(*given):
    raise KeyboardInterrupt


def test_tracing_a_watched_model_does_not_take_the_hooks_into_the_graph():
    model, done = models.tiny("bert"), []
    given = other_inputs(model)
    model.config.return_dict = False
    names = ("input_ids", "attention_mask")
    plain = torch.jit.trace(model, tuple(given[name] for name in names), check_trace=False)
    with reader(model, done):
        watched = torch.jit.trace(model, tuple(given[name] for name in names), check_trace=False)
    assert len(list(watched.inlined_graph.nodes())) == len(list(plain.inlined_graph.nodes()))
    assert done == []


def test_a_watch_that_raises_is_reported_once_and_the_pass_goes_on():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    done, problems = [], []
    failing = {"now": True}

    def visit(depth):
        if failing["now"] and depth.index >= 1:
            raise ZeroDivisionError("in the watch")

    with torch.no_grad():
        plain = model(**given).last_hidden_state
        with reader(model, done, at_visit=visit, failed=problems.append):
            assert torch.equal(model(**given).last_hidden_state, plain)
            failing["now"] = False
            model(**given)
    assert [str(problem) for problem in problems] == ["in the watch"]
    assert len(done) == 1
    failing["now"] = True
    with torch.no_grad(), reader(model, done, at_visit=visit), pytest.raises(ZeroDivisionError):
        model(**given)


def unreadable(model, call):
    """What is said of a call, which must give the same as without hooks, and be followed by a readable one."""
    done, problems = [], []
    given, _ = models.inputs(model)
    with torch.no_grad(), reader(model, done, failed=problems.append):
        assert torch.isfinite(call(model, given).last_hidden_state).all()
        model.eval()
        model(**given)
    assert len(done) == 1
    assert [type(problem) for problem in problems] == [Unreadable]
    return str(problems[0])


def test_passes_that_cannot_be_read_say_why():
    model = models.tiny("bert")
    assert "training mode" in unreadable(model, lambda m, g: m.train()(**g))

    def embedded(m, g):
        return m(inputs_embeds=m.embeddings.word_embeddings(g["input_ids"]), attention_mask=g["attention_mask"])

    assert "no input_ids" in unreadable(model, embedded)

    def four(m, g):
        full = g["attention_mask"][:, None, None, :].expand(-1, 1, g["attention_mask"].shape[1], -1).bool()
        return m(input_ids=g["input_ids"], attention_mask=full)

    assert "mask has shape (3, 1, " in unreadable(model, four)


def test_a_pass_that_does_not_come_by_all_depths_is_no_reading():
    model, stranger = models.tiny("bert"), models.tiny("bert")
    given, _ = models.inputs(model)
    done, problems = [], []
    own = anatomy(stranger)
    with torch.no_grad(), Reader(model, own, (), range(4), lambda p: Keeping(done, p), problems.append):
        model(**given)
    assert done == []
    assert "0 of 4 depths" in str(problems[0])


def test_tokens_that_are_packed_without_padding_are_not_read():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    problems = []
    norm = model.encoder.layer[0].output.LayerNorm
    # As some attention kernels want them: all tokens of all texts in one row.
    norm.register_forward_hook(lambda _m, _i, o: o.reshape(1, -1, o.shape[-1]))
    with torch.no_grad(), reader(model, [], depths=(1,), failed=problems.append), pytest.raises(RuntimeError):
        model(**given)
    assert "unpads" in str(problems[0])


def test_a_pass_may_be_left_alone():
    model = models.tiny("bert")
    given, _ = models.inputs(model)
    opened = []

    def start(passage):
        opened.append(passage)

    with torch.no_grad(), Reader(model, anatomy(model), (), range(4), start):
        model(**given)
    assert len(opened) == 1


def test_positional_arguments_and_no_mask():
    model = models.tiny("bert")
    ids = torch.tensor([[2, 9, 8, 3], [2, 7, 3, 0]])
    opened = []

    def start(passage):
        opened.append(passage)

    with torch.no_grad(), Reader(model, anatomy(model), {0, 2, 3}, range(4), start):
        model(ids)
        model(ids, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]))
    assert opened[0].mask.all()
    assert opened[1].mask.tolist() == [[True] * 4, [True, True, True, False]]
    for passage in opened:
        assert passage.chosen.tolist() == [[False, True, True, False], [False, True, False, False]]
        assert passage.counts.tolist() == [2, 1]


def test_a_special_token_that_is_padding_is_chosen_by_nobody():
    ids = torch.tensor([[5, 6, 0]])
    passage = Passage.of(ids, torch.tensor([[1, 1, 0]]), torch.tensor([6]))
    assert passage.chosen.tolist() == [[True, False, False]]
