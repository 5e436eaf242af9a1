"""Baselines: fitted from a stream, saved whole or not at all, refused where anything is not as it was."""

import hashlib
import json
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

import metastable as ms
from metastable.encoder.load import load as load_encoder
from metastable.encoder.load import twin
from metastable.errors import BadInput
from metastable.monitor.baseline import FILES, SCHEMA, Baseline, check_writable
from metastable.monitor.detectors import DETECTORS
from metastable.monitor.split import part_of
from tests.encoder.models import tiny, tokenizer
from tests.monitor.tables import table_of

WORDS = ["the", "a", "ferry", "island", "noon", "rain", "bridge", "river", "train", "valley", "night", "report", "why"]


def texts(count, seed=0, most=40):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(15, most))) + f" {i}" for i in range(count)]


def small():
    """A tiny random encoder with the real vocabulary: fitted in seconds."""
    return tiny("bert", vocab_size=30522, max_position_embeddings=128, num_hidden_layers=2)


@pytest.fixture(scope="module")
def fitted():
    return Baseline.fit(small(), iter(texts(1500)), tokenizer=tokenizer(), batch_size=64)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "base")
    return tmp_path / "base"


def test_public_names():
    assert ms.Baseline is Baseline


def test_facts_of_the_real_baseline(baseline, encoder, clean):
    parts = baseline.facts["parts"]
    assert sum(parts.values()) == len(clean)
    for part, count in parts.items():
        assert count == sum(part_of(text.document, 0) == part for text in clean)
    assert baseline.settings["light"].texts == baseline.settings["full"].texts == parts["calibrate"]
    own = [len(encoder.tokenizer(text.text)["input_ids"]) - 2 for text in clean]
    assert baseline.facts["tokens"] == sum(own)
    assert baseline.facts["lengths"]["most"] <= max(own)
    least, most = baseline.usual_lengths
    assert 0.98 <= np.mean([least <= n <= most for n in own]) < 1
    assert baseline.facts["left_out"] == {}
    assert baseline.fingerprint == encoder.fingerprint
    assert baseline.special == (0, 101, 102, 103)
    assert set(baseline.detectors) == set(DETECTORS)


def test_unusable_texts_are_left_out_and_counted(fitted):
    odd = ["", "\t ", "nul \0 here", "[SEP] [SEP]", *(f"[PAD] [MASK]{' ' * i}" for i in range(3))]
    long = ["rain " * 500, "ferry " * 100_000]
    model, seen = small().train(), []
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    given = [*texts(1500), *odd, *long]
    found = Baseline.fit(model, given, tokenizer=tokenizer(), batch_size=64, progress=lambda *done: seen.append(done))
    assert found.facts["left_out"] == {"blank": 2, "holds a NUL character": 1, "without a token of its own": 4}
    assert sum(found.facts["parts"].values()) == sum(fitted.facts["parts"].values()) + 2
    assert found.facts["cut"] == 2
    assert found.facts["lengths"]["most"] <= 126
    # Texts of the "fit" part go through the model twice, and there are three spoilt copies of each in "adjust".
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    copies = 3 * found.facts["parts"]["adjust"]
    assert 1502 + found.facts["parts"]["fit"] + 0.9 * copies <= done[-1] <= total[-1]
    # Four texts turned out to be empty when they were tokenized, and some copies are equal to their text.
    assert len(set(total)) == 1
    assert total[-1] <= done[-1] + 8 + 0.1 * copies
    # The model is left as it was.
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.slow
def test_the_same_texts_give_the_same_baseline(fitted):
    again = Baseline.fit(small(), texts(1500), tokenizer=tokenizer(), batch_size=64)
    assert np.array_equal(again.settings["full"].calibration.scores, fitted.settings["full"].calibration.scores)
    order = Baseline.fit(small(), texts(1500)[::-1], tokenizer=tokenizer(), batch_size=64)
    assert part_of("a text", 0) != part_of("a text", 1) or part_of("another", 0) != part_of("another", 1)
    np.testing.assert_allclose(
        order.settings["full"].calibration.scores, fitted.settings["full"].calibration.scores, rtol=1e-2, atol=1e-2
    )


