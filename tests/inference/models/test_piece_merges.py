"""Merges of SentencePiece vocabularies, against the search that tries each cut of each piece."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.inference.models.piece_merges import merges_by_score

PIECES = st.text(st.sampled_from("ab▁é🦆\0\ud800"), max_size=6)
SCORES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, float("inf")])


def merges_by_search(vocab, scores):
    ranked = []
    for order, (piece, score) in enumerate(scores.items()):
        for cut in range(1, len(piece)):
            halves = piece[:cut], piece[cut:]
            if all(half in vocab for half in halves):
                ranked.append((-score, order, *map(vocab.get, halves), halves))
    return [entry[-1] for entry in sorted(ranked)]


@given(st.dictionaries(PIECES, SCORES), st.randoms(use_true_random=False), st.sets(PIECES))
@example({"a": 0.0, "aa": -1.0, "aaa": -1.0, "aaaa": -2.0}, None, set())  # several cuts, of which one is symmetric
@settings(deadline=None)
def test_the_merges_are_those_of_a_search_whatever_the_ids_and_scores(scores, random, unscored):
    texts = list(scores | dict.fromkeys(unscored, 0.0))
    ids = list(range(0, 3 * len(texts), 3))
    if random is not None:
        random.shuffle(ids)
    vocab = dict(zip(texts, ids, strict=True))
    assert merges_by_score(vocab, scores) == merges_by_search(vocab, scores)
