"""`repl-rl push RUN --to PLACE`: its arguments, its checks, and the upload.

Everything is made in a temporary folder first. It becomes the folder that was asked for by one rename, so that this is
there whole or not at all. A hub gets it by `huggingface_hub`'s own upload, in one commit for each repository. Nothing
is written before all checks are done, the hub's answer to the token included.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from repl_rl.errors import ConfigError, RunError
from repl_rl.files import open_file, read_file
from repl_rl.utils.folders import is_local_path, require_folder, scratch_folder

if TYPE_CHECKING:
    from repl_rl.config import Config

_WEIGHTS = "*.safetensors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `repl-rl push`, and set `run` as its command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run that is complete")
    parser.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="user/name on the Hugging Face hub (the rollouts go to user/name-rollouts), or a folder such as ./out",
    )
    parser.add_argument("--private", action="store_true", help="make repositories of the hub private")
    parser.add_argument("--no-rollouts", action="store_true", help="the model and its card alone")
    parser.add_argument("--dry-run", action="store_true", help="list what would be published; write and upload nothing")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Check, make and write or upload. Raises a ReplRLError that says what to change, before anything is written."""
    source = options.run
    to = str(options.to)
    with_rollouts = not options.no_rollouts
    config = _require_run(source)
    if options.dry_run and not is_local_path(to):
        _require_hub_id(to)
        return _list(source, config, to, with_rollouts, console)
    if is_local_path(to):
        if options.private:
            raise ConfigError(f"--private is for repositories of the hub; {to} is a folder")
        target = Path(os.path.expanduser(to))
        require_folder("--to", target)
        if target.exists() and any(target.iterdir()):
            raise ConfigError(f"--to {target} is not empty; give a folder that is not there yet, or empty this one")
        if options.dry_run:
            return _list(source, config, to, with_rollouts, console)
        # beside the target, because a rename does not cross file systems
        beside = next(folder for folder in target.absolute().parents if folder.is_dir())
        with scratch_folder(".repl-rl-push-", beside) as scratch:
            notes = _make(source, config, scratch / "out", to, with_rollouts, on_hub=False)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                target.rmdir()
            (scratch / "out").rename(target)
        where = " and ".join(str(path) for path in sorted(target.iterdir()))
    else:
        _require_hub_id(to)
        user = _require_token(to)
        with scratch_folder("repl-rl-push-") as scratch:
            notes = _make(source, config, scratch, to, with_rollouts, on_hub=True)
            addresses = _upload(scratch, to, options.private)
        where = f"{' and '.join(addresses)} (as {user})"
    for note in notes:
        console.print(f"  {note}", highlight=False, markup=False)
    console.print(f"pushed to {where}", highlight=False, markup=False)
    return 0


def _list(source: Path, config: Config, to: str, with_rollouts: bool, console: Console) -> int:
    """Make everything in a temporary folder, print its files and their sizes, and remove it."""
    with scratch_folder("repl-rl-push-") as scratch:
        notes = _make(source, config, scratch, to, with_rollouts, on_hub=not is_local_path(to))
        files = sorted(path for path in scratch.rglob("*") if path.is_file())
        for file in files:
            line = f"{file.stat().st_size / 1e6:10.3f} MB  {file.relative_to(scratch)}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        size_mb = sum(file.stat().st_size for file in files) / 1e6
    for note in notes:
        console.print(f"  {note}", highlight=False, markup=False, soft_wrap=True)
    summary = f"{len(files)} files, {size_mb:.1f} MB, would be pushed to {to}; nothing was"
    console.print(summary, highlight=False, markup=False, soft_wrap=True)
    return 0


def _require_run(source: Path) -> Config:
    """The config of a run that has a model. Raises RunError."""
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.launch import launch_command
    from repl_rl.view.run import FINE_TUNED

    folder = RunFolder(source)
    config = folder.config()
    reached = folder.reached()
    has_model = (source / "model" / "config.json").is_file()
    if not has_model or not folder.has_model_of(reached):
        has = "has a model of another step" if has_model else "has no model to push"
        command = "sft" if (source / FINE_TUNED).exists() else "train"
        go_on = f"{launch_command(config)} {command} --resume {shlex.quote(str(source))}"
        raise RunError(
            f"{source} {has}: it is written when training ends, and the newest checkpoint is of step {reached} of "
            f"{config.train.steps}. Go on with: {go_on}; or end the run there with --set train.steps={max(1, reached)}"
        )
    return config


def _require_hub_id(to: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(to)
        validate_repo_id(f"{to}-rollouts")
        reason = "" if to.count("/") == 1 else "no user is named"
    except HFValidationError as error:
        reason = str(error).split("\n")[0].rstrip(".")
    if reason:
        raise ConfigError(
            f"--to {to!r} is neither user/name on the hub ({reason}) nor a folder: write a folder as "
            f"./{to.lstrip('./')}"
        )


def _require_token(to: str) -> str:
    """Whom the hub takes us for. Raises ConfigError without a token, or for one that the hub refuses."""
    from huggingface_hub import constants, get_token, whoami

    way_out = (
        "make one at https://huggingface.co/settings/tokens that may write, and give it to `hf auth login` or HF_TOKEN"
    )
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"--to {to} is on the hub, and HF_HUB_OFFLINE is set; unset it, or push to a folder: --to ./out"
        )
    if get_token() is None:
        raise ConfigError(f"--to {to} is on the hub, and there is no token: {way_out}; or push to a folder: --to ./out")
    with _hub_errors(f"--to {to}: ", way_out):
        return str(whoami()["name"])


