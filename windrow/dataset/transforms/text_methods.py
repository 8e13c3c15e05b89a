"""The transform of Dataset and DatasetPipeline that makes token ids of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from windrow.core.errors import PlanError
from windrow.core.integers import as_integer, check_count
from windrow.dataset.argument_checks import check_names
from windrow.dataset.transforms.column_methods import ColumnMethods, ResourceOptions, take_resources
from windrow.pipeline.tasks.actor_pool import Compute
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.media.tokenize_text import TokenizeText, describe_wrong_text, load_tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

Self = TypeVar("Self", bound="TextMethods")


class MediaOptions(ResourceOptions, total=False):
    """Options of `map_batches` that ready-made transforms pass on."""

    batch_size: int | None
    compute: Compute | None


@dataclass(frozen=True, repr=False)
class TextMethods(ColumnMethods):
    """Base class of what has a logical plan to add transforms to."""

    def tokenize(
        self: Self,
        column: str,
        tokenizer: Any,
        *,
        output_column: str = "input_ids",
        max_length: int | None = None,
        padding: Literal["max_length"] | None = None,
        pad_id: int | None = None,
        add_special_tokens: bool = True,
        attention_mask: bool | str = False,
        keep_text: bool = False,
        **options: Unpack[MediaOptions],
    ) -> Self:
        """Turn a column of text into one of token ids, with a tokenizer of Hugging Face.

        The ids are a column of ``list<int32>``, which takes the place of the text: `pack` makes sequences of it, and
        ``iter_torch_batches(ragged=)`` says what becomes of lists of several lengths. Null stays null. Fast tokenizers
        get all rows of a batch in one call, which releases the GIL and runs on all cores; the variable
        TOKENIZERS_PARALLELISM of their library turns the latter off. Needs the extra ``tokenizers``, or
        ``transformers``.

        Parameters
        ----------
        column
            The column of text.
        tokenizer
            A tokenizer of ``transformers``, a ``tokenizers.Tokenizer``, the path of a ``tokenizer.json`` or of its
            directory, or a name on the Hugging Face Hub, which is loaded now. Of its own settings, truncation and
            padding are ignored, except for the sides on which they act.
        output_column
            The name of the column of ids.
        max_length
            The most ids of a row, special tokens included; the ids behind them are cut off. None: all.
        padding
            ``"max_length"``: rows are padded to ``max_length``; the column is then one of lists of a fixed size, so
            batches are (rows, max_length) arrays. None: rows keep their lengths.
        pad_id
            The id to pad with; None: that of the tokenizer.
        add_special_tokens
            Whether the tokenizer adds those that it puts around a text.
        attention_mask
            True, or the name of the column: also make a column ``attention_mask`` of int8, 1 for tokens and 0 for
            padding.
        keep_text
            Whether the text stays.
        **options
            ``batch_size``, ``compute``, ``num_cpus``, ``num_gpus``, ``memory`` and ``resources``, as in `map_batches`.

        Raises
        ------
        PlanError
            If an argument is invalid, the tokenizer cannot be loaded, or its library is not installed.

        Examples
        --------
        >>> import windrow
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"to": 1, "be": 2, "[UNK]": 0}, unk_token="[UNK]"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> ds = windrow.from_items([{"text": "to be"}, {"text": "to err"}, {"text": "be"}])
        >>> ds.tokenize("text", words).take()
        [{'input_ids': [1, 2]}, {'input_ids': [1, 0]}, {'input_ids': [2]}]
        >>> padded = ds.tokenize("text", words, max_length=3, padding="max_length", pad_id=9, attention_mask=True)
        >>> batch = padded.take_batch()
        >>> batch["input_ids"].tolist()
        [[1, 2, 9], [1, 0, 9], [2, 9, 9]]
        >>> batch["attention_mask"].tolist()
        [[1, 1, 0], [1, 1, 0], [1, 0, 0]]
        """
        self._check_input(column, "tokenize", partial(describe_wrong_text, column))
        for name, given in (("add_special_tokens", add_special_tokens), ("keep_text", keep_text)):
            check_bool(name, given)
        if max_length is not None:
            max_length = check_count(max_length, "max_length", "or None for all ids")
        loaded = load_tokenizer(tokenizer)
        pad = None
        if padding is not None:
            pad = _choose_pad(
                padding, max_length, loaded.pad_id if pad_id is None else as_integer(pad_id), pad_id
            )
        elif pad_id is not None:
            raise PlanError("pad_id= is for padding='max_length'")
        mask = "attention_mask" if attention_mask is True else attention_mask or None
        outputs = check_names([output_column] if mask is None else [output_column, mask], "tokenize")
        kept = column if keep_text else None
        if kept in outputs:
            raise PlanError(f"tokenize: keep_text=True, so the result needs another name than {kept!r}")
        fn = TokenizeText(column, loaded, outputs[0], mask, keep_text, add_special_tokens, max_length, pad)
        return self._made("tokenize", column, fn, False, options)

    def _check_input(self, column: str, caller: str, describe_wrong_type: Any) -> None:
        """Raise a PlanError for a column that does not exist or holds something else, where the schema is known."""
        (name,) = self._check_columns([column], caller)
        if self._known_columns() is not None:
            wrong = describe_wrong_type(self._plan.read_source.schema.field(name).type)
            if wrong is not None:
                raise PlanError(f"{caller}: column {name!r} {wrong}")

    def _made(
        self: Self,
        caller: str,
        column: str,
        fn: Any,
        rng: bool,
        options: MediaOptions,
        preserves_rows: bool = True,
    ) -> Self:
        return self._mapped(
            MapBatches(
                fn,
                "pyarrow",
                options.get("batch_size"),
                preserves_rows=preserves_rows,
                rng=rng,
                compute=options.get("compute"),
                resources=take_resources(options, MediaOptions, caller),
                call=f"{caller}({column!r})",
            )
        )


def check_bool(name: str, value: object) -> None:
    """Raise a PlanError unless a value is True or False."""
    if not isinstance(value, bool):
        raise PlanError(f"{name}={value!r} must be True or False")


def _choose_pad(padding: str, max_length: int | None, pad: int | None, given: object) -> int:
    if padding != "max_length":
        raise PlanError(
            f"padding={padding!r} must be 'max_length' or None; iter_torch_batches(ragged='pad') pads each batch to "
            "its longest row"
        )
    if max_length is None:
        raise PlanError("padding='max_length' needs max_length=")
    if pad is None:
        raise PlanError(
            "the tokenizer has no padding token: give pad_id="
            if given is None
            else f"pad_id={given!r} must be an integer"
        )
    return pad
