"""The file of a space: what it means, and one line for each thing that may be wrong with it."""

from __future__ import annotations

import re

import pytest

from bayesrnn import tasks  # noqa: F401  (registers the experiments)
from bayesrnn.sweep.space import Choices, Range, read_space, shipped
from tests.documents import ROOT, blocks

SPACE = """
trials = 5
[settings]
preset = "tiny"
method = "bbb"
hidden = 8
[space]
pi = [0.25, 0.5]
log_sigma1 = [0, -1]
lr = { low = 0.3, high = 3, log = true }
unroll = { low = 5, high = 9 }
"""
MANY = list(range(1, 200))


@pytest.fixture
def read(tmp_path):
    def read_text(text: str, **options):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return read_space(str(path), **options)

    return read_text


def test_a_space(read):
    space = read(SPACE)
    assert (space.name, space.trials, space.sampler, space.pruner) == ("mine", 5, "tpe", "median")
    assert space.experiment.command == "train"
    assert space.parameters == {
        "pi": Choices((0.25, 0.5)),
        "log_sigma1": Choices((0.0, -1.0)),
        "lr": Range(0.3, 3.0, log=True),
        "unroll": Range(5, 9),
    }
    assert isinstance(space.parameters["unroll"].low, int)
    assert isinstance(space.parameters["lr"].high, float)
    config = space.config({"pi": 0.5, "log_sigma1": 0.0, "lr": 1.5, "unroll": 7})
    assert (config.pi, config.lr, config.hidden, config.method) == (0.5, 1.5, 8, "bbb")
    assert config.init == "fan-in"  # of the preset's table for the method
    assert space.cells(0, 3) == [{}, {}, {}]


def test_options_replace_what_the_file_says(read):
    space = read(SPACE, data="ptb", trials=7)
    assert space.trials == 7
    assert space.config(space.example()).data == "ptb"
    assert space.as_json() == read(SPACE).as_json()  # the same sweep, with more trials, elsewhere


def test_a_method_or_preset_that_is_searched_brings_its_defaults(read):
    space = read('trials = 1\n[space]\nmethod = ["lstm", "bbb"]\npreset = ["tiny", "small"]')
    assert space.config({"method": "lstm", "preset": "tiny"}).init == "uniform"
    assert space.config({"method": "bbb", "preset": "small"}).hidden == 200


def test_a_grid_has_each_combination_once_in_an_order_of_the_seeds(read):
    space = read('sampler = "grid"\n[space]\npi = [0.25, 0.5]\nhidden = [4, 5, 6]')
    assert space.trials == 6
    cells = [tuple(cell.items()) for cell in space.cells(0, 6)]
    assert sorted(cells) == sorted(
        {(("pi", p), ("hidden", h)) for p in (0.25, 0.5) for h in (4, 5, 6)}
    )
    assert cells == [tuple(cell.items()) for cell in space.cells(0, 6)]
    assert cells != [tuple(cell.items()) for cell in space.cells(1, 6)]


def test_the_space_of_the_documentation(read):
    (block,) = blocks(ROOT / "docs" / "sweeps.md", "toml")
    space = read(block.text)
    assert (space.trials, set(space.parameters)) == (60, {"pi", "lr"})


