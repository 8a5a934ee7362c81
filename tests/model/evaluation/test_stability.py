"""Changes and delays of partials with a known history."""

from hypothesis import given
from hypothesis import strategies as st

from model.evaluation.stability import ShownWord, Stability, View


def view(cursor_s, text, stable=0, *, final=False, end_s=0.0):
    return View(cursor_s, tuple(ShownWord(word, end_s) for word in text.split()), stable, final)


def followed(*views):
    stability = Stability()
    stability.follow(views)
    return stability


def test_a_word_that_grows_letter_by_letter_is_shown_once_and_never_changed():
    found = followed(view(1, "h"), view(2, "he"), view(3, "hello"), view(4, "hello", final=True))
    assert (found.shown, found.changed, found.broken, found.finals) == (1, 0, 0, 1)
    assert found.shown_to_stable_s == [3]


def test_only_the_last_word_may_grow():
    found = followed(view(1, "he is"), view(2, "hen is"), view(3, "hen is", final=True))
    assert (found.shown, found.changed) == (3, 1)


def test_a_replaced_word_is_a_change_and_its_delay_restarts():
    found = followed(view(1, "two"), view(2, "too"), view(5, "too", 1), view(6, "too", final=True))
    assert (found.shown, found.changed) == (2, 1)
    assert found.shown_to_stable_s == [3]
    assert found.figures()["changed_share"] == 0.5
    assert found.figures()["changed_per_final_word"] == 1.0


def test_removed_words_are_changes():
    assert followed(view(1, "a b"), view(2, "a"), view(3, "a", final=True)).changed == 1
    assert followed(view(1, "a b")).changed == 2  # the stream ended without a final


def test_changes_before_the_last_word_are_counted_separately():
    assert followed(view(1, "a b"), view(2, "c b"), view(3, "c b", final=True)).inside == 1
    assert followed(view(1, "a b"), view(2, "a c"), view(3, "a c", final=True)).inside == 0
    assert followed(view(1, "a b c"), view(2, "a"), view(3, "a", final=True)).inside == 1
    assert followed(view(1, "a"), view(2, "b c"), view(3, "b c", final=True)).inside == 0


def test_a_change_of_a_stable_word_is_counted():
    assert followed(view(1, "one two", 1), view(2, "won two", 1), view(3, "won two", final=True)).broken == 1
    assert followed(view(1, "one", 1), view(2, "ones", final=True)).broken == 1  # growth of a stable word counts too
    assert followed(view(1, "one two", 2), view(2, "one"), view(3, "one", final=True)).broken == 1
    assert followed(view(1, "one two", 1), view(2, "one too", 1), view(3, "one too", final=True)).broken == 0


def test_the_delay_of_a_stable_word_ends_before_its_final():
    found = followed(view(1, "one"), view(2, "one two", 1), view(9, "one two", final=True, end_s=0.5))
    assert found.shown_to_stable_s == [1, 7]
    assert found.end_to_stable_s == [1.5, 8.5]


def test_a_word_first_seen_in_a_final_has_no_delay():
    assert followed(view(1, "yes", final=True, end_s=0.4)).figures()["word_end_to_stable_ms"]["mean"] == 600.0


def test_words_that_move_to_the_next_segment_are_not_changes():
    found = followed(view(1, "a b c"), view(2, "a b", final=True), view(3, "c d"), view(4, "c d", final=True))
    assert (found.shown, found.changed, found.finals) == (4, 0, 4)


def test_words_missing_from_a_final_and_not_shown_again_are_changes():
    found = followed(view(1, "a b c"), view(2, "a b", final=True), view(3, ""))
    assert (found.shown, found.changed) == (3, 1)


def test_figures_without_words_are_none():
    figures = Stability().figures()
    assert figures["changed_share"] is None
    assert figures["word_end_to_stable_ms"] is None


texts = st.lists(st.sampled_from(["a", "ab", "b", "c"]), max_size=4).map(" ".join)


@given(st.lists(texts, max_size=8), texts)
def test_every_word_shown_is_either_final_or_changed(partials, last):
    views = [view(n, text) for n, text in enumerate(partials)]
    found = followed(*views, view(99, last, final=True), view(100, ""))
    assert found.shown == found.changed + found.finals
    assert found.finals == len(last.split()) == len(found.shown_to_stable_s)
    assert min([0, *found.shown_to_stable_s]) == 0
