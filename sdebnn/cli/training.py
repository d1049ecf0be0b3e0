"""``sdebnn train``: train a model on a data set, or on data of your own."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from sdebnn import runs
from sdebnn.cli.common import (
    Json,
    MeshOption,
    Params,
    check_suits,
    mesh_of,
    parameters,
    plain_warnings,
    print_result,
    tables,
)
from sdebnn.data import find

TABLES = (".csv", ".tsv")


def train(
    data: Annotated[
        str,
        typer.Option(
            help="A .csv or .npz file, a folder of pictures by class or of .npy files, or a name of a data set."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the run.")],
    target: Annotated[
        str | None, typer.Option(help="Of a .csv file: the column to predict; by default the last.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Of a .csv file: regression or classification.")] = None,
    words: Annotated[
        list[str] | None,
        typer.Option(help="Of a .csv file: a column to take as words, such as codes of digits. Repeatable."),
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="Of your own data: the share of examples to score on; a tenth by default.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Of pictures: the side of the squares they are scaled to.")] = None,
    preset: Annotated[str, typer.Option(help="ours, fast, best or paper.")] = "ours",
    members: Annotated[int | None, typer.Option(help="Nets in the mixture, instead of the preset's number.")] = None,
    infer_w0: Annotated[bool, typer.Option("--infer-w0", help="Infer w_0; otherwise it is a point.")] = False,
    mixing: Annotated[
        bool, typer.Option("--mixing", help="Of images: mix them with patterns in training, against corruptions.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run from its last checkpoint, if any.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Epochs, instead of the preset's number.")] = None,
    kl_weight: Annotated[float, typer.Option(help="1 is the ELBO; less gives a tempered posterior.")] = 1.0,
    validation: Annotated[
        float | None,
        typer.Option(help="Share of the training part to validate on; of nets a tenth by default, of tables none."),
    ] = None,
    param: Params = None,
    patience: Annotated[int | None, typer.Option(help="Stop after this many validations without a better NLL.")] = None,
    monitor: Annotated[int | None, typer.Option(help="Epochs between measurements of STL's gradient noise.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of all members, to score with; 16 of each.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the net, the split, the order and the draws.")] = 0,
    save_every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    memory_limit: Annotated[int, typer.Option(help="MiB of data on the device; larger data are streamed.")] = 2048,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.")] = False,
    mesh: MeshOption = None,
    coordinator: Annotated[
        str | None, typer.Option(help="Of several processes: HOST:PORT of the first one, the same for all.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Of several processes: how many there are.")] = None,
    process: Annotated[int | None, typer.Option(help="Of several processes: which one this is, from 0.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Join the processes that SLURM, MPI or a TPU pod started.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a net on a data set, and score it on the test part. It can be stopped at any time, and resumed later.

    A run that is done goes on if it is resumed with more --epochs. A .csv file is a table, whose first line names the
    columns. Tables, also those with a name, are learned by the estimators of sdebnn in one go: if such a run is
    stopped, it starts anew.
    """
    named = find(data)
    if named is not None and Path(data).exists():
        print(f"sdebnn: {data} is the data set of that name; write ./{data} for yours here.", file=sys.stderr)
    is_file = named is None and Path(data).suffix.lower() in TABLES
    if not is_file:
        others = {"--target": target is not None, "--task": task is not None, "--words": bool(words)}
        check_suits(others, f"is for tables of your own, and {data} is no .csv file")
    if named is not None:
        others = {"--test": test is not None, "--size": size is not None}
        check_suits(others, f"is for data of your own, and {data} has its own test part and size")
    if is_file or (named is not None and named[0].is_table):
        others = {
            "--preset": preset != "ours", "--infer-w0": infer_w0, "--mixing": mixing, "--epochs": epochs is not None,
            "--patience": patience is not None, "--monitor": monitor is not None, "--draws": draws is not None,
            "--tensorboard": tensorboard, "--save-every": save_every != 60.0,
            "--memory-limit": memory_limit != 2048, "--size": size is not None, "--mesh": mesh is not None,
            "--coordinator": coordinator is not None, "--cluster": cluster, "--processes": processes is not None,
            "--process": process is not None,
        }  # fmt: skip
        check_suits(others, f"is for nets of images and arrays, and {data} is a table")
        of_tables = tables()
        asked = {"target": target, "task": task, "test": test, "members": members, "words": tuple(words or ())}
        asked |= {"validation": validation, **parameters(param, of_tables.PARAMETERS)}
        settings = of_tables.TableSettings(
            str(Path(data).resolve()) if is_file else data, seed=seed, kl_weight=kl_weight,
            **{name: value for name, value in asked.items() if value is not None},
        )  # fmt: skip
        with plain_warnings():
            result = of_tables.train_table(
                settings, out, resume=resume, say=lambda words: print(words, file=sys.stderr)
            )  # fmt: skip
        print_result(result, as_json)
        if result["test_rows"]:
            _point_to_report(out, as_json)
        return
    if named is None and Path(data).exists():
        data = str(Path(data).resolve())  # so that the run can be resumed from any folder
    settings = runs.Settings(
        data, preset, infer_w0, seed, epochs, kl_weight, 0.1 if validation is None else validation, patience, members,
        test, size, mixing, **parameters(param, runs.PARAMETERS),
    )  # fmt: skip
    if memory_limit < 1:
        raise ValueError(f"memory_limit={memory_limit} must be at least 1 MiB.")
    with plain_warnings():
        result = runs.train(
            settings, out, resume=resume, draws=draws, monitor=monitor, save_every=save_every,
            memory_limit=memory_limit * 2**20, tensorboard=tensorboard, mesh=mesh_of(mesh),
        )  # fmt: skip
    if result:  # that of the first process; the others have none
        print_result(result, as_json)
        _point_to_report(out, as_json)


def _point_to_report(out: Path, as_json: bool) -> None:
    if not as_json:
        print(f"For a page about it: sdebnn report {shlex.quote(str(out))}")
