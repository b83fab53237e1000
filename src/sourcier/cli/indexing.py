"""`sourcier index build | add | delete | compact | gc | check | info`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sourcier.cli.command import (
    Command,
    Output,
    Parser,
    WrongUse,
    add_lenient,
    count,
    hide_weight_bars,
    model_folder,
    told,
)
from sourcier.cli.places import check_writable
from sourcier.config import to_dict, unknown
from sourcier.types import SourcierError

#: What `index build` takes as `--set`.
Settings = dict[str, Any]


def add_corpus_flags(parser: Parser) -> None:
    """What is read, and how it is encoded."""
    parser.add_argument(
        "--data", required=True, help="BEIR folder, or a corpus as .jsonl or .tsv (.gz may follow)"
    )
    parser.add_argument(
        "--batch-size", type=count, default=32, metavar="N", help="texts at once (default: 32)"
    )
    parser.add_argument(
        "--chunk",
        type=count,
        default=1024,
        metavar="N",
        help="documents that are encoded and put on disk together, which bounds the memory (default: 1024)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with what a run that was stopped has encoded"
    )
    add_lenient(parser)


def add_build_flags(parser: Parser, _: Sequence[str]) -> None:
    add_corpus_flags(parser)
    parser.add_argument("--output", required=True, metavar="INDEX", help="folder of the index")
    parser.add_argument("--model", metavar="RUN", help="run of `sourcier train`, or a model folder")
    parser.add_argument(
        "--family",
        help="take --model as a Hugging Face checkpoint as it comes, and make a model of this family",
    )
    parser.add_argument("--kind", help="kind of index; bm25 needs no model (default: what suits the model)")
    parser.add_argument(
        "--passages",
        type=count,
        metavar="N",
        help="cut documents into passages of N tokens of the model (words for bm25), and score each by its best; "
        "without it, what a model does not read of a long document is left out",
    )
    parser.add_argument(
        "--overlap",
        type=int,
        metavar="N",
        help="tokens that a passage repeats of the one before (default: a quarter of a passage)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the kind, as docs/indexes.md lists them",
    )


def build(settings: Any) -> Output:
    """Encode a corpus and write an index of it."""
    from sourcier.data.collections import Corpus
    from sourcier.indexes.directory import refuse_foreign_folder
    from sourcier.retrieval.retriever import Retriever

    if settings.model is None and settings.kind != "bm25":
        raise WrongUse("index build needs --model RUN, or --kind bm25 (see sourcier index build --help)")
    if settings.overlap is not None and settings.passages is None:
        raise WrongUse("--overlap needs --passages N")
    of_kind = _settings(settings.set)
    check_writable("--output", settings.output, "folder")
    refuse_foreign_folder(settings.output)
    corpus = Corpus.read(settings.data, lenient=settings.lenient)
    hide_weight_bars()
    model = _model(settings.model, settings.family)
    Retriever.build(
        model,
        corpus,
        settings.output,
        kind=settings.kind,
        settings=of_kind,
        passages=settings.passages,
        overlap=settings.overlap,
        batch_size=settings.batch_size,
        chunk=settings.chunk,
        resume=settings.resume,
        progress=True,
    ).close()
    told(corpus)
    return _description(settings.output)


def add_add_flags(parser: Parser, _: Sequence[str]) -> None:
    add_index(parser)
    add_corpus_flags(parser)


def add(settings: Any) -> Output:
    """Add documents; one whose id the index holds takes that one's place."""
    from sourcier.data.collections import Corpus
    from sourcier.retrieval.retriever import Retriever

    corpus = Corpus.read(settings.data, lenient=settings.lenient)
    hide_weight_bars()
    with Retriever.open(settings.index) as retriever:
        check_writable("INDEX", settings.index, "folder")
        before = len(retriever.index)
        after = retriever.add(
            corpus,
            batch_size=settings.batch_size,
            chunk=settings.chunk,
            resume=settings.resume,
            progress=True,
        )
    told(corpus)
    new = len(after.index) - before
    values = {
        "index": settings.index,
        "version": after.index.version,
        "new": new,
        "replaced": len(corpus) - new,
    }
    return Output(
        values, f"{new:,} new documents, {values['replaced']:,} replaced; version {after.index.version}"
    )


def add_delete_flags(parser: Parser, _: Sequence[str]) -> None:
    add_index(parser)
    parser.add_argument("ids", nargs="*", metavar="ID", help="ids of documents")
    parser.add_argument("--ids-from", metavar="FILE", help="a file with an id on each line")


