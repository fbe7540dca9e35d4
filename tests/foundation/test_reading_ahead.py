"""Reading ahead: the same items, one of them made while another is used."""

import threading

import pytest

from dpbilevel.foundation.reading_ahead import reading_ahead


@pytest.mark.parametrize("number", [0, 1, 2, 7])
def test_items_come_in_order(number):
    assert list(reading_ahead(range(number))) == list(range(number))


def test_the_next_item_is_made_while_one_is_used():
    made = [threading.Event() for _ in range(3)]

    def source():
        for place, event in enumerate(made):
            event.set()
            yield place

    items = reading_ahead(source())
    assert next(items) == 0
    assert made[1].wait(60)
    assert not made[2].wait(0.05), "no item is made before the one before it is used"
    assert list(items) == [1, 2]


def test_items_are_made_by_another_thread():
    assert list(reading_ahead(threading.get_ident() for _ in range(2))).count(threading.get_ident()) == 0


def test_an_error_is_raised_where_its_item_would_be_used():
    def source():
        yield 1
        raise ValueError("as a reader says it")

    items = reading_ahead(source())
    assert next(items) == 1
    with pytest.raises(ValueError, match="as a reader says it"):
        next(items)


def test_nobody_reads_any_more_once_items_are_not_wanted():
    before = threading.active_count()
    items = reading_ahead(range(10))
    assert next(items) == 0
    items.close()
    assert threading.active_count() == before