def _make(source: Path, config: Config, folder: Path, to: str, with_rollouts: bool, on_hub: bool) -> list[str]:
    """Make the two repositories, `model` and `rollouts`, in `folder`. Returns notes on what is in them."""
    from repl_rl.run.folder import RunFolder
    from repl_rl.run.push import card, dataset
    from repl_rl.utils.yaml import write_yaml
    from repl_rl.view.run import read_run

    notes: list[str] = []
    view = dataclasses.replace(read_run(source, with_rollouts=False), config=card.public_config(config))
    notes += view.notes
    model = folder / "model"
    model.mkdir(parents=True)
    patterns = dataset.published()["files"]
    for path in sorted((source / "model").iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in patterns):
            _copy(path, model / path.name, source, config)
        else:
            notes.append(f"model/{path.name} is not a file that models are loaded from, and is left out")
    if not any(model.glob(_WEIGHTS)):
        raise RunError(f"{source / 'model'} holds no {_WEIGHTS}: save the model with save_pretrained, then push again")
    has_adapter = config.train.lora is not None and _copy_adapter(source, model / "adapter", config, notes)
    rows: dict[str, int] = {}
    if with_rollouts:
        rows = dataset.write_rollouts(source, folder / "rollouts", notes)
        if not rows:
            notes.append("the run holds no rollouts, so there is no data set of them")
    if any(RunFolder(source).trace.glob("*.json.gz")):
        notes.append("timelines (trace/) are left out: they say when this machine did what")
    if on_hub:
        published = card.Published(to, f"{to}-rollouts" if rows else None, on_hub)
    else:
        target = to.rstrip("/")
        published = card.Published(f"{target}/model", f"{target}/rollouts" if rows else None, on_hub)
    if rows:
        text = card.rollouts_card(view, config, rows, published)
        (folder / "rollouts" / "README.md").write_text(text, encoding="utf-8")
    curve = card.curve(view)
    if curve is not None:
        (model / card.CURVE).write_text(curve, encoding="utf-8")
    (model / "run_config.yaml").write_text(write_yaml(view.config), encoding="utf-8")
    text = card.model_card(view, config, dataset.sample(source), has_adapter, published)
    (model / "README.md").write_text(text, encoding="utf-8")
    notes += [f"{count:,} rollouts in split {split}" for split, count in rows.items()]
    return notes


def _copy(path: Path, target: Path, source: Path, config: Config) -> None:
    """Copy a file of the run `source`; of settings, what is a path of this machine is left out. Raises RunError for
    what is no file of its own."""
    from repl_rl.run.push.card import base_name

    try:
        if not path.name.endswith("config.json"):
            with open_file(path, source) as file, target.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            return
        settings = dict(json.loads(read_file(path, source)))
    except (OSError, ValueError, TypeError) as error:
        if (
            isinstance(error, OSError) and error.errno == errno.ENOSPC
        ):  # the target's disk is full: no fault of the file
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"{path} can't be published: {reason}; put a file of its own there") from error
    public = {}
    for name, value in settings.items():
        if isinstance(value, str) and name.endswith("name_or_path"):
            public[name] = base_name(config.model.path)
        elif isinstance(value, str) and (value.startswith(("/", "~")) or "://" in value):
            continue
        else:
            public[name] = value
    target.write_text(json.dumps(public, indent=2) + "\n", encoding="utf-8")


def _copy_adapter(source: Path, target: Path, config: Config, notes: list[str]) -> bool:
    """Copy the adapter of the newest checkpoint, if that is of the run's last step. Notes say what there is."""
    from repl_rl.run.folder import RunFolder, checkpoint_step

    checkpoint = RunFolder(source).last_checkpoint()
    names = ("adapter_config.json", "adapter_model.safetensors")
    if checkpoint is None or not all((checkpoint / name).is_file() for name in names):
        notes.append("the model's weights have the adapter merged in; no checkpoint holds the adapter alone")
        return False
    steps = [row["step"] for row in RunFolder(source).rows() if row.get("kind") == "train"]
    if steps and checkpoint_step(checkpoint) != max(steps):
        notes.append(
            f"the model's weights have the adapter merged in; the adapter of {checkpoint.name} is older than they are, "
            "and is left out"
        )
        return False
    target.mkdir()
    for name in names:
        _copy(checkpoint / name, target / name, source, config)
    notes.append("the model's weights have the adapter merged in; `adapter` holds it alone")
    return True


def _upload(folder: Path, to: str, private: bool) -> list[str]:
    """Upload the rollouts, then the model whose card names them. Returns the addresses."""
    from huggingface_hub import HfApi

    api = HfApi()
    addresses: list[str] = []
    for name, kind, repository in (("rollouts", "dataset", f"{to}-rollouts"), ("model", "model", to)):
        if not (folder / name).is_dir():
            continue
        uploaded = f"; {' and '.join(addresses)} is uploaded" if addresses else ""
        with _hub_errors(f"{repository} could not be uploaded{uploaded}: ", "push again when that is mended"):
            url = api.create_repo(repository, repo_type=kind, private=private or None, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                repo_type=kind,
                folder_path=folder / name,
                commit_message=f"{name.capitalize()} of a run of repl-rl",
            )
        addresses.append(str(url))
    return addresses[::-1]  # the model first, which is what was asked for


@contextmanager
def _hub_errors(where: str, way_out: str) -> Iterator[None]:
    """Whatever the hub's client raises, as one RunError."""
    try:
        yield
    except Exception as error:  # errors of HTTP libraries, of the client, and of the file system
        first: Any = (str(error).strip().splitlines() or [""])[0]
        raise RunError(f"{where}{type(error).__name__}: {first[:300]}; {way_out}") from error
