"""Workers that share a study: who trains what, what becomes of the dead, what they find. They fit a line."""

from __future__ import annotations

import json
import threading

import pytest

from bayesrnn.cli import main
from bayesrnn.files import locked
from bayesrnn.sweep import study as study_of
from bayesrnn.sweep.results import results
from bayesrnn.sweep.space import read_space
from bayesrnn.sweep.storage import open_storage
from bayesrnn.sweep.study import DEATHS, MOST_TRIES, TRY, join
from bayesrnn.sweep.worker import Worker
from bayesrnn.training import experiment as registry
from bayesrnn.training.loop import Trainer
from bayesrnn.training.run import Run

optuna = pytest.importorskip("optuna")

RANDOM = """
experiment = "toy"
trials = 4
sampler = "random"
pruner = "none"
[settings]
method = "dropout"
epochs = 2
[space]
lr = { low = 0.01, high = 0.5, log = true }
"""
GRID = """
experiment = "toy"
sampler = "grid"
pruner = "none"
[settings]
method = "dropout"
epochs = 1
[space]
lr = [0.1, 0.2, 0.3, 0.4]
slope = [1, 2, 3]
"""


class Heard:
    """What a worker has told, and a function that is called after each step."""

    def __init__(self, after_step=lambda slot, trainer, state: None):
        self.lines, self.of, self.after_step, self.trial = [], [], after_step, None

    def begun(self, slot, params, slots):
        self.trial = slot

    def stepped(self, trainer, state):
        self.after_step(self.trial, trainer, state)

    def ended(self, slot, slots):
        self.of.append((slot.number, slot.state))

    def noted(self, text):
        self.lines.append(text)


