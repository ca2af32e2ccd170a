"""From texts or pairs of texts to the inputs of a model: special tokens, truncation, padding, arrays.

The arguments have the names and meanings of a tokenizer's call in transformers.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizer.argument_checks import check_iterable, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypedDict

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.special_spellings import SpecialSet

    Text = str | bytes
    Inputs = dict[str, list[int] | list[list[int]] | npt.NDArray[np.int64]]

    class InputOptions(TypedDict, total=False):
        """The options of `Tokenizer.__call__`, which explains them."""

        add_special_tokens: bool
        padding: bool | Literal["longest", "max_length"]
        truncation: bool | Literal["longest_first", "only_first", "only_second"]
        max_length: int | None
        pad_to_multiple_of: int | None
        pad_token: str | None
        padding_side: Literal["left", "right"]
        truncation_side: Literal["left", "right"]
        return_tensors: Literal["np"] | None
        allowed_special: SpecialSet
        disallowed_special: SpecialSet

    # "A", "B" or ids, each with its token type.
    Template = list[tuple[str | list[int], int]]

PADDINGS = {False: None, True: "longest", "longest": "longest", "max_length": "max_length"}
TRUNCATIONS = {False: None, True: "longest_first"} | {
    name: name for name in ("longest_first", "only_first", "only_second")
}
# Spellings of padding tokens, for vocabularies whose file names none.
PADDING_TOKENS = ("<|pad|>", "[PAD]", "<pad>", "<|padding|>")


def template_of(processor: dict[str, Any] | None, pair: bool) -> Template:
    """Return the template of a checked post_processor for a text or a pair of texts.

    Raises ValueError if several of its steps add tokens.
    """
    plain: Template = [("A", 0), ("B", 1)] if pair else [("A", 0)]
    templates: list[Template] = []
    for step in _steps(processor):
        kind = step.get("type")
        if kind == "TemplateProcessing":
            templates.append([_template_piece(piece, step) for piece in step["pair" if pair else "single"]])
        elif kind in ("BertProcessing", "RobertaProcessing"):
            first, last = [step["cls"][1]], [step["sep"][1]]
            template: Template = [(first, 0), ("A", 0), (last, 0)]
            if pair:
                template += [("B", 1), (last, 1)] if kind == "BertProcessing" else [(last, 0), ("B", 0), (last, 0)]
            templates.append(template)
    if len(templates) > 1:
        raise ValueError("the tokenizer's post_processor adds tokens in several steps, which is not supported")
    return templates[0] if templates else plain


def _template_piece(piece: dict[str, Any], step: dict[str, Any]) -> tuple[str | list[int], int]:
    if "Sequence" in piece:
        return piece["Sequence"]["id"], piece["Sequence"]["type_id"]
    token = piece["SpecialToken"]
    return step["special_tokens"][token["id"]]["ids"], token["type_id"]


class InputMaker:
    """Makes the inputs of models from the ids of texts.

    encode: from a list of texts to their ids. post_processor: the checked field of tokenizer.json. padding: its field
    padding. special_tokens: ids by spelling. types: whether models of this vocabulary take token types.
    """

    def __init__(
        self,
        encode: Callable[..., list[list[int]]],
        post_processor: dict[str, Any] | None,
        padding: dict[str, Any],
        special_tokens: dict[str, int],
        types: bool,
    ):
        self._encode = encode
        self._post_processor = post_processor
        self._padding = padding
        self._special_tokens = special_tokens
        self._types = types

    def __call__(
        self,
        text: Text | Iterable[Text],
        text_pair: Text | Iterable[Text] | None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        pad_token: str | None = None,
        padding_side: str = "right",
        truncation_side: str = "right",
        return_tensors: str | None = None,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> Inputs:
        """Return the inputs, as `Tokenizer.__call__` explains."""
        pads, cuts = _choice("padding", padding, PADDINGS), _choice("truncation", truncation, TRUNCATIONS)
        for name, side in (("padding_side", padding_side), ("truncation_side", truncation_side)):
            _choice(name, side, {"left": "left", "right": "right"})
        _choice("return_tensors", return_tensors, {None: None, "np": "np"})
        if (cuts is not None or pads == "max_length") != (max_length is not None):
            raise ValueError("give max_length with truncation or padding='max_length', and only then")
        length = None if max_length is None else whole_number("max_length", max_length, 1)
        multiple = 1 if pad_to_multiple_of is None else whole_number("pad_to_multiple_of", pad_to_multiple_of, 1)
        if cuts and pads and length is not None and length % multiple:
            raise ValueError(f"max_length {length} is not a multiple of pad_to_multiple_of {multiple}")
        special: dict[str, Any] = {"allowed_special": allowed_special, "disallowed_special": disallowed_special}

        single = isinstance(text, (str, bytes))
        texts = _texts("text", text, single)
        pairs = None if text_pair is None else _texts("text_pair", text_pair, single)
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"text_pair has {len(pairs):,} texts, but text has {len(texts):,}")
        if cuts == "only_second" and pairs is None:
            raise ValueError("truncation='only_second' needs text_pair")
        template = self._template(pairs is not None, add_special_tokens)
        first = self._encode(texts, **special)
        second: list[list[int]] = [[] for _ in first] if pairs is None else self._encode(pairs, **special)
        if cuts and length is not None:
            room = length - sum(len(part) for part, _ in template if not isinstance(part, str))
            for number, (a, b) in enumerate(zip(first, second, strict=True)):
                try:
                    sizes = _sizes(len(a), len(b), room, cuts)
                except ValueError as error:
                    raise ValueError(f"text[{number}]: {error} (max_length {length})") from None
                for ids, size in zip((a, b), sizes, strict=True):
                    _cut(ids, size, truncation_side)
        columns = self._columns(template, first, second)
        if pads:
            width = length if pads == "max_length" and length else max(map(len, columns["input_ids"]), default=0)
            self._pad(columns, -(-width // multiple) * multiple, padding_side, self._pad_id(pad_token))
        if return_tensors:
            return _arrays(columns)
        return {name: lists[0] for name, lists in columns.items()} if single else dict(columns)

    def _template(self, pair: bool, add_special_tokens: bool) -> Template:
        processor = self._post_processor
        if add_special_tokens:
            return template_of(processor, pair)
        # Without special tokens, a TemplateProcessing still sets token types. The other processors do not.
        by_template = any(step.get("type") == "TemplateProcessing" for step in _steps(processor))
        template = template_of(processor if by_template else None, pair)
        return [(part, kind) for part, kind in template if isinstance(part, str)]

    def _columns(
        self, template: Template, first: list[list[int]], second: list[list[int]]
    ) -> dict[str, list[list[int]]]:
        """Return the rows of each key without padding."""
        rows, types = [], []
        for a, b in zip(first, second, strict=True):
            parts = [({"A": a, "B": b}[part] if isinstance(part, str) else part, kind) for part, kind in template]
            rows.append([i for ids, _ in parts for i in ids])
            types.append([kind for ids, kind in parts for _ in ids])
        masks = [[1] * len(row) for row in rows]
        return {"input_ids": rows} | ({"token_type_ids": types} if self._types else {}) | {"attention_mask": masks}

    def _pad(self, columns: dict[str, list[list[int]]], width: int, side: str, pad_id: int) -> None:
        """Pad rows to `width`, in place."""
        fillers = {"input_ids": pad_id, "token_type_ids": self._padding.get("pad_type_id", 0), "attention_mask": 0}
        for name, lists in columns.items():
            for row in lists:
                filler = [fillers[name]] * (width - len(row))
                row[:] = filler + row if side == "left" else row + filler

    def _pad_id(self, pad_token: str | None) -> int:
        if pad_token is not None:
            if pad_token not in self._special_tokens:
                raise ValueError(f"pad_token must be a special token of the vocabulary, not {pad_token!r}")
            return self._special_tokens[pad_token]
        if "pad_id" in self._padding:
            return int(self._padding["pad_id"])
        for spelling in PADDING_TOKENS:
            if spelling in self._special_tokens:
                return self._special_tokens[spelling]
        raise ValueError("the vocabulary has no padding token: pass pad_token= with one of its special tokens")


def _steps(processor: dict[str, Any] | None) -> list[dict[str, Any]]:
    processor = processor or {}
    return list(processor.get("processors", [processor]))


def _choice(name: str, value: Any, choices: dict[Any, str | None]) -> str | None:
    if not isinstance(value, (str, bool, type(None))) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, not {value!r}")
    return choices[value]


def _texts(name: str, value: Any, single: bool) -> list[Text]:
    if single:
        if not isinstance(value, (str, bytes)):
            raise ValueError(f"{name} must be a single text, as text is, not {value!r}")
        return [value]
    check_iterable(name, value, "texts")
    return list(value)


def _sizes(a: int, b: int, room: int, strategy: str) -> tuple[int, int]:
    """Return how many ids of each of two texts stay, at most `room` together, as `tokenizers` chooses them."""
    if room < 0:
        raise ValueError("the special tokens alone are too long")
    over = a + b - room
    if over <= 0:
        return a, b
    if room == 0:  # `tokenizers` then empties both texts, whatever the strategy
        return 0, 0
    if strategy == "longest_first":
        short, long = min(a, b), max(a, b)
        long = max(short, room - short)
        if short + long > room:
            short = room // 2
            long = short + room % 2
        return (long, short) if a > b else (short, long)
    cut = a if strategy == "only_first" else b
    if cut <= over:
        name = "first" if strategy == "only_first" else "second"
        raise ValueError(f"the {name} text has {cut:,} ids, too few to remove {over:,}; use truncation='longest_first'")
    return (a - over, b) if strategy == "only_first" else (a, b - over)


def _cut(ids: list[int], size: int, side: str) -> None:
    """Remove ids from one side until `size` are left."""
    if side == "right":
        del ids[size:]
    else:
        del ids[: len(ids) - size]


def _arrays(columns: dict[str, list[list[int]]]) -> Inputs:
    import numpy as np

    lengths = sorted({len(row) for row in columns["input_ids"]})
    if len(lengths) > 1:
        raise ValueError(
            f"the rows have {lengths[0]:,} to {lengths[-1]:,} ids, but an array needs equal lengths: pass padding=True"
        )
    width = lengths[0] if lengths else 0
    return {name: np.array(lists, dtype=np.int64).reshape(len(lists), width) for name, lists in columns.items()}