def delete(settings: Any) -> Output:
    """Delete documents by id; those that are not there are told."""
    from sourcier.indexes import changes

    ids = [*settings.ids, *(_lines(settings.ids_from) if settings.ids_from else [])]
    if not ids:
        raise WrongUse("index delete needs ids, or --ids-from FILE")
    found = changes.delete(settings.index, ids)
    text = f"{found.deleted:,} documents deleted; version {found.version}"
    if found.unknown:
        shown = ", ".join(f"'{one}'" for one in found.unknown[:5])
        text += f"\n{len(found.unknown):,} ids are not in the index: {shown}{' …' if len(found.unknown) > 5 else ''}"
    return Output({"index": settings.index, **asdict(found)}, text)


def compact(settings: Any) -> Output:
    """Write what is not deleted as one segment, which is smaller and faster."""
    from sourcier.indexes import changes

    changes.compact(settings.index)
    return _description(settings.index)


def collect(settings: Any) -> Output:
    """Remove versions before the current one, with all that only they need."""
    from sourcier.indexes import collect_garbage

    freed = collect_garbage(settings.index)
    return Output({"index": settings.index, "freed": freed}, f"{freed:,} bytes freed")


def check(settings: Any) -> Output:
    """Read every file of an index and compare it with what was written."""
    from sourcier.indexes import open_version

    version = open_version(settings.index)
    version.check_contents()
    files = version.manifest.files
    size = sum(record.bytes for record in files.values())
    values = {
        "index": settings.index,
        "version": version.name,
        "files": len(files),
        "bytes": size,
        "sound": True,
    }
    return Output(values, f"{len(files)} files, {size:,} bytes: all as they were written")


def info(settings: Any) -> Output:
    """Describe an index without loading its model."""
    return _description(settings.index)


def add_index(parser: Parser) -> None:
    parser.add_argument("index", metavar="INDEX", help="folder of the index")


def add_index_flags(parser: Parser, _: Sequence[str]) -> None:
    add_index(parser)


COMMANDS = {
    "index build": Command(
        summary="encode a corpus with a model and write a searchable index of it",
        example="sourcier index build --model run --data docs --output index",
        add_flags=add_build_flags,
        run=build,
    ),
    "index add": Command(
        summary="add documents to an index, or put others in the place of those with their ids",
        example="sourcier index add index --data more.jsonl",
        add_flags=add_add_flags,
        run=add,
    ),
    "index delete": Command(
        summary="delete documents from an index",
        example="sourcier index delete index doc17 doc18",
        add_flags=add_delete_flags,
        run=delete,
    ),
    "index compact": Command(
        summary="put the segments of an index together, without what is deleted",
        example="sourcier index compact index",
        add_flags=add_index_flags,
        run=compact,
    ),
    "index gc": Command(
        summary="remove earlier versions of an index",
        example="sourcier index gc index",
        add_flags=add_index_flags,
        run=collect,
    ),
    "index check": Command(
        summary="find files of an index that were damaged",
        example="sourcier index check index",
        add_flags=add_index_flags,
        run=check,
    ),
    "index info": Command(
        summary="tell what an index holds",
        example="sourcier index info index",
        add_flags=add_index_flags,
        run=info,
    ),
}


def _model(path: str | None, family: str | None) -> Any:
    """A model of ours by its folder, or a new one of a family on a Hugging Face checkpoint."""
    if path is None:
        return None
    if family is None:
        return str(model_folder(path))
    import torch

    from sourcier.models.checkpoints import FAMILIES

    if family not in FAMILIES:
        raise WrongUse(unknown("family", family, FAMILIES))
    torch.manual_seed(42)  # heads that the checkpoint does not have are the same in every build
    return FAMILIES[family].from_base(path)


def _settings(given: Sequence[str]) -> Settings:
    """Settings of a kind as YAML would read their values."""
    import yaml

    values: Settings = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign:
            raise WrongUse(f"--set {one}: give it as NAME=VALUE")
        values[name.replace("-", "_")] = yaml.safe_load(value)
    return values


def _lines(path: str) -> list[str]:
    try:
        return [line for line in Path(path).read_text(encoding="utf-8-sig").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise SourcierError(f"{path}: cannot be read: {error}") from error


def _description(path: str) -> Output:
    from sourcier.eval.report import table
    from sourcier.indexes import open_version

    version = open_version(path)
    manifest = version.manifest
    values = {
        "index": path,
        "version": version.name,
        **{name: value for name, value in to_dict(manifest).items() if name not in ("segments", "files")},
        "dimensions": manifest.dimensions,
        "counts": manifest.counts,
        "segments": len(manifest.segments),
        "bytes": sum(file.bytes for file in manifest.files.values()),
    }
    rows = [
        {"": name, path: _cell(value)}
        for name, value in values.items()
        if name != "index" and value not in (None, {})
    ]
    return Output(values, table(rows))


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
