"""Dataset: the rows of named arrays, and how a batch of them becomes what the model takes."""
from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...feed.items import Batch, Chosen, Items, RowStream, array_of
from ...memory import budget
from ...memory.tensor import kind_of
from ...memory.types import TensorType
from ...options.options import Options
from ...system.errors import DataError, see
from .classes import Numbered, numbered
from .columns import LOOKED_AT, UNKNOWN_LENGTH, Column, Known, OneHot, is_read_by_row
from .draws import Draws
from .filled import FilledArray, require_room
from .scaling import Scaling, Statistics, resolve
from .values import doubts

_CHUNK = 1 << 16          # rows looked at together when values are checked
SMALLEST_IMAGE = 64
"""Columns of whole numbers from 0 to 255 from which on they are taken for the pixels of an image: 8 by 8."""
SAMPLED_ROWS = 4096
SAMPLED_BYTES = 1 << 24
"""At most so much of the data is looked at to say what they are like."""


@dataclass(frozen=True)
class Field:
    """One tensor of a dataset: `array` [rows, ...] and the way to a batch: take rows, reshape to `sample`, convert to
    `dtype`, times `scale`, minus `mean`, over `std`."""

    array: Any
    """A NumPy array, or a Column."""
    sample: tuple[int, ...]
    dtype: np.dtype
    scale: float = 1.0
    mean: np.ndarray | None = None
    std: np.ndarray | None = None

    @classmethod
    def of(cls, array: Any, what: str) -> Field:
        """`array` as it is; DataError where it is not an array of numbers with at least one axis."""
        try:
            found = array if isinstance(array, Numbered) else array_of(array)
        except DataError:
            raise
        except ValueError as error:
            hint = "; inputs and labels together are a tuple (inputs, labels)" if isinstance(array, list) else ""
            shapes = [getattr(row, "shape", ()) for row in array] if isinstance(array, list) else []
            if len(set(map(len, shapes))) == 1 and (other := next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)):
                raise DataError(f"{what} has rows of different shapes: row 0 has {list(shapes[0])}, row {other} has {list(shapes[other])}. Pad "
                                "them to one.") from None
            raise DataError(f"{what} cannot be made an array ({str(error).split('.')[0]}){hint}.") from None
        if kind_of(found.dtype) not in "biuf" or found.dtype.itemsize > 8:
            raise DataError(f"{what} has element type {found.dtype}; numbers or booleans of up to 64 bits are needed.")
        assert not isinstance(found, Numbered)
        if found.ndim == 0:
            raise DataError(f"{what} is a single number; an array with one row per example is needed.")
        native = found.dtype.newbyteorder("=")
        return cls(found, found.shape[1:], native)

    @property
    def scaling(self) -> Scaling:
        """What is done to the numbers."""
        return Scaling(self.scale, _listed(self.mean), _listed(self.std))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """A fresh C-contiguous batch [len(rows), *sample] of `dtype`."""
        return self.made(np.asarray(self.array[rows]))

    def made(self, taken: np.ndarray) -> np.ndarray:
        """Rows as they were taken out of the array, as they are fed."""
        if isinstance(self.array, Column) and not np.can_cast(taken.dtype, self.array.dtype, "same_kind"):
            raise DataError(f"A row of the data set has {taken.dtype}, the first has {self.array.dtype}; rows must be alike.")
        sample = self.sample
        if taken.shape[1:] != self.array.shape[1:]:
            taken = self._of_another_length(taken)
            sample = taken.shape[1:]
        if self.scale != 1.0:
            taken = np.multiply(taken, self.scale, dtype=self.dtype)
        out = np.ascontiguousarray(taken.reshape(len(taken), *sample), dtype=self.dtype)
        if self.mean is not None:
            out -= self.mean
        if self.std is not None:
            out /= self.std
        return out

    def _of_another_length(self, taken: np.ndarray) -> np.ndarray:
        """Rows whose lengths are not those of the first, filled up to one of few lengths (DataError where they must be alike)."""
        have, first = taken.shape[1:], self.array.shape[1:]
        per_channel = [a.shape for a in (self.mean, self.std) if a is not None]
        if len(have) != len(first) or self.sample != first or not all(_fits(shape, have) for shape in per_channel):
            fed = "" if self.sample == first else f", and is fed as {list(self.sample)}"
            raise DataError(f"A row of the data set has shape {list(have)}, the first has {list(first)}{fed}; such rows must be alike.")
        return self.array.lengthened(taken)


