"""Rebuild the missing shards of a store with its ordinary builder, in a scratch copy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from zindex import schema
from zindex.arrays import AnyArray
from zindex.errors import ConfigError, FingerprintMismatchError, StoreError, VerificationError
from zindex.execution.executor import SerialExecutor, run_builds
from zindex.indexing.ensure import build_store
from zindex.indexing.index_tasks import GENERATOR_KEY
from zindex.indexing.mapping_tasks import SentenceSource
from zindex.indexing.sentence_mapping import stored_facts
from zindex.ingest.convert import convert, convert_corpus
from zindex.ingest.corpora.pairs import open_pair
from zindex.ingest.driver import open_workers
from zindex.ingest.keyed.convert_keyed import convert_keyed
from zindex.ingest.length_source import LengthSource, open_source
from zindex.ingest.records.import_records import import_records
from zindex.io import files
from zindex.io.objects import Place
from zindex.io.request_threads import map_in_threads
from zindex.plan.blend_plan import BlendPlan
from zindex.plan.build_plan import CountedPlan, SourceFacts
from zindex.plan.index_plan import IndexPlan
from zindex.plan.packing import PackingPlan
from zindex.plan.sentence_mapping import MappingPlan
from zindex.store.commit import PLAN_KEY, StorePlan, commit_store, plan_file
from zindex.store.layout import ChunkGrid
from zindex.store.open import Store, open_reader, open_store
from zindex.store.reader import forget_open_shards
from zindex.store.records import KIND, DocumentField, read_document_fields
from zindex.store.shard import Receipt
from zindex.store.shard_files import store_shard
from zindex.store.tokens import LINK
from zindex.store.verify import REPAIR_KEY, ShardId

#: Arrays of a blend from which its other arrays are computed, unless a run is given.
BLEND_INPUTS = (schema.DATASET_WEIGHT.name, schema.DATASET_COUNT.name)

Sound = Mapping[ShardId, Receipt]
Source = str | LengthSource | None


#: Plans of indices by their kind.
_INDICES: dict[str, Any] = {
    "gpt": IndexPlan,
    "packed": PackingPlan,
    "sentence_mapping": MappingPlan,
}


def select_inputs(plan: StorePlan, sound: Sound, *, is_named: bool) -> Sound:
    """Return the shards from which the other shards of a store are computed.

    Parameters
    ----------
    plan
        The plan of the store.
    sound
        Its intact shards.
    is_named
        Whether a run gives the plan: then no shard is an input.
    """
    names: tuple[str, ...] = ()
    if plan.spec.get("kind") == "blend" and not is_named:
        names = BLEND_INPUTS if plan.spec["exhaustive"] else BLEND_INPUTS[:1]
    return {key: receipt for key, receipt in sound.items() if key[0] in names}


def select_attributes(plan: StorePlan, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a committed store that are not part of its plan."""
    known = {*plan.to_json(), "manifest_sha256"}
    return {name: value for name, value in facts.items() if name not in known}


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A copy of a store with intact shards linked and the others recomputed.

    It is created by the ordinary builder of its kind: a builder keeps valid shards that it finds,
    so it computes only the missing ones.
    """

    #: The plan of the store, as it was committed.
    plan: StorePlan
    #: Receipts of the shards to keep.
    sound: Sound
    #: The source of the store, if given by the user or a run.
    source: Source
    #: Attributes of the store, if known.
    facts: Mapping[str, Any]
    #: The plan of a blend, if given by a run; otherwise it follows from the stored weights.
    blend: BlendPlan | None

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Yield the committed copy, in the ``_zindex`` folder; it is removed with the block.

        Raises
        ------
        ConfigError
            If a source is required and not given.
        StoreError
            If there is no builder for stores of this kind.
        FingerprintMismatchError
            If the source is not the one that the store was created from.
        VerificationError
            If the weights of a blend are damaged and no run is given.
        """
        root, build = self._choose_builder()
        folder = self.plan.root / REPAIR_KEY
        files.remove_tree(folder)  # left behind by a repair that died
        try:
            files.write_once(root / PLAN_KEY, [plan_file(self.plan)])
            self._link_files(root)
            build()
            yield open_store(root)
        finally:
            if isinstance(root, Path):
                forget_open_shards(root)
            files.remove_tree(folder)

    def _link_files(self, root: Place) -> None:
        """Link the files that a rebuild keeps into the copy."""
        layouts = {layout.name: layout for layout in self.plan.layouts}
        keys = [layouts[name].shard_key(shard) for name, shard in self.sound]
        if keys and files.exists(self.plan.root / GENERATOR_KEY):
            keys.append(GENERATOR_KEY)

        def link(key: str) -> None:
            files.link_file(self.plan.root / key, root / key)

        map_in_threads(files.num_writers(root), link, keys)

    def _choose_builder(self) -> tuple[Place, Callable[[], object]]:
        """Return the root of the copy, and the call that builds and commits it."""
        plan, folder = self.plan, self.plan.root / REPAIR_KEY
        root, kind = folder / plan.root.name, plan.spec.get("kind")
        if plan.kind == "tokens":
            return root, partial(self._convert, root)
        if plan.kind == KIND and "convert" in plan.spec:
            return root, partial(self._convert_keyed, root)
        if plan.kind == KIND and "import" in plan.spec:
            return root, partial(self._import, root)
        made: Any
        source: Any = None
        if kind == "blend":
            made = self._plan_blend()
        elif kind in _INDICES:
            made = _INDICES[kind].from_spec(plan.spec)
            if isinstance(made, MappingPlan):
                source = _LazySource(partial(self._open_sentences, made))
            else:
                source = _LazySource(partial(self._open_lengths, made.source), facts=made.source)
        else:
            raise StoreError(
                f"{plan.root} must hold tokens, records, an index or a blend to be repaired, it "
                f"holds {kind or plan.kind}; remove it and build it again"
            )
        made = replace(made, grid=plan.grid or ChunkGrid())
        built = made.store_plan(folder)
        if not isinstance(made, CountedPlan) and built.layouts != plan.layouts:
            raise StoreError(
                f"{plan.root} must have the arrays that this zindex plans for it, it has others; "
                "remove it and build it again"
            )
        args = (made, source, folder, SerialExecutor())
        return built.root, lambda: run_builds(build_store(*args))

    def _unnamed(self, origin: str, remedy: str) -> ConfigError:
        """Return the error for a source that is required and not given."""
        return ConfigError(
            f"{self.plan.root} was {origin}, which must be named to repair it; {remedy}"
        )

    # --- indices and blends -----------------------------------------------------------------

    def _open_lengths(self, facts: SourceFacts) -> LengthSource:
        """Return the lengths of a dataset after checking that the index was built from them."""
        source = self.source
        if source is None:
            raise self._unnamed(
                "made from the lengths of a dataset",
                "give --source with its token store or prefix, or name the run file",
            )
        if isinstance(source, str):
            source = open_source(source, require_bin=False)
        expected = facts.length_digest, facts.num_sequences
        if (source.facts.length_digest, source.facts.num_sequences) != expected:
            raise FingerprintMismatchError(
                f"{source.path} must have the lengths of digest {expected[0][:16]} that "
                f"{self.plan.root} was made from, it has {source.facts.length_digest[:16]}; name "
                "the right source"
            )
        return source

    def _open_sentences(self, mapping: MappingPlan) -> SentenceSource:
        """Return the sentences of a dataset after checking that the mapping was built from them."""
        if mapping.kind == "blocks":
            raise ConfigError(
                f"the blocks of {self.plan.root} were made from a dataset and its titles, and a "
                "repair knows of one dataset only; remove the store and build it again"
            )
        expected = mapping.source
        sentences = SentenceSource(self._open_lengths(expected.lengths))
        found = stored_facts(sentences).document_digest
        if found != expected.document_digest:
            raise FingerprintMismatchError(
                f"{sentences.sentences.path} must have the documents of digest "
                f"{expected.document_digest[:16]} that {self.plan.root} was made from, it has "
                f"{found[:16]}; name the right source"
            )
        return sentences

    def _plan_blend(self) -> BlendPlan:
        """Return the plan of a blend: the run's, or the one given by its weights or sizes."""
        spec, made = self.plan.spec, self.blend
        if made is None:
            weights, sizes = map(self._read_datasets, BLEND_INPUTS)
            if spec["exhaustive"]:
                if sizes is None and weights is not None:
                    sizes = np.rint(weights * spec["num_samples"]).astype(np.int64)
                weights = None if sizes is None else sizes / float(spec["num_samples"])
            if weights is None:
                raise VerificationError(
                    f"{self.plan.root} must have its dataset_weight to be repaired, that is "
                    "damaged; name the run file that built it"
                )
            made = BlendPlan.from_spec(spec, weights, sizes)
        if made.spec | {"store": made.stored} != spec:
            raise FingerprintMismatchError(
                f"{self.plan.root} must be the blend of these weights, its fingerprint is another; "
                "name the run file that built it"
            )
        return made

    def _read_datasets(self, name: str) -> AnyArray | None:
        """Return an array of one value per dataset, or None if any shard of it is damaged."""
        layout = next(layout for layout in self.plan.layouts if layout.name == name)
        if any((name, shard) not in self.sound for shard in range(layout.num_shards)):
            return None
        return open_reader(self.plan.root, layout).read(0, layout.length)

    # --- tokens and records -----------------------------------------------------------------

    @contextmanager
    def _reading(self, source: Source, verb: str) -> Iterator[None]:
        """Name the wrong source if a builder finds another fingerprint in the copy."""
        try:
            yield
        except FingerprintMismatchError as error:
            raise FingerprintMismatchError(
                f"{source} must be what {self.plan.root} was {verb} from, it gives another "
                f"fingerprint than {self.plan.fingerprint[:16]}; name the right source"
            ) from error

    def _convert(self, root: Place) -> None:
        """Convert a ``.bin/.idx`` pair again, or copy another store of the same corpus."""
        plan, link = self.plan, self.facts.get(LINK)
        if self._copy(root):
            return
        prefix = self.source if isinstance(self.source, str) else None
        if prefix is None and isinstance(link, dict):
            prefix = str(link["path"])
        if prefix is None:
            if len(self.sound) == plan.num_shards and not plan.spec["link"]:
                commit_store(replace(plan, root=root), self.sound.values())
                return
            raise self._unnamed("converted from a .bin/.idx pair", "give --source PREFIX")
        prefix = prefix.removesuffix(".idx").removesuffix(".bin")
        fields = read_document_fields(plan.spec, plan.root)
        if fields:
            self._convert_described(prefix, root, fields)
            return
        with self._reading(prefix, "converted"):
            convert(prefix, root, link=bool(plan.spec["link"]), client=SerialExecutor())

    def _convert_described(
        self, prefix: str, root: Place, fields: tuple[DocumentField, ...]
    ) -> None:
        """Convert a pair again, with the fields of documents, which only the store has."""
        pair = replace(open_pair(prefix), fields=fields)
        layouts = {layout.name: layout for layout in self.plan.layouts}
        own = [array.name for array, *_ in pair.field_arrays()]
        for name in own:
            if any((name, shard) not in self.sound for shard in range(layouts[name].num_shards)):
                raise ConfigError(
                    f"{name} of {self.plan.root} is damaged, and a .bin/.idx pair has no fields of "
                    "documents; tokenize the same texts with the same settings at another place, "
                    "and name that store: give --source OTHER_STORE"
                )

        def read(name: str, start: int, stop: int) -> AnyArray:
            if name in own:
                return open_reader(self.plan.root, layouts[name]).read(start, stop)
            return pair.read(name, start, stop)

        with self._reading(prefix, "converted"), open_workers(SerialExecutor(), None, False) as at:
            run_builds(convert_corpus(replace(pair, read=read), root, at, None))

    def _convert_keyed(self, root: Place) -> None:
        """Convert h5 or bin files again."""
        source, kind = self.source, self.plan.spec["convert"]["storage_type"]
        if not isinstance(source, str):
            raise self._unnamed("converted from keyed files", "give --source PATH")
        with self._reading(source, "converted"):
            convert_keyed(source, root, storage_type=kind, strict=False, client=SerialExecutor())

    def _import(self, root: Place) -> None:
        """Import files again, or copy the missing shards from another store of the same records."""
        plan, source = self.plan, self.source
        if self._copy(root):
            return
        identity = plan.spec["import"]
        lines = identity.get("token_lines")
        if "tokenizer" in identity:
            raise ConfigError(
                f"{plan.root} was made of texts by a tokenizer; tokenise the same texts with "
                "the same settings at another place, which gives the same store, and name that: "
                "give --source OTHER_STORE"
            )
        if not isinstance(source, str) or (identity["kind"] is None and lines is None):
            remedy = "give --source PATH, or import them again at another place"
            raise self._unnamed("imported from files", remedy)
        settings: dict[str, Any] = {
            "on_damage": "skip" if identity["skip_damaged"] else "error",
            "client": SerialExecutor(),
        }
        with self._reading(source, "imported"):
            if lines is not None:
                dtypes = {key: lines["dtypes"][key] for key in lines["keys"]}
                convert_keyed(source, root, storage_type="jsonl", dtypes=dtypes, **settings)
                return
            for name in ("kind", "fields", "dtypes", "meta_names"):
                settings[name] = identity[name]
            import_records(source, root, **settings)

    def _copy(self, root: Place) -> bool:
        """Copy the missing shards from the source, if it is a store of the same content."""
        plan, copy = self.plan, self._find_copy()
        if copy is None:
            return False
        receipts = dict(self.sound)
        for layout in plan.layouts:
            rows = copy[layout.name]
            for shard in range(layout.num_shards):
                if (layout.name, shard) not in receipts:
                    read = partial(rows.read, *layout.shard_bounds(shard))
                    result = store_shard(root, layout, shard, read)
                    receipts[layout.name, shard] = result.receipt
        attributes = select_attributes(plan, copy.attributes)
        commit_store(replace(plan, root=root), receipts.values(), attributes)
        return True

    def _find_copy(self) -> Store | None:
        """Return the source if it is a store of the same records."""
        if not isinstance(self.source, str):
            return None
        try:
            found = open_store(self.source)
        except StoreError:  # it is files instead
            return None
        return found if found.fingerprint == self.plan.fingerprint else None


class _LazySource:
    """A source that is opened on first use: arrays that follow from a plan alone need none.

    Parameters
    ----------
    open_source
        Opens it; may raise.
    known
        Attributes that do not need the source.
    """

    def __init__(self, open_source: Callable[[], object], **known: object) -> None:
        self._open = cache(open_source)
        self.__dict__ |= known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open(), name)