@pytest.fixture
def space_of(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_MODULES", dict(registry._MODULES))
    registry.register("toy", "tests.tasks.toy_experiment")
    (tmp_path / "sweep").mkdir()

    def space(text, **options):
        (tmp_path / "line.toml").write_text(text)
        return read_space(str(tmp_path / "line.toml"), **options)

    return space


@pytest.fixture(params=["journal", "sqlite"])
def place(request, tmp_path):
    return (
        str(tmp_path / "journal.log")
        if request.param == "journal"
        else f"sqlite:///{tmp_path}/x.db"
    )


def joined(space, place, **options):
    """The study as another process would see it."""
    asked = options.pop("asked", None)
    given = {"seed": 0, "dead_after": 1.0, "data": "digest", **options}
    return join(space, open_storage(place), goal="valid_r2", maximise=True, asked=asked, **given)


def tries(study):
    """Optuna's trials, as (slot, try, state, deaths before), in order."""
    return sorted(
        (t.user_attrs["trial"], t.user_attrs[TRY], t.state.name, t.user_attrs[DEATHS])
        for t in study.study.get_trials()
    )


def test_a_sweep_ends_with_as_many_trials_as_asked_for(space_of, tmp_path):
    space, heard = space_of(RANDOM), Heard()
    study = joined(space, str(tmp_path / "journal.log"))
    slots = Worker(study, tmp_path / "sweep", 1.0, heard).run()
    assert heard.of == [(number, "complete") for number in range(4)]
    assert heard.lines == []
    assert [slot.number for slot in slots] == [0, 1, 2, 3]
    for slot in slots:  # each is a real run, and its value the run's
        run = registry.open_run(tmp_path / "sweep" / slot.run)
        assert run.config.lr == slot.params["lr"]
        assert max(line["valid_r2"] for line in run.read_metrics("epoch")) == slot.value
    best = study.best(slots)
    assert best is not None
    assert best.value == max(slot.value for slot in slots)  # more is better
    assert Worker(study, tmp_path / "sweep", 1.0, Heard()).run() == slots  # nothing left to do


def test_what_is_sampled_depends_on_the_seed_and_not_on_the_worker(space_of, tmp_path):
    space = space_of(RANDOM)

    def sampled(name, seed, order):
        study = joined(space, str(tmp_path / name), seed=seed)
        slots = study.slots()
        return {n: study.claim(slots[n]).params["lr"] for n in order}

    one = sampled("a", 0, [0, 1, 2, 3])
    assert one == sampled("b", 0, [3, 2, 1, 0])
    assert len(set(one.values())) == 4
    assert one != sampled("c", 1, [0, 1, 2, 3])


def test_two_workers_train_each_cell_of_a_grid_once(space_of, place, tmp_path):
    """They claim as fast as they can; what is trained does not matter here."""
    space = space_of(GRID)
    claimed, barrier = [[], []], threading.Barrier(2, timeout=20)

    def work(which):
        study = joined(space, place)
        barrier.wait()
        for slot in study.slots():
            trial = study.claim(slot)
            if trial is not None:
                claimed[which].append(tuple(trial.params.items()))
                study.complete(trial, 1.0)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cells = {(("lr", lr), ("slope", s)) for lr in (0.1, 0.2, 0.3, 0.4) for s in (1.0, 2.0, 3.0)}
    assert sorted(claimed[0] + claimed[1]) == sorted(cells)
    assert {state for _, _, state, _ in tries(joined(space, place))} == {"COMPLETE"}
    assert len(tries(joined(space, place))) == 12


def test_a_creator_that_dies_half_way_is_helped_out(space_of, tmp_path, monkeypatch):
    space, place = space_of(GRID), str(tmp_path / "journal.log")
    made = 0

    def dies(self, *args, **options):
        nonlocal made
        made += 1
        if made > 5:
            raise KeyboardInterrupt
        return add(self, *args, **options)

    with monkeypatch.context() as patch:
        add = study_of.SharedStudy._add
        patch.setattr(study_of.SharedStudy, "_add", dies)
        with pytest.raises(KeyboardInterrupt):
            joined(space, place)
    now = 0.0
    naps = []

    def sleep(seconds):
        nonlocal now
        naps.append(seconds)
        now += seconds

    study = joined(space, place, sleep=sleep, clock=lambda: now)
    assert 1.0 <= sum(naps) < 1.5  # it waited for the creator first
    cells = [tuple(slot.params.items()) for slot in study.slots()]
    assert len(cells) == len(set(cells)) == 12


def test_what_two_workers_have_made_twice_counts_once(space_of, tmp_path):
    """Both find that the slots are missing, and that a try has failed."""
    space, place = space_of(RANDOM), str(tmp_path / "journal.log")
    one = joined(space, place)
    for number in range(4, 6):
        for _ in range(2):
            one._add(number, attempt=0, deaths=0, params={}, values={})
    slots = one.slots()
    assert [slot.last.number for slot in slots] == [0, 1, 2, 3, 4, 6]
    one.fail(one.claim(slots[0]), "died")
    failed = one.slots()
    assert one.repair(failed)
    assert one.repair(failed)  # by another, who has seen the same
    assert not one.repair(one.slots())
    again = one.slots()[0]
    assert (again.state, again.last.user_attrs[TRY]) == ("waiting", 1)
    Worker(one, tmp_path / "sweep", 1.0, Heard()).run()
    complete = [slot for slot, _, state, _ in tries(one) if state == "COMPLETE"]
    assert complete == list(range(6))


def test_the_trial_of_a_dead_worker_goes_on_where_it_was(space_of, place, tmp_path):
    space = space_of(RANDOM)
    dead = joined(space, place)
    trial = dead.claim(dead.slots()[0])
    config = space.config(trial.params)
    folder = tmp_path / "sweep" / "trial-0000"
    ready = space.experiment.prepare(config, None)
    trainer = Trainer(Run.create(folder, config, ready.files), ready.task, ready.method)
    for _, state in zip(range(7), trainer.run(), strict=False):  # an epoch has 5 steps
        for line in state.measured:
            if line["kind"] == "epoch":
                dead.report(trial, 1, line["valid_r2"])
    seconds = (folder / "timing.jsonl").read_text()
    assert seconds.count("\n") == 1

    study, heard = joined(space, place), Heard()
    slots = Worker(study, tmp_path / "sweep", 1.0, heard).run()
    assert {slot.state for slot in slots} == {"complete"}
    # On a slow machine the second is over before the other trials are, and nobody waits.
    *waited, last = heard.lines
    assert [line.partition(";")[0] for line in waited] in (["nothing left to begin"], [])
    assert last == "the worker of trial 0 is dead"
    assert tries(study)[:2] == [(0, 0, "FAIL", 0), (0, 1, "COMPLETE", 1)]
    assert len(tries(study)) == 5
    assert slots[0].params == trial.params
    assert slots[0].last.intermediate_values.keys() == {1, 2}
    # Not a time is like another: the first epoch is not trained again.
    assert (folder / "timing.jsonl").read_text().startswith(seconds)
    whole = tmp_path / "whole"
    main(
        f"toy --method dropout --epochs 2 --lr {config.lr!r} --run {whole} --json --no-tensorboard".split()
    )
    for name in ("metrics.jsonl", "weights.safetensors", "checkpoint.safetensors"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_worker_that_was_thought_dead_drops_its_trial(space_of, tmp_path):
    space, place = space_of(RANDOM, trials=1), str(tmp_path / "journal.log")
    other, seen = joined(space, place), []

    def taken(slot, trainer, state):
        if not seen:
            other.fail(other.slots()[0].last, "died")
            with (
                pytest.raises(ValueError, match="is in use"),
                locked(tmp_path / "sweep" / slot.run),
            ):
                pass  # the next try would wait for this one to be gone
            seen.append(dict(slot.params))
            threading.Event().wait(0.8)  # three beats

    study, heard = joined(space, place), Heard(taken)
    (slot,) = Worker(study, tmp_path / "sweep", 1.0, heard).run()
    assert heard.lines == ["trial 0 was given to another worker, since this one was not heard of"]
    assert tries(study) == [(0, 0, "FAIL", 0), (0, 1, "COMPLETE", 1)]
    assert heard.of == [(0, "complete")]
    assert slot.value is not None


def test_a_run_folder_that_is_in_use_is_waited_for(space_of, tmp_path):
    space = space_of(RANDOM, trials=1)
    study = joined(space, str(tmp_path / "journal.log"))
    folder = tmp_path / "sweep" / "trial-0000"
    folder.mkdir()
    lock = locked(folder)
    lock.__enter__()
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            lock.__exit__(None, None, None)

    heard = Heard()
    Worker(study, tmp_path / "sweep", 1.0, heard, sleep=sleep).run()
    assert len(naps) == 3
    assert len(heard.lines) == 1
    assert "trial-0000 is in use by process" in heard.lines[0]
    assert tries(study) == [(0, 0, "COMPLETE", 0)]


def test_a_trial_whose_workers_all_die_is_given_up(space_of, tmp_path):
    space = space_of(RANDOM, trials=2)
    study = joined(space, str(tmp_path / "journal.log"))
    for _ in range(MOST_TRIES):
        slot = study.slots()[0]
        study.fail(study.claim(slot), "died")
        study.repair(study.slots())
    assert study.slots()[0].state == "lost"
    slots = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    assert [slot.state for slot in slots] == ["lost", "complete"]
    assert len(tries(study)) == MOST_TRIES + 1


def test_an_error_puts_the_trial_back_and_counts_as_a_try(space_of, tmp_path, monkeypatch):
    space = space_of(RANDOM, trials=1)
    study = joined(space, str(tmp_path / "journal.log"))

    def full(slot, trainer, state):
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        Worker(study, tmp_path / "sweep", 1.0, Heard(full)).run()
    assert tries(study) == [(0, 0, "FAIL", 0), (0, 1, "WAITING", 1)]
    (slot,) = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    assert slot.state == "complete"


def test_a_stop_puts_the_trial_back_and_is_no_death(space_of, tmp_path):
    space = space_of(RANDOM, trials=1)
    study = joined(space, str(tmp_path / "journal.log"))

    for _ in range(5):  # more often than a worker may die
        heard = Heard()
        worker = Worker(study, tmp_path / "sweep", 1.0, heard)
        heard.after_step = lambda *_, worker=worker: setattr(worker, "stop", 15)
        (slot,) = worker.run()
        assert slot.state == "waiting"
    assert len(tries(study)) == 6
    (slot,) = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    assert (slot.state, slot.deaths) == ("complete", 0)
    whole = tmp_path / "whole"
    lr = slot.params["lr"]
    main(
        f"toy --method dropout --epochs 2 --lr {lr!r} --run {whole} --json --no-tensorboard".split()
    )
    ours = (tmp_path / "sweep" / "trial-0000" / "metrics.jsonl").read_bytes()
    assert ours == (whole / "metrics.jsonl").read_bytes()


def test_a_diverged_trial_is_a_result(space_of, tmp_path):
    text = GRID.replace("[0.1, 0.2, 0.3, 0.4]", "[0.1, 1e30]").replace("[1, 2, 3]", "[2]")
    study, heard = joined(space_of(text), str(tmp_path / "journal.log")), Heard()
    slots = Worker(study, tmp_path / "sweep", 1.0, heard).run()
    assert {slot.params["lr"]: slot.state for slot in slots} == {0.1: "complete", 1e30: "diverged"}
    assert len(tries(study)) == 2
    found = results(study, tmp_path / "sweep", slots)
    assert [row[2] for row in found.table()[1]] == ["complete", "diverged"]
    reason = next(t["reason"] for t in found.as_json()["trials"] if t["state"] == "diverged")
    assert "training diverged in epoch 1" in reason


def test_hopeless_trials_are_pruned(space_of, tmp_path):
    """By the median of the first five; a learning rate of nothing learns nothing."""
    text = GRID.replace('"none"', '"median"').replace("epochs = 1", "epochs = 4")
    rates = "[0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 1e-9, 1e-8]"
    text = text.replace("[0.1, 0.2, 0.3, 0.4]", rates).replace("[1, 2, 3]", "[2]")
    space = space_of(text)
    seed = next(
        seed for seed in range(1000) if all(c["lr"] < 1e-3 for c in space.cells(seed, 8)[6:])
    )
    study = joined(space, str(tmp_path / "journal.log"), seed=seed)
    slots = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    for slot in slots:
        run = registry.open_run(tmp_path / "sweep" / slot.run)
        epochs = len(run.read_metrics("epoch"))
        if slot.params["lr"] < 1e-3:
            assert (slot.state, epochs) == ("pruned", 1)
        elif slot.number < 5:
            assert (slot.state, epochs) == ("complete", 4)
    assert study.best(slots).params["lr"] == 0.2


def test_reports_between_epochs_change_nothing(space_of, tmp_path):
    space = space_of(
        RANDOM.replace('sampler = "random"', 'sampler = "random"\nreports_per_epoch = 3')
    )
    study = joined(space, str(tmp_path / "journal.log"))
    slots = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    for slot in slots:
        assert sorted(slot.last.intermediate_values) == [1, 2, 3, 4, 5, 6]
        epochs = registry.open_run(tmp_path / "sweep" / slot.run).read_metrics("epoch")
        assert [slot.last.intermediate_values[n] for n in (3, 6)] == [e["valid_r2"] for e in epochs]
        assert slot.last.intermediate_values[2] < slot.last.intermediate_values[3]


def test_another_space_is_refused_and_more_trials_are_not(space_of, tmp_path):
    place = str(tmp_path / "journal.log")
    joined(space_of(RANDOM), place)
    for old, new, says in [
        ("epochs = 2", "epochs = 3", r"settings\.epochs = 3, which was 2"),
        ("high = 0.5", "high = 0.6", r"space\.lr = .*0\.6.*, which was .*0\.5"),
        ('"none"', '"median"', "pruner = median, which was none"),
    ]:
        with pytest.raises(ValueError, match=f"begun with another space: {says}"):
            joined(space_of(RANDOM.replace(old, new)), place)
    with pytest.raises(ValueError, match="seed = 3, which was 0"):
        joined(space_of(RANDOM), place, seed=3)
    with pytest.raises(ValueError, match="another space: the training data"):
        joined(space_of(RANDOM), place, data="other")
    assert len(joined(space_of(RANDOM, trials=6), place, asked=6).slots()) == 6
    assert len(joined(space_of(RANDOM), place).slots()) == 6  # the file still says 4
    with pytest.raises(ValueError, match="has 6 trials; there can be more, but not fewer"):
        joined(space_of(RANDOM, trials=5), place, asked=5)


def test_a_study_of_somebody_elses_is_left_alone(space_of, tmp_path):
    place = str(tmp_path / "journal.log")
    theirs = optuna.create_study(study_name="line", storage=open_storage(place))
    theirs.ask()
    with pytest.raises(ValueError, match="'line' is no sweep of bayesrnn"):
        joined(space_of(RANDOM), place)


def test_a_folder_with_another_run_in_it_is_refused(space_of, tmp_path):
    folder = tmp_path / "sweep" / "trial-0000"
    main(f"toy --method dropout --lr 0.3 --run {folder} --json --no-tensorboard --epochs 1".split())
    study = joined(space_of(RANDOM), str(tmp_path / "journal.log"))
    with pytest.raises(ValueError, match="trial 0: .*trial-0000 is a run with other settings"):
        Worker(study, tmp_path / "sweep", 1.0, Heard()).run()


def test_importance_and_files(space_of, tmp_path):
    text = RANDOM.replace("trials = 4", "trials = 12").replace(
        "[space]", "[space]\nclip = { low = 1e8, high = 1e9 }"
    )
    study = joined(space_of(text), str(tmp_path / "journal.log"))
    slots = Worker(study, tmp_path / "sweep", 1.0, Heard()).run()
    found = results(study, tmp_path / "sweep", slots)
    assert found.importance["lr"] > found.importance["clip"]  # which does nothing
    assert sum(found.importance.values()) == pytest.approx(1)
    values = [float(row[1]) for row in found.table()[1]]
    assert values == sorted(values, reverse=True)
    assert found.write() == ["results.md"]  # the toy has no presets
    page = (tmp_path / "sweep" / "results.md").read_text()
    assert page.startswith("# Sweep line: 12 of 12 trials\n")
    assert page.count("| complete |") == 12
    json.dumps(found.as_json(), allow_nan=False)
    # An experiment without presets is told by options.
    command = found.command().split()
    assert command[:2] == ["bayesrnn", "toy"]
    main([*command[1:], "--run", str(tmp_path / "again"), "--json", "--no-tensorboard"])
    again = registry.open_run(tmp_path / "again").read_metrics("epoch")
    assert max(line["valid_r2"] for line in again) == found.best.value
