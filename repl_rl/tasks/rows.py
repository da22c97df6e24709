"""The rows of a data set's split: from the hub (or its cache), from files, or from what `save_to_disk` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repl_rl.errors import ConfigError

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}
_ALIASES = {"validation": ("validation", "valid", "val", "dev")}


def load_hub(name: str, subset: str | None, split: str) -> Any:
    """A `datasets.Dataset` from the hub or its cache. Raises ConfigError that says what to do if it is in neither."""
    from datasets import load_dataset

    try:
        return load_dataset(name, subset, split=split)
    except ValueError as error:
        raise ConfigError(
            f"data set {name!r} can't be loaded: {_first_line(error)}; see tasks.subset (now {subset!r}) and "
            f"tasks.split (now {split!r})"
        ) from error
    except Exception as error:  # the hub's client raises errors of many libraries
        of = f", {subset!r}" if subset else ""
        raise ConfigError(
            f"data set {name!r} is neither in the cache nor within reach ({type(error).__name__}: "
            f"{_first_line(error)}). "
            f'Where there is a network, `python -c "from datasets import load_dataset; load_dataset({name!r}{of})"` '
            "brings it into the cache (HF_HOME); or put its files into a folder and set tasks.folder"
        ) from error


def load_folder(folder: str, subset: str | None, split: str) -> Any:
    """The split's rows among a folder's files, whose names or folders say which split they are; a `datasets.Dataset`.

    Files of another split's name are left out; where no name says anything, all files are the split `train`. Raises
    ConfigError naming what there is.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(f"tasks.folder {folder!r} is no folder")
    if any((path / name).exists() for name in ("dataset_dict.json", "dataset_info.json", "state.json")):
        return _from_disk(path, split)
    files = _files_of(path, subset, split)
    kinds = sorted({_BUILDERS[file.suffix] for file in files})
    if len(kinds) > 1:
        raise ConfigError(f"{path} holds split {split!r} as {' and '.join(kinds)}; leave one kind of file in it")
    return _read_files(kinds[0], files)


def _files_of(path: Path, subset: str | None, split: str) -> list[Path]:
    files = sorted(file for file in path.rglob("*") if file.suffix in _BUILDERS and file.is_file())
    if not files:
        raise ConfigError(f"{path} holds no file that ends in {', '.join(_BUILDERS)}")
    if subset is not None and any(subset in file.relative_to(path).parts for file in files):
        files = [file for file in files if subset in file.relative_to(path).parts]
    named = {file: name for file in files if (name := _split_named(file.relative_to(path))) is not None}
    chosen = [file for file in files if named.get(file, "train") == split or _says(file.relative_to(path), split)]
    if not chosen:
        raise ConfigError(
            f"{path} holds no split {split!r}; it holds {_listed(sorted(set(named.values())) or ['train'])}"
        )
    return chosen


def _split_named(file: Path) -> str | None:
    return next((split for split in ("train", "test", "validation") if _says(file, split)), None)


def _says(file: Path, split: str) -> bool:
    words = {file.stem, *file.stem.replace("_", "-").replace(".", "-").split("-"), *file.parts[:-1]}
    return any(alias in words for alias in _ALIASES.get(split, (split,)))


def _read_files(kind: str, files: list[Path]) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(kind, data_files={"rows": [str(file) for file in files]}, split="rows")
    except Exception as error:  # pyarrow, pandas and datasets each raise their own
        cause = error.__cause__ or error
        raise ConfigError(
            f"{_listed([str(file) for file in files])} can't be read as {kind}: {_first_line(cause)}"
        ) from error


def _from_disk(path: Path, split: str) -> Any:
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except Exception as error:
        raise ConfigError(f"{path} can't be read as what save_to_disk wrote: {_first_line(error)}") from error
    if not isinstance(loaded, DatasetDict):
        if split != "train":
            raise ConfigError(f"{path} holds no split {split!r}: it is a set without splits, which counts as 'train'")
        return loaded
    if split not in loaded:
        raise ConfigError(f"{path} holds no split {split!r}; it holds {_listed(list(loaded))}")
    return loaded[split]


def texts(rows: Any, column: str) -> Iterator[str]:
    """A column's values as text; a list of one is that one. Raises ConfigError naming the row where it is no text."""
    for number, value in enumerate(rows[column]):
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(f"row {number}: column {column!r} holds {value!r}, which is neither text nor a number")
        yield str(value)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
