from bayesrnn.cli import progress


def test_long_work_without_a_terminal_says_how_far_it_is(monkeypatch, capsys):
    with progress.steps(4) as advance:
        advance("a short one", 1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.steps(4) as advance:
        advance("reversed text", 1)
        advance("shuffled text", 2)
    assert capsys.readouterr().err == " 25%  reversed text\n 75%  shuffled text\n"
