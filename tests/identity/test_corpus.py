"""Every pair of the corpus: one key where programs mean the same, two where they may not."""

import identity_corpus as corpus
import pytest

pytestmark = pytest.mark.stacks


def test_the_corpus_is_large_enough():
    assert len(corpus.MUST_SAME) >= 60
    assert len(corpus.MUST_DIFFER) >= 60


@pytest.mark.parametrize("pair", corpus.MUST_SAME, ids=str)
def test_same(pair):
    left, right = corpus.identity(pair.left()), corpus.identity(pair.right())
    assert left.pointer is None
    assert left.digest == right.digest, (left.notes, right.notes, left.canonical, right.canonical)


@pytest.mark.parametrize("pair", corpus.MUST_DIFFER, ids=str)
def test_different(pair):
    left, right = corpus.identity(pair.left()), corpus.identity(pair.right())
    assert left.digest != right.digest
