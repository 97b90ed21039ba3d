"""Preset files: settings of one's own, wherever a preset is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bayesrnn.cli import main
from bayesrnn.tasks.captions.config import preset as captions_preset
from bayesrnn.tasks.language.config import preset
from bayesrnn.training.experiment import open_run

MINE = """
hidden = 8
batch_size = 8
unroll = 10
epochs = 1
method = "lstm"
[bbb]
epochs = 2
pi = 0.5
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(MINE)


@pytest.mark.usefixtures("mine")
def test_a_file_has_the_defaults_of_a_method_and_options_come_first(text_folder, capsys):
    data = ["--data", str(text_folder), "--no-tensorboard", "--json"]
    main(["train", "--preset", "mine.toml", *data])
    main(["train", "--preset=mine.toml", "--method", "bbb", "--pi", "0.75", *data])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    runs = {path.name: open_run(path).config for path in Path("runs").iterdir()}
    assert set(runs) == {f"{text_folder.name}-mine-{method}-0" for method in ("lstm", "bbb")}
    config = runs[f"{text_folder.name}-mine-bbb-0"]
    assert (config.preset, config.hidden, config.pi) == ("mine.toml", 8, 0.75)


@pytest.mark.usefixtures("mine")
def test_a_run_outlives_its_preset_file(text_folder, capsys):
    where = ["--run", "run", "--no-tensorboard", "--json"]
    main(["train", "--preset", "mine.toml", "--data", str(text_folder), *where])
    Path("mine.toml").unlink()
    main(["train", "--resume", "--epochs", "2", *where])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["epoch"] == 2
    main(["evaluate", "run", "--json"])


@pytest.mark.usefixtures("mine")
def test_the_settings_of_a_run_are_a_preset_too():
    Path("config.toml").write_text(preset("small", "bbb", lr=0.7, start="runs/a").to_toml())
    config = preset("config.toml", None)
    assert (config.lr, config.hidden, config.method) == (0.7, 200, "bbb")
    assert (config.preset, config.start) == ("config.toml", "")


@pytest.mark.usefixtures("mine")
def test_captions_have_them_too():
    Path("mine.toml").write_text('hidden = 8\nmethod = "lstm"\n')
    assert captions_preset("mine.toml", None).hidden == 8
    assert captions_preset("mine.toml", None).method == "lstm"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "mine.toml: no such preset file."),
        ("hidden = ", "mine.toml is not valid TOML: "),
        ("hiden = 8", "mine.toml: unknown setting 'hiden'; did you mean 'hidden'?"),
        ("hidden = 0", "mine.toml: hidden = 0 must be at least 1."),
        ("[bbbb]\nhidden = 8", "mine.toml: [bbbb] is no method; choose from lstm, "),
        ("method = 3", "mine.toml: method = 3 must be of type str."),
        ('task = "mnist"', "mine.toml has the settings of another experiment, mnist."),
        ('method = "nonsense"', "unknown method 'nonsense'"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(text, says, mine, capsys):
    Path("mine.toml").unlink() if text is None else Path("mine.toml").write_text(text)
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--preset", "mine.toml"])
    assert exit_.value.code == 2
    assert re.fullmatch(rf"bayesrnn: {re.escape(says)}[^\n]*\n", capsys.readouterr().err)
    assert not Path("runs").exists()
