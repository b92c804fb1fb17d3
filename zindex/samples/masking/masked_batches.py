"""Batches of BERT and T5 samples, whose items are arrays and numbers as in Megatron Core.

The sentences of many samples are read together, and compiled kernels make whole batches. Datasets
that override masking get the same samples in plain Python, one by one.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch

from zindex.arrays import BoolArray, Int64Array
from zindex.errors import ConfigError, VerificationError
from zindex.kernels import masked_rows
from zindex.samples.batch import BatchRequest, SampleBatch, Shapes, allocate_arrays
from zindex.samples.masking.mask_rules import make_rules, unknown_token
from zindex.samples.texts import DocumentTokens, IndexedText, Parts, choose_samples, read_tokens

Arrays = dict[str, Int64Array]
#: Makes the samples of a batch in arrays by name, before padding.
Fill = Callable[[Any, masked_rows.SampleTexts, Arrays], masked_rows.Problem]


class MaskedBatch(SampleBatch):
    """The samples of a batch: one tensor per name, and items that are numpy views of them.

    Parameters
    ----------
    tensors
        By name, with the samples along the first dimension.
    """

    def _take_item(self, place: int) -> dict[str, Any]:
        """Return the sample at a valid place."""
        item: dict[str, Any] = {}
        for name, tensor in self.tensors.items():
            value = tensor.numpy()[place]
            item[name] = int(value) if value.ndim == 0 and name != "dataset_id" else value
        return item


def make_bert_batch(wanted: BatchRequest) -> MaskedBatch:
    """Return samples of BERT datasets.

    Raises
    ------
    ConfigError
        If the tokenizer does not know a token of the data.
    VerificationError
        If an index gives impossible samples.
    """
    length, pad = wanted.first.config.sequence_length, wanted.first._pad_token_id
    planes = {
        "text": (length, pad),
        "types": (length, pad),
        "labels": (length, -1),
        "is_random": (0, 0),
        "padding_mask": (length, 1),
        "loss_mask": (length, 0),
        "truncated": (0, 0),
    }
    batch, arrays = _fill_planes(_fill_bert, planes, wanted)
    # Tokens equal to the pad id count as padding, and inputs get an id with an embedding instead.
    is_pad = arrays["text"] == pad
    arrays["padding_mask"][is_pad] = pad
    arrays["text"][is_pad] = 0
    _finish(arrays, pad, wanted.is_padding)
    return batch


def make_t5_batch(wanted: BatchRequest) -> MaskedBatch:
    """Return samples of T5 datasets.

    Raises
    ------
    ConfigError
        If the tokenizer does not know a token of the data or has too few sentinels, or the decoder
        is too short.
    VerificationError
        If an index gives impossible samples.
    """
    length, pad = wanted.first.config.sequence_length, wanted.first._pad_token_id
    decoder_length = int(wanted.first.config.sequence_length_decoder)
    planes = {
        "text_enc": (length, pad),
        "text_dec": (decoder_length, pad),
        "labels": (decoder_length, -1),
        "loss_mask": (decoder_length, 0),
        "truncated": (0, 0),
        "enc_mask": (length, 0),
        "dec_mask": (decoder_length, 0),
    }
    batch, arrays = _fill_planes(_fill_t5, planes, wanted)
    # Tokens equal to the pad id count as padding, and inputs get an id with an embedding instead.
    for side in ("enc", "dec"):
        mask, tokens = arrays[f"{side}_mask"], arrays[f"text_{side}"]
        np.not_equal(tokens, pad, out=mask, casting="unsafe")
        tokens *= mask
    _finish(arrays, pad, wanted.is_padding)
    return batch


def _fill_planes(
    fill: Fill, planes: dict[str, tuple[int, int]], wanted: BatchRequest
) -> tuple[MaskedBatch, Arrays]:
    """Return a batch of samples and its arrays, before padding is treated.

    ``planes`` has the width and the initial value of each int64 tensor by name; a width of 0 means
    one number per sample.
    """
    texts = read_sentences(wanted)
    size = len(wanted.which)
    shapes: Shapes = {
        name: ((size, width) if width else (size,), torch.int64)
        for name, (width, _) in planes.items()
    }
    tensors, arrays = allocate_arrays(shapes, wanted.dataset_ids)
    for name, (_, initial) in planes.items():
        arrays[name].fill(initial)
    problem = fill(wanted.first, texts, arrays)
    if problem[1] != masked_rows.NOTHING:
        row = problem[0]
        dataset = wanted.datasets[int(wanted.which[row])]
        raise _explain(dataset, int(wanted.positions[row]), problem)
    return MaskedBatch(tensors), arrays


def _finish(arrays: Arrays, pad: int, is_padding: BoolArray) -> None:
    """Treat labels equal to the pad id, and padding samples, as padding."""
    labels = arrays["labels"]
    labels[labels == pad] = 0
    if is_padding.any():
        arrays["loss_mask"][is_padding] = 0


def _fill_bert(dataset: Any, texts: masked_rows.SampleTexts, arrays: Arrays) -> masked_rows.Problem:
    """Make BERT samples: one or two segments between separators, with masked tokens."""
    config, tokenizer = dataset.config, dataset.config.tokenizer
    cls, sep, has_head = int(tokenizer.cls), int(tokenizer.sep), bool(config.classification_head)
    rows = masked_rows.BertRows(**{name: arrays[name] for name in masked_rows.BertRows._fields})
    if dataset._masks_plainly:
        return masked_rows.fill_bert_rows(
            texts, make_rules(config, replaces=True), cls, sep, has_head, rows
        )
    for row, sentences, target, random_state in _each_sample(texts):
        pivot = len(sentences)
        is_random = False
        if has_head:
            if pivot < 2:
                return row, masked_rows.ONE_SENTENCE, pivot
            pivot = random_state.randint(1, pivot) if pivot > 2 else 1
            is_random = bool(random_state.random_sample() < 0.5)
        segments = [[*chain(*sentences[:pivot])], [*chain(*sentences[pivot:])]]
        if is_random:
            segments.reverse()
        rows.is_random[row] = is_random
        rows.truncated[row] = sum(map(len, segments)) > target
        while sum(map(len, segments)) > target:
            longer = 0 if len(segments[0]) > len(segments[1]) else 1
            kept = slice(1, None) if random_state.random_sample() < 0.5 else slice(None, -1)
            segments[longer] = segments[longer][kept]
        tokens, size = [cls], 0
        for number, segment in enumerate(segments):
            if number == 0 or segment:
                tokens += [*segment, sep]
                rows.types[row, size : len(tokens)] = number
                size = len(tokens)
        if size > rows.text.shape[1]:
            return row, masked_rows.TOO_LONG, size
        masked, places, labels, _, _ = dataset._create_masked_lm_predictions(
            tokens, target, random_state
        )
        rows.text[row, :size] = masked
        rows.labels[row, places] = labels
        rows.loss_mask[row, places] = 1
    return -1, masked_rows.NOTHING, 0


def _fill_t5(dataset: Any, texts: masked_rows.SampleTexts, arrays: Arrays) -> masked_rows.Problem:
    """Make T5 samples: text with sentinels for masked spans, and the spans with theirs."""
    tokenizer = dataset.config.tokenizer
    bos, eos = int(tokenizer.bos), int(tokenizer.eos)
    sentinels = np.array([*tokenizer.additional_special_tokens_ids], np.int64)
    names = ("text_enc", "text_dec", "labels", "loss_mask", "truncated")
    rows = masked_rows.T5Rows(*(arrays[name] for name in names))
    if dataset._masks_plainly:
        rules = make_rules(dataset.config, replaces=False)
        return masked_rows.fill_t5_rows(texts, rules, bos, eos, sentinels, rows)
    for row, sentences, target, random_state in _each_sample(texts):
        tokens = [*chain(*sentences)]
        rows.truncated[row] = len(tokens) > target
        tokens = tokens[:target]
        if len(tokens) > rows.encoder.shape[1]:
            return row, masked_rows.TOO_LONG, len(tokens)
        masked, _, _, _, spans = dataset._create_masked_lm_predictions(tokens, target, random_state)
        if len(spans) > len(sentinels):
            return row, masked_rows.NO_SENTINEL, len(sentinels)
        encoder: list[int] = []
        labels: list[int] = []
        done = 0
        for sentinel, (places, own) in zip(sentinels.tolist(), spans, strict=False):
            encoder += [*masked[done : places[0]], sentinel]
            labels += [sentinel, *own]
            done = places[-1] + 1
        encoder += masked[done:]
        if len(labels) >= rows.decoder.shape[1]:
            return row, masked_rows.DECODER_FULL, len(labels) + 1
        rows.encoder[row, : len(encoder)] = encoder
        rows.decoder[row, : len(labels) + 1] = [bos, *labels]
        rows.labels[row, : len(labels) + 1] = [*labels, eos]
        rows.loss_mask[row, : len(labels) + 1] = 1
    return -1, masked_rows.NOTHING, 0


def _each_sample(
    texts: masked_rows.SampleTexts,
) -> Iterator[tuple[int, list[list[int]], int, np.random.RandomState]]:
    """Yield the row, the sentences, the maximal length and the generator of each sample."""
    sentences = [part.tolist() for part in np.split(texts.tokens, np.cumsum(texts.lengths)[:-1])]
    firsts = texts.firsts.tolist()
    for sample, row in enumerate(texts.rows.tolist()):
        random_state = np.random.RandomState(int(texts.seeds[sample]))
        own = sentences[firsts[sample] : firsts[sample + 1]]
        yield row, own, int(texts.targets[sample]), random_state


def _explain(dataset: Any, position: int, problem: masked_rows.Problem) -> Exception:
    """Return the error for a sample that cannot be made."""
    _, code, number = problem
    where = f"sample {position} of {dataset._where}"
    if code == masked_rows.UNKNOWN_TOKEN:
        return unknown_token(number, where)
    if code == masked_rows.NO_SENTINEL:
        return ConfigError(
            f"the tokenizer must have a sentinel for each masked span, its "
            f"additional_special_tokens_ids has {number} and {where} has more spans; add some, or "
            "lower masking_probability"
        )
    if code == masked_rows.DECODER_FULL:
        return ConfigError(
            f"sequence_length_decoder must hold the masked spans of each sample, {where} needs "
            f"{number} tokens or more; raise it, or lower masking_probability"
        )
    what = (
        f"at least two sentences, its index gives {number}"
        if code == masked_rows.ONE_SENTENCE
        else f"at most {dataset.config.sequence_length} tokens, its index gives {number}"
    )
    return VerificationError(
        f"{where} must have {what}; restore the data if they changed, or remove the index to build "
        "it again"
    )


def read_sentences(wanted: BatchRequest) -> masked_rows.SampleTexts:
    """Return the sentences of samples.

    Raises
    ------
    VerificationError
        If an index names sentences that do not exist.

    Notes
    -----
    Rounds: shuffle, samples, bounds of sentences, tokens. The draws of a sample are keyed by its
    position in its dataset, so neither the batch nor the order of reads matters.
    """
    chosen = choose_samples(wanted)
    numbers = chosen.samples
    for member, rows in chosen.groups:
        numbers[rows] %= len(member.arrays.sentence_index)  # equal epochs are stored once
    samples = chosen.read("sentence_index", numbers, numbers + 1)
    starts, stops, targets = np.ascontiguousarray(samples.T)
    ordered = wanted.positions[chosen.rows]
    for member, rows in chosen.groups:
        _check_samples(member, ordered[rows], samples[rows])
    counts = stops - starts
    firsts = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    sentences = np.repeat(starts - firsts[:-1], counts) + np.arange(firsts[-1])
    parts = Parts(chosen, sentences, counts)
    lengths = parts.bounds.lengths
    tokens = np.empty(int(lengths.sum()), np.int64)
    if any(isinstance(documents.tokens, DocumentTokens) for documents, _ in parts.groups):
        places = np.cumsum(lengths) - lengths
        read_tokens(parts.groups, parts.bounds.starts, lengths, tokens, places)
    else:
        # The tokens of consecutive sentences are consecutive.
        groups = [(member.documents, rows) for member, rows in chosen.groups]
        sizes = np.add.reduceat(lengths, parts.firsts)
        first_tokens = parts.bounds.starts[parts.firsts]
        read_tokens(groups, first_tokens, sizes, tokens, np.cumsum(sizes) - sizes)
    keys = ordered if wanted.keys is None else wanted.keys[chosen.rows]
    seeds = (keys + int(wanted.first.config.random_seed) % 2**32) % 2**32
    return masked_rows.SampleTexts(chosen.rows, tokens, lengths, firsts, targets, seeds)


def _check_samples(member: IndexedText, positions: Int64Array, samples: Int64Array) -> None:
    """Check that samples consist of sentences of their dataset."""
    starts, stops, targets = samples.T
    is_wrong = (starts >= stops) | (stops > member.num_documents) | (targets < 1)
    if is_wrong.any():
        i = int(np.argmax(is_wrong))
        raise VerificationError(
            f"sample {positions[i]} of {member.where} must be a run of its "
            f"{member.num_documents} sentences and a length, its index gives "
            f"{samples[i].tolist()}; restore the data if they changed, or remove the index to "
            "build it again"
        )