@pytest.mark.parametrize(("name", "trials"), [("paper", 60), ("priors", 27)])
def test_the_spaces_in_the_package(name, trials):
    space = read_space(name)
    assert space.trials == trials
    assert [space.parameters[n].examples for n in ("pi", "log_sigma1", "log_sigma2")] == [
        (0.25, 0.5, 0.75),
        (0.0, -1.0, -2.0),
        (-6.0, -7.0, -8.0),
    ]
    if name == "paper":  # sigma0 matters for this method only
        assert space.config(space.example()).method == "sharpened"
        assert {"lr", "lr_decay", "sigma0"} < set(space.parameters)
    assert set(shipped()) == {"paper", "priors"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "[space] has no settings to search."),
        ("trials = 5\n[space]", "[space] has no settings to search."),
        ("x = [", "is not valid TOML: "),
        ("trails = 5", "unknown name 'trails'; did you mean 'trials'?"),
        ("space = 3", "[space] must be a table."),
        ("trials = 1.5\n[space]\npi = [0.5]", "trials = 1.5 must be of type int."),
        ("trials = true\n[space]\npi = [0.5]", "trials = True must be of type int."),
        ("trials = 0\n[space]\npi = [0.5]", "trials = 0 must lie between 1 and 10,000."),
        ("[space]\npi = [0.5]", "say how many trials: "),
        ('sampler = "tpa"\n[space]\npi = [0.5]', "unknown sampler 'tpa'; did you mean tpe? choose from"),
        ('pruner = "mean"\n[space]\npi = [0.5]', "unknown pruner 'mean'; "),
        ('experiment = "trian"\n[space]\npi = [0.5]', "unknown experiment 'trian'; did you mean train?"),
        ('experiment = "mnist"\ntrials = 1\n[space]\nunroll = [5]', "unknown setting 'unroll'"),
        ("reports_per_epoch = 0\n[space]\npi = [0.5]", "reports_per_epoch = 0 must lie between"),
        ("trials = 1\n[space]\nlog_sigm1 = [0]", "unknown setting 'log_sigm1'; did you mean 'log_sigma1'?"),
        ("trials = 1\n[settings]\nepoch = 3\n[space]\npi = [0.5]", "'epoch'; did you mean 'epochs'?"),
        ('trials = 1\n[settings]\nstart = "a"\n[space]\npi = [0.5]', "unknown setting 'start'"),
        ("trials = 1\n[settings]\npi = 0.5\n[space]\npi = [0.5]", "'pi' is in [settings] and in [space]"),
        ("trials = 1\n[space]\npi = 0.5", "pi = 0.5 must be a list of values, or a range"),
        ("trials = 1\n[space]\npi = []", "pi must be a list of one value or more"),
        ("trials = 1\n[space]\npi = [[0.5]]", "pi must be a list of one value or more"),
        ("trials = 1\n[space]\npi = [0.5, 0.5]", "pi has a value twice."),
        ("trials = 1\n[space]\npi = [0.5, 1.5]", "pi = 1.5 must lie strictly between 0 and 1."),
        ("trials = 1\n[space]\nhidden = [8.5]", "hidden = 8.5 must be of type int."),
        ('trials = 1\n[space]\nmethod = ["bbb", "nonsense"]', "unknown method 'nonsense'"),
        ('trials = 1\n[settings]\npreset = "huge"\n[space]\npi = [0.5]', "unknown preset 'huge'"),
        ("trials = 1\n[space]\nlr = { low = 1 }", "lr.high is missing."),
        ("trials = 1\n[space]\nlr = { low = 1, hihg = 2 }", "unknown name 'hihg'; did you mean 'high'?"),
        ("trials = 1\n[space]\nlr = { low = 2, high = 1 }", "low = 2.0 must be below high = 1.0."),
        ("trials = 1\n[space]\nlr = { low = 0, high = 1, log = true }", "low = 0.0 must be above 0"),
        ("trials = 1\n[space]\nlr = { low = 0, high = 1 }", "lr = 0.0 must be above 0."),
        ("trials = 1\n[space]\nlr = { low = 1, high = inf }", "lr.high = inf must be a finite number"),
        ("trials = 1\n[space]\nlr = { low = nan, high = 1 }", "lr.low = nan must be a finite number"),
        ("trials = 1\n[space]\nlr = { low = 1, high = 2, log = 1 }", "lr.log = 1 must be true or false."),
        ("trials = 1\n[space]\nhidden = { low = 1.5, high = 3 }", "hidden.low = 1.5 must be a finite number"),
        ("trials = 1\n[space]\nprior = { low = 1, high = 3 }", "this setting is of type str; give a list"),
        ('sampler = "grid"\n[space]\nlr = { low = 1, high = 2 }', "lr is a range; a grid needs lists."),
        ('sampler = "grid"\ntrials = 2\n[space]\npi = [0.5]', "a grid has as many trials as combinations, 1"),
        (f'sampler = "grid"\n[space]\nhidden = {MANY}\nunroll = {MANY}', "39,601 combinations"),
        ("[space]\npi." + ".".join("a" * 400) + " = 1", "more than 300 dots"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(text, says, read):
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        read(text)
    assert "mine.toml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("papre", "there is no space 'papre'; did you mean paper? "),
        ("nowhere/space.toml", "nowhere/space.toml: no such file."),
        ("space.toml", "space.toml: no such file."),
        (".", ". is a folder; give the TOML file of a space."),
    ],
)
def test_a_place_without_a_space(place, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read_space(place)