def test_too_few_texts_and_too_few_tokens_say_how_many():
    with pytest.raises(BadInput, match=r"^900 clean texts are too few: .*needs 480.*give about 1400$"):
        Baseline.fit(small(), texts(900), tokenizer=tokenizer())
    wide = tiny("bert", vocab_size=30522, max_position_embeddings=128, num_hidden_layers=1, hidden_size=256)
    with pytest.raises(
        BadInput, match=r"tokens to fit 256 dimensions, which needs 5120; give about \d+00 texts"
    ) as error:
        Baseline.fit(wide, [f"rain {word} {i}" for i in range(400) for word in WORDS[:4]], tokenizer=tokenizer())
    assert "\n" not in str(error.value)


def test_texts_that_turn_out_empty_count_as_too_few():
    """Enough lines, but most hold nothing but special tokens."""
    given = [*texts(700), *(f"[SEP]{' [PAD]' * i}" for i in range(1000))]
    with pytest.raises(BadInput, match="too few"):
        Baseline.fit(small(), given, tokenizer=tokenizer(), batch_size=64)


@pytest.mark.parametrize(("given", "words"), [({"seed": -1}, "seed is -1"), ({"batch_size": 0}, "batch_size is 0")])
def test_bad_arguments(given, words):
    with pytest.raises(BadInput, match=words):
        Baseline.fit(small(), texts(10), tokenizer=tokenizer(), **given)


def test_no_tokenizer_is_said():
    with pytest.raises(BadInput, match="tokenizer"):
        Baseline.fit(small(), texts(10))


def test_another_encoder_is_refused(fitted):
    other = tiny("bert", seed=1, vocab_size=30522, max_position_embeddings=128, num_hidden_layers=2)
    encoder = load_encoder(other, tokenizer=tokenizer())
    with pytest.raises(BadInput, match="calibrate again") as error:
        fitted.check(encoder)
    assert fitted.fingerprint[:12] in str(error.value)
    assert encoder.fingerprint[:12] in str(error.value)
    assert repr(fitted.encoder_name) in str(error.value)
    assert "\n" not in str(error.value)


def test_the_random_twin_of_the_real_encoder_is_refused(baseline, encoder):
    with pytest.raises(BadInput, match=r"\(random weights\)"):
        baseline.check(twin(encoder))


def test_saved_and_loaded(fitted, saved):
    assert sorted(os.listdir(saved)) == sorted(FILES)
    assert sorted(os.listdir(saved.parent)) == ["base"]
    again = Baseline.load(saved)
    for name in ("encoder_name", "fingerprint", "configuration", "tokenizer", "special", "facts"):
        assert getattr(again, name) == getattr(fitted, name)
    for name, scorer in fitted.settings.items():
        for key, array in scorer.to_arrays().items():
            assert np.array_equal(again.settings[name].to_arrays()[key], array)
    assert again.scorer("full").texts == fitted.facts["parts"]["calibrate"]
    assert repr(again) == repr(fitted)
    assert "1500 clean texts" in repr(again)
    assert "full: token-mahalanobis, place-surprise" in repr(again)
    with pytest.raises(BadInput, match="setting is 'dark'"):
        again.scorer("dark")