def _fits(shape: tuple[int, ...], sample: tuple[int, ...]) -> bool:
    """One number per channel goes with rows of another shape."""
    return all(n in (1, m) for n, m in zip(shape[::-1], sample[::-1], strict=False))


@dataclass(frozen=True)
class Dataset:
    """Rows of named input fields and, for training, a label field.

    source: what reads whole rows, where the arrays are columns of somebody's own data set.
    rows: indices into the arrays where the dataset is a part of them; None: all.
    columns: names of the columns of a table's only field.
    label_name: the array or column that the labels come from, where it has a name.
    byte_scale: factor that brings this source's bytes to 0..1.
    notes: sentences about what was adapted, for the user.
    classes: names of the classes in the order of their numbers, where the labels were strings, or somebody names them.
    numbers: the labels are numbers, and `classes` what these are called.
    nameless: the fields' names are ours, for arrays that came in order: they say nothing of a model's inputs.
    whole: each row is a micro-batch, whose arrays are fed as they are.
    ordered: somebody chose the fields in the order of a model's inputs, which may be called otherwise.
    categories: of columns of texts, by their names, the texts in the order of their numbers.
    row_names: what the rows of the arrays are called, such as the files that they come from.
    more: what the loss reads after the label: weights of the rows (`sample_weight`), labels of further outputs by their
    names.
    """

    name: str
    fields: Mapping[str, Field]
    label: Field | None = None
    rows: np.ndarray | None = None
    columns: tuple[str, ...] = ()
    label_name: str | None = None
    byte_scale: float = 1 / 255
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    numbers: bool = False
    source: Items | RowStream | None = None
    nameless: bool = False
    ordered: bool = False
    whole: bool = False
    row_names: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    more: Mapping[str, Field] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.fields:
            raise DataError(f"Data {self.name} have no input array.")
        lengths = {name: len(f.array) for name, f in self.fields.items()}
        if self.label is not None:
            lengths["the labels"] = len(self.label.array)
        lengths |= {name: len(f.array) for name, f in self.more.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"Data {self.name} have unequal numbers of rows: "
                            + ", ".join(f"{name} {n:,}" for name, n in lengths.items()) + ".")
        if len(self) == 0:
            raise DataError(f"Data {self.name} have no rows.")

    @classmethod
    def of(cls, inputs: Mapping[str, Any], label: Any = None, name: str = "in memory", **more: Any) -> Dataset:
        """A dataset of arrays whose first axes are the rows. Labels that are strings become class numbers in their sorted order."""
        fields = {key: Field.of(value, f"Input {key} of data {name}") for key, value in inputs.items()}
        what = f"The labels of data {name}"
        numbers, classes = numbered(label, what)
        return cls(name, fields, None if label is None else Field.of(numbers, what), classes=classes, **more)

    def with_labels(self, array: np.ndarray | Column | OneHot, classes: tuple[str, ...] | None) -> Dataset:
        """The dataset with other labels for all rows of its arrays."""
        if self.label is not None and isinstance(self.label.array, Known) and isinstance(array, np.ndarray):
            array = Known(self.label.array.numbers, array)
        lazy = isinstance(array, Column | OneHot)
        what = f"The labels of data {self.name}"
        made = Field(array, array.shape[1:], array.dtype) if lazy else Field.of(array, what)
        return replace(self, label=made, classes=classes)

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(next(iter(self.fields.values())).array)

    @property
    def is_open(self) -> bool:
        """The rows come one after the other and end where they end: `len` is no number of theirs."""
        return len(self) == UNKNOWN_LENGTH

    @property
    def may_vary(self) -> bool:
        """Somebody's own function makes the batches, whose lengths may change."""
        return self.source is not None and self.source.may_vary

    @property
    def labels(self) -> np.ndarray | None:
        """The labels [rows, ...] as they were given; None without labels."""
        if self.label is None:
            return None
        array = self.label.array[:] if isinstance(self.label.array, Known | OneHot) else self.label.array
        return array if self.rows is None else array[self.rows]

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The input arrays [rows, ...] as they were given."""
        return {name: f.array if self.rows is None else f.array[self.rows] for name, f in self.fields.items()}

    @property
    def tensors(self) -> tuple[Field, ...]:
        """The fields in the order of a batch: inputs, then the label, then what else the loss reads."""
        return (*self.fields.values(), *([self.label] if self.label is not None else []), *self.more.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of the arrays that are in memory, or would be in that of another process."""
        return sum(f.array.nbytes for f in self.tensors if isinstance(f.array, np.ndarray))

    def reader(self) -> Any:
        """What reads batches of it, here or in a worker process."""
        if self.source is None:
            return _Rows(self)
        return Chosen(self.source, self.rows) if self.rows is not None and isinstance(self.source, Items) else self.source

    def fitted(self, batch: Batch) -> tuple[np.ndarray, ...]:
        """A batch of whole rows out of the source, as it is fed: inputs in order, then the labels."""
        return self._fed([f.made(np.asarray(f.array.finished(batch))) for f in self.tensors])

    def example(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """The batch of these rows, as it is fed."""
        return self._fed(self.gather(rows))

    def _fed(self, batch: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        return tuple(a[0] for a in batch) if self.whole else tuple(batch)

    def counted(self, batch: Sequence[np.ndarray]) -> int:
        """The rows of a batch as it is fed: those of the labels, where each array has its own."""
        labels = self.labels_of(batch)
        return len(batch[0] if labels is None or not self.whole else labels)

    def labels_of(self, batch: Sequence[np.ndarray]) -> np.ndarray | None:
        """The labels of a batch as it is fed; None where there are none."""
        return None if self.label is None else batch[len(self.fields)]

    def looked_at(self) -> np.ndarray:
        """Numbers of the rows that may be read to say what the data are like: all of arrays."""
        column = next((f.array for f in self.tensors if is_read_by_row(f.array)), None)
        if column is None:
            return np.arange(len(self))
        if self.rows is None:
            return column.looked_at()
        return np.arange(min(len(self), LOOKED_AT)) * len(self) // min(len(self), LOOKED_AT)

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        """The batch of these rows: inputs in order, then the labels."""
        at = rows if self.rows is None else self.rows[rows]
        return tuple(f.gather(at) for f in self.tensors)

    def sample(self, most: int = SAMPLED_ROWS) -> list[tuple[np.ndarray, ...]]:
        """Batches of up to `most` rows that lie evenly in the data, fewer where rows are large."""
        row = sum(math.prod(f.sample) * f.dtype.itemsize for f in self.tensors)
        count = min(len(self), most, max(1, SAMPLED_BYTES // max(1, row)))
        rows = np.arange(count) * len(self) // count if self.source is None else self.looked_at()
        step = max(1, SAMPLED_BYTES // 16 // max(1, row))
        return [self.gather(rows[at:at + step]) for at in range(0, len(rows), step)]

    def statistics(self) -> dict[str, Statistics]:
        """What the inputs of floating-point numbers look like as they are fed to the model, by a sample of rows."""
        batches = self.sample()
        found = {name: Statistics.of([b[i] for b in batches]) for i, (name, f) in enumerate(self.fields.items()) if kind_of(f.dtype) == "f"}
        return {name: s for name, s in found.items() if s is not None}

    def digest(self) -> str:
        """SHA-256 of names, sizes, types and, where the data are large, of rows that lie evenly in them."""
        found = hashlib.sha256(repr(self.classes).encode("utf-8", "surrogatepass"))
        for name, f in [*self.fields.items(), *([("", self.label)] if self.label is not None else []),
                        *self.more.items()]:
            found.update(f"{name}\0{f.array.dtype.str}{list(f.array.shape[1:])}{len(self)}".encode("utf-8", "surrogatepass"))
            count = min(len(self), max(1, SAMPLED_BYTES // max(1, f.array.dtype.itemsize * math.prod(f.array.shape[1:]))))
            in_memory = self.source is None or isinstance(f.array, Known)
            rows = np.arange(count) * len(self) // count if in_memory else self.looked_at()
            for start in range(0, len(rows), _CHUNK):
                at = rows[start:start + _CHUNK]
                found.update(np.ascontiguousarray(f.array[at if self.rows is None else self.rows[at]]).tobytes())
        return found.hexdigest()

    def part(self, rows: np.ndarray, name: str = "") -> Dataset:
        """The dataset of these rows only; nothing is copied."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows], name=name or self.name)

    def split(self, share: float, seed: int) -> tuple[Dataset, Dataset]:
        """Keep a random `share` of the rows apart: (the rest, the share), both in their original order."""
        n = len(self)
        if isinstance(self.source, RowStream):
            raise DataError(f"Data {self.name} come one after the other, so that no share of them can be kept apart: leave validation_split out, and "
                            "give test_data.")
        kept = min(max(round(n * share), 1), n - 1)
        if n < 2:
            raise DataError(f"Data {self.name} have one row, too few for a validation_split.")
        order = permutation(n, seed, 2**64 - 1)
        return self.part(np.sort(order[kept:])), self.part(np.sort(order[:kept]), f"{self.name} (validation)")

    def images_as_bytes(self, inputs: Mapping[str, TensorType]) -> Dataset:
        """A table that holds an image's pixels in every row, whole numbers from 0 to 255, as the bytes they are: what a file of images
        with the same pixels gives. Any other data as they are."""
        (name, field), *more = self.fields.items()
        pixels = len(self.columns) >= SMALLEST_IMAGE or any(t.rank > 2 for t in inputs.values())
        if more or not self.columns or not pixels or not _holds_bytes(field.array):
            return self
        return replace(self, fields={name: replace(field, array=_as_bytes(field.array, f"Data {self.name}"),
                                                   dtype=np.dtype(np.uint8))})

    def unscaled_bytes(self) -> list[str]:
        """A sentence for each input that is fed whole numbers from 0 to 255 as they are."""
        return [f"Input {name}: whole numbers from {np.min(f.array):g} to {np.max(f.array):g} are fed as they are; if they are the bytes of images, "
                f"--scale {1 / 255!r} brings them to 0..1." for name, f in self.fields.items()
                if kind_of(f.dtype) == "f" and f.scaling == Scaling() and _holds_bytes(f.array[self.looked_at()[:SAMPLED_ROWS]])]

    def adapt_to(self, inputs: Mapping[str, TensorType], label: TensorType | None = None, options: Options | None = None,
                 known: Mapping[str, Scaling] | None = None, more: Mapping[str, TensorType] | None = None) -> Dataset:
        """The dataset whose batches are what a model takes.

        Args:
            inputs: the model's inputs, [batch, ...] each. They are found by name; in order where the data have no names, or somebody chose the order.
            label: the type that the loss takes; None leaves the labels as they are.
            options: its scale, mean and std apply to the float inputs.
            known: by input the scaling that the model was trained with, for what the options leave open.
            more: the types of what else the loss takes; nothing else of that kind is fed.

        Raises DataError where inputs or fields are left over, shapes do not fit or numbers do not fit into whole-number types.
        """
        options = options or Options()
        fields, notes = self._matched(list(inputs))
        for name, wanted in inputs.items():
            fields[name], said = _fit(f"Input {name}", fields[name], wanted, self.byte_scale, options, (known or {}).get(name), scaled=True)
            notes += [*said, *doubts(f"Input {name}", fields[name].array, self.rows, fields[name].dtype)]
        target = self.label
        if label is not None and target is not None:
            target, said = _fit("The label", target, label, 1.0, options, None, scaled=False)
            notes += said
        others = {}
        for name, wanted in (more or {}).items():
            others[name], said = _fit(f"Array {name}", self.more[name], wanted, 1.0, options, None, scaled=False)
            notes += said
        return replace(self, fields=fields, label=target, more=others, columns=(), notes=(*self.notes, *notes))

    def samples(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """The shape of a row for each input of a model (DataError where the inputs cannot be told)."""
        return {name: field.sample for name, field in self.for_inputs(names).items()}

    def for_inputs(self, names: Sequence[str]) -> dict[str, Field]:
        """The field for each input of a model (DataError where the inputs cannot be told)."""
        return self._matched(names)[0]

    def _matched(self, names: Sequence[str]) -> tuple[dict[str, Field], list[str]]:
        """A field for each model input: by name, in order only where that is what the data have. One field is the only input's, whatever its name."""
        taken = [name for name in names if name in self.fields and not self.nameless]
        if len(taken) == len(names) == len(self.fields):
            return {name: self.fields[name] for name in names}, []
        if all(name in self.columns for name in names):
            table = next(iter(self.fields.values())).array
            return {name: Field.of(table[:, self.columns.index(name)], f"Column {name}") for name in names}, []
        if len(names) == len(self.fields) and (len(names) == 1 or self.nameless or self.ordered):
            rest = iter([name for name in self.fields if name not in taken])
            pairs = {name: name if name in taken else next(rest) for name in names}
            others = "Other inputs" if taken else "Inputs"
            said = ", ".join(f"{theirs} for {ours}" for ours, theirs in pairs.items() if ours not in taken)
            return {name: self.fields[pair] for name, pair in pairs.items()}, [f"{others} are taken in order: {said}."] if len(names) > 1 else []
        have = list(self.columns or self.fields)
        spare = [name for name in have if name not in names]
        what = (f"The model has no input for {', '.join(spare)}; it has inputs {', '.join(names)}" if len(taken) == len(names) else
                f"The model has inputs {', '.join(names)}; data {self.name} have {', '.join(have)}")
        raise DataError(f"{what}. Leave out what is not fed, or name the arrays or columns to use, in the order of the model's inputs, with the "
                        f"option inputs.{see('data-loading')}")


def _channels_first(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, -1, 1)


class _Rows:
    """Rows of arrays, as a worker reads them."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: np.ndarray) -> Batch:
        return self.dataset.gather(rows)


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    """Some rows at a time."""
    step = max(1, SAMPLED_BYTES // max(1, array.itemsize * math.prod(array.shape[1:])))
    return (array[start:start + step] for start in range(0, len(array), step))


def _as_bytes(array: np.ndarray, what: str) -> np.ndarray:
    """The array as uint8, in a temporary file where it is too large for memory."""
    in_memory = budget.fits(array.size)
    if not in_memory:
        require_room(array.size, what)
    with FilledArray(array.shape, np.dtype(np.uint8), what, in_memory) as made:
        for part in _parts(array):
            made.append(part)
        return made.finished()


def _holds_bytes(array: np.ndarray) -> bool:
    """Whole numbers from 0 to 255, not all of them in the lower half."""
    return bool(array.size) and 127 < np.max(array) <= 255 and np.min(array) >= 0 \
        and all(np.array_equal(part, np.trunc(part)) for part in _parts(array))


def permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    """A random order of 0..n-1 that depends on (seed, epoch) only: the ranks of Philox draws, stable across NumPy versions."""
    return np.argsort(Draws(seed, epoch).raw(n), kind="stable")


def _fit(what: str, field: Field, wanted: TensorType, byte_scale: float, options: Options, known: Scaling | None,
         scaled: bool) -> tuple[Field, list[str]]:
    """The field that gives batches of type `wanted`, and what was done for it."""
    if wanted.rank == 0:
        raise DataError(f"{what} of the model has no batch axis, so rows of data cannot be fed to it.")
    field, notes = _shaped(what, field, wanted.shape[1:])
    if not wanted.is_float:
        _check_whole(what, field.array, wanted.numpy)
        return replace(field, dtype=wanted.numpy), notes
    if not scaled:
        return replace(field, dtype=wanted.numpy), notes
    scaling, said = resolve(what, options, known, byte_scale if field.array.dtype == np.uint8 else 1.0)
    mean = _per_channel(what, "mean", scaling.mean, field.sample, wanted.numpy)
    std = _per_channel(what, "std", scaling.std, field.sample, wanted.numpy)
    return replace(field, dtype=wanted.numpy, scale=scaling.scale, mean=mean, std=std), [*notes, *said]


def _shaped(what: str, field: Field, sample: tuple[int, ...]) -> tuple[Field, list[str]]:
    """The field with another shape per row, where that keeps the meaning of the axes."""
    have = field.sample
    if have == sample:
        return field, []
    essential = [n for n in have if n != 1]
    if len(have) == 3 and (have[2], have[0], have[1]) == sample and have[2] > 1:
        moved = field.array.then(_channels_first) if isinstance(field.array, Column) else _channels_first(field.array)
        return replace(field, array=moved, sample=sample), [f"{what}: the data's channel axis is moved to the front."]
    flat = len(have) <= 1 or len(sample) <= 1
    if essential == [n for n in sample if n != 1] or (flat and math.prod(have) == math.prod(sample)):
        return replace(field, sample=sample), [f"{what}: rows of shape {list(have)} are reshaped to {list(sample)}."]
    raise DataError(f"{what} takes rows of shape {list(sample)} ({math.prod(sample)} values); the data's rows have shape "
                    f"{list(have)} ({math.prod(have)} values).")


def _check_whole(what: str, array: np.ndarray, dtype: np.dtype) -> None:
    """DataError unless every number is a whole one that `dtype` can hold; of a column those that may be looked at."""
    if isinstance(array, Column):
        array = array[array.looked_at()]
    if np.can_cast(array.dtype, dtype):
        return
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for start in range(0, len(array), _CHUNK):
        part = np.asarray(array[start:start + _CHUNK])
        bad = ~((part >= low) & (part <= high))          # NaN is bad as well
        if kind_of(part.dtype) == "f":
            bad |= part != np.trunc(part)
            if high >= 2**53:
                bad |= np.abs(part) >= 2.0**63
        if bad.any():
            at = np.unravel_index(int(bad.argmax()), bad.shape)
            raise DataError(f"{what} takes whole numbers ({dtype}); row {start + at[0]} of the data holds {part[at]}.")


def _per_channel(what: str, option: str, values: tuple[float, ...], sample: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """The numbers shaped to broadcast over a row: one, or one per channel (first axis, else last)."""
    if not values:
        return None
    numbers = np.array(values, dtype)
    if len(values) == 1:
        return numbers
    if sample and sample[0] == len(values):
        return numbers.reshape(-1, *[1] * (len(sample) - 1))
    if sample and sample[-1] == len(values):
        return numbers
    raise DataError(f"Option {option} has {len(values)} numbers; {what.lower()} has rows of shape {list(sample)}. "
                    "Give one number, or one per channel.")


def _listed(values: np.ndarray | None) -> tuple[float, ...]:
    """The numbers as short as their type allows: 0.1307, not 0.13070000708103180."""
    return () if values is None else tuple(float(str(v)) for v in values.ravel())
