"""Who is alive: counts that go on, judged by the clock of whoever looks."""

from __future__ import annotations

import time

import pytest

from bayesrnn.sweep.alive import Taken, Watch, beating


def test_a_count_that_stands_still_for_long_is_a_death():
    now = 1000.0
    watch = Watch(10.0, clock=lambda: now)
    assert watch.dead({1: 5, 2: 7, 3: None}) == []
    now += 9
    assert watch.dead({1: 5, 2: 8, 3: None}) == []
    now += 1
    assert watch.dead({1: 5, 2: 8, 3: None}) == [1, 3]  # a worker may die before its first beat
    now += 9
    assert watch.dead({1: 6, 2: 8}) == [2]
    now += 9
    assert watch.dead({1: 6, 3: None}) == []  # it was gone in between: a new look, a new clock


def test_a_heart_beats_until_the_block_ends_whatever_the_storage_does():
    beats = []

    def beat(count):
        beats.append(count)
        if count == 2:
            raise OSError("the network is away for a moment")

    with beating(beat, 0.02) as heart:
        time.sleep(0.3)
        heart.check()
    assert beats[:4] == [1, 2, 3, 4]
    after = len(beats)
    time.sleep(0.1)
    assert len(beats) == after


def test_a_heart_knows_that_its_trial_was_taken():
    def beat(count):
        raise Taken

    with beating(beat, 0.01) as heart:
        time.sleep(0.1)
        with pytest.raises(Taken):
            heart.check()