def test_a_baseline_is_replaced_and_nothing_else_is(fitted, saved):
    before = (saved / FILES[0]).read_bytes()
    fitted.facts["note"] = "second"
    try:
        fitted.save(saved)
    finally:
        del fitted.facts["note"]
    assert (saved / FILES[0]).read_bytes() != before
    assert sorted(os.listdir(saved.parent)) == ["base"]
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"holds 'notes.txt', which is no part of a baseline"):
        fitted.save(saved)
    assert (saved / "notes.txt").read_text() == "mine"
    file = saved.parent / "file"
    file.write_text("mine")
    with pytest.raises(BadInput, match="is a file"):
        fitted.save(file)
    (saved.parent / "other").mkdir()
    (saved.parent / "other" / FILES[0]).write_text("{}")
    with pytest.raises(BadInput, match="remove the folder first"):
        fitted.save(saved.parent / "other")
    (saved.parent / "empty").mkdir()
    fitted.save(saved.parent / "empty" / "deeper" / "still")
    assert Baseline.load(saved.parent / "empty" / "deeper" / "still").fingerprint == fitted.fingerprint


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("turn", [0, 1])
def test_an_interrupt_at_any_rename_leaves_one_of_the_two_whole(fitted, saved, monkeypatch, turn, after):
    """Renames of a save that replaces: the old folder goes away, the new one comes."""
    before, real, seen = (saved / FILES[0]).read_bytes(), os.rename, []

    def interrupted(*arguments):
        seen.append(arguments)
        if len(seen) == turn + 1 and not after:
            raise KeyboardInterrupt
        real(*arguments)
        if len(seen) == turn + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    monkeypatch.setitem(fitted.facts, "note", "second")
    with pytest.raises(KeyboardInterrupt):
        fitted.save(saved)
    monkeypatch.undo()
    assert len(seen) > turn
    assert ("note" in Baseline.load(saved).facts) == (turn == 1 and after)
    assert ((saved / FILES[0]).read_bytes() == before) == (not (turn == 1 and after))
    fitted.save(saved)
    assert sorted(os.listdir(saved.parent)) == ["base"]


def test_where_nothing_can_be_written_is_known_before(fitted, saved, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    held = sorted(os.listdir(tmp_path))
    for folder in (tmp_path / "file" / "base", tmp_path / ("x" * 300), tmp_path / ("x" * 251), Path("/proc/base")):
        with pytest.raises(BadInput, match="cannot be written") as error:
            check_writable(folder)
        assert "\n" not in str(error.value)
        with pytest.raises((BadInput, OSError)):
            fitted.save(folder)
    for folder in (tmp_path / "a" / "b" / "c", tmp_path / "new", saved):
        check_writable(folder)
    assert sorted(os.listdir(tmp_path)) == held
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(saved))
    with pytest.raises(BadInput, match="mount point"):
        check_writable(saved)


def test_an_older_or_damaged_baseline_is_not_read_but_replaced(fitted, saved):
    for schema in ("metastable.baseline/1", SCHEMA):
        (saved / FILES[0]).write_text(json.dumps({"schema": schema}))
        refused(saved, "calibrate again")
        fitted.save(saved)
        Baseline.load(saved)


def test_a_description_that_is_no_json_says_what_to_do(saved):
    (saved / FILES[0]).write_text("{")
    refused(saved, "remove the folder and calibrate again")


def test_a_disk_that_is_full_while_arrays_are_written_is_one_line(fitted, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match="No space left"):
        fitted.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["rename", "fsync"])
def test_a_write_that_fails_leaves_the_old_one_whole(fitted, saved, monkeypatch, name):
    before = {file: (saved / file).read_bytes() for file in FILES}
    real, failed = getattr(os, name), []

    def full(*arguments):
        # The tensors on their way to the disk, or the new folder on its way to its place: once.
        if not failed and (name == "fsync" or str(arguments[1]) == str(saved)):
            failed.append(arguments)
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, name, full)
    with pytest.raises(BadInput, match="No space left on device; free some space"):
        fitted.save(saved)
    monkeypatch.undo()
    assert failed
    assert {file: (saved / file).read_bytes() for file in FILES} == before
    assert sorted(os.listdir(saved.parent)) == ["base"]
    Baseline.load(saved)


def rewritten(folder, change):
    """Change baseline.json as a function of its content says, with a checksum that fits."""
    path = folder / FILES[0]
    content = json.loads(path.read_text())
    change(content)
    content.pop("checksum", None)
    fixed = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "checksum": hashlib.sha256(fixed.encode()).hexdigest()}))


def resealed(folder, change):
    """Change the arrays, with a checksum that fits."""
    arrays = dict(load((folder / FILES[1]).read_bytes()))
    change(arrays)
    data = save(arrays)
    (folder / FILES[1]).write_bytes(data)
    rewritten(folder, lambda content: content.update(sha256=hashlib.sha256(data).hexdigest()))


