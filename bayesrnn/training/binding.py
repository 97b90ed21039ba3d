"""What the files of a run belong to: its settings, its other files, its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bayesrnn.files import sha256_of
from bayesrnn.training.settings import Settings, read_toml


def binding(
    folder: Path, config: Settings, files: Sequence[str], data: str | None
) -> dict[str, Any]:
    """For the header of weights and checkpoints: the names of all settings, those that no run may change, the
    digests of its own text files, such as the vocabulary, and that of the training data."""
    return {
        "names": [field.name for field in fields(config)],
        "settings": _lasting(config),
        "files": {name: sha256_of(folder / name) for name in files},
        "data": data,
    }


def check_binding(
    header: Mapping[str, Any], source: Path, config: Settings, data: str | None = None
) -> None:
    """Raise ValueError if the header of `source` says that it belongs to other settings, files or data.

    What a header does not mention is not compared: those of earlier versions have no binding.
    """
    check_settings(header, source, config)
    for path, digest in bound_files(header, source).items():
        if not path.is_file() or sha256_of(path) != digest:
            raise ValueError(f"{path} has changed since {source.name} was written; restore it.")
    trained_on = _bound(header).get("data")
    if None not in (trained_on, data) and trained_on != data:
        raise ValueError(
            f"these are not the training data that {source} was trained on; give the same data, or start a "
            "new run."
        )


def check_settings(header: Mapping[str, Any], source: Path, config: Settings) -> None:
    """Raise ValueError if the header of `source` says that it belongs to other settings, or to more."""
    names = _bound(header).get("names")
    path = source.parent / "config.toml"
    if isinstance(names, list):  # files of earlier versions have none
        written = read_toml(path)[1]
        for name in names:
            if not isinstance(name, str) or name not in written:
                raise ValueError(f"{path} is damaged: it has no {name!r}. Restore it from a copy.")
    present = _lasting(config)
    for name, value in _table(_bound(header), "settings").items():
        if name in present and present[name] != value:
            raise ValueError(
                f"{source} was written with {name} = {value!r}, but config.toml has {present[name]!r}: one "
                "of them was edited, or belongs to another run. Put back the right one."
            )


def bound_files(header: Mapping[str, Any], source: Path) -> dict[Path, str]:
    """The digests of the run's own text files, such as its vocabulary, when `source` was written."""
    files = _table(_bound(header), "files")
    return {source.parent / Path(name).name: digest for name, digest in files.items()}


def _bound(header: Mapping[str, Any]) -> Mapping[str, Any]:
    return _table(header, "run")


def _lasting(config: Settings) -> dict[str, Any]:
    names = [field.name for field in fields(config) if field.name not in config.CHANGEABLE]
    return {name: getattr(config, name) for name in names}


def _table(bound: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = bound.get(name)
    return table if isinstance(table, dict) else {}
