"""Documents: prefixes, pieces, chunks, glued texts and the ladder."""

import pytest

from metastable.encoder.length.documents import Documents
from metastable.encoder.length.ladder import FEWEST, LengthLadder
from metastable.errors import BadInput


def made(*lengths):
    """Documents of these numbers of ordinary tokens, all different, between two special tokens."""
    ids = [tuple(1000 * (i + 1) + j for j in range(size)) for i, size in enumerate(lengths)]
    return Documents(tuple(ids), (2,), (3,), frozenset({2, 3}), ())


def test_prefixes_pieces_and_chunks():
    documents = made(25, 31)
    assert [len(ids) for ids in documents.prefixes(20).ids] == [18, 18]
    assert documents.piece(1, 12).ids[1] == tuple(range(2010, 2020))
    chunks, owners = documents.chunks(12)
    assert owners == [0, 0, 0, 1, 1, 1, 1]
    for owner, ids in enumerate(documents.ids):
        joined = tuple(i for piece, own in zip(chunks.ids, owners, strict=True) if own == owner for i in piece)
        assert joined == ids


def test_glued_documents_begin_where_a_text_begins():
    documents = made(5, 6, 7, 20, 3)
    glued = documents.glued(12)
    assert glued.ids == (documents.ids[0] + documents.ids[1][:5], documents.ids[2] + documents.ids[3][:3])


def test_batches_have_one_length_and_mark_special_tokens():
    documents = made(4, 4, 4, 6)
    batches = [part.batch() for part in documents.parts(2)]
    assert [tuple(batch.mask.shape) for batch in batches] == [(2, 6), (1, 6), (1, 8)]
    assert batches[0].special[0].tolist() == [True, False, False, False, False, True]
    assert all(batch.mask.all() for batch in batches)


def test_the_ladder_of_long_documents_glues_nothing():
    ladder = LengthLadder.of(made(*[140] * 9, 40), start=128, longest=512)
    assert ladder.rungs == (32, 64, 128)
    assert (ladder.start, ladder.top, len(ladder.cohort), len(ladder.glued)) == (32, 128, 9, 0)


def test_short_documents_are_glued_for_the_upper_rungs():
    ladder = LengthLadder.of(made(*[62] * 40), start=128, longest=512)
    assert (ladder.start, ladder.top, ladder.last) == (64, 64, 256)
    assert len(ladder.glued) >= FEWEST
    assert {len(ids) for ids in ladder.documents("glued", 128).ids} == {126}
    # Forecasts are made from one half and scored on the other: no text is in both.
    texts = [{i // 1000 for i in ids} for ids in ladder.glued.ids]
    assert not set.union(*texts[::2]) & set.union(*texts[1::2])


@pytest.mark.parametrize(("start", "expected"), [(33, 32), (64, 64), (100, 64), (1000, 128)])
def test_forecasts_start_on_a_rung(start, expected):
    assert LengthLadder.of(made(*[600] * 8), start, longest=512).start == expected


def test_too_few_long_texts():
    with pytest.raises(BadInput, match="7 of 9"):
        LengthLadder.of(made(*[50] * 7, 5, 5), 128, 512)