def refused(folder, words):
    with pytest.raises(BadInput, match=words) as error:
        Baseline.load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_baseline(tmp_path, saved):
    refused(tmp_path / "nowhere", "is no baseline: it holds no baseline.json")
    refused(tmp_path, "is no baseline")
    refused(saved / FILES[0], "is no baseline")
    (saved / FILES[1]).unlink()
    refused(saved, "damaged .*baseline.safetensors: .*No such file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(schema="metastable.baseline/2"), f"'metastable.baseline/2', not {SCHEMA!r}"),
        (lambda c: c.pop("schema"), "has the schema None"),
        (lambda c: c.pop("settings"), "damaged .*settings"),
        (lambda c: c.pop("fingerprint"), "damaged .*fingerprint"),
        (lambda c: c.pop("sha256"), "damaged .*sha256"),
        (lambda c: c.update(special="x"), "damaged"),
        (lambda c: c.update(settings=[]), "damaged"),
        (lambda c: c.update(settings={}), "damaged"),
        (lambda c: c.update(detectors={"os.system": []}), "damaged"),
        (lambda c: c["settings"]["light"]["members"][0].pop("places"), "damaged .*places"),
        (lambda c: c["settings"]["light"]["members"][0].update(places=[0]), "shape"),
        (lambda c: c["settings"]["light"].update(members=[]), "shape"),
        (lambda c: c["settings"].pop("full"), "damaged"),
        (lambda c: c.update(special=[float("inf")]), "damaged"),
        (lambda c: c.update(detectors={}), "damaged"),
        (lambda c: c.update(special=[1e300]), "damaged .*special is 1e"),
        (lambda c: c.update(special=[-1]), "damaged .*special is -1"),
        (lambda c: c.update(special=[2**70]), "damaged .*special"),
        (lambda c: c.update(encoder=None), "damaged"),
        (lambda c: c["settings"]["light"]["members"][0].update(depths=[1.5]), "damaged .*depths is 1.5"),
    ],
)
def test_an_altered_description_is_refused(saved, change, words):
    rewritten(saved, change)
    refused(saved, words)


def test_a_checksum_that_does_not_fit_is_refused(saved):
    text = (saved / FILES[0]).read_text()
    for old, new in (
        ('"seed": 0', '"seed": 1'),
        ('"checksum": "', '"checksum": "0'),
        ('"schema"', '"more": 1, "schema"'),
    ):
        assert text.count(old) == 1
        (saved / FILES[0]).write_text(text.replace(old, new))
        refused(saved, "was altered: its checksum")
    # What it says counts, not how it is laid out.
    (saved / FILES[0]).write_text(json.dumps(json.loads(text), sort_keys=True))
    Baseline.load(saved)


def test_random_edits_of_the_description_are_one_line(saved):
    rng, path = np.random.default_rng(0), saved / FILES[0]
    data = path.read_bytes()
    kept, altered = json.loads(data), 0
    for _ in range(150):
        edited = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            edited[place] = rng.choice(bytearray(b' 0179eE-.,:"[]{}naxN\xff\\'))
        path.write_bytes(edited)
        try:
            same = json.loads(edited) == kept
        except ValueError:
            same = False
        if not same:
            altered += 1
            refused(saved, "altered|damaged|has the schema")
    assert altered > 120


ODD = (None, True, -1, 3, 10**6, 2**70, 1e300, 0.5, "", "x", [], [0], [[0]], {}, {"x": 1})


def leaves(content, path=()):
    """Paths to all values of the description that its reading depends on, lists and objects among them."""
    yield path
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


def complaint(folder, encoder):
    """Of loading and checking a baseline; None where there is none."""
    try:
        Baseline.load(folder).check(encoder)
    except BadInput as error:
        return str(error)
    return None


def test_random_values_with_a_checksum_that_fits_are_one_line(fitted, saved):
    """Whatever a field of settings, detectors, special tokens or digests is replaced by."""
    rng = np.random.default_rng(1)
    encoder = load_encoder(small(), tokenizer=tokenizer())
    text = (saved / FILES[0]).read_text()
    paths = [p for p in leaves(json.loads(text)) if p and p[0] not in ("facts", "encoder", "checksum")]
    for path in (paths[i] for i in rng.integers(0, len(paths), 100)):
        odd = ODD[rng.integers(len(ODD))]
        (saved / FILES[0]).write_text(text)

        def change(content, path=path, odd=odd):
            for key in path[:-1]:
                content = content[key]
            content[path[-1]] = odd

        rewritten(saved, change)
        same = json.loads((saved / FILES[0]).read_text())["checksum"] == json.loads(text)["checksum"]
        # Without its digest a tokenizer is not compared.
        spared = same or (path == ("tokenizer",) and odd is None)
        message = complaint(saved, encoder)
        assert spared if message is None else "\n" not in message, (path, odd, message)


