"""Where a study is kept: Optuna's journal, a file that many may append to, or a database."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.files import check_writable, expanded

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage

SECONDS_TO_CONNECT = 10
SECONDS_FOR_A_LOCK = 60
"""How long SQLite waits for other workers."""


def is_url(place: str) -> bool:
    return "://" in place


def check_storage(place: str) -> None:
    """Raise ValueError for a file that cannot be a journal; nothing is made. A database is not asked here."""
    if is_url(place):
        return
    path = expanded(place)
    check_writable(path)
    if path.exists():
        _check_journal(path)


def open_storage(place: str) -> BaseStorage:
    """The storage at a path or a URL; ValueError, with one line, for one that cannot be used."""
    quiet()
    if is_url(place):
        return _database(place)
    check_storage(place)
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path = str(expanded(place).absolute())
    try:
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    except Exception as error:  # whatever the lines of a damaged file make Optuna stumble over
        raise ValueError(
            f"{place} is damaged, or no journal of a sweep: {_said(error)}. Restore it from a copy."
        ) from None


@contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Inside the block, what a storage raises becomes one line that names it."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise ValueError(f"{shown_place(place)} is damaged: {_said(error)}.") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("optuna", "sqlalchemy"):
            raise
        raise ValueError(f"the storage {shown_place(place)} has failed: {_said(error)}.") from error


def shown_place(place: str) -> str:
    """A path, or a URL without its password."""
    if not is_url(place):
        return place
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(place).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return place.partition("://")[0] + "://..."


def quiet() -> None:
    """Have no message or warning of Optuna's reach the user: what matters of it, the command says itself."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"(optuna|alembic|sqlalchemy|bayesrnn\.sweep)(\.|$)")


def _check_journal(path: Path) -> None:
    """Raise ValueError unless a file is empty, or looks like a journal at its beginning and end."""
    if not path.is_file():
        raise ValueError(f"{path} is no regular file; name a journal, or a database's URL.")
    if not os.access(path, os.R_OK | os.W_OK):
        raise ValueError(f"{path}: no permission to read and write it.")
    if path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        first = file.readline(100_000)
    try:
        known = "op_code" in json.loads(first)
    except (ValueError, TypeError, RecursionError):
        known = False
    if not known:
        raise ValueError(f"{path} is no journal of a sweep; choose another with --storage.")
    for _ in range(20):  # a line may just be written
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() == b"\n":
                return
        time.sleep(0.1)
    raise ValueError(f"{path} is damaged: its last line is not whole. Remove that line.")


def _database(url: str) -> RDBStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    kind = url.partition("://")[0].partition("+")[0]
    waits: dict[str, Any] = {
        "sqlite": {"timeout": SECONDS_FOR_A_LOCK},
        "postgresql": {"connect_timeout": SECONDS_TO_CONNECT},
        "mysql": {"connect_timeout": SECONDS_TO_CONNECT},
    }
    try:
        storage = _made_once(
            lambda: RDBStorage(url, engine_kwargs={"connect_args": waits.get(kind, {})})
        )
    except ImportError:
        raise ValueError(
            f"{shown_place(url)}: no driver for {kind} is installed, such as psycopg2 or pymysql."
        ) from None
    except ArgumentError as error:
        raise ValueError(f"{shown_place(url)} is no URL of a database: {_said(error)}.") from None
    except (SQLAlchemyError, RuntimeError, ValueError) as error:
        raise ValueError(f"cannot use {shown_place(url)}: {_said(error)}.") from None
    if kind == "sqlite":
        _begin_with_lock(storage)
    return storage


def _made_once(make: Callable[[], RDBStorage]) -> RDBStorage:
    """A database that several workers may make at the same time: who is late finds its tables made."""
    for _ in range(5):
        try:
            return make()
        except Exception as error:
            if "exist" not in str(error) and "UNIQUE" not in str(error):
                raise
            time.sleep(0.5)
    return make()


def _begin_with_lock(storage: RDBStorage) -> None:
    """Have SQLite's transactions exclude each other from their first read on, not only from their first
    write: else two workers could claim one trial."""
    from sqlalchemy import event

    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # Python's module would begin by itself

    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(storage.engine, "connect", connected)
    event.listen(storage.engine, "begin", begun)
    storage.engine.dispose()


def _said(error: BaseException) -> str:
    """The first line of the error, or of the one that it was made from."""
    cause = error.__cause__ or error
    text = str(cause).strip() or type(cause).__name__
    return text.splitlines()[0].rstrip(".")