@pytest.mark.parametrize(
    "change",
    [{"places": [1, 0]}, {"places": [0, 7]}, {"depths": [0, 0]}, {"depths": [0, 99]}],
)
def test_members_that_read_elsewhere_are_refused(saved, change):
    """Each has the right form, so that only the encoder's own detectors show that it is wrong."""
    member = json.loads((saved / FILES[0]).read_text())["settings"]["light"]["members"][0]
    assert (member["name"], member["places"]) == ("pooled-mahalanobis", [0, 1])
    rewritten(saved, lambda c: c["settings"]["light"]["members"][0].update(change))
    encoder = load_encoder(small(), tokenizer=tokenizer())
    with pytest.raises(BadInput, match=r"damaged|shape") as error:
        Baseline.load(saved).check(encoder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"schema": 3}', "\xff", "[" * 100_000])
def test_a_description_that_is_no_json(saved, content):
    (saved / FILES[0]).write_text(content, encoding="latin-1")
    refused(saved, "damaged|has the schema")


def test_cut_off_or_altered_tensors_are_refused(saved):
    data = (saved / FILES[1]).read_bytes()
    for cut in (0, 7, len(data) // 2, len(data) - 1):
        (saved / FILES[1]).write_bytes(data[:cut])
        refused(saved, "cut off or altered")
    altered = bytearray(data)
    altered[-3] ^= 1
    (saved / FILES[1]).write_bytes(altered)
    refused(saved, "cut off or altered")
    (saved / FILES[1]).write_bytes(data)
    Baseline.load(saved)
    (saved / FILES[1]).write_bytes(b"no tensors")
    rewritten(saved, lambda c: c.update(sha256=hashlib.sha256(b"no tensors").hexdigest()))
    refused(saved, "damaged .*baseline.safetensors")


@pytest.mark.slow
def test_missing_misshapen_and_infinite_arrays_are_refused(fitted, saved):
    """Even with a checksum that fits: arrays of every kind, one at a time."""
    good = (saved / FILES[1]).read_bytes()
    names = [name for name in sorted(load(good)) if name.startswith("setting.light") or ".0" in name or ".2" in name]
    assert len(names) > 20
    assert any(name.startswith("detector.") for name in names)
    encoder = load_encoder(small(), tokenizer=tokenizer())
    assert encoder.fingerprint == fitted.fingerprint
    for name in names:
        for change, words in (
            (lambda a, n=name: a.pop(n), "no |damaged"),
            (lambda a, n=name: a.update({n: np.zeros((3, 1, 2), a[n].dtype)}), "shape"),
            (lambda a, n=name: a.update({n: np.full_like(a[n], np.nan)}), "not finite"),
        ):
            (saved / FILES[1]).write_bytes(good)
            resealed(saved, change)
            with pytest.raises(BadInput, match=words):
                Baseline.load(saved).check(encoder)


def test_no_pickle_is_read_or_written(saved, monkeypatch):
    """The two files are JSON and safetensors."""
    json.loads((saved / FILES[0]).read_text())
    load((saved / FILES[1]).read_bytes())

    def never(*given, **named):
        pytest.fail("a pickle")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    assert Baseline.load(saved).special[0] == 0


def test_the_probe_is_taught_on_clean_texts_and_their_copies(encoder, baseline, held_texts, held):
    """Held-out texts with their words shuffled stand out; they would not if kinds went to the wrong texts."""
    chance = random.Random(0)
    mixed = [" ".join(chance.sample(words, len(words))) for words in (text.split() for text in held_texts[:150])]
    found = table_of(encoder, baseline, mixed).columns["spoilt-probe"][:, -1]
    clean = held.columns["spoilt-probe"][:150, -1]
    assert (found[:, None] > clean).mean() > 0.9
